"""`cron list`: all jobs, one line each."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django.core.management.base import BaseCommand

from django_cronductor.backends.base import LockBackend
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import output
from django_cronductor.management.actions.asking import get_views
from django_cronductor.overview import JobView

HEAD = ("JOB", "SCHEDULE", "NEXT RUN", "IN UTC", "STATE", "LAST RUN")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("keys", nargs="*", metavar="KEY", help="Only these jobs.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(
    command: BaseCommand, registry: JobRegistry, backend: LockBackend | None, *, keys: Sequence[str], **options: Any
) -> None:
    """Print the jobs."""
    overview = get_views(keys, registry, backend)
    if options["json"]:
        output.write_json(command, output.overview_as_json(overview))
        return
    if not overview.jobs:
        command.stderr.write("No job is declared.")
    else:
        output.write_table(command, HEAD, [_row(view) for view in overview.jobs])
    output.write_notes(command, overview)


def _row(view: JobView) -> tuple[str, ...]:
    schedule = _schedule(view)
    state, last = output.state_of(view), output.last_of(view)
    local = utc = "-"
    if view.schedule is not None and view.next_run is not None and output.is_due(view):
        local, utc = output.in_zone(view.next_run, view.schedule.timezone), output.in_utc(view.next_run)
    return output.quoted(view.key), schedule, local, utc, state, last


def _schedule(view: JobView) -> str:
    if view.schedule is not None:
        return f"{view.schedule.expression} ({view.schedule.timezone})"
    return "-" if view.row is None else output.plain(f"{view.row.expression} ({view.row.timezone})")
