"""One run of a job: its context, its handler, its outcome, and who is told."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from contextlib import _AsyncGeneratorContextManager, _GeneratorContextManager, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property, partial
from typing import Any, Literal, Protocol

from asgiref.sync import async_to_sync
from django.core.cache import caches
from django.db import connections, reset_queries
from django.dispatch import Signal
from django.utils import timezone as django_timezone
from django.utils import translation

from django_cronductor import leases, signals
from django_cronductor.clock import Clock
from django_cronductor.exceptions import LeaseLost, Stopping
from django_cronductor.handlers import Task, is_task
from django_cronductor.leases import HeldLease
from django_cronductor.logs import get_logger
from django_cronductor.records import History, RunRecord

logger = get_logger(__name__)

Trigger = Literal["schedule", "catch-up", "recover", "manual"]
ErrorPhase = Literal["acquire", "when", "handler", "renew", "release"]
Phase = ErrorPhase | leases.Phase
Outcome = Literal["succeeded", "enqueued", "failed", "timed out", "lost", "interrupted", "condition", "missed"]


GENERATOR_MANAGERS = (_GeneratorContextManager, _AsyncGeneratorContextManager)
"""What functions return that `contextmanager` and `asynccontextmanager` decorate."""
SOON = 1.0
"""Seconds after its timeout within which the end of a run is no news."""

Tell = Callable[[Callable[[], object]], object]
"""Calls what it is given, here or elsewhere, now or soon."""


def call_now(call: Callable[[], object]) -> None:
    """Call it here and now."""
    call()


class RunnableJob(Protocol):
    """What a run needs to know of a job."""

    @property
    def key(self) -> str: ...

    @property
    def expression(self) -> str: ...

    @property
    def handler(self) -> Callable[..., Any] | Task: ...

    @property
    def when(self) -> Callable[..., Any] | None: ...

    @property
    def takes_context(self) -> bool: ...

    @property
    def is_async(self) -> bool: ...


class RunContext:
    """
    What a run knows of itself; passed to a handler declared with `takes_context=True`.

    `scheduled_at` and `started_at` are aware datetimes in UTC; `scheduled_at` is None for a manual run. `lateness` is
    from the one to the other in seconds, by the store's clock; 0 for a manual run. `missed` counts the occurrences that
    this one stands for besides itself (at most 1,000). `task_result_id` is that of the task that was enqueued, if
    the handler is a task.
    """

    def __init__(
        self,
        key: str,
        scheduled_at: datetime | None,
        trigger: Trigger,
        instance: str,
        held: HeldLease,
        missed: int = 0,
    ) -> None:
        self.key = key
        self.scheduled_at = scheduled_at
        self.started_at = now_of(held.clock)
        self.trigger: Trigger = trigger
        self.fencing_token = held.lease.fence
        self.instance = instance
        self.missed = missed
        self.lateness = 0.0
        self.task_result_id = ""
        self._held = held
        self._told_to_stop: str | None = None

    def __repr__(self) -> str:
        return (
            f"<RunContext of {self.key} for {self.scheduled_at} by {self.trigger}, fencing token {self.fencing_token}>"
        )

    @property
    def lease_lost(self) -> bool:
        """Tell whether the lease was lost in this run: another may be running the job. Once true, it stays so."""
        return self._held.lost

    @property
    def stopping(self) -> bool:
        """Tell whether the run is to end soon: the process shuts down, or the run's timeout has passed."""
        return self._told_to_stop is not None

    def check(self) -> None:
        """Raise LeaseLost or Stopping if this run should not go on: call it where the work may be left."""
        if self.lease_lost:
            raise LeaseLost(
                f"The lease of {self.key} is lost (fencing token {self.fencing_token}): another may run it."
            )
        if self._told_to_stop is not None:
            raise Stopping(f"{self.key} is to stop: {self._told_to_stop}.")

    def tell_to_stop(self, reason: str) -> None:
        """Make `stopping` true."""
        self._told_to_stop = self._told_to_stop or reason


@dataclass(frozen=True)
class ErrorContext:
    """Where an error that `ON_ERROR` is called with came from."""

    phase: ErrorPhase
    key: str
    expression: str
    scheduled_at: datetime | None


