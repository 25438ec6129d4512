"""Run a job here and now, and make the context that a handler is passed."""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from unittest import mock

from django.dispatch import Signal

from django_cronductor import runner, signals
from django_cronductor.backends.base import MANUAL, Lease, new_token
from django_cronductor.clock import SystemClock
from django_cronductor.conf import get_config
from django_cronductor.jobs import Job, registry
from django_cronductor.leases import HeldLease
from django_cronductor.runner import ErrorPhase, ErrorReports, Outcome, Run, RunContext, Runner, Trigger
from django_cronductor.testing.clock import to_instant

INSTANCE = "test"


class ManualContext(RunContext):
    """The context of a run in a test, which decides what happens to it: see also `tell_to_stop`."""

    def lose_lease(self) -> None:
        """Make `lease_lost` true, as if another replica had taken over."""
        self._held.lose()


@dataclass(frozen=True)
class RunResult:
    """
    How a run ended: its outcome, what the handler returned, and what it raised.

    `value` is None where the handler was not called, or did not come to its end; `error` also holds what `when` raised.
    """

    outcome: str
    value: Any
    error: BaseException | None
    context: RunContext


def make_context(
    key: str = "test.job",
    *,
    scheduled_at: datetime | str | None = None,
    trigger: Trigger | None = None,
    missed: int = 0,
    lease_lost: bool = False,
    stopping: bool = False,
    fencing_token: int = 1,
) -> ManualContext:
    """
    Make a context to pass to a handler.

    `scheduled_at` is an aware datetime or text in ISO 8601. `trigger` is by default `schedule`, or `manual` where there
    is no `scheduled_at`.
    """
    instant = None if scheduled_at is None else to_instant(scheduled_at)
    run = MANUAL if instant is None else round(instant.timestamp() * 1000)
    held = HeldLease(Lease(key, new_token(), fencing_token, 30_000, INSTANCE, run), math.inf, SystemClock())
    context = ManualContext(
        key, instant, trigger or ("manual" if instant is None else "schedule"), INSTANCE, held, missed
    )
    if lease_lost:
        context.lose_lease()
    if stopping:
        context.tell_to_stop("a test said so")
    return context


def run_job(
    job: str | Job,
    *,
    scheduled_at: datetime | str | None = None,
    context: ManualContext | None = None,
    announce: bool = True,
    raise_errors: bool = False,
) -> RunResult:
    """
    Run a job in this thread, as runcron would, and return how that went: its handler, after `when`.

    No lock store and no history take part, and the job's `timeout` does not pass. `context` is one from `make_context`,
    for this run alone, where there is more to say than `scheduled_at`. With `announce=False` no receiver of a signal
    hears of the run, and ON_ERROR is not called. With `raise_errors` an error of the handler, or of `when`, is raised.
    Raises JobNotFound.
    """
    job = registry.get(job) if isinstance(job, str) else job
    if context is None:
        context = make_context(job.key, scheduled_at=scheduled_at)
    elif scheduled_at is not None:
        raise ValueError("Give scheduled_at to make_context, where the rest of the context is given.")
    elif context._held.ended:
        raise ValueError("The run of this context has ended: make another for the next.")
    noting = _Runner(ErrorReports(get_config().resolve_on_error() if announce else None))
    with surroundings(announce):
        noting.execute(Run(job, context, context._held))
    if raise_errors and noting.error is not None:
        raise noting.error
    return RunResult(noting.outcome, noting.value, noting.error, context)


class _Runner(Runner):
    """A runner of one run that keeps what it came to."""

    def __init__(self, errors: ErrorReports) -> None:
        super().__init__(SystemClock(), self._note_outcome, errors)
        self.outcome = ""
        self.value: Any = None
        self.error: BaseException | None = None

    def _note_outcome(self, held: HeldLease, outcome: str) -> None:
        held.ended = True
        self.outcome = outcome

    def _end(self, run: Run, outcome: Outcome, error: BaseException | None, phase: ErrorPhase) -> None:
        self.error = error
        if error is not None:
            self.value = None
        super()._end(run, outcome, error, phase)

    def _plain_call(self, run: Run, function: Callable[..., Any]) -> Any:
        result = super()._plain_call(run, function)
        if function is not run.job.handler:
            return result
        if inspect.isawaitable(result):
            return self._note_awaited(result) if run.job.is_async else result
        self.value = result
        return result

    async def _note_awaited(self, result: Awaitable[Any]) -> None:
        self.value = await result


@contextmanager
def surroundings(announce: bool) -> Iterator[None]:
    """Leave the test its database connections, and let receivers hear of what happens only if it is to be announced."""
    with ExitStack() as stack:
        for name in ("tidy_connections", "check_connections"):
            stack.enter_context(mock.patch.object(runner, name))
        for signal in () if announce else vars(signals).values():
            if isinstance(signal, Signal):
                stack.enter_context(mock.patch.object(signal, "send_robust", return_value=[]))
        yield
