"""What users' tests are given: jobs run now, schedules asked, a scheduler on a clock that a test moves, local locks."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection
from django.test import SimpleTestCase, TestCase, TransactionTestCase, override_settings

from django_cronductor import (
    ConfigurationError,
    JobNotFound,
    JobRegistry,
    LeaseLost,
    NotAcquired,
    RunContext,
    Stopping,
    lock,
    signals,
    try_lock,
)
from django_cronductor import registry as default_registry
from django_cronductor.backends import local
from django_cronductor.testing import (
    ManualScheduler,
    assert_due,
    assert_not_due,
    due_between,
    local_locks,
    make_context,
    run_job,
)

NO_REDIS = {"CACHE": "default"}
"""A locmem cache, and DEBUG off: the settings that many tests run with."""


@pytest.fixture
def registry() -> JobRegistry:
    return JobRegistry()


@pytest.fixture
def heard() -> Iterator[list[str]]:
    """Return the names of the signals that a receiver hears."""
    names: list[str] = []
    receivers = {}
    for name in ("job_started", "job_finished", "job_skipped", "job_missed"):
        receivers[name] = lambda name=name, **details: names.append(name)
        getattr(signals, name).connect(receivers[name])
    yield names
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)


def utc(day: int, hour: int = 0, minute: int = 0) -> datetime:
    return datetime(2026, 1, day, hour, minute, tzinfo=timezone.utc)


class TestMakeContext:
    def test_it_is_a_context_of_a_manual_run_in_which_all_is_well(self) -> None:
        context = make_context("shop.sync")
        assert isinstance(context, RunContext)
        assert (context.key, context.scheduled_at, context.trigger, context.missed) == ("shop.sync", None, "manual", 0)
        assert not context.lease_lost
        assert not context.stopping
        context.check()

    def test_with_an_instant_it_is_that_of_a_scheduled_run(self) -> None:
        context = make_context(scheduled_at="2026-03-29T03:00+02:00", missed=3, fencing_token=7)
        assert context.scheduled_at == datetime(2026, 3, 29, 1, tzinfo=timezone.utc)
        assert context.scheduled_at.utcoffset() == timedelta(0)
        assert (context.trigger, context.missed, context.fencing_token) == ("schedule", 3, 7)
        assert make_context(scheduled_at=utc(5), trigger="recover").trigger == "recover"

    def test_its_lease_can_be_lost_from_the_start_or_on_the_way(self) -> None:
        assert make_context(lease_lost=True).lease_lost
        context = make_context()
        context.lose_lease()
        assert context.lease_lost
        with pytest.raises(LeaseLost):
            context.check()

    def test_it_can_be_told_to_stop_from_the_start_or_on_the_way(self) -> None:
        assert make_context(stopping=True).stopping
        context = make_context()
        context.tell_to_stop("a test")
        with pytest.raises(Stopping):
            context.check()

    def test_it_started_now(self) -> None:
        before = datetime.now(timezone.utc)
        assert before <= make_context().started_at <= datetime.now(timezone.utc)

    def test_an_instant_without_an_offset_is_refused(self) -> None:
        with pytest.raises(ValueError, match="give an aware datetime"):
            make_context(scheduled_at="2026-03-29T03:00")


class TestRunJob:
    def test_the_handler_runs_and_its_value_is_returned(self, registry: JobRegistry) -> None:
        result = run_job(registry.schedule("@daily", lambda: 7, key="a"))
        assert (result.outcome, result.value, result.error) == ("succeeded", 7, None)

    def test_a_key_names_a_job_of_the_project(self) -> None:
        job = default_registry.schedule("@daily", lambda: "here", key="test-testing.found")
        try:
            assert run_job("test-testing.found").value == "here"
        finally:
            job.destroy()
        with pytest.raises(JobNotFound):
            run_job("test-testing.found")

    def test_an_async_handler_is_awaited(self, registry: JobRegistry) -> None:
        async def handler(context: RunContext) -> str:
            await asyncio.sleep(0)
            return context.key

        result = run_job(registry.schedule("@daily", handler, key="a", takes_context=True))
        assert (result.outcome, result.value) == ("succeeded", "a")

    def test_it_can_be_called_from_an_async_test(self, registry: JobRegistry) -> None:
        async def handler() -> int:
            return 7

        job = registry.schedule("@daily", handler, key="a")

        async def test() -> Any:
            return await sync_to_async(run_job)(job)

        assert asyncio.run(test()).value == 7

    def test_the_context_is_passed_and_returned(self, registry: JobRegistry) -> None:
        seen: list[RunContext] = []
        job = registry.schedule("@daily", seen.append, key="a", takes_context=True)
        result = run_job(job, scheduled_at="2026-01-05T00:00Z")
        assert seen == [result.context]
        assert (seen[0].scheduled_at, seen[0].trigger, seen[0].key) == (utc(5), "schedule", "a")

    def test_a_context_made_by_hand_is_used(self, registry: JobRegistry) -> None:
        context = make_context("a", missed=2)
        job = registry.schedule("@daily", lambda context: context.missed, key="a", takes_context=True)
        assert run_job(job, context=context).value == 2
        with pytest.raises(ValueError, match="make_context"):
            run_job(job, context=context, scheduled_at=utc(5))

    def test_a_context_is_for_one_run(self, registry: JobRegistry) -> None:
        context = make_context("a")
        job = registry.schedule("@daily", lambda: None, key="a")
        assert run_job(job, context=context).outcome == "succeeded"
        with pytest.raises(ValueError, match="The run of this context has ended"):
            run_job(job, context=context)

    def test_an_error_fails_the_run_and_is_returned(self, registry: JobRegistry) -> None:
        error = KeyError("x")

        def handler() -> None:
            raise error

        result = run_job(registry.schedule("@daily", handler, key="a"))
        assert (result.outcome, result.value, result.error) == ("failed", None, error)

    def test_an_error_is_raised_where_that_is_asked_for(self, registry: JobRegistry) -> None:
        def handler() -> None:
            raise KeyError("x")

        async def later() -> None:
            handler()

        for number, function in enumerate((handler, later)):
            with pytest.raises(KeyError, match="x"):
                run_job(registry.schedule("@daily", function, key=f"job-{number}"), raise_errors=True)

    def test_a_handler_that_returns_what_nobody_awaits_fails(self, registry: JobRegistry) -> None:
        async def later() -> None: ...

        result = run_job(registry.schedule("@daily", lambda: later(), key="a"))
        assert result.outcome == "failed"
        assert isinstance(result.error, TypeError)

    def test_so_does_one_that_returns_a_generator(self, registry: JobRegistry) -> None:
        def work() -> Iterator[int]:
            yield 1

        result = run_job(registry.schedule("@daily", lambda: work(), key="a"))
        assert (result.outcome, result.value) == ("failed", None)
        assert isinstance(result.error, TypeError)

    def test_a_condition_that_is_false_skips_the_run(self, registry: JobRegistry) -> None:
        ran: list[str] = []
        job = registry.schedule("@daily", lambda: ran.append("a"), key="a", when=lambda: False)
        result = run_job(job)
        assert (result.outcome, result.value, ran) == ("condition", None, [])

    def test_a_condition_that_fails_fails_the_run(self, registry: JobRegistry) -> None:
        result = run_job(registry.schedule("@daily", lambda: 7, key="a", when=lambda: 1 / 0))  # type: ignore[arg-type]
        assert (result.outcome, result.value) == ("failed", None)
        assert isinstance(result.error, ZeroDivisionError)

    def test_a_run_that_is_told_to_stop_and_leaves_is_interrupted(self, registry: JobRegistry) -> None:
        job = registry.schedule("@daily", lambda context: context.check(), key="a", takes_context=True)
        assert run_job(job, context=make_context("a", stopping=True)).outcome == "interrupted"

    def test_a_run_whose_lease_is_lost_on_the_way_is_lost(self, registry: JobRegistry) -> None:
        context = make_context("a")
        job = registry.schedule("@daily", lambda context: context.lose_lease(), key="a", takes_context=True)
        assert run_job(job, context=context).outcome == "lost"

    def test_a_run_whose_lease_was_lost_before_its_start_is_not_started(self, registry: JobRegistry) -> None:
        ran: list[str] = []
        job = registry.schedule("@daily", lambda: ran.append("a"), key="a")
        assert run_job(job, context=make_context("a", lease_lost=True)).outcome == "lost"
        assert ran == []

    def test_receivers_hear_of_it_with_the_job_as_the_sender(self, registry: JobRegistry) -> None:
        senders: list[object] = []
        job = registry.schedule("@daily", lambda: None, key="a")

        def receiver(sender: object, **details: object) -> None:
            senders.append(sender)

        signals.job_finished.connect(receiver)
        try:
            run_job(job)
        finally:
            signals.job_finished.disconnect(receiver)
        assert senders == [job]

    def test_no_receiver_hears_of_what_is_not_to_be_announced(self, registry: JobRegistry, heard: list[str]) -> None:
        job = registry.schedule("@daily", lambda: None, key="a")
        run_job(job, announce=False)
        assert heard == []
        run_job(job)
        assert heard == ["job_started", "job_finished"]

    def test_on_error_is_called_unless_nothing_is_to_be_announced(self, registry: JobRegistry) -> None:
        phases: list[str] = []

        def on_error(error: BaseException, context: Any) -> None:
            phases.append(context.phase)

        job = registry.schedule("@daily", lambda: 1 / 0, key="a")
        with override_settings(CRONDUCTOR={**NO_REDIS, "ON_ERROR": on_error}):
            run_job(job, announce=False)
            assert phases == []
            run_job(job)
        assert phases == ["handler"]

    def test_a_task_is_enqueued(self, registry: JobRegistry) -> None:
        class Task:
            backend = "default"
            module_path = "shop.tasks.func"
            takes_context = False

            def func(self) -> None: ...

            def get_backend(self) -> None: ...

            def enqueue(self) -> Any:
                return SimpleNamespace(id="id-1")

        result = run_job(registry.schedule("@daily", Task(), key="a"))
        assert (result.outcome, result.value, result.context.task_result_id) == ("enqueued", None, "id-1")

    def test_it_needs_no_lock_store(self, registry: JobRegistry) -> None:
        with override_settings(CRONDUCTOR=NO_REDIS):
            assert run_job(registry.schedule("@daily", lambda: 7, key="a")).value == 7


class TestDue:
    @pytest.fixture
    def nightly(self, registry: JobRegistry) -> Any:
        return registry.schedule("30 2 * * *", lambda: None, key="nightly", timezone="Europe/Berlin")

    def test_a_job_is_due_at_its_instants_and_no_others(self, nightly: Any) -> None:
        assert_due(nightly, "2026-01-05T02:30+01:00")
        assert_due(nightly, datetime(2026, 1, 5, 1, 30, tzinfo=timezone.utc))
        assert_not_due(nightly, "2026-01-05T02:30Z")
        assert_not_due(nightly, "2026-01-05T02:30:00.500+01:00")

    def test_clock_changes_are_heeded(self, nightly: Any) -> None:
        assert_due(nightly, "2026-03-29T03:00+02:00")
        assert_not_due(nightly, "2026-03-29T03:30+02:00")

    def test_one_that_is_not_due_is_told_with_its_neighbours_on_its_own_clock(self, nightly: Any) -> None:
        with pytest.raises(AssertionError) as raised:
            assert_due(nightly, "2026-03-29T03:30+02:00")
        assert str(raised.value) == (
            "nightly (30 2 * * *, Europe/Berlin) is not due at 2026-03-29T03:30+02:00. It is due before it at "
            "2026-03-29T03:00:00+02:00 and after it at 2026-03-30T02:30:00+02:00."
        )

    def test_one_that_is_due_is_told_with_its_neighbours(self, nightly: Any) -> None:
        with pytest.raises(AssertionError, match=r"is due at .* before it at 2026-01-04T02:30:00\+01:00 and after"):
            assert_not_due(nightly, "2026-01-05T02:30+01:00")

    def test_a_job_that_is_disabled_is_never_due(self, registry: JobRegistry) -> None:
        job = registry.schedule("@daily", lambda: None, key="a", enabled=False)
        assert_not_due(job, utc(5))
        assert due_between(job, utc(4), utc(8)) == []
        with pytest.raises(AssertionError, match="enabled=False"):
            assert_due(job, utc(5))

    def test_the_instants_between_two_include_the_end_and_not_the_beginning(self, registry: JobRegistry) -> None:
        job = registry.schedule("@daily", lambda: None, key="a")
        assert due_between(job, utc(5), utc(8)) == [utc(6), utc(7), utc(8)]
        assert due_between(job, utc(5), utc(5)) == []

    def test_a_job_without_a_zone_has_the_one_of_the_settings(self, registry: JobRegistry) -> None:
        job = registry.schedule("@daily", lambda: None, key="a")
        with override_settings(CRONDUCTOR={"TIMEZONE": "Asia/Tokyo"}):
            assert_due(job, "2026-01-05T00:00+09:00")

    def test_a_key_that_is_no_job_is_an_error(self) -> None:
        with pytest.raises(JobNotFound):
            assert_not_due("no.such.job", utc(5))


class TestManualScheduler:
    def test_what_is_due_on_the_way_is_run_in_order(self, registry: JobRegistry) -> None:
        registry.schedule("0 */6 * * *", lambda: None, key="often")
        registry.schedule("@daily", lambda: None, key="daily")
        cron = ManualScheduler(registry=registry, start=utc(5))
        happened = cron.advance(timedelta(days=1))
        often = [(event.scheduled_at, event.outcome) for event in happened if event.key == "often"]
        assert often == [(utc(5, hour), "succeeded") for hour in (6, 12, 18)] + [(utc(6), "succeeded")]
        assert [event.scheduled_at for event in cron.events_of("daily")] == [utc(6)]
        assert [event.scheduled_at for event in happened] == sorted(event.scheduled_at for event in happened)
        assert cron.events == happened
        assert cron.now == utc(6)

    def test_what_happens_is_what_the_schedule_says(self, registry: JobRegistry) -> None:
        job = registry.schedule("*/7 * * * *", lambda: None, key="a", timezone="Europe/Berlin")
        start, end = "2026-03-28T00:00:00.300+01:00", "2026-03-30T00:00+02:00"
        happened = ManualScheduler(registry=registry, start=start).move_to(end)
        assert [event.scheduled_at for event in happened] == due_between(job, start, end)

    def test_it_begins_after_its_start(self, registry: JobRegistry) -> None:
        registry.schedule("@daily", lambda: None, key="a")
        cron = ManualScheduler(registry=registry, start=utc(5))
        assert cron.events == cron.advance(3600) == []

    def test_only_the_jobs_of_the_keys_run(self, registry: JobRegistry) -> None:
        for key in ("a", "b", "c"):
            registry.schedule("@hourly", lambda: None, key=key)
        happened = ManualScheduler("a", "c", registry=registry).advance(3600)
        assert {event.key for event in happened} == {"a", "c"}
        with pytest.raises(JobNotFound):
            ManualScheduler("d", registry=registry)

    def test_how_a_run_failed_is_told(self, registry: JobRegistry) -> None:
        registry.schedule("@hourly", lambda: 1 / 0, key="a")
        [event] = ManualScheduler(registry=registry).advance(3600)
        assert (event.outcome, event.trigger) == ("failed", "schedule")
        assert isinstance(event.error, ZeroDivisionError)

    def test_conditions_and_pauses_are_told(self, registry: JobRegistry) -> None:
        registry.schedule("@hourly", lambda: None, key="a", when=lambda: False)
        registry.schedule("@hourly", lambda: None, key="b")
        cron = ManualScheduler(registry=registry)
        cron.backend.pause("b")
        assert {(event.key, event.outcome) for event in cron.advance(3600)} == {("a", "condition"), ("b", "paused")}
        cron.backend.resume("b")
        cron.advance(3600)
        assert cron.events_of("b")[-1].outcome == "succeeded"

    def test_after_a_time_without_it_the_newest_runs_and_the_rest_is_missed(self, registry: JobRegistry) -> None:
        seen: list[RunContext] = []
        registry.schedule("@hourly", seen.append, key="a", takes_context=True)
        cron = ManualScheduler(registry=registry, start=utc(5))
        missed, run = cron.skip_to(utc(5, 4, 1))
        assert (missed.outcome, missed.scheduled_at, missed.count) == ("missed", utc(5, 3), 3)
        assert (run.outcome, run.scheduled_at, run.trigger, seen[0].missed) == ("succeeded", utc(5, 4), "catch-up", 3)

    def test_later_than_its_grace_nothing_runs(self, registry: JobRegistry) -> None:
        registry.schedule("@hourly", lambda: None, key="a", grace=60)
        [event] = ManualScheduler(registry=registry, start=utc(5)).skip_to(utc(5, 1, 2))
        assert event.outcome == "missed"

    def test_time_does_not_go_back(self, registry: JobRegistry) -> None:
        cron = ManualScheduler(registry=registry, start=utc(5))
        with pytest.raises(ValueError, match="time does not go back"):
            cron.move_to(utc(4))
        with pytest.raises(ValueError, match="time does not go back"):
            cron.skip_to(utc(4))

    def test_every_stop_of_its_time_is_told_before_what_is_due_there_is_run(self, registry: JobRegistry) -> None:
        seen: list[object] = []
        registry.schedule("@hourly", lambda: seen.append("run"), key="a")
        ManualScheduler(registry=registry, start=utc(5), on_move=seen.append).move_to(utc(5, 1, 30))
        assert seen == [utc(5), utc(5, 1), "run", utc(5, 1, 30)]

    def test_a_job_that_is_declared_meanwhile_runs(self, registry: JobRegistry) -> None:
        cron = ManualScheduler(registry=registry, start=utc(5))
        registry.schedule("@hourly", lambda: None, key="a")
        cron.advance(60)
        assert [event.scheduled_at for event in cron.move_to(utc(5, 1))] == [utc(5, 1)]

    def test_receivers_hear_of_it_unless_nothing_is_to_be_announced(
        self, registry: JobRegistry, heard: list[str]
    ) -> None:
        registry.schedule("@hourly", lambda: None, key="a")
        ManualScheduler(registry=registry, announce=False).advance(3600)
        assert heard == []
        ManualScheduler(registry=registry).advance(3600)
        assert heard == ["job_started", "job_finished"]

    def test_it_starts_no_thread_and_needs_no_lock_store(self, registry: JobRegistry) -> None:
        threads: list[threading.Thread] = []
        registry.schedule("@hourly", lambda: threads.append(threading.current_thread()), key="a")
        before = threading.enumerate()
        with override_settings(CRONDUCTOR=NO_REDIS):
            ManualScheduler(registry=registry).advance(3600)
        assert threads == [threading.current_thread()]
        assert threading.enumerate() == before

    def test_a_long_time_is_no_problem_to_it_and_nothing_is_logged_as_one(
        self, registry: JobRegistry, caplog: pytest.LogCaptureFixture
    ) -> None:
        registry.schedule("@hourly", lambda: None, key="a")
        assert len(ManualScheduler(registry=registry).advance(timedelta(days=100))) == 2400
        assert [record for record in caplog.records if record.levelname != "INFO"] == []


class TestLocalLocks:
    @pytest.fixture(autouse=True)
    def no_redis(self) -> Iterator[None]:
        with override_settings(CRONDUCTOR=NO_REDIS):
            yield

    def test_without_it_locks_ask_for_a_lock_store(self) -> None:
        with pytest.raises(ConfigurationError), lock("a"):
            pass

    def test_locks_are_kept_in_memory(self) -> None:
        with local_locks(), lock("a"):
            assert try_lock("a") is None
            with pytest.raises(NotAcquired), lock("a"):
                pass

    def test_nothing_is_left_over_from_another_test(self, caplog: pytest.LogCaptureFixture) -> None:
        stores = dict(local._stores)
        for _ in range(2):
            with local_locks():
                assert try_lock("a") is not None
        assert local._stores == stores
        assert caplog.records == []

    def test_no_thread_is_left_over(self) -> None:
        before = set(threading.enumerate())
        with local_locks(), lock("a"):
            assert set(threading.enumerate()) > before
        assert set(threading.enumerate()) <= before

    def test_functions_can_be_decorated(self) -> None:
        @local_locks()
        def test() -> bool:
            return try_lock("a") is not None

        assert test()
        assert test()

    def test_the_other_settings_stay(self) -> None:
        with override_settings(CRONDUCTOR={**NO_REDIS, "DEFAULT_TTL": 12}), local_locks():
            from django_cronductor.conf import get_config

            assert get_config().default_ttl_ms == 12_000


@local_locks()
class LocalLocksOfAClassTests(SimpleTestCase):
    """Each test of a decorated class has locks of its own, also in its setUp."""

    def setUp(self) -> None:
        self.held = try_lock("a")

    def test_one(self) -> None:
        assert self.held is not None

    def test_another(self) -> None:
        assert self.held is not None


def make_group() -> str:
    return Group.objects.create(name="made by a job").name


async def make_group_async() -> str:
    return (await Group.objects.acreate(name="made by a job")).name


class WithoutADatabaseTests(SimpleTestCase):
    """Nothing asks the database but what a job asks."""

    def test_run_job_and_manual_scheduler(self) -> None:
        registry = JobRegistry()
        job = registry.schedule("@daily", lambda: 7, key="a")
        assert run_job(job, raise_errors=True).value == 7
        [event] = ManualScheduler(registry=registry).advance(timedelta(days=1))
        assert event.outcome == "succeeded"


class InATransactionTests(TestCase):
    """What a job writes is seen by the test, and gone after it."""

    def setUp(self) -> None:
        assert not Group.objects.exists()

    def test_run_job(self) -> None:
        run_job(JobRegistry().schedule("@daily", make_group, key="a"), raise_errors=True)
        assert Group.objects.exists()

    def test_run_job_of_an_async_handler(self) -> None:
        run_job(JobRegistry().schedule("@daily", make_group_async, key="a"), raise_errors=True)
        assert Group.objects.exists()

    def test_manual_scheduler(self) -> None:
        registry = JobRegistry()
        registry.schedule("@daily", make_group, key="a")
        ManualScheduler(registry=registry).advance(timedelta(days=1))
        assert Group.objects.exists()


class OutsideTransactionsTests(TransactionTestCase):
    """The same where the test has no transaction around it."""

    def test_run_job(self) -> None:
        for number, handler in enumerate((make_group, make_group_async)):
            run_job(JobRegistry().schedule("@daily", handler, key=f"job-{number}"), raise_errors=number == 0)
        assert Group.objects.count() == 1

    def test_manual_scheduler(self) -> None:
        registry = JobRegistry()
        registry.schedule("@daily", make_group, key="a")
        ManualScheduler(registry=registry).advance(timedelta(days=1))
        assert Group.objects.exists()


@pytest.mark.django_db
def test_with_pytest_django_a_job_writes_in_the_transaction_of_the_test() -> None:
    run_job(JobRegistry().schedule("@daily", make_group, key="a"), raise_errors=True)
    assert Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_with_pytest_django_a_job_writes_where_there_is_no_transaction() -> None:
    run_job(JobRegistry().schedule("@daily", make_group_async, key="a"), raise_errors=True)
    assert Group.objects.exists()


@pytest.mark.django_db(transaction=True)
def test_the_connections_of_the_test_are_left_alone() -> None:
    connection.ensure_connection()
    opened = connection.connection
    registry = JobRegistry()
    job = registry.schedule("@daily", lambda: None, key="a")
    run_job(job)
    ManualScheduler(registry=registry).advance(timedelta(days=1))
    assert connection.connection is opened


@pytest.mark.django_db(transaction=True)
def test_a_test_that_may_not_ask_the_database_can_run_jobs_though_another_left_a_connection_open(
    django_db_blocker: Any,
) -> None:
    connection.ensure_connection()
    registry = JobRegistry()
    job = registry.schedule("@daily", lambda: None, key="a")
    with django_db_blocker.block():
        assert run_job(job).outcome == "succeeded"
        [event] = ManualScheduler(registry=registry).advance(timedelta(days=1))
    assert event.outcome == "succeeded"


def test_importing_it_needs_neither_pytest_nor_settings() -> None:
    code = "import sys, django_cronductor.testing; sys.exit('pytest' in sys.modules)"
    assert subprocess.run([sys.executable, "-W", "error", "-c", code], check=False).returncode == 0
