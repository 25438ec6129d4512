"""Tables for people, JSON for programs."""

from __future__ import annotations

import json
import shlex
import shutil
import unicodedata
from collections.abc import Sequence
from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

from django.core.management.base import BaseCommand

from django_cronductor.instants import from_stored, to_datetime
from django_cronductor.models import JobRun
from django_cronductor.overview import Holder, JobView, Overview

NOT_THERE = ("no such table", "no such column", "does not exist", "doesn't exist", "Unknown column")
"""How databases say that a table or a column is missing."""


def plain(text: str) -> str:
    """Return a text of one line that no terminal takes for commands."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def quoted(key: str) -> str:
    """Return a key as it can be pasted into a shell."""
    return shlex.quote(plain(key))


def write_json(command: BaseCommand, value: object) -> None:
    """Print one JSON document."""
    command.stdout.write(json.dumps(value, indent=2))


def write_table(command: BaseCommand, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows in columns that are as wide as they need be; below each other on a terminal too narrow for them."""
    widths = [max(map(_width, column)) for column in zip(head, *rows, strict=True)]
    if command.stdout.isatty() and sum(widths) + 2 * (len(widths) - 1) > shutil.get_terminal_size().columns:
        _write_blocks(command, head, rows)
        return
    for number, row in enumerate([head, *rows]):
        cells = [cell + " " * (width - _width(cell)) for cell, width in zip(row, widths, strict=True)]
        line = "  ".join(cells).rstrip()
        command.stdout.write(line if number else command.style.MIGRATE_HEADING(line))


