"""`cron prune`: forget jobs that are no longer declared."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_cronductor import operations
from django_cronductor.backends.base import LockBackend
from django_cronductor.instants import from_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import output
from django_cronductor.management.actions.acting import add_no_input, agreed
from django_cronductor.management.actions.ages import age
from django_cronductor.operations import GoneJob

HEAD = ("JOB", "LAST SEEN", "RUNS", "")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument(
        "--older-than",
        type=age,
        default=timedelta(days=1),
        metavar="AGE",
        help="Only jobs that no replica has declared for so long, such as 12h or 30d (1d by default).",
    )
    parser.add_argument("--dry-run", action="store_true", help="Only show what would be deleted.")
    add_no_input(parser)
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(
    command: BaseCommand,
    registry: JobRegistry,
    backend: LockBackend,
    *,
    older_than: timedelta,
    dry_run: bool,
    interactive: bool,
    **options: Any,
) -> None:
    """Delete the rows of such jobs, and forget them in the store."""
    as_json = options["json"]
    gone = operations.gone_jobs(older_than, backend=backend, registry=registry)
    doomed = [job for job in gone if job.kept is None]
    deleted = []
    if not as_json:
        _show(command, gone)
    if doomed and not dry_run:
        if interactive:
            _ask(command, doomed, shown=not as_json)
        deleted = [job.key for job in doomed if operations.prune(job, backend=backend, registry=registry)]
    if as_json:
        output.write_json(command, {"gone": [_as_json(job) for job in gone], "deleted": deleted})
    elif deleted:
        command.stdout.write(f"Deleted: {_listed(deleted)}.")


def _ask(command: BaseCommand, doomed: list[GoneJob], *, shown: bool) -> None:
    """Raise CommandError unless it is agreed that these go."""
    if not shown:  # Nobody agrees to what was not shown.
        command.stderr.write(f"To be deleted with their runs: {_listed(job.key for job in doomed)}.")
    if not agreed(command):
        raise CommandError("Nothing was deleted.")


def _as_json(job: GoneJob) -> dict[str, Any]:
    last_seen = output.iso(from_stored(job.row.last_seen))
    return {"key": job.key, "last_seen": last_seen, "runs": job.runs, "kept": job.kept}


def _listed(keys: Iterable[str]) -> str:
    return ", ".join(map(output.quoted, keys))


def _show(command: BaseCommand, gone: list[GoneJob]) -> None:
    if not gone:
        command.stdout.write("Every job in the database is declared.")
        return
    rows = [
        (
            output.quoted(job.key),
            output.in_utc(from_stored(job.row.last_seen)),
            str(job.runs),
            f"kept: {job.kept}" if job.kept else "is deleted with its runs",
        )
        for job in gone
    ]
    output.write_table(command, HEAD, rows)
