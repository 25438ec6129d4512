"""`cron run`: one job, here and now, in the foreground and under its lease."""

from __future__ import annotations

import contextlib
import sys
from argparse import ArgumentParser
from collections.abc import Iterator
from types import FrameType
from typing import Any

from django.core.management.base import BaseCommand, CommandError

from django_cronductor.backends.base import LockBackend
from django_cronductor.conf import get_config, scheduler_options
from django_cronductor.exceptions import NotAcquired
from django_cronductor.history import in_transaction, open_history
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import acting, output
from django_cronductor.management.actions.asking import get_views
from django_cronductor.management.process import (
    FAILED,
    HELD,
    exit_at_once,
    heeding_signals,
    printing_if_possible,
    say_at_once,
    show_logs_somewhere,
)
from django_cronductor.masking import mask
from django_cronductor.records import SUCCESSES
from django_cronductor.runner import RunContext
from django_cronductor.scheduler import Scheduler
from django_cronductor.signals import job_finished

FINE = (*SUCCESSES, "condition")


def add_arguments(parser: ArgumentParser) -> None:
    """Declare the options."""
    acting.add_key(parser)
    parser.add_argument(
        "--request", action="store_true", help="Ask the replicas to run it, and do not wait for what comes of it."
    )


def run(
    command: BaseCommand, registry: JobRegistry, backend: LockBackend, *, key: str, request: bool, **options: Any
) -> None:
    """Run the job, and raise CommandError if it did not succeed."""
    if request:
        acting.request(command, registry, backend, key=key, **options)
        return
    registry.get(key)
    show_logs_somewhere()
    if not backend.shared:
        _look_at_history(command, registry, backend, key)
    # What the job prints is no part of the one document that programs read.
    with contextlib.redirect_stdout(sys.stderr) if options["json"] else contextlib.nullcontext():
        outcome, details = _run(registry, backend, key)
    with printing_if_possible(command):  # The outcome is what the exit code tells.
        if options["json"]:
            output.write_json(command, {"key": key, "outcome": outcome, **details})
        elif outcome in FINE:
            text = "its condition is not met, so it was not run" if outcome == "condition" else outcome
            command.stdout.write(f"{output.quoted(key)}: {text}.")
    if outcome not in FINE:
        raise CommandError(f"{output.quoted(key)} did not succeed: {outcome}.", returncode=FAILED)


def _run(registry: JobRegistry, backend: LockBackend, key: str) -> tuple[str, dict[str, object]]:
    """Run it; return the outcome, and what more there is to say of a run that has begun."""
    details: dict[str, object] = {"duration": None, "fencing_token": None, "instance": None, "error": None}

    def note(context: RunContext, duration: float, error: BaseException | None, sender: object, **more: object) -> None:
        told = None if error is None else mask(f"{type(error).__name__}: {error}")
        token, instance = context.fencing_token, context.instance
        details.update(duration=round(duration, 3), fencing_token=token, instance=instance, error=told)

    config = get_config()
    history = open_history(config.history, inline=in_transaction())
    scheduler = Scheduler(registry, backend, only=[key], inline=True, history=history, **scheduler_options(config))
    job_finished.connect(note)
    try:
        with _stopping_on_signals(scheduler):
            return scheduler.run_now(key), details
    except NotAcquired as error:
        raise CommandError(output.plain(str(error)), returncode=HELD) from error
    finally:
        job_finished.disconnect(note)
        if history is not None:
            history.close()


def _look_at_history(command: BaseCommand, registry: JobRegistry, backend: LockBackend, key: str) -> None:
    """Do what can be done where the lease is in the memory of another process."""
    [view] = get_views([key], registry, backend).jobs
    holder = view.holder
    if holder is not None and holder.ended is None:
        name = output.plain(holder.instance)
        raise CommandError(f"{output.quoted(key)} is running on {name}, as the history has it.", returncode=HELD)
    text = (
        "The locks are in the memory of each process: a runcron that is going cannot know of this run, and may start "
        "the job meanwhile."
    )
    with contextlib.suppress(OSError):  # The job matters more.
        command.stderr.write(command.style.WARNING(text))


@contextlib.contextmanager
def _stopping_on_signals(scheduler: Scheduler) -> Iterator[None]:
    """Tell the run to stop at the first SIGINT or SIGTERM, and leave at once at the second."""
    told: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if told:
            say_at_once("Ended at once: the lease stays until its time is over.")
            exit_at_once(FAILED)
        told.append(number)
        say_at_once("Stopping: the run is told; a second signal ends it at once.")
        scheduler.stop()

    with heeding_signals(stop):
        yield
