"""`cron next`: when jobs are due."""

from __future__ import annotations

import heapq
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from datetime import datetime, time, timezone
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_date, parse_datetime

from django_cronductor.backends.base import LockBackend
from django_cronductor.conf import get_config
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import output
from django_cronductor.management.actions.asking import get_views
from django_cronductor.management.process import USAGE
from django_cronductor.overview import JobView
from django_cronductor.schedules import Schedule


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("key", nargs="?", metavar="KEY", help="The job; without one, all jobs together.")
    parser.add_argument("--expression", help='An expression in place of a job, such as "30 2 * * *".')
    parser.add_argument("--timezone", help="The zone of the expression; by default that of the settings.")
    parser.add_argument("-n", type=_count, default=10, dest="count", help="How many, 10 by default.")
    parser.add_argument(
        "--from",
        type=_instant,
        dest="start",
        metavar="ISO",
        help="A date, or a date and time, to begin after; in the schedule's zone where it names no offset.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(
    command: BaseCommand,
    registry: JobRegistry,
    backend: LockBackend | None,
    *,
    key: str | None,
    expression: str | None,
    timezone: str | None,
    count: int,
    start: datetime | None,
    **options: Any,
) -> None:
    """Print the next occurrences."""
    default = get_config().timezone
    if expression is not None:
        if key is not None:
            raise CommandError("Give a job or --expression, not both.", returncode=USAGE)
        _show(command, None, _of_expression(expression, timezone or default), count, start, options["json"])
    elif timezone is not None:
        raise CommandError("--timezone goes with --expression: a job has its own zone.", returncode=USAGE)
    elif key is not None:
        schedule = registry.get(key).schedule(default)
        [view] = get_views([key], registry, backend).jobs
        _show(command, view, schedule, count, start, options["json"])
    else:
        _show_all(command, registry, backend, count, start, options["json"])


def _show(
    command: BaseCommand, view: JobView | None, schedule: Schedule, count: int, start: datetime | None, as_json: bool
) -> None:
    found = list(islice(_occurrences(schedule, start), count))
    if as_json:
        schedule_of = {"schedule": schedule.expression, "timezone": schedule.timezone}
        head = {} if view is None else {"key": view.key, "status": view.status, "paused": view.paused}
        occurrences = [_as_json(schedule, instant) for instant in found]
        output.write_json(command, {**head, **schedule_of, "occurrences": occurrences})
        return
    words = schedule.describe()
    meaning = f": {words}" if words != schedule.expression else ""
    title = "" if view is None else f"{output.quoted(view.key)}: "
    command.stdout.write(f"{title}{schedule.expression} ({schedule.timezone}){meaning}")
    if view is not None and (mark := _mark(view)):
        command.stdout.write(f"  No occurrence of it runs: {mark}")
    for instant in found:
        command.stdout.write(_line(schedule, instant))
    if len(found) < count:
        command.stdout.write("  and none after that.")


def _show_all(
    command: BaseCommand,
    registry: JobRegistry,
    backend: LockBackend | None,
    count: int,
    start: datetime | None,
    as_json: bool,
) -> None:
    views = [view for view in get_views([], registry, backend).jobs if view.job is not None]
    if not views:
        raise CommandError("No job is declared.")
    streams = [_of_job(view, start) for view in views if view.job is not None and view.job.active]
    found = list(islice(heapq.merge(*streams, key=lambda item: (item[0], item[1].key)), count))
    disabled = [view.key for view in views if view.job is not None and not view.job.active]
    if as_json:
        occurrences = [
            {"key": view.key, "paused": view.paused, **_as_json(schedule, instant)} for instant, view, schedule in found
        ]
        output.write_json(command, {"occurrences": occurrences, "disabled": disabled})
        return
    for instant, view, schedule in found:
        mark = " (paused)" if view.paused else ""
        command.stdout.write(f"{_line(schedule, instant)}  {output.quoted(view.key)}{mark}")
    if disabled:
        command.stderr.write(f"Disabled, and left out: {', '.join(map(output.quoted, disabled))}.")


def _mark(view: JobView) -> str:
    if view.job is not None and not view.job.active:
        return "disabled"
    return output.paused(view) if view.paused else ""


def _of_expression(expression: str, timezone: str) -> Schedule:
    schedule = Schedule(expression, timezone, "any key")
    try:
        # What needs no key is read the same without one.
        Schedule(expression, timezone)
    except ConfigurationError as error:
        raise CommandError("H depends on a job's key: name a job.", returncode=USAGE) from error
    return schedule


def _of_job(view: JobView, start: datetime | None) -> Iterator[tuple[datetime, JobView, Schedule]]:
    assert view.schedule is not None
    for instant in _occurrences(view.schedule, start):
        yield instant, view, view.schedule


def _occurrences(schedule: Schedule, start: datetime | None) -> Iterator[datetime]:
    """Yield the occurrences after `start`, by default after now."""
    after = datetime.now(timezone.utc) if start is None else start
    instant: datetime | None = after if after.tzinfo else after.replace(tzinfo=ZoneInfo(schedule.timezone))
    while instant is not None and (instant := schedule.next_after(instant)) is not None:
        yield instant


def _line(schedule: Schedule, instant: datetime) -> str:
    line = f"  {output.in_zone(instant, schedule.timezone)}  {output.in_utc(instant)}"
    change = schedule.clock_change(instant)
    return f"{line}  {change}" if change else line


def _as_json(schedule: Schedule, instant: datetime) -> dict[str, str | None]:
    local = instant.astimezone(ZoneInfo(schedule.timezone))
    change = schedule.clock_change(instant)
    return {"utc": instant.isoformat(), "local": local.isoformat(), "clock_change": change or None}


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 10_000 or len(text) > 6:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to 10000.")
    return int(text)


def _instant(text: str) -> datetime:
    try:
        instant = parse_datetime(text)
        day = parse_date(text) if instant is None else None
    except ValueError as error:
        reason = str(error).removesuffix(".")
        raise ArgumentTypeError(f"{text!r}: {reason}.") from error
    if day is not None:
        instant = datetime.combine(day, time())
    if instant is None:
        raise ArgumentTypeError(f"{text!r} is not a date or time such as 2026-03-28 or 2026-03-28T12:00+01:00.")
    return instant