@dataclass(eq=False)
class Run:
    """A run in progress, from its win to the answer of its release."""

    job: RunnableJob
    context: RunContext
    held: HeldLease
    timeout: float | None = None
    """Seconds, or None."""
    lateness: float = 0.0
    """Seconds from the scheduled instant, on the store's clock, to the win; once the run has started, to its start."""
    won: float | None = None
    """When it was won, on the monotonic clock."""
    max_lateness: float | None = None
    """How late it may start, in seconds; None: however late."""
    on_start: Callable[[], object] | None = None
    record: RunRecord | None = None
    """What the history was told at its start; None where there is none."""

    def __post_init__(self) -> None:
        self.pid = 0
        """The process in which it was begun."""
        self.started: float | None = None
        self.timed_out = False
        self.interrupted = False
        self.loss_told = False
        self.reported = False
        self.outcome: str | None = None
        """Once it is reported."""
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None
        self._cancelled = False

    @property
    def expires(self) -> float | None:
        """Return when its timeout passes, on the monotonic clock, if that is still to come."""
        if self.timeout is None or self.started is None or self.timed_out or self.reported:
            return None
        return self.started + self.timeout

    @property
    def is_over(self) -> bool:
        """Tell whether its handler is not to be started any more."""
        return self.timed_out or self.interrupted or self.held.lost

    @property
    def is_too_late(self) -> bool:
        """Tell whether it has waited for a worker until its grace was over."""
        return self.max_lateness is not None and self.lateness > self.max_lateness

    @cached_property
    def name(self) -> str:
        """Name it in the text of log records."""
        instant = self.context.scheduled_at
        return f"{self.job.key} (manual)" if instant is None else f"{self.job.key} for {instant}"

    def report_once(self) -> bool:
        """Tell the first caller, and no other, that the run's end is its to report."""
        with self._lock:
            first, self.reported = not self.reported, True
            return first

    def cancel(self) -> None:
        """Cancel the handler if it is async; a thread can only be told."""
        with self._lock:
            self._cancelled = True
            if self._cancel is not None:
                self._cancel()

    def cancellable(self, cancel: Callable[[], object] | None) -> None:
        """Say how the handler can be cancelled from another thread, or that it no longer can."""
        with self._lock:
            self._cancel = cancel
            if cancel is not None and self._cancelled:
                cancel()


class ErrorReports:
    """Calls ON_ERROR, where there is one, with errors that are in the log already."""

    def __init__(self, on_error: Callable[[BaseException, ErrorContext], object] | None) -> None:
        self._on_error = on_error

    def report(self, error: BaseException, phase: Phase, job: RunnableJob, scheduled_at: datetime | None) -> None:
        """Report an error of one job in one phase; a heartbeat is of none."""
        if self._on_error is None or phase == "heartbeat":
            return
        try:
            self._on_error(error, ErrorContext(phase, job.key, job.expression, scheduled_at))
        except BaseException:  # It is user code, and nothing that it raises may end a run or a loop.
            extra = {"job": job.key, "scheduled_at": scheduled_at}
            logger.exception("ON_ERROR failed on an error of %s in phase %s.", job.key, phase, extra=extra)
            logger.error("The error of %s that ON_ERROR was called with:", job.key, exc_info=error, extra=extra)


