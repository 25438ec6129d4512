"""Uses of the public API. A type checker reads this file; nothing runs it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from django_cronductor.conf import Config, get_config
from django_cronductor.jobs import Job, JobRegistry, cron, registry
from django_cronductor.schedules import Schedule

if TYPE_CHECKING:
    from typing_extensions import assert_type


# Declaring: what is decorated keeps its type.


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
    when=lambda context: True,
    enabled=True,
    takes_context=True,
)
async def generate_daily_report(context: object, day: str = "today") -> str:
    return day


async def declaring() -> None:
    assert_type(sync_users(), int)
    assert_type(await generate_daily_report(None, day="yesterday"), str)
    await generate_daily_report()  # type: ignore[call-arg]
    cron("* * * * *", ttl=ZoneInfo("UTC"))  # type: ignore[arg-type]
    cron("* * * * *", recover="yes")  # type: ignore[arg-type]
    cron("* * * * *", timezone=ZoneInfo("UTC"))
    cron("* * * * *")("not a function")  # type: ignore[type-var]


def without_a_decorator() -> None:
    own = JobRegistry()
    job = own.schedule("* * * * *", sync_users, key="own")
    assert_type(job, Job)
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


def settings() -> None:
    config = get_config()
    assert_type(config, Config)
    assert_type(config.default_ttl_ms, int)
    config.history = 3  # type: ignore[misc]
