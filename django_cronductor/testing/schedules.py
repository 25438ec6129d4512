"""Ask when a job is due."""

from __future__ import annotations

from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from django_cronductor.conf import get_config
from django_cronductor.jobs import Job, registry
from django_cronductor.schedules import Schedule
from django_cronductor.testing.clock import to_instant


def assert_due(job: str | Job, instant: datetime | str) -> None:
    """Raise AssertionError unless the job is due at this very instant; a disabled job never is. Raises JobNotFound."""
    job, schedule = _found(job)
    if not job.enabled:
        raise AssertionError(f"{job.key} is never due: it is declared with enabled=False.")
    if not _is_due(schedule, to_instant(instant)):
        raise AssertionError(f"{_described(job, schedule)} is not due at {instant}. {_around(schedule, instant)}")


def assert_not_due(job: str | Job, instant: datetime | str) -> None:
    """Raise AssertionError if the job is due at this very instant. Raises JobNotFound."""
    job, schedule = _found(job)
    if job.enabled and _is_due(schedule, to_instant(instant)):
        raise AssertionError(f"{_described(job, schedule)} is due at {instant}. {_around(schedule, instant)}")


def due_between(job: str | Job, after: datetime | str, until: datetime | str) -> list[datetime]:
    """
    Return the instants at which a job is due, in UTC: later than `after`, and not later than `until`.

    Those of a disabled job are none. Raises JobNotFound.
    """
    job, schedule = _found(job)
    end, found = to_instant(until), []
    instant = schedule.next_after(to_instant(after)) if job.enabled else None
    while instant is not None and instant <= end:
        found.append(instant)
        instant = schedule.next_after(instant)
    return found


def _found(job: str | Job) -> tuple[Job, Schedule]:
    job = registry.get(job) if isinstance(job, str) else job
    return job, job.schedule(get_config().timezone)


def _is_due(schedule: Schedule, instant: datetime) -> bool:
    return schedule.latest_until(instant) == instant


def _described(job: Job, schedule: Schedule) -> str:
    return f"{job.key} ({schedule.expression}, {schedule.timezone})"


def _around(schedule: Schedule, instant: datetime | str) -> str:
    """Say when it is due before and after an instant, on the clocks of the job's zone."""
    at, zone = to_instant(instant), ZoneInfo(schedule.timezone)
    nearest = {
        "before": schedule.latest_until(at - timedelta(microseconds=1)),
        "after": schedule.next_after(at),
    }
    shown = [f"{side} it at {found.astimezone(zone).isoformat()}" for side, found in nearest.items() if found]
    return f"It is due {' and '.join(shown)}." if shown else ""