class Runner:
    """
    Runs handlers, decides their outcomes, and tells logs, signals and ON_ERROR.

    `release(held, outcome)` is called once when a handler has ended. Database connections are closed around each run,
    and each begins with the default time zone and language. What a run sets in context variables ends with it.
    """

    def __init__(
        self,
        clock: Clock,
        release: Callable[[HeldLease, str], None],
        errors: ErrorReports,
        history: History | None = None,
    ) -> None:
        self._clock = clock
        self._release = release
        self._errors = errors
        self._history = history

    def execute(self, run: Run) -> None:
        """Run it in this thread."""
        try:
            make_clients(run.job.handler)
            call_with_defaults(partial(self._run, run))
        finally:
            self._give_back(run, "failed")  # Only a fault of ours comes here with the lease still held.

    def expire(self, run: Run) -> None:
        """Tell a run that its timeout has passed; its lease is renewed for as long as its handler lives."""
        run.timed_out = True
        run.context.tell_to_stop("its timeout has passed")
        run.cancel()

    def report_timeout(self, run: Run, tell: Tell = call_now) -> None:
        """Report a run as timed out, though its handler may live on; receivers hear of it through `tell`."""
        self._finish(run, "timed out", None, tell=tell)

    def interrupt(self, run: Run, tell: Tell = call_now) -> None:
        """Report a run as cut off by the end of the process; receivers hear of it through `tell`."""
        run.interrupted = True
        self._finish(run, "interrupted", None, tell=tell)

    def _run(self, run: Run) -> None:
        if run.interrupted:  # Cut off while it waited for a worker.
            self._give_back(run, "interrupted")
            return
        run.pid = os.getpid()
        run.started = self._clock.monotonic()
        run.lateness += 0.0 if run.won is None else run.started - run.won
        if run.on_start is not None:
            run.on_start()
        run.context.started_at = now_of(self._clock)
        run.context.lateness = 0.0 if run.context.scheduled_at is None else run.lateness
        if run.is_too_late and not run.is_over:
            self._miss(run)
            return
        try:
            wanted = run.is_over or self._condition(run)
        except BaseException as error:  # noqa: BLE001 - Whatever it raises, the run is over.
            leave_if_forked(run.pid, error)
            self._end(run, self._outcome(run, error), error, "when")
            return
        if run.is_over:  # Its lease was lost while it waited for a worker, or the condition took too long.
            self._end(run, self._outcome(run, None), None, "when")
        elif wanted:
            self._start(run)
        else:
            self._skip(run)

    def _start(self, run: Run) -> None:
        logger.info("%s started.", run.name, extra=log_fields(run))
        tell_receivers("job_started", run, context=run.context)
        raised = self._handle(run)
        leave_if_forked(run.pid, raised)
        self._end(run, self._outcome(run, raised), raised, "handler")

    def _end(self, run: Run, outcome: Outcome, error: BaseException | None, phase: ErrorPhase) -> None:
        # The lease goes first: who listens for the end may be slow, and the next occurrence is not to wait for them.
        self._give_back(run, outcome)
        self._finish(run, outcome, error, phase)

    def _give_back(self, run: Run, outcome: Outcome) -> None:
        if not run.held.ended:
            self._release(run.held, outcome)

    def _condition(self, run: Run) -> bool:
        if run.job.when is None:
            return True
        answer = self._call(run, run.job.when)
        leave_if_forked(run.pid)
        refuse_generator(answer, "The condition")
        return answer is not False

    def _skip(self, run: Run) -> None:
        if self._call_off(run, "condition", "%s skipped: its condition is not met.", run.name):
            at, holder = run.context.scheduled_at, run.context.instance
            details = {"scheduled_at": at, "reason": "condition", "holder": holder, "count": 1}
            tell_receivers("job_skipped", run, key=run.job.key, **details)

    def _miss(self, run: Run) -> None:
        at = run.context.scheduled_at
        if self._call_off(run, "missed", "%s missed %s: no worker was free until it was too late.", run.job.key, at):
            tell_receivers("job_missed", run, key=run.job.key, scheduled_at=at, count=1)

    def _call_off(self, run: Run, outcome: Outcome, text: str, *words: object) -> bool:
        """Give a run back that is not to be; tell whether that is to be reported."""
        self._give_back(run, outcome)
        if not run.report_once():
            return False
        self._record(run, outcome, 0.0, None)
        logger.log(level_of(outcome), text, *words, extra=log_fields(run, outcome))
        return True

    def _handle(self, run: Run) -> BaseException | None:
        try:
            handler: Any = run.job.handler
            if is_task(handler):
                self._enqueue(run, handler)
            elif run.job.is_async:
                refuse_generator(self._call(run, handler))
            else:
                refuse_unfinished(self._plain_call(run, handler))
        except BaseException as error:  # noqa: BLE001 - Whatever a handler raises, SystemExit included, ends its run alone.
            return error
        return None

    def _enqueue(self, run: Run, task: Task) -> None:
        result = task.enqueue()
        refuse_unfinished(result)
        run.context.task_result_id = str(getattr(result, "id", ""))

    def _plain_call(self, run: Run, function: Callable[..., Any]) -> Any:
        return function(run.context) if run.job.takes_context else function()

    def _call(self, run: Run, function: Callable[..., Any]) -> Any:
        """Call it, and await what it returns if that is awaitable, on a loop that blocks this thread alone."""

        async def main() -> tuple[Any, BaseException | None]:
            loop, task = asyncio.get_running_loop(), asyncio.current_task()
            assert task is not None
            run.cancellable(lambda: loop.call_soon_threadsafe(task.cancel))
            try:
                value = await result
                leave_if_forked(run.pid)  # Here already: the loop and what it waits on are the parent's, too.
                return value, None
            except BaseException as error:  # noqa: BLE001 - It is raised outside.
                leave_if_forked(run.pid, error)
                trace = error.__traceback__
                # Without this frame, which knows the task and so all of asgiref's.
                return None, error.with_traceback(trace and trace.tb_next)
            finally:
                run.cancellable(None)

        result = self._plain_call(run, function)
        if not inspect.isawaitable(result):
            return result
        value, error = async_to_sync(main)()
        if error is None:
            return value
        try:
            # Not through asgiref, whose frames would hold the error, and with it a thread, until a garbage collection.
            raise error
        finally:
            del error

    def _record(self, run: Run, outcome: Outcome, duration: float, error: BaseException | None) -> None:
        run.outcome = outcome
        if self._history is not None and run.record is not None:
            started_at = run.context.started_at
            lateness = 0.0 if run.record.slot is None else run.lateness
            end = replace(run.record, started_at=started_at, lateness=lateness, outcome=outcome)
            end.duration, end.error, end.task_result_id = duration, error, run.context.task_result_id
            self._history.ended(end)

    def _outcome(self, run: Run, error: BaseException | None) -> Outcome:
        if run.timed_out:
            return "timed out"
        if run.held.lost:
            return "lost"
        if run.interrupted or isinstance(error, Stopping):
            return "interrupted"
        if error is not None:
            return "failed"
        return "enqueued" if is_task(run.job.handler) else "succeeded"

    def _finish(
        self,
        run: Run,
        outcome: Outcome,
        error: BaseException | None,
        phase: ErrorPhase = "handler",
        tell: Tell = call_now,
    ) -> None:
        duration = max(0.0, self._clock.monotonic() - run.started) if run.started is not None else 0.0
        fields = log_fields(run, outcome, duration)
        if not run.report_once():
            promptly = run.timed_out and run.timeout is not None and duration < run.timeout + SOON
            level = logging.DEBUG if promptly else logging.WARNING
            logger.log(level, "%s has ended at last, %.3f s after its start.", run.name, duration, extra=fields)
            return
        self._record(run, outcome, duration, error)
        asked_for = outcome != "failed" and isinstance(error, (LeaseLost, Stopping, asyncio.CancelledError))
        unexpected = None if asked_for else error
        text = "%s %s after %.3f s."
        logger.log(level_of(outcome), text, run.name, outcome, duration, exc_info=unexpected, extra=fields)
        if unexpected is not None:
            self._errors.report(unexpected, phase, run.job, run.context.scheduled_at)
        details = {"context": run.context, "outcome": outcome, "duration": duration, "error": error}
        tell(partial(tell_receivers, "job_finished", run, **details))