def _write_blocks(command: BaseCommand, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print each row as its first cell with the others below it, as far as there is something in them."""
    width = max(map(_width, head[1:]))
    for title, *cells in rows:
        command.stdout.write(command.style.MIGRATE_HEADING(title))
        for name, cell in zip(head[1:], cells, strict=True):
            if cell != "-":
                command.stdout.write(f"  {name:{width}}  {cell}")


def _width(text: str) -> int:
    """Return how many columns of a terminal a text takes."""
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )


def write_notes(command: BaseCommand, overview: Overview) -> None:
    """Say beside the table what it does not show, and where it has the rest from."""
    for note in notes(overview):
        command.stderr.write(command.style.WARNING(note))


def notes(overview: Overview) -> list[str]:
    """Return in sentences what could not be asked."""
    found = []
    told = overview.history and overview.database_error is None
    holders = "who runs what is shown as the history has it" if told else "who runs what cannot be shown"
    if overview.store_error is not None:
        found.append(f"The lock store cannot be asked, and {holders}: {plain(overview.store_error)}")
    elif not overview.shared:
        found.append(f"The locks are in the memory of the process that runs the jobs, so {holders}.")
    if overview.database_error is not None:
        hint = " (Has migrate been run?)" if any(word in overview.database_error for word in NOT_THERE) else ""
        found.append(f"Runs and notes cannot be shown. {plain(overview.database_error)}{hint}")
    elif not overview.history:
        found.append('Past runs cannot be shown: no history is kept (CRONDUCTOR["HISTORY"] is 0).')
    return found


# --- Words


def in_utc(instant: datetime) -> str:
    """Return an instant to the second."""
    return f"{instant.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"


def in_zone(instant: datetime, zone: str) -> str:
    """Return an instant in a zone, with the offset there."""
    return f"{instant.astimezone(ZoneInfo(zone)):%a %Y-%m-%d %H:%M:%S %z}"


def length(seconds: float) -> str:
    """Return a length of time in at most two units."""
    seconds = max(0.0, seconds)
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, hours, days = (int(seconds // unit) for unit in (60, 3600, 86400))
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{minutes} min"
    if seconds < 86400:
        return f"{hours} h {minutes % 60} min"
    return f"{days} d {hours % 24} h"


def ago(instant: datetime, now: datetime) -> str:
    """Return how long ago an instant was."""
    return f"{length((now - instant).total_seconds())} ago"


def is_due(view: JobView) -> bool:
    """Tell whether the next occurrence of a job is to run, as things are."""
    return view.job is not None and view.job.enabled and not view.paused


def state_of(view: JobView) -> str:
    """Return what a job does now."""
    words = {"gone": "no longer declared", "disabled": "disabled", "idle": "idle"}
    status, holder = view.status, view.holder
    if holder is not None and status in ("running", "dead"):
        state = _held(holder, view.now, dead=status == "dead")
        return f"{state}; {paused(view)}" if view.paused else state
    if status == "paused":
        return paused(view)
    return f"{words[status]}; {paused(view)}" if view.paused else words[status]


def _held(holder: Holder, now: datetime, *, dead: bool) -> str:
    name = plain(holder.instance)
    since = "" if holder.since is None else f" since {in_utc(holder.since)}"
    if dead:
        return f"dead: the lease of {name} has ended{since and f', held{since}'}"
    return f"running{since} on {name}"


def paused(view: JobView) -> str:
    """Return who has paused a job, when and why."""
    row = view.row
    if row is None or row.paused_at is None:
        return "paused"
    by = f" by {plain(row.paused_by)}" if row.paused_by else ""
    note = f": {plain(row.pause_note)}" if row.pause_note else ""
    return f"paused since {in_utc(from_stored(row.paused_at))}{by}{note}"


def last_of(view: JobView) -> str:
    """Return how the last run ended, and when: as the store has it, if the history has nothing newer that has ended."""
    run, last = view.last_run, None if view.state is None else view.state.last
    ended = None if run is None or run.finished_at is None else from_stored(run.finished_at)
    if last is not None and (ended is None or to_datetime(last.ended) > ended):
        return f"{plain(last.outcome)} {ago(to_datetime(last.ended), view.now)}"
    if run is None:
        return "-"
    return plain(run.outcome) if ended is None else f"{plain(run.outcome)} {ago(ended, view.now)}"


# --- JSON


def as_json(view: JobView) -> dict[str, Any]:
    """Return a job for programs: instants in ISO 8601 and UTC, lengths of time in seconds."""
    schedule, row = view.schedule, view.row
    return {
        "key": view.key,
        "status": view.status,
        "declared": view.job is not None,
        "enabled": view.job.enabled if view.job is not None else row is not None and row.enabled,
        "paused": view.paused,
        "paused_at": None if row is None else _stored(row.paused_at),
        "paused_by": "" if row is None else row.paused_by,
        "pause_note": "" if row is None else row.pause_note,
        "schedule": schedule.expression if schedule is not None else row.expression if row is not None else None,
        "timezone": schedule.timezone if schedule is not None else row.timezone if row is not None else None,
        "next_run": iso(view.next_run) if is_due(view) else None,
        "live": view.live,
        "state_error": view.state_error,
        "requested_at": iso(view.requested_at),
        "holder": _holder(view.holder),
        "last_run": _run(view.last_run),
        "last_success": None if view.last_success is None else _stored(view.last_success.finished_at),
        "last_seen": None if row is None else _stored(row.last_seen),
    }


def overview_as_json(overview: Overview) -> dict[str, Any]:
    """Return all jobs, and what was asked, for programs."""
    seen = overview.instances
    return {
        "now": iso(overview.now),
        "backend": overview.backend,
        "shared": overview.shared,
        "history": overview.history,
        "store_error": overview.store_error,
        "database_error": overview.database_error,
        "replicas": None if seen is None else {name: iso(at) for name, at in sorted(seen.items())},
        "jobs": [as_json(view) for view in overview.jobs],
    }


def _holder(holder: Holder | None) -> dict[str, Any] | None:
    if holder is None:
        return None
    return {
        "instance": holder.instance,
        "since": iso(holder.since),
        "lease_left": holder.left,
        "fencing_token": holder.fencing_token,
        "live": holder.live,
        "outcome": holder.outcome,
        "ended": iso(holder.ended),
    }


def _run(run: JobRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    return {
        "outcome": run.outcome,
        "trigger": run.trigger,
        "scheduled_at": _stored(run.scheduled_at),
        "started_at": _stored(run.started_at),
        "finished_at": _stored(run.finished_at),
        "duration": run.duration,
        "lateness": run.lateness,
        "holder": run.holder,
        "fencing_token": run.fencing_token,
        "error_type": run.error_type,
        "error_message": run.error_message,
    }


def _stored(instant: datetime | None) -> str | None:
    return None if instant is None else iso(from_stored(instant))


def iso(instant: datetime | None) -> str | None:
    """Return an instant in ISO 8601 and UTC, to the millisecond."""
    return None if instant is None else instant.astimezone(timezone.utc).isoformat(timespec="milliseconds")
