"""One run of a job: its context, its handler, its outcome, and who is told."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import logging
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timezone
from typing import Any, get_args, get_type_hints

import pytest
from asgiref.sync import sync_to_async
from django.conf import settings
from django.contrib.auth.models import Group
from django.core.cache import caches
from django.db import connection, connections, transaction
from django.dispatch import Signal
from django.test import override_settings
from django.utils import timezone as django_timezone
from django.utils import translation

from django_cronductor import signals
from django_cronductor.backends.base import Lease
from django_cronductor.exceptions import LeaseLost, Stopping
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.leases import HeldLease
from django_cronductor.runner import ErrorContext, ErrorReports, Run, RunContext, Runner
from django_cronductor.testing import ManualClock
from django_cronductor.testing.clock import START

PATIENCE = 10.0
"""Seconds after which something that should have happened has not."""
TTL = 30.0

nobody_waits_for_ever = pytest.mark.timeout(60)


class World:
    """A runner, and everything that it tells, in the order in which it tells it."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.events: list[tuple[Any, ...]] = []
        self.registry = JobRegistry()
        self.on_error: Callable[[BaseException, ErrorContext], object] | None = self._on_error
        self.runner = Runner(
            self.clock, self._release, ErrorReports(lambda error, context: self._report(error, context))
        )

    def _report(self, error: BaseException, context: ErrorContext) -> None:
        if self.on_error is not None:
            self.on_error(error, context)

    def _on_error(self, error: BaseException, context: ErrorContext) -> None:
        self.events.append(("on_error", error, context))

    def _release(self, held: HeldLease, outcome: str) -> None:
        held.ended = True
        self.events.append(("release", outcome))

    def run(self, handler: Callable[..., Any], *, timeout: float | None = None, **options: Any) -> Run:
        """Return a run of a new job, with its lease held, that was won 0.25 s after noon."""
        job = self.registry.schedule("0 12 * * *", handler, key=f"job-{len(self.registry)}", **options)
        lease = Lease(job.key, "token", 42, int(TTL * 1000), "me", 1)
        held = HeldLease(lease, self.clock.monotonic(), self.clock)
        context = RunContext(job.key, START, "schedule", "me", held, missed=3)
        return Run(job, context, held, timeout, 0.25)

    def execute(self, handler: Callable[..., Any], **options: Any) -> Run:
        """Run it to its end in this thread."""
        run = self.run(handler, **options)
        self.runner.execute(run)
        return run

    def lose(self, run: Run) -> None:
        """Let its lease go to another, as the loop does when it hears of it."""
        run.held.lose()
        run.cancel()

    @property
    def names(self) -> list[str]:
        """Return what happened, by name."""
        return [event[0] for event in self.events]

    def all(self, name: str) -> list[tuple[Any, ...]]:
        """Return what was told under that name, without the name."""
        return [event[1:] for event in self.events if event[0] == name]

    @property
    def outcome(self) -> str:
        """Return how the only run ended, as receivers and the store were told."""
        ((_, finished),) = self.all("job_finished")
        ((released,),) = self.all("release")
        assert finished["outcome"] == released
        return str(released)

    @property
    def error(self) -> BaseException | None:
        """Return what ended the only run, as receivers were told."""
        ((_, finished),) = self.all("job_finished")
        error: BaseException | None = finished["error"]
        return error


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    receivers: list[tuple[Signal, Callable[..., None]]] = []

    def listen(name: str, signal: Signal) -> None:
        def receive(sender: Job, signal: Signal, **details: Any) -> None:
            world.events.append((name, sender, details))

        receivers.append((signal, receive))
        signal.connect(receive)

    for name in ("job_started", "job_finished", "job_skipped"):
        listen(name, getattr(signals, name))
    yield world
    for signal, receive in receivers:
        signal.disconnect(receive)


@contextmanager
def receiving(signal: Signal, receive: Callable[..., Any]) -> Iterator[None]:
    signal.connect(receive, weak=False)
    try:
        yield
    finally:
        signal.disconnect(receive)