def make_clients(handler: object) -> None:
    """
    Make this thread's clients of the caches, and of a task's queue.

    Each lives in a context, and one first made in a run's ends with it.
    """
    for alias in caches:
        with suppress(Exception):  # Who uses it will see.
            caches[alias]
    if is_task(handler):
        with suppress(Exception):
            handler.get_backend()


def call_with_defaults(call: Callable[[], object]) -> None:
    """
    Call it with fresh database connections and the default time zone and language, and leave none of its own.

    It has a context of its own: what it sets there is no affair of the next call.
    """
    opened = connections.all(initialized_only=True)
    in_use = {connection.alias for connection in opened if connection.in_atomic_block}
    if opened:
        tidy_connections(in_use)
        check_connections(in_use)
        reset_queries()
    try:
        contextvars.copy_context().run(_call_in_default_zone, call)
    finally:
        tidy_connections(in_use)


def _call_in_default_zone(call: Callable[[], object]) -> None:
    django_timezone.deactivate()
    translation.deactivate()
    call()


def tidy_connections(in_use: Collection[str]) -> None:
    """Do as Django does around a request, but leave those in use: the transaction of a test goes on after the run."""
    for connection in connections.all(initialized_only=True):
        if connection.alias in in_use:
            continue
        if connection.in_atomic_block:
            logger.error("A run left a transaction open on database %s: it is rolled back.", connection.alias)
            connection.close()
            del connections[connection.alias]  # Nobody will end it, and until then it could not be used.
        elif connection.errors_occurred:
            connection.close()  # To ask whether it is usable might take as long as the database hangs.
        else:
            connection.close_if_unusable_or_obsolete()


