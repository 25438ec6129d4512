"""Uses of the public API. Type checkers read this file, with and without stubs for Django; nothing runs it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from django_cronductor import (
    ErrorContext,
    ExclusiveResult,
    HeldLock,
    Job,
    JobRegistry,
    RunContext,
    Schedule,
    Scheduler,
    cron,
    lock,
    registry,
    run_exclusive,
    try_lock,
)
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import LockBackend
from django_cronductor.backends.local import LocalBackend
from django_cronductor.conf import Config, get_config
from django_cronductor.testing import (
    Event,
    ManualClock,
    ManualContext,
    ManualScheduler,
    RunResult,
    assert_due,
    assert_not_due,
    due_between,
    local_locks,
    make_context,
    run_job,
)

if TYPE_CHECKING:
    from typing_extensions import assert_type


# Declaring: what is decorated keeps its type.


def is_business_day(context: RunContext) -> bool:
    return context.started_at.weekday() < 5


@cron("*/5 * * * *")
def sync_users() -> int:
    return 1


@cron(
    "0 0 * * *",
    key="daily-report",
    ttl=timedelta(minutes=5),
    timezone="Europe/Berlin",
    grace=3600,
    recover=True,
    timeout=1800.0,
    when=is_business_day,
    enabled=True,
    takes_context=True,
)
async def generate_daily_report(context: object, day: str = "today") -> str:
    return day


class Callee:
    """A callable object."""

    def __call__(self, times: int = 1) -> bytes:
        return b"" * times


class Enqueued:
    """What is not callable but can be enqueued, as a task of django.tasks."""

    backend = "default"
    module_path = "shop.tasks.enqueued"

    def func(self) -> None: ...

    def get_backend(self) -> Any: ...

    def enqueue(self, *args: Any, **kwargs: Any) -> str:
        return "id"


async def declaring() -> None:
    assert_type(sync_users(), int)
    assert_type(await generate_daily_report(None, day="yesterday"), str)
    assert_type(cron("@daily", key="callee")(Callee()), Callee)
    assert_type(cron("@daily", key="callee")(Callee())(2), bytes)
    assert_type(cron("@daily", key="enqueued")(Enqueued()), Enqueued)
    await generate_daily_report()  # type: ignore[call-arg]
    cron("* * * * *", ttl=ZoneInfo("UTC"))  # type: ignore[arg-type]
    cron("* * * * *", recover="yes")  # type: ignore[arg-type]
    cron("* * * * *", timezone=ZoneInfo("UTC"))
    cron("* * * * *")("not a function")  # type: ignore[type-var]


def decorating(function: Callable[[int], str], later: Callable[[], Awaitable[int]]) -> None:
    assert_type(cron("@daily", key="a")(function), Callable[[int], str])
    assert_type(cron("@daily", key="b")(later), Callable[[], Awaitable[int]])


def without_a_decorator() -> None:
    own = JobRegistry()
    job = own.schedule("* * * * *", sync_users, key="own")
    assert_type(job, Job)
    own.schedule("* * * * *", Enqueued(), key="enqueued")
    registry.schedule("* * * * *", sync_users)  # type: ignore[call-arg]
    assert_type(registry.get("daily-report"), Job)
    assert_type(iter(registry), Iterator[Job])
    assert_type("daily-report" in registry, bool)


def jobs() -> None:
    job = registry.get("daily-report")
    assert_type(job.key, str)
    assert_type(job.ttl_ms, int | None)
    assert_type(job.timezone, str | None)
    assert_type(job.active, bool)
    assert_type(job.is_async, bool)
    assert_type(job.declared_at, str)
    assert_type(job.schedule("UTC"), Schedule)
    job.stop()
    job.start()
    job.destroy()
    job.key = "other"  # type: ignore[misc]
    job.active = False  # type: ignore[misc]


def schedules(schedule: Schedule, now: datetime) -> None:
    assert_type(schedule.next_after(now), datetime | None)
    assert_type(schedule.latest_until(now), datetime | None)
    assert_type(schedule.describe(), str)


def contexts(context: RunContext) -> None:
    assert_type(context.scheduled_at, datetime | None)
    assert_type(context.started_at, datetime)
    assert_type(context.fencing_token, int)
    assert_type(context.missed, int)
    assert_type(context.lease_lost, bool)
    assert_type(context.stopping, bool)
    context.check()
    context.stopping = True  # type: ignore[misc]


# Locks.


@lock("import", ttl=60)
def import_users(path: str) -> int:
    return len(path)


def locks() -> None:
    assert_type(import_users("users.csv"), int)
    import_users(1)  # type: ignore[arg-type]
    with lock("import", ttl=timedelta(minutes=1)) as held:
        assert_type(held, HeldLock)
        assert_type(held.fencing_token, int)
        assert_type(held.lost, bool)
    assert_type(try_lock("import"), HeldLock | None)
    assert_type(run_exclusive("import", sync_users), ExclusiveResult[int])
    assert_type(run_exclusive("import", sync_users, ttl=60).value, int | None)
    run_exclusive("import", import_users)  # type: ignore[arg-type]


# Settings and embedding.


def settings() -> None:
    config = get_config()
    assert_type(config, Config)
    assert_type(config.default_ttl_ms, int)
    config.history = 3  # type: ignore[misc]


def on_error(error: BaseException, context: ErrorContext) -> None:
    assert_type(context.key, str)
    assert_type(context.scheduled_at, datetime | None)


def embedding() -> None:
    assert_type(create_backend(), LockBackend)
    scheduler = Scheduler(registry, LocalBackend(), on_error=on_error, max_workers=2)
    assert_type(scheduler.run(), int)
    scheduler.stop()
    Scheduler(registry)  # type: ignore[call-arg]


# Testing.


@local_locks()
def with_local_locks(number: int) -> str:
    return str(number)


@local_locks()
class WithLocalLocks:
    number = 1


def testing(now: datetime) -> None:
    assert_type(with_local_locks(1), str)
    assert_type(WithLocalLocks().number, int)
    with local_locks():
        pass
    context = make_context("daily-report", scheduled_at=now, trigger="recover", missed=1)
    assert_type(context, ManualContext)
    context.lose_lease()
    make_context(trigger="sometimes")  # type: ignore[arg-type]
    result = run_job("daily-report", context=context)
    assert_type(result, RunResult)
    assert_type(result.outcome, str)
    assert_type(result.error, BaseException | None)
    run_job(registry.get("daily-report"), scheduled_at="2026-03-29T03:00+02:00", announce=False, raise_errors=True)
    assert_due("daily-report", now)
    assert_not_due(registry.get("daily-report"), "2026-03-29T03:00+02:00")
    assert_type(due_between("daily-report", now, now + timedelta(days=1)), list[datetime])
    scheduler = ManualScheduler("daily-report", start=now, on_move=print)
    assert_type(scheduler.advance(timedelta(days=1)), list[Event])
    assert_type(scheduler.move_to("2026-03-29T03:00+02:00"), list[Event])
    assert_type(scheduler.events_of("daily-report")[0].scheduled_at, datetime | None)
    assert_type(scheduler.now, datetime)
    assert_type(scheduler.clock, ManualClock)
