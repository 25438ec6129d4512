"""`cron pause`, `cron resume`, `cron release`, and `cron run --request`: what changes something."""

from __future__ import annotations

import contextlib
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_cronductor import operations
from django_cronductor.backends.base import MANUAL, DeadRun, LockBackend
from django_cronductor.instants import to_datetime
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import output
from django_cronductor.management.actions.asking import database_wait, get_views, operator
from django_cronductor.management.process import printing_if_possible
from django_cronductor.operations import Done
from django_cronductor.overview import JobView

ORDERED = "runcron, which has the locks in its memory, is to do it within a second or two"


def add_key(parser: ArgumentParser) -> None:
    """Declare what all of them take."""
    parser.add_argument("key", metavar="KEY", help="The job.")
    parser.add_argument("--json", action="store_true", help="Print JSON.")


def add_pause_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `pause`."""
    add_key(parser)
    parser.add_argument("--note", default="", help="Why, for whoever wonders later.")


def add_release_arguments(parser: ArgumentParser) -> None:
    """Declare the options of `release`."""
    add_key(parser)
    add_no_input(parser)


def add_no_input(parser: ArgumentParser) -> None:
    """Declare how not to be asked, as Django's own commands do."""
    parser.add_argument("--noinput", "--no-input", action="store_false", dest="interactive", help="Do not ask.")


def request(command: BaseCommand, registry: JobRegistry, backend: LockBackend, *, key: str, **options: Any) -> None:
    """Ask the replicas to run a job."""
    done = operations.request_run(key, backend=backend, by=operator(), registry=registry, database_wait=database_wait())
    text = "runcron is asked to run it" if done.ordered else "the replicas are asked to run it within a minute"
    _tell(command, "run", done, options["json"], f"{output.quoted(key)}: {text}.")


def pause(
    command: BaseCommand, registry: JobRegistry, backend: LockBackend, *, key: str, note: str, **options: Any
) -> None:
    """Pause a job; without a note, one that is paused already keeps the note that it has."""
    [view] = get_views([key], registry, backend).jobs
    already = view.paused and (view.live or not backend.shared)
    if already and not note:
        text = f"{output.quoted(key)} is already {output.paused(view)}."
        _tell(command, "pause", Done(key), options["json"], text, changed=False)
        return
    done = operations.pause(
        key, backend=backend, by=operator(), note=note, registry=registry, database_wait=database_wait()
    )
    text = f"it is to be paused: {ORDERED}" if done.ordered else "paused; a run in progress goes on"
    _tell(command, "pause", done, options["json"], f"{output.quoted(key)}: {text}.")


def resume(command: BaseCommand, registry: JobRegistry, backend: LockBackend, *, key: str, **options: Any) -> None:
    """Resume a job."""
    [view] = get_views([key], registry, backend).jobs
    done = operations.resume(key, backend=backend, by=operator(), registry=registry, database_wait=database_wait())
    text = f"it is to be resumed: {ORDERED}" if done.ordered else "resumed; what was due meanwhile is not made up"
    was_paused = view.paused or (backend.shared and not view.live)
    if not was_paused:
        text = "it was not paused"
    _tell(command, "resume", done, options["json"], f"{output.quoted(key)}: {text}.", changed=was_paused)


def release(
    command: BaseCommand,
    registry: JobRegistry,
    backend: LockBackend,
    *,
    key: str,
    interactive: bool,
    **options: Any,
) -> None:
    """Release the lease of a job."""
    [view] = get_views([key], registry, backend).jobs
    holder = view.holder
    if interactive and not (holder is not None and holder.ended is not None and view.live):
        held = "" if holder is None or holder.ended is not None else f" It is held by {output.plain(holder.instance)}."
        command.stderr.write(
            f"{output.quoted(key)}:{held} Whoever runs it is told that the lease is lost, and may work on until it "
            "looks; the next run can start at once."
        )
        if not agreed(command):
            raise CommandError("Nothing was released.")
        [now] = get_views([key], registry, backend).jobs
        if _lease_of(now) != _lease_of(view):
            raise CommandError("Its lease has changed since you were asked: nothing was released. Look again.")
    done = operations.release(key, backend=backend, by=operator(), registry=registry, database_wait=database_wait())
    if done.ordered:
        text = f"the release is ordered: {ORDERED}"
    elif done.run is None:
        text = "nobody holds its lease"
    else:
        text = f"the lease of {output.plain(done.run.holder)} is released, and its run abandoned"
    changed = done.ordered or done.run is not None
    _tell(command, "release", done, options["json"], f"{output.quoted(key)}: {text}.", changed=changed)


def _lease_of(view: JobView) -> tuple[str, int | None] | None:
    """Return which lease goes on: its holder and its fencing token."""
    holder = view.holder
    return None if holder is None or holder.ended is not None else (holder.instance, holder.fencing_token)


def agreed(command: BaseCommand) -> bool:
    """Ask whether to go on; nobody there is a no."""
    command.stderr.write("Go on? [y/N] ", ending="")
    command.stderr.flush()
    try:
        return input().strip().lower() in ("y", "yes")
    except EOFError:
        return False


def _tell(command: BaseCommand, action: str, done: Done, as_json: bool, text: str, *, changed: bool = True) -> None:
    with printing_if_possible(command):  # It is done all the same.
        if as_json:
            told = {"action": action, "key": done.key, "changed": changed, "told": text, "ordered": done.ordered}
            output.write_json(command, told | {"unrecorded": done.unrecorded, "released": _run(done.run)})
        else:
            command.stdout.write(text)
    if done.unrecorded is not None:
        warning = f"Who did it, and why, is not noted in the database: {output.plain(done.unrecorded)}"
        with contextlib.suppress(OSError):
            command.stderr.write(command.style.WARNING(warning))


def _run(run: DeadRun | None) -> dict[str, Any] | None:
    if run is None:
        return None
    at = None if run.run == MANUAL else output.iso(to_datetime(int(run.run)))
    return {"holder": run.holder, "scheduled_at": at, "fencing_token": run.fence}
