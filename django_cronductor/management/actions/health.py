"""`cron status`: whether the jobs run as they should."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_cronductor.backends.base import LockBackend
from django_cronductor.instants import from_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import output
from django_cronductor.management.actions.ages import age
from django_cronductor.management.actions.asking import get_views
from django_cronductor.management.process import FAILED, UNREACHABLE
from django_cronductor.operations import NOT_SEEN
from django_cronductor.overview import JobView, Overview

HEAD = ("JOB", "STATE", "LAST RUN", "LAST SUCCESS")

Limit = tuple[str | None, timedelta]


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("keys", nargs="*", metavar="KEY", help="Only these jobs.")
    parser.add_argument(
        "--max-age",
        action="append",
        default=[],
        type=_limit,
        dest="limits",
        metavar="[KEY=]AGE",
        help="Fail where a job's last success is older, such as 90s, 15m, 26h or 1d12h; with KEY= for one job alone. "
        "Can be repeated.",
    )
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def run(
    command: BaseCommand,
    registry: JobRegistry,
    backend: LockBackend | None,
    *,
    keys: Sequence[str],
    limits: Sequence[Limit],
    **options: Any,
) -> None:
    """Print the state of everything. Raises CommandError where something is wrong (1) or cannot be told (4)."""
    named = [key for key, _ in limits if key is not None]
    overview = get_views([*keys, *named] if keys else [], registry, backend)
    if named and not keys:
        get_views(named, registry, backend)  # Raises for one that nobody knows.
    wrong, unknown = list(_wrong(overview, limits, keys)), list(_unknown(overview, limits))
    if options["json"]:
        told = {"healthy": not wrong and not unknown, "problems": wrong, "unknown": unknown}
        output.write_json(command, told | output.overview_as_json(overview))
    else:
        _show(command, overview)
    if wrong or unknown:
        raise CommandError("\n".join(wrong + unknown), returncode=FAILED if wrong else UNREACHABLE)


def _show(command: BaseCommand, overview: Overview) -> None:
    if overview.backend:
        command.stdout.write(f"Locks: {output.plain(overview.backend)}")
    for name, seen in sorted((overview.instances or {}).items()):
        word = "Silent" if overview.is_silent(name) else "Alive"
        command.stdout.write(f"{word}: {output.plain(name)}, heard of {output.ago(seen, overview.now)}")
    if overview.instances is None and not overview.shared and (seen_at := _last_seen(overview)) is not None:
        command.stdout.write(f"A runcron was seen {output.ago(seen_at, overview.now)}, as the database has it.")
    if overview.jobs:
        output.write_table(command, HEAD, [_row(view) for view in overview.jobs])
    output.write_notes(command, overview)


def _row(view: JobView) -> tuple[str, ...]:
    success = _succeeded_at(view)
    ago = "-" if success is None else output.ago(success, view.now)
    return output.quoted(view.key), output.state_of(view), output.last_of(view), ago


def _wrong(overview: Overview, limits: Sequence[Limit], keys: Sequence[str]) -> Iterator[str]:
    if overview.store_error is None:
        yield from _without_replica(overview)
    yield from (
        f"{output.quoted(view.key)}: the lease of {output.plain(view.holder.instance)} has ended: it died, or hangs."
        for view in overview.jobs
        if view.status == "dead" and view.holder is not None
    )
    if overview.history and overview.database_error is None:
        for view in overview.jobs:
            limit = _limit_of(view, limits, keys)
            if limit is not None and (problem := _too_old(view, limit)):
                yield problem


def _without_replica(overview: Overview) -> Iterator[str]:
    if overview.shared:
        if all(map(overview.is_silent, overview.instances or ())):
            last = max((overview.instances or {}).values(), default=None)
            heard = "" if last is None else f" (the last was heard of {output.ago(last, overview.now)})"
            yield f"No replica is alive{heard}: start runcron."
    elif overview.history and overview.database_error is None:
        seen = _last_seen(overview)
        if seen is None:
            yield "No runcron has been seen yet: start it."
        elif overview.now - seen > NOT_SEEN:
            yield f"No runcron has been seen for {output.length((overview.now - seen).total_seconds())}: start it."


def _unknown(overview: Overview, limits: Sequence[Limit]) -> Iterator[str]:
    if overview.store_error is not None:
        yield f"Whether a replica is alive cannot be told: {output.plain(overview.store_error)}"
    elif not overview.shared and not (overview.history and overview.database_error is None):
        yield "Whether a runcron is alive cannot be told: its locks are in its own memory, and no history can be asked."
    if limits and not overview.history:
        yield 'Ages cannot be told: no history is kept (CRONDUCTOR["HISTORY"] is 0).'
    elif limits and overview.database_error is not None:
        yield f"Ages cannot be told: {output.plain(overview.database_error)}"


def _last_seen(overview: Overview) -> datetime | None:
    seen = [from_stored(view.row.last_seen) for view in overview.jobs if view.row is not None]
    return max(seen, default=None)


def _limit_of(view: JobView, limits: Sequence[Limit], keys: Sequence[str]) -> timedelta | None:
    """Return the limit that was given for this job, or else for all; None for a job that runs no longer."""
    if view.job is None or not view.job.enabled:
        return None
    general = [limit for key, limit in limits if key is None and (not keys or view.key in keys)]
    own = [limit for key, limit in limits if key == view.key]
    fitting = own or general
    return fitting[-1] if fitting else None


def _too_old(view: JobView, limit: timedelta) -> str | None:
    success = _succeeded_at(view)
    since = success or (None if view.row is None else from_stored(view.row.first_seen))
    if since is None:
        return f"{output.quoted(view.key)} has never succeeded: no runcron has declared it yet."
    if view.now - since <= limit:
        return None
    what = "last succeeded" if success is not None else "never succeeded, and was declared"
    pause = f" ({output.paused(view)})" if view.paused else ""
    most = output.length(limit.total_seconds())
    return f"{output.quoted(view.key)} {what} {output.ago(since, view.now)}, more than {most}{pause}."


def _succeeded_at(view: JobView) -> datetime | None:
    run = view.last_success
    return None if run is None or run.finished_at is None else from_stored(run.finished_at)


def _limit(text: str) -> Limit:
    key, equals, limit = text.rpartition("=")
    if equals and not key:
        raise ArgumentTypeError(f"{text!r} names no job before the =.")
    return key or None, age(limit)