@contextmanager
def in_thread(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Do some work in a thread meanwhile, and wait for its end."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert not thread.is_alive()


def raising(error: BaseException) -> Callable[[], None]:
    def handler() -> None:
        raise error

    return handler


def generator() -> Iterator[bool]:
    yield False


async def async_generator() -> AsyncIterator[bool]:
    yield False


async def awaited_generator() -> Iterator[bool]:
    return generator()


class TestContext:
    def test_a_handler_that_takes_the_context_is_passed_what_the_run_knows_of_itself(self, world: World) -> None:
        def handler(context: RunContext) -> None:
            seen.append(context)
            flags.append((context.lease_lost, context.stopping))
            context.check()

        seen: list[RunContext] = []
        flags: list[tuple[bool, bool]] = []
        run = world.execute(handler, takes_context=True)
        (context,) = seen
        assert context is run.context
        assert flags == [(False, False)]
        assert context.key == "job-0"
        assert context.scheduled_at == datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
        assert (context.trigger, context.fencing_token, context.instance, context.missed) == ("schedule", 42, "me", 3)

    def test_a_lease_that_was_given_back_was_not_lost(self, world: World) -> None:
        seen: list[tuple[str, bool]] = []
        with (
            receiving(signals.job_started, lambda context, **details: seen.append(("started", context.lease_lost))),
            receiving(signals.job_finished, lambda context, **details: seen.append(("finished", context.lease_lost))),
        ):
            context = world.execute(lambda: None).context
        assert seen == [("started", False), ("finished", False)]
        context.check()

    def test_others_are_called_without_arguments(self, world: World) -> None:
        calls: list[tuple[Any, ...]] = []
        world.execute(lambda *args: calls.append(args))
        assert calls == [()]

    def test_it_knows_when_the_run_started_and_not_when_it_was_won(self, world: World) -> None:
        run = world.run(lambda: None)
        assert run.context.started_at == START
        world.clock.advance(7)
        world.runner.execute(run)
        assert run.context.started_at == datetime(2026, 1, 5, 12, 0, 7, tzinfo=timezone.utc)

    def test_check_raises_once_the_lease_is_lost(self, world: World) -> None:
        context = world.run(lambda: None).context
        world.clock.advance(TTL)
        assert context.lease_lost
        with pytest.raises(LeaseLost, match=r"job-0 is lost \(fencing token 42\)"):
            context.check()

    def test_check_raises_once_the_run_is_to_stop_and_says_why(self, world: World) -> None:
        context = world.run(lambda: None).context
        context.tell_to_stop("the process is shutting down")
        context.tell_to_stop("its timeout has passed")
        assert context.stopping
        with pytest.raises(Stopping, match="job-0 is to stop: the process is shutting down"):
            context.check()

    def test_a_lost_lease_is_the_graver_news(self, world: World) -> None:
        context = world.run(lambda: None).context
        context.tell_to_stop("the process is shutting down")
        world.clock.advance(TTL)
        with pytest.raises(LeaseLost):
            context.check()

    def test_its_repr_names_the_run(self, world: World) -> None:
        assert "job-0 for 2026-01-05 12:00:00+00:00 by schedule, fencing token 42" in repr(
            world.run(lambda: None).context
        )


class TestOutcome:
    def test_a_handler_that_returns_has_succeeded(self, world: World) -> None:
        world.execute(lambda: "anything")
        assert world.outcome == "succeeded"

    @pytest.mark.parametrize(
        "error", [ValueError("x"), SystemExit(3), SystemExit(0), KeyboardInterrupt(), MemoryError(), GeneratorExit()]
    )
    @pytest.mark.parametrize("is_async", [False, True])
    @nobody_waits_for_ever
    def test_whatever_a_handler_raises_fails_its_run_and_no_more(
        self, world: World, error: BaseException, is_async: bool
    ) -> None:
        async def handler() -> None:
            raise error

        world.execute(handler if is_async else raising(error))
        assert world.outcome == "failed"
        assert world.error is error

    def test_a_run_that_leaves_because_it_was_told_to_stop_is_interrupted(self, world: World) -> None:
        def handler(context: RunContext) -> None:
            context.tell_to_stop("the process is shutting down")
            context.check()

        world.execute(handler, takes_context=True)
        assert world.outcome == "interrupted"
        assert world.all("on_error") == []

    def test_a_run_that_finishes_although_it_was_told_to_stop_has_succeeded(self, world: World) -> None:
        world.execute(lambda context: context.tell_to_stop("the process is shutting down"), takes_context=True)
        assert world.outcome == "succeeded"

    def test_a_run_that_leaves_because_its_lease_is_lost_is_lost(self, world: World) -> None:
        def handler(context: RunContext) -> None:
            world.clock.advance(TTL)
            context.check()

        world.execute(handler, takes_context=True)
        assert world.outcome == "lost"
        assert world.all("on_error") == []

    @pytest.mark.parametrize("error", [None, ValueError("x"), Stopping("x")])
    def test_a_run_whose_lease_is_lost_before_its_end_is_lost_however_it_ends(
        self, world: World, error: Exception | None
    ) -> None:
        def handler() -> None:
            world.clock.advance(TTL)
            if error is not None:
                raise error

        world.execute(handler)
        assert world.outcome == "lost"

    def test_a_lease_that_is_lost_after_the_end_changes_nothing(self, world: World) -> None:
        with receiving(signals.job_finished, lambda **details: world.clock.advance(TTL)):
            run = world.execute(lambda: None)
        assert world.outcome == "succeeded"
        assert not run.held.lost

    @pytest.mark.parametrize("error", [None, ValueError("x"), Stopping("x"), LeaseLost("x")])
    def test_a_timeout_comes_before_everything_else(self, world: World, error: Exception | None) -> None:
        def handler() -> None:
            world.runner.expire(run)
            world.clock.advance(TTL)
            if error is not None:
                raise error

        run = world.run(handler, timeout=5)
        world.runner.execute(run)
        assert world.outcome == "timed out"

    def test_lease_lost_and_stopping_raised_without_cause_count_as_what_they_say(self, world: World) -> None:
        world.execute(raising(LeaseLost("x")))
        assert world.outcome == "failed"
        world.events.clear()
        world.execute(raising(Stopping("x")))
        assert world.outcome == "interrupted"

    def test_a_real_error_in_a_run_that_is_lost_is_not_swallowed(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        error = ValueError("x")

        def handler() -> None:
            world.clock.advance(TTL)
            raise error

        world.execute(handler)
        assert [one[0] for one in world.all("on_error")] == [error]
        assert caplog.records[-1].exc_info is not None

    def test_the_duration_is_measured_on_the_monotonic_clock(self, world: World) -> None:
        def handler() -> None:
            world.clock.advance(4.5)
            world.clock.set_time(START.timestamp() - 3600)

        world.execute(handler)
        ((_, finished),) = world.all("job_finished")
        assert finished["duration"] == 4.5


class TestEnd:
    def test_the_lease_is_released_once_and_before_anybody_hears_of_the_end(self, world: World) -> None:
        world.execute(lambda: world.events.append(("handler",)))
        assert world.names == ["job_started", "handler", "release", "job_finished"]

    def test_after_a_failure_too(self, world: World) -> None:
        world.execute(raising(ValueError("x")))
        assert world.names == ["job_started", "release", "on_error", "job_finished"]

    def test_signals_carry_what_they_document(self, world: World) -> None:
        error = ValueError("x")
        run = world.execute(raising(error))
        assert world.all("job_started") == [(run.job, {"context": run.context})]
        assert world.all("job_finished") == [
            (run.job, {"context": run.context, "outcome": "failed", "duration": 0.0, "error": error})
        ]

    @pytest.mark.parametrize("signal", [signals.job_started, signals.job_finished])
    @pytest.mark.parametrize("fails", [False, True])
    def test_a_receiver_that_raises_changes_nothing(self, world: World, signal: Signal, fails: bool) -> None:
        def receive(**details: Any) -> None:
            raise ValueError("a receiver's fault")

        with receiving(signal, receive):
            world.execute(raising(ValueError("x")) if fails else lambda: None)
        assert world.outcome == ("failed" if fails else "succeeded")

    @pytest.mark.parametrize("name", ["job_started", "job_finished", "job_skipped"])
    @pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
    def test_nor_does_one_that_exits_and_it_is_in_the_log(
        self, world: World, name: str, error: BaseException, caplog: pytest.LogCaptureFixture
    ) -> None:
        def receive(**details: Any) -> None:
            raise error

        with receiving(getattr(signals, name), receive):
            world.execute(lambda: world.events.append(("handler",)), when=lambda: name != "job_skipped")
        if name == "job_skipped":
            assert world.names == ["release", "job_skipped"]
        else:
            assert world.names == ["job_started", "handler", "release", "job_finished"]
            assert world.outcome == "succeeded"
        (record,) = caplog.records
        assert record.levelno == logging.ERROR
        assert record.getMessage() == f"A receiver of {name} exited: those after it are not told of job-0."
        assert record.exc_info is not None
        assert record.exc_info[1] is error

    def test_a_fault_of_our_own_releases_the_lease_all_the_same(
        self, world: World, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(run: Run, raised: BaseException | None) -> str:
            raise RuntimeError("a fault")

        monkeypatch.setattr(world.runner, "_outcome", fail)
        with pytest.raises(RuntimeError, match="a fault"):
            world.execute(lambda: None)
        assert world.all("release") == [("failed",)]

    def test_the_start_is_told_to_whoever_submitted_the_run(self, world: World) -> None:
        run = world.run(lambda: world.events.append(("handler",)))
        run.on_start = lambda: world.events.append(("on_start", run.started))
        world.runner.execute(run)
        assert world.names[:3] == ["on_start", "job_started", "handler"]
        assert world.all("on_start") == [(world.clock.monotonic(),)]


class TestCutOff:
    def test_a_run_that_was_cut_off_while_it_waited_is_not_started(self, world: World) -> None:
        run = world.run(lambda: world.events.append(("handler",)))
        world.runner.interrupt(run)
        world.runner.execute(run)
        assert world.names == ["job_finished", "release"]
        assert world.outcome == "interrupted"

    def test_a_run_that_is_cut_off_while_it_goes_on_is_reported_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        def handler() -> None:
            world.clock.advance(2)
            world.runner.interrupt(run)
            world.clock.advance(3)

        run = world.run(handler)
        world.runner.execute(run)
        assert world.outcome == "interrupted"
        ((_, finished),) = world.all("job_finished")
        assert (finished["duration"], finished["error"]) == (2.0, None)
        assert caplog.messages[-1] == "job-0 for 2026-01-05 12:00:00+00:00 has ended at last, 5.000 s after its start."

    def test_a_run_whose_lease_was_lost_while_it_waited_is_not_started(self, world: World) -> None:
        asked: list[bool] = []
        run = world.run(lambda: world.events.append(("handler",)), when=lambda: asked.append(True))
        world.clock.advance(TTL)
        world.runner.execute(run)
        assert world.names == ["release", "job_finished"]
        assert world.outcome == "lost"
        assert asked == []


class TestTimeout:
    def test_it_expires_from_its_start_on_and_not_from_its_win(self, world: World) -> None:
        def handler() -> None:
            expires.append(run.expires)

        expires: list[float | None] = []
        run = world.run(handler, timeout=5)
        assert run.expires is None
        world.clock.advance(60 - TTL - 1)
        world.runner.execute(run)
        assert expires == [world.clock.monotonic() + 5]

    def test_a_run_without_a_timeout_never_expires(self, world: World) -> None:
        run = world.execute(lambda: None)
        assert run.started is not None
        assert run.expires is None

    def test_a_handler_in_a_thread_is_told_and_its_lease_kept_until_it_ends(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        def handler(context: RunContext) -> None:
            world.clock.advance(5)
            world.runner.expire(run)
            world.runner.report_timeout(run)
            world.events.append(("still working", context.stopping))
            with pytest.raises(Stopping, match="its timeout has passed"):
                context.check()
            world.clock.advance(10)

        run = world.run(handler, timeout=5, takes_context=True)
        world.runner.execute(run)
        assert world.names == ["job_started", "job_finished", "still working", "release"]
        assert world.all("still working") == [(True,)]
        assert world.outcome == "timed out"
        assert run.expires is None
        assert [(record.levelno, record.getMessage()) for record in caplog.records[-2:]] == [
            (logging.WARNING, "job-0 for 2026-01-05 12:00:00+00:00 timed out after 5.000 s."),
            (logging.WARNING, "job-0 for 2026-01-05 12:00:00+00:00 has ended at last, 15.000 s after its start."),
        ]

    def test_a_handler_that_leaves_at_its_timeout_is_told_of_once(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        def handler(context: RunContext) -> None:
            world.clock.advance(5)
            world.runner.expire(run)
            world.runner.report_timeout(run)
            context.check()

        run = world.run(handler, timeout=5, takes_context=True)
        world.runner.execute(run)
        told = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
        assert told == ["job-0 for 2026-01-05 12:00:00+00:00 timed out after 5.000 s."]

    @nobody_waits_for_ever
    @pytest.mark.parametrize("reason", ["timeout", "lost lease"])
    def test_an_async_handler_is_cancelled_by_its_timeout_and_by_the_loss_of_its_lease(
        self, world: World, reason: str
    ) -> None:
        async def handler() -> None:
            entered.set()
            try:
                await asyncio.Event().wait()
            finally:
                world.events.append(("cleaned up",))

        def end() -> None:
            assert entered.wait(PATIENCE)
            if reason == "timeout":
                world.runner.expire(run)
            else:
                world.lose(run)

        entered = threading.Event()
        run = world.run(handler, timeout=5)
        with in_thread(end):
            world.runner.execute(run)
        assert world.names == ["job_started", "cleaned up", "release", "job_finished"]
        assert world.outcome == ("timed out" if reason == "timeout" else "lost")
        assert isinstance(world.error, asyncio.CancelledError)
        assert world.all("on_error") == []

    @nobody_waits_for_ever
    def test_an_async_handler_is_cancelled_though_the_timeout_passes_just_as_it_begins(self, world: World) -> None:
        async def work() -> None:
            await asyncio.Event().wait()

        @functools.wraps(work)
        def handler() -> Any:
            world.runner.expire(run)
            return work()

        run = world.run(handler, timeout=5)
        world.runner.execute(run)
        assert world.outcome == "timed out"
        assert isinstance(world.error, asyncio.CancelledError)

    @nobody_waits_for_ever
    def test_an_async_handler_that_will_not_be_cancelled_is_waited_for(self, world: World) -> None:
        async def handler() -> None:
            world.runner.expire(run)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                world.events.append(("stays",))
                await asyncio.sleep(0)
            world.events.append(("ends",))

        run = world.run(handler, timeout=5)
        world.runner.execute(run)
        assert world.names == ["job_started", "stays", "ends", "release", "job_finished"]
        assert world.outcome == "timed out"

    def test_cancelling_what_has_ended_or_is_not_async_does_nothing(self, world: World) -> None:
        async def handler() -> None:
            pass

        for run in (world.execute(handler), world.execute(lambda: None)):
            run.cancel()

    def test_a_cancellation_that_nobody_asked_for_is_a_failure(self, world: World) -> None:
        async def handler() -> None:
            raise asyncio.CancelledError

        world.execute(handler)
        assert world.outcome == "failed"
        assert len(world.all("on_error")) == 1


class TestCondition:
    @pytest.mark.parametrize("takes_context", [False, True])
    @pytest.mark.parametrize("is_async", [False, True])
    @pytest.mark.parametrize("answer", [True, False, None, 0, ""])
    def test_only_false_skips(self, world: World, takes_context: bool, is_async: bool, answer: object) -> None:
        def when(*args: Any) -> object:
            asked.append(args)
            return answer

        async def async_when(*args: Any) -> object:
            return when(*args)

        asked: list[tuple[Any, ...]] = []
        handler: Callable[..., None] = lambda *args: None  # noqa: E731
        run = world.execute(handler, when=async_when if is_async else when, takes_context=takes_context)
        assert asked == [(run.context,) if takes_context else ()]
        if answer is False:
            assert world.names == ["release", "job_skipped"]
        else:
            assert world.outcome == "succeeded"

    def test_it_is_asked_before_the_start_is_told_and_with_the_lease_held(self, world: World) -> None:
        def when() -> bool:
            world.events.append(("when", run.held.ended))
            return True

        run = world.run(lambda: None, when=when)
        world.runner.execute(run)
        assert world.names == ["when", "job_started", "release", "job_finished"]
        assert world.all("when") == [(False,)]

    @pytest.mark.parametrize(("latest", "outcome"), [(1.0, "missed"), (3.0, "succeeded"), (None, "succeeded")])
    def test_a_run_that_has_waited_for_a_worker_beyond_its_grace_is_missed(
        self, world: World, caplog: pytest.LogCaptureFixture, latest: float | None, outcome: str
    ) -> None:
        missed: list[dict[str, Any]] = []

        def hear(sender: Job, signal: Signal, **details: Any) -> None:
            missed.append(details)

        signals.job_missed.connect(hear)
        run = world.run(lambda: None)
        run.won, run.max_lateness = world.clock.monotonic(), latest
        world.clock.advance(2)
        world.runner.execute(run)
        signals.job_missed.disconnect(hear)
        assert world.all("release") == [(outcome,)]
        assert run.outcome is None or run.outcome == outcome
        if outcome == "missed":
            assert world.names == ["release"]
            assert missed == [{"key": "job-0", "scheduled_at": START, "count": 1}]
            (record,) = caplog.records
            assert (record.levelno, record.outcome) == (logging.WARNING, "missed")  # type: ignore[attr-defined]
            text = "job-0 missed 2026-01-05 12:00:00+00:00: no worker was free until it was too late."
            assert record.getMessage() == text
        else:
            assert missed == []

    def test_a_skipped_occurrence_is_told_with_its_reason(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.INFO):
            run = world.execute(lambda: world.events.append(("handler",)), when=lambda: False)
        assert world.events == [
            ("release", "condition"),
            (
                "job_skipped",
                run.job,
                {"key": "job-0", "scheduled_at": START, "reason": "condition", "holder": "me", "count": 1},
            ),
        ]
        (record,) = caplog.records
        assert (record.levelno, record.outcome) == (logging.INFO, "condition")  # type: ignore[attr-defined]

    @pytest.mark.parametrize("error", [ValueError("x"), SystemExit(3)])
    @pytest.mark.parametrize("is_async", [False, True])
    @nobody_waits_for_ever
    def test_its_error_fails_the_run_and_is_reported_in_its_phase_once(
        self, world: World, error: BaseException, is_async: bool
    ) -> None:
        async def when() -> bool:
            raise error

        run = world.execute(lambda: world.events.append(("handler",)), when=when if is_async else raising(error))
        assert world.names == ["release", "on_error", "job_finished"]
        assert world.outcome == "failed"
        assert world.all("on_error") == [(error, ErrorContext("when", run.job.key, "0 12 * * *", START))]

    @pytest.mark.parametrize("condition", [generator, async_generator, awaited_generator])
    def test_one_that_returns_a_generator_fails_the_run(self, world: World, condition: Callable[[], Any]) -> None:
        world.execute(lambda: world.events.append(("ran",)), when=functools.wraps(condition)(lambda: condition()))
        assert world.outcome == "failed"
        assert "ran" not in world.names
        ((error, context),) = world.all("on_error")
        assert "The condition returned" in str(error)
        assert context.phase == "when"

    def test_it_can_leave_as_a_handler_can(self, world: World) -> None:
        def when(context: RunContext) -> None:
            context.tell_to_stop("the process is shutting down")
            context.check()

        world.execute(lambda context: None, when=when, takes_context=True)
        assert world.names == ["release", "job_finished"]
        assert world.outcome == "interrupted"

    @pytest.mark.parametrize(
        ("end", "outcome"), [("expire", "timed out"), ("lose", "lost"), ("cut off", "interrupted")]
    )
    def test_a_run_that_is_over_by_the_time_it_has_answered_is_not_started(
        self, world: World, end: str, outcome: str
    ) -> None:
        def when() -> bool:
            if end == "expire":
                world.runner.expire(run)
                world.runner.report_timeout(run)
            elif end == "lose":
                world.lose(run)
            else:
                world.runner.interrupt(run)
            return True

        run = world.run(lambda: world.events.append(("handler",)), when=when, timeout=5)
        world.runner.execute(run)
        assert sorted(world.names) == ["job_finished", "release"]
        assert world.outcome == outcome

    def test_a_skipped_run_that_was_reported_as_cut_off_meanwhile_is_told_once(self, world: World) -> None:
        def release(held: HeldLease, outcome: str) -> None:
            world._release(held, outcome)
            world.runner.interrupt(run)

        world.runner = Runner(world.clock, release, ErrorReports(None))
        run = world.run(lambda: None, when=lambda: False)
        world.runner.execute(run)
        assert world.names == ["release", "job_finished"]

    @nobody_waits_for_ever
    def test_one_that_is_async_is_cancelled_by_the_timeout(self, world: World) -> None:
        async def when() -> bool:
            world.runner.expire(run)
            await asyncio.Event().wait()
            return True

        run = world.run(lambda: world.events.append(("handler",)), when=when, timeout=5)
        world.runner.execute(run)
        assert world.names == ["release", "job_finished"]
        assert world.outcome == "timed out"
        assert isinstance(world.error, asyncio.CancelledError)


class Callable_:  # noqa: N801
    """An object whose call is async."""

    def __init__(self, done: list[str]) -> None:
        self.done = done

    async def __call__(self) -> None:
        await asyncio.sleep(0)
        self.done.append("object")


class TestAsync:
    def awaited(self, world: World, make: Callable[[list[str]], Callable[..., Any]]) -> list[str]:
        done: list[str] = []
        world.execute(make(done))
        assert world.outcome == "succeeded"
        return done

    def test_a_coroutine_function_is_awaited(self, world: World) -> None:
        def make(done: list[str]) -> Callable[..., Any]:
            async def handler() -> None:
                await asyncio.sleep(0)
                done.append("function")

            return handler

        assert self.awaited(world, make) == ["function"]

    def test_a_partial_of_one_is_awaited(self, world: World) -> None:
        def make(done: list[str]) -> Callable[..., Any]:
            async def handler(text: str, more: str) -> None:
                await asyncio.sleep(0)
                done.append(text + more)

            return functools.partial(functools.partial(handler, "par"), more="tial")

        assert self.awaited(world, make) == ["partial"]

    def test_an_object_whose_call_is_async_is_awaited(self, world: World) -> None:
        assert self.awaited(world, Callable_) == ["object"]

    def test_a_bound_method_is_awaited(self, world: World) -> None:
        assert self.awaited(world, lambda done: Callable_(done).__call__) == ["object"]

    def test_a_plain_wrapper_around_one_is_awaited(self, world: World) -> None:
        def make(done: list[str]) -> Callable[..., Any]:
            async def handler() -> None:
                await asyncio.sleep(0)
                done.append("wrapped")

            @functools.wraps(handler)
            def wrapper(*args: Any) -> Any:
                return handler(*args)

            return wrapper

        assert self.awaited(world, make) == ["wrapped"]

    def test_a_wrapper_that_awaits_by_itself_is_called(self, world: World) -> None:
        def make(done: list[str]) -> Callable[..., Any]:
            async def handler() -> None:
                done.append("run by its wrapper")

            @functools.wraps(handler)
            def wrapper() -> None:
                asyncio.run(handler())

            return wrapper

        assert self.awaited(world, make) == ["run by its wrapper"]

    def test_an_async_handler_is_passed_the_context(self, world: World) -> None:
        async def handler(context: RunContext) -> None:
            seen.append(context)

        seen: list[RunContext] = []
        run = world.execute(handler, takes_context=True)
        assert seen == [run.context]

    def test_blocking_calls_of_an_async_handler_stay_in_the_runs_own_thread(self, world: World) -> None:
        async def handler() -> None:
            threads.append(await sync_to_async(threading.current_thread)())

        threads: list[threading.Thread] = []
        world.execute(handler)
        assert threads == [threading.current_thread()]

    def test_a_plain_function_that_returns_a_coroutine_has_failed_and_the_coroutine_is_closed(
        self, world: World
    ) -> None:
        async def work() -> None:
            world.events.append(("worked",))

        with warnings.catch_warnings():
            warnings.simplefilter("error")
            world.execute(lambda: work())
            gc.collect()
        assert world.outcome == "failed"
        ((error, context),) = world.all("on_error")
        assert isinstance(error, TypeError)
        assert "returned coroutine: declare an async function instead" in str(error)
        assert context.phase == "handler"
        assert "worked" not in world.names

    def test_so_has_one_that_returns_another_awaitable(self, world: World) -> None:
        class Awaitable:
            def __await__(self) -> Iterator[None]:
                yield

        world.execute(lambda: Awaitable())
        assert world.outcome == "failed"

    @pytest.mark.parametrize("func", [generator, async_generator, contextmanager(generator), awaited_generator])
    def test_so_has_one_that_returns_a_generator_of_which_nothing_was_run(
        self, world: World, func: Callable[[], Any]
    ) -> None:
        @functools.wraps(func)
        def logged() -> Any:
            return func()

        world.execute(logged)
        assert world.outcome == "failed"
        assert isinstance(world.error, TypeError)
        assert "which nobody goes through: do without yield, or go through it there" in str(world.error)

    def test_a_generator_that_was_begun_is_closed(self, world: World) -> None:
        def work() -> Iterator[None]:
            try:
                yield
            finally:
                world.events.append(("closed",))
                raise ValueError("x")

        def begin() -> Iterator[None]:
            work_begun.append(work())
            next(work_begun[0])
            return work_begun[0]

        work_begun: list[Iterator[None]] = []
        world.execute(begin)
        assert "closed" in world.names
        assert isinstance(world.error, TypeError)

    @pytest.mark.parametrize("value", [[1], {}, iter([1]), map(str, [1]), range(3), contextlib.nullcontext()])
    def test_what_else_a_handler_returns_does_not_matter(self, world: World, value: object) -> None:
        world.execute(lambda: value)
        assert world.outcome == "succeeded"

    @pytest.mark.skipif(
        sys.version_info < (3, 11), reason="on 3.10 an error inside asgiref holds its thread until a garbage collection"
    )
    @nobody_waits_for_ever
    def test_one_that_fails_leaves_no_thread_behind(self, world: World) -> None:
        async def handler() -> None:
            counts.append(threading.active_count())
            raise ValueError("x")

        counts: list[int] = []
        gc.collect()
        gc.disable()
        try:
            for _ in range(100):
                world.execute(handler)
                assert isinstance(world.error, ValueError)
                world.events.clear()
        finally:
            gc.enable()
        assert max(counts) <= counts[0] + 3, "one may be about to end while the next begins"

    @nobody_waits_for_ever
    def test_nor_does_one_whose_error_is_kept(self, world: World) -> None:
        async def handler() -> None:
            counts.append(threading.active_count())
            raise ValueError("x")

        counts: list[int] = []
        for _ in range(20):
            world.execute(handler)
        assert len(world.all("job_finished")) == 20
        assert max(counts) <= counts[0] + 3


class TestOnError:
    def test_it_is_called_with_the_error_and_where_it_came_from(self, world: World) -> None:
        error = ValueError("x")
        world.execute(raising(error))
        assert world.all("on_error") == [(error, ErrorContext("handler", "job-0", "0 12 * * *", START))]

    def test_it_is_not_called_for_a_run_without_an_error(self, world: World) -> None:
        world.execute(lambda: None)
        assert world.all("on_error") == []

    def test_without_one_errors_are_in_the_log(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        world.runner = Runner(world.clock, world._release, ErrorReports(None))
        world.execute(raising(ValueError("x")))
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "ValueError: x" in caplog.text

    @pytest.mark.parametrize("fault", [RuntimeError("a fault"), SystemExit(3)])
    def test_where_it_raises_itself_both_errors_are_logged_and_the_run_ends_as_it_would(
        self, world: World, caplog: pytest.LogCaptureFixture, fault: BaseException
    ) -> None:
        def on_error(error: BaseException, context: ErrorContext) -> None:
            raise fault

        world.on_error = on_error
        error = ValueError("x")
        world.execute(raising(error))
        assert world.outcome == "failed"
        logged = [record.exc_info and record.exc_info[1] for record in caplog.records]
        assert logged == [error, fault, error]
        for record in caplog.records:
            assert (record.job, record.scheduled_at) == ("job-0", START)  # type: ignore[attr-defined]

    @pytest.mark.parametrize("phase", ["acquire", "when", "handler", "renew", "release"])
    def test_it_can_be_called_for_every_phase(self, world: World, phase: Any) -> None:
        told: list[tuple[BaseException, ErrorContext]] = []
        error = ValueError("x")
        job = world.run(lambda: None).job
        ErrorReports(lambda *details: told.append(details)).report(error, phase, job, None)
        assert told == [(error, ErrorContext(phase, "job-0", "0 12 * * *", None))]

    def test_the_phases_are_these_and_no_others(self) -> None:
        phases = {"acquire", "when", "handler", "renew", "release"}
        assert set(get_args(get_type_hints(ErrorContext)["phase"])) == phases

    def test_a_heartbeat_is_of_no_job_and_not_reported(self, world: World) -> None:
        told: list[object] = []
        job = world.run(lambda: None).job
        ErrorReports(lambda *details: told.append(details)).report(ValueError("x"), "heartbeat", job, None)
        assert told == []


class TestLog:
    FIELDS = ("job", "scheduled_at", "outcome", "instance", "fencing_token", "duration", "lateness")

    def records(
        self, world: World, caplog: pytest.LogCaptureFixture, handler: Callable[..., Any], **options: Any
    ) -> list[tuple[Any, ...]]:
        with caplog.at_level(logging.INFO, "django_cronductor"):
            world.execute(handler, **options)
        return [
            (record.levelname, record.getMessage(), *(getattr(record, name) for name in self.FIELDS))
            for record in caplog.records
        ]

    def test_start_and_end_are_logged_with_all_fields(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        assert self.records(world, caplog, lambda: world.clock.advance(1.5)) == [
            ("INFO", "job-0 for 2026-01-05 12:00:00+00:00 started.", "job-0", START, None, "me", 42, None, 0.25),
            (
                "INFO",
                "job-0 for 2026-01-05 12:00:00+00:00 succeeded after 1.500 s.",
                "job-0",
                START,
                "succeeded",
                "me",
                42,
                1.5,
                0.25,
            ),
        ]

    def test_a_manual_run_is_logged_as_such(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        run = world.run(lambda: None)
        run.context.scheduled_at = None
        with caplog.at_level(logging.INFO, "django_cronductor"):
            world.runner.execute(run)
        assert caplog.messages == ["job-0 (manual) started.", "job-0 (manual) succeeded after 0.000 s."]

    def test_a_run_whose_condition_is_not_met_is_named_in_full(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        records = self.records(world, caplog, lambda: None, when=lambda: False)
        assert [text for _, text, *_ in records] == [
            "job-0 for 2026-01-05 12:00:00+00:00 skipped: its condition is not met."
        ]

    def test_a_failure_is_an_error_with_its_traceback(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        records = self.records(world, caplog, raising(ValueError("x")))
        assert records[-1] == (
            "ERROR",
            "job-0 for 2026-01-05 12:00:00+00:00 failed after 0.000 s.",
            "job-0",
            START,
            "failed",
            "me",
            42,
            0.0,
            0.25,
        )
        assert "ValueError: x" in caplog.text

    def test_a_lost_run_is_a_warning(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        records = self.records(world, caplog, lambda: world.clock.advance(TTL))
        assert records[-1][:2] == ("WARNING", "job-0 for 2026-01-05 12:00:00+00:00 lost after 30.000 s.")

    def test_a_run_that_left_when_asked_has_no_traceback(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        records = self.records(world, caplog, raising(Stopping("x")))
        assert records[-1][:2] == ("WARNING", "job-0 for 2026-01-05 12:00:00+00:00 interrupted after 0.000 s.")
        assert caplog.records[-1].exc_info is None

    def test_every_logger_is_under_that_of_the_package(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        self.records(world, caplog, raising(ValueError("x")))
        assert {record.name for record in caplog.records} == {"django_cronductor.runner"}


class TestSurroundings:
    @override_settings(TIME_ZONE="Europe/Berlin", LANGUAGE_CODE="de")
    def test_each_run_begins_with_the_default_time_zone_and_language(self, world: World) -> None:
        def handler() -> None:
            seen.append((django_timezone.get_current_timezone_name(), translation.get_language()))
            django_timezone.activate("Asia/Tokyo")
            translation.activate("fr")

        seen: list[tuple[str, str | None]] = []
        world.execute(handler)
        world.execute(handler)
        assert seen == [("Europe/Berlin", "de")] * 2

    @pytest.mark.parametrize("is_async", [False, True])
    def test_the_callers_time_zone_and_language_are_left_alone(self, world: World, is_async: bool) -> None:
        def handler() -> None:
            django_timezone.activate("Asia/Tokyo")
            translation.activate("fr")

        async def async_handler() -> None:
            handler()

        with django_timezone.override("Europe/Rome"), translation.override("it"):
            world.execute(async_handler if is_async else handler)
            assert django_timezone.get_current_timezone_name() == "Europe/Rome"
            assert translation.get_language() == "it"

    @pytest.mark.parametrize("is_async", [False, True])
    def test_context_variables_set_in_a_run_end_with_it(self, world: World, is_async: bool) -> None:
        def handler() -> None:
            seen.append(tenant.get())
            tenant.set("acme")

        async def async_handler() -> None:
            handler()

        seen: list[str] = []
        tenant = ContextVar("tenant", default="nobody")
        for _ in range(2):
            world.execute(async_handler if is_async else handler)
        assert seen == ["nobody"] * 2
        assert tenant.get() == "nobody"

    def test_those_set_in_the_condition_and_by_receivers_are_the_handlers_too(self, world: World) -> None:
        def receive(**details: Any) -> None:
            tenant.set(tenant.get() + " started")

        seen: list[str] = []
        tenant = ContextVar("tenant", default="nobody")
        with receiving(signals.job_started, receive):
            world.execute(lambda: seen.append(tenant.get()), when=lambda: bool(tenant.set("acme")))
        assert seen == ["acme started"]

    @pytest.mark.parametrize("is_async", [False, True])
    def test_the_clients_of_caches_are_kept_from_run_to_run(self, world: World, is_async: bool) -> None:
        def handler() -> None:
            seen.append(caches["default"])

        async def async_handler() -> None:
            handler()

        def work() -> None:
            for _ in range(2):
                world.execute(async_handler if is_async else handler)

        seen: list[object] = []
        with in_thread(work):
            pass
        assert len(seen) == 2
        assert seen[0] is seen[1]

    def test_a_cache_that_cannot_be_made_stops_no_run(self, world: World) -> None:
        broken = {"BACKEND": "no.such.Cache"}
        with override_settings(CACHES={"default": settings.CACHES["default"], "broken": broken}):
            world.execute(lambda: None)
        assert world.outcome == "succeeded"

    def test_where_translations_are_off_they_stay_off(self, world: World) -> None:
        with translation.override(None):
            world.execute(lambda: None)
            assert translation.get_language() is None

    def test_receivers_find_the_defaults_too(self, world: World) -> None:
        seen: list[str | None] = []
        with (
            translation.override("it"),
            receiving(signals.job_finished, lambda **details: seen.append(translation.get_language())),
        ):
            world.execute(lambda: None)
        assert seen == [settings.LANGUAGE_CODE]


@pytest.mark.django_db(transaction=True)
class TestDatabase:
    """In a thread, as a worker is: its connections are its own."""

    def work(self, work: Callable[[], object]) -> None:
        """Do this in a thread that leaves no connection behind."""

        def guarded() -> None:
            try:
                work()
            except BaseException as error:
                errors.append(error)
            finally:
                connections.close_all()

        errors: list[BaseException] = []
        with in_thread(guarded):
            pass
        if errors:
            raise errors[0]

    def test_no_connection_is_open_after_a_run(self, world: World) -> None:
        def check() -> None:
            world.execute(lambda: Group.objects.create(name="a"))
            assert world.outcome == "succeeded"
            assert connection.connection is None

        self.work(check)

    def test_nor_after_an_async_one(self, world: World) -> None:
        async def handler() -> None:
            await Group.objects.acreate(name="a")

        def check() -> None:
            world.execute(handler)
            assert world.outcome == "succeeded"
            assert connection.connection is None

        self.work(check)
        assert Group.objects.count() == 1

    def test_nor_after_one_that_failed(self, world: World) -> None:
        def handler() -> None:
            with transaction.atomic():
                Group.objects.create(name="a")
                raise ValueError("x")

        def check() -> None:
            world.execute(handler)
            assert connection.connection is None

        self.work(check)
        assert Group.objects.count() == 0

    def test_a_connection_that_may_live_on_is_kept_from_run_to_run(self, world: World) -> None:
        def check() -> None:
            connection.settings_dict["CONN_MAX_AGE"] = None
            try:
                for _ in range(2):
                    world.execute(lambda: seen.append((Group.objects.count(), connection.connection)[1]))
            finally:
                connection.settings_dict["CONN_MAX_AGE"] = 0

        seen: list[object] = []
        self.work(check)
        assert seen[0] is seen[1] is not None

    def test_one_that_broke_in_a_run_is_replaced_for_the_next(self, world: World) -> None:
        def handler() -> None:
            seen.append((Group.objects.count(), connection.connection)[1])
            connection.errors_occurred = True

        def check() -> None:
            connection.settings_dict["CONN_MAX_AGE"] = None
            connection.is_usable = lambda: False  # type: ignore[method-assign]
            try:
                world.execute(handler)
                world.execute(handler)
            finally:
                connection.settings_dict["CONN_MAX_AGE"] = 0

        seen: list[object] = []
        self.work(check)
        assert seen[0] is not seen[1]

    def test_one_that_broke_before_the_run_is_replaced_for_it(self, world: World) -> None:
        def check() -> None:
            connection.ensure_connection()
            before = connection.connection
            connection.errors_occurred = True
            connection.is_usable = lambda: False  # type: ignore[method-assign]
            world.execute(lambda: seen.append((Group.objects.count(), connection.connection)[1]))
            assert seen[0] is not before

        seen: list[object] = []
        self.work(check)

    def test_one_that_was_cut_between_runs_is_replaced_at_the_first_query_and_not_looked_at_before(
        self, world: World
    ) -> None:
        def look() -> bool:
            seen.append("looked at")
            return False

        def handler() -> None:
            seen.append("started")
            Group.objects.count()
            seen.append(connection.connection)

        def check() -> None:
            connection.settings_dict["CONN_MAX_AGE"] = None
            try:
                world.execute(handler)
                connection.is_usable = look  # type: ignore[method-assign]
                world.execute(handler)
                world.execute(lambda: None)
            finally:
                connection.settings_dict["CONN_MAX_AGE"] = 0

        seen: list[object] = []
        self.work(check)
        assert [what for what in seen if isinstance(what, str)] == ["started", "started", "looked at"]
        assert seen[1] is not seen[4]

    def test_one_that_has_failed_is_closed_without_being_asked_anything(self, world: World) -> None:
        def look() -> bool:
            raise AssertionError("this may take as long as the database hangs")

        def handler() -> None:
            Group.objects.count()
            connection.errors_occurred = True
            connection.is_usable = look  # type: ignore[method-assign]

        def check() -> None:
            connection.settings_dict["CONN_MAX_AGE"] = None
            try:
                world.execute(handler)
                assert connection.connection is None
            finally:
                connection.settings_dict["CONN_MAX_AGE"] = 0

        self.work(check)

    def test_a_connection_left_without_autocommit_is_not_passed_on(self, world: World) -> None:
        def handler() -> None:
            seen.append(transaction.get_autocommit())
            transaction.set_autocommit(False)
            Group.objects.create(name="never committed")

        seen: list[bool] = []
        self.work(lambda: (world.execute(handler), world.execute(handler)))
        assert seen == [True, True]
        assert Group.objects.count() == 0

    def test_a_transaction_that_was_left_open_is_rolled_back_and_not_passed_on(
        self, world: World, caplog: pytest.LogCaptureFixture
    ) -> None:
        def handler() -> None:
            transaction.atomic().__enter__()
            Group.objects.create(name="never committed")

        def check() -> None:
            world.execute(handler)
            world.execute(lambda: Group.objects.create(name="from the next run"))

        self.work(check)
        assert [group.name for group in Group.objects.all()] == ["from the next run"]
        assert "left a transaction open on database default: it is rolled back" in caplog.text

    def test_receivers_may_use_the_database_and_leave_nothing_open(self, world: World) -> None:
        def check() -> None:
            with receiving(signals.job_finished, lambda **details: Group.objects.create(name="a")):
                world.execute(lambda: None)
            assert connection.connection is None

        self.work(check)
        assert Group.objects.count() == 1

    @override_settings(DEBUG=True)
    def test_queries_kept_for_debugging_do_not_pile_up(self, world: World) -> None:
        def handler() -> None:
            seen.append(len(connection.queries))
            Group.objects.count()

        seen: list[int] = []
        self.work(lambda: (world.execute(handler), world.execute(handler)))
        assert seen == [0, 0]


@pytest.mark.django_db
@pytest.mark.parametrize("is_async", [False, True])
def test_in_a_transaction_of_a_test_a_run_uses_its_connection_and_leaves_it_open(world: World, is_async: bool) -> None:
    async def handler() -> None:
        await Group.objects.acreate(name="from the run")

    Group.objects.create(name="from the test")
    world.execute(handler if is_async else lambda: Group.objects.create(name="from the run"))
    assert world.outcome == "succeeded"
    assert {group.name for group in Group.objects.all()} == {"from the test", "from the run"}
    assert connection.in_atomic_block