def check_connections(in_use: Collection[str]) -> None:
    """Have connections that live on looked at, whatever CONN_HEALTH_CHECKS says, at the first query of a run."""
    for connection in connections.all(initialized_only=True):
        # While nobody has queried for long, a server or a firewall may have cut it.
        if connection.connection is not None and connection.alias not in in_use:
            connection.health_check_enabled = True  # type: ignore[attr-defined]
            connection.health_check_done = False  # type: ignore[attr-defined]


def tell_receivers(name: str, run: Run, **details: object) -> None:
    """Send a signal about a run; nothing that a receiver raises changes the run."""
    send(name, run.job, log_fields(run), **details)


def send(name: str, job: object, fields: dict[str, object], **details: object) -> None:
    """Send a signal of that name; nothing that a receiver raises comes out. `fields` are for the log."""
    signal: Signal = getattr(signals, name)
    try:
        signal.send_robust(sender=job, **details)
    except BaseException:  # It lets SystemExit and its kin through.
        text = "A receiver of %s exited: those after it are not told of %s."
        logger.exception(text, name, fields["job"], extra=fields)


def refuse_unfinished(
    result: object, who: str = "The handler", advice: str = "declare an async function instead"
) -> None:
    """Raise TypeError for what nobody would await, or go through: the work of the function was not done."""
    refuse_generator(result, who)
    if not inspect.isawaitable(result):
        return
    if inspect.iscoroutine(result):
        result.close()
    raise TypeError(f"{who} is not async but returned {type(result).__name__}: {advice}.")


def refuse_generator(result: object, who: str = "The handler") -> None:
    """Raise TypeError for a generator, also an async one and one that is to be a context manager."""
    if inspect.isgenerator(result):
        with suppress(Exception):  # What it was at when it was left is its own affair.
            result.close()
    elif not inspect.isasyncgen(result) and not isinstance(result, GENERATOR_MANAGERS):
        return
    text = "{} returned {}, which nobody goes through: do without yield, or go through it there."
    raise TypeError(text.format(who, type(result).__name__))


def leave_if_forked(pid: int, error: BaseException | None = None) -> None:
    """
    End this process at once if it is not the one of that id, but a child that user code has forked and let come back.

    The run, its lease, its connections and all threads are the parent's. `error` is what the child came back with.
    """
    if os.getpid() == pid:
        return
    code = 1
    try:
        code = _exit_code(error)
        sys.stdout.flush()
    finally:
        os._exit(code)


def _exit_code(error: BaseException | None) -> int:
    """Return what Python's own exit would, and print what it would print."""
    code = error.code if isinstance(error, SystemExit) else error
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    text = "".join(traceback.format_exception(code)) if code is error else f"{code}\n"
    os.write(2, text.encode(errors="replace"))  # Another thread may have had the lock of sys.stderr at the fork.
    return 1


def now_of(clock: Clock) -> datetime:
    """Return a clock's wall time as an aware datetime in UTC."""
    return datetime.fromtimestamp(clock.time(), timezone.utc)


def level_of(outcome: Outcome) -> int:
    """Return how loudly the log tells of an outcome."""
    if outcome in ("succeeded", "enqueued", "condition"):
        return logging.INFO
    return logging.ERROR if outcome == "failed" else logging.WARNING


def log_fields(run: Run, outcome: Outcome | None = None, duration: float | None = None) -> dict[str, object]:
    """Return the structured fields of a log record about a run: always all of them."""
    context = run.context
    return {
        "job": context.key,
        "scheduled_at": context.scheduled_at,
        "instance": context.instance,
        "fencing_token": context.fencing_token,
        "lateness": run.lateness,
        "outcome": outcome,
        "duration": duration,
    }
