"""Look at the scheduled jobs."""

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

from django_cronductor.conf import get_config
from django_cronductor.exceptions import ConfigurationError, JobNotFound
from django_cronductor.jobs import registry
from django_cronductor.schedules import Schedule


class Command(BaseCommand):
    """Show when jobs are due."""

    help = "Shows when scheduled jobs are due next, with the clock changes on the way."

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        upcoming = actions.add_parser("next", help="Print the next occurrences of one job, an expression, or all jobs.")
        upcoming.add_argument("key", nargs="?", metavar="KEY", help="The job; without one, all jobs together.")
        upcoming.add_argument("--expression", help='An expression in place of a job, such as "30 2 * * *".')
        upcoming.add_argument("--timezone", help="The zone of the expression; by default that of the settings.")
        upcoming.add_argument("-n", type=_count, default=10, dest="count", help="How many, 10 by default.")
        upcoming.add_argument(
            "--from",
            type=_instant,
            dest="start",
            metavar="ISO",
            help="A date, or a date and time, to begin after; in the schedule's zone where it names no offset.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        """Print what was asked for."""
        try:
            self._print_next(**options)
        except (ConfigurationError, JobNotFound) as error:
            raise CommandError(str(error)) from error

    def _print_next(
        self,
        key: str | None,
        expression: str | None,
        timezone: str | None,
        count: int,
        start: datetime | None,
        **options: Any,
    ) -> None:
        default = get_config().timezone
        if expression is not None:
            if key is not None:
                raise CommandError("Give a job or --expression, not both.")
            self._print_schedule("", _of_expression(expression, timezone or default), count, start)
        elif timezone is not None:
            raise CommandError("--timezone goes with --expression: a job has its own zone.")
        elif key is not None:
            self._print_schedule(f"{key}: ", registry.get(key).schedule(default), count, start)
        else:
            self._print_all(default, count, start)

    def _print_schedule(self, title: str, schedule: Schedule, count: int, start: datetime | None) -> None:
        words = schedule.describe()
        meaning = f": {words}" if words != schedule.expression else ""
        self.stdout.write(f"{title}{schedule.expression} ({schedule.timezone}){meaning}")
        found = list(islice(_occurrences(schedule, start), count))
        for instant in found:
            self.stdout.write(_line(schedule, instant))
        if len(found) < count:
            self.stdout.write("  and none after that.")

    def _print_all(self, default: str, count: int, start: datetime | None) -> None:
        jobs = [job for job in registry if job.active]
        if not jobs:
            raise CommandError("No job is declared.")
        streams = [_of_job(job.key, job.schedule(default), start) for job in jobs]
        for instant, key, schedule in islice(heapq.merge(*streams, key=lambda item: item[:2]), count):
            self.stdout.write(f"{_line(schedule, instant)}  {key}")


def _of_expression(expression: str, timezone: str) -> Schedule:
    schedule = Schedule(expression, timezone, "any key")
    try:
        # What needs no key is read the same without one.
        Schedule(expression, timezone)
    except ConfigurationError as error:
        raise CommandError("H depends on a job's key: name a job.") from error
    return schedule


def _of_job(key: str, schedule: Schedule, start: datetime | None) -> Iterator[tuple[datetime, str, Schedule]]:
    for instant in _occurrences(schedule, start):
        yield instant, key, schedule


def _occurrences(schedule: Schedule, start: datetime | None) -> Iterator[datetime]:
    """Yield the occurrences after `start`, by default after now."""
    after = datetime.now(timezone.utc) if start is None else start
    instant: datetime | None = after if after.tzinfo else after.replace(tzinfo=ZoneInfo(schedule.timezone))
    while instant is not None and (instant := schedule.next_after(instant)) is not None:
        yield instant


def _line(schedule: Schedule, instant: datetime) -> str:
    local = instant.astimezone(ZoneInfo(schedule.timezone))
    line = f"  {local:%a %Y-%m-%d %H:%M:%S %z}  {instant:%Y-%m-%d %H:%M:%S} UTC"
    change = schedule.clock_change(instant)
    return f"{line}  {change}" if change else line


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:6]) <= 10_000 or len(text) > 6:
        raise ArgumentTypeError(f"{text!r} is not a number from 1 to 10000.")
    return int(text)


def _instant(text: str) -> datetime:
    try:
        instant = parse_datetime(text)
        day = parse_date(text) if instant is None else None
    except ValueError as error:
        raise ArgumentTypeError(f"{text!r}: {error}.") from error
    if day is not None:
        instant = datetime.combine(day, time())
    if instant is None:
        raise ArgumentTypeError(f"{text!r} is not a date or time such as 2026-03-28 or 2026-03-28T12:00+01:00.")
    return instant
