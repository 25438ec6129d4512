"""Show what jobs do, and act on them."""

from __future__ import annotations

import logging
from argparse import ArgumentParser
from collections.abc import Callable
from typing import Any, NamedTuple

from django.core.management.base import BaseCommand, CommandError

from django_cronductor.exceptions import BackendError, ConfigurationError, CronductorError, JobNotFound
from django_cronductor.jobs import registry
from django_cronductor.management.actions import acting, health, listing, output, pruning, running, upcoming
from django_cronductor.management.actions.asking import opened_backend
from django_cronductor.management.process import FAILED, UNREACHABLE, USAGE, printing_to_anyone, show_logs_somewhere
from django_cronductor.operations import DatabaseFailed


class Action(NamedTuple):
    """One action: its help, its options, what it does, and whether it cannot do without the lock store."""

    help: str
    add_arguments: Callable[[ArgumentParser], object]
    run: Callable[..., object]
    needs_store: bool = True


ACTIONS = {
    "list": Action("List all jobs with their next and last runs.", listing.add_arguments, listing.run, False),
    "next": Action(
        "Print when a job, an expression or all jobs are due next.", upcoming.add_arguments, upcoming.run, False
    ),
    "run": Action("Run a job here and now, under its lease.", running.add_arguments, running.run),
    "pause": Action("Let no occurrence of a job run.", acting.add_pause_arguments, acting.pause),
    "resume": Action("Let a paused job run again.", acting.add_key, acting.resume),
    "status": Action("Tell whether jobs run as they should.", health.add_arguments, health.run, False),
    "release": Action("Take a job's lease away from its holder.", acting.add_release_arguments, acting.release),
    "prune": Action("Delete what is known of jobs no longer declared.", pruning.add_arguments, pruning.run),
}


class Command(BaseCommand):
    """Hand over to an action."""

    help = (
        "Shows scheduled jobs and acts on them. Exit codes: 0 done; 1 it failed, or something is wrong; 2 wrong usage, "
        "or a job that nobody knows; 3 another holds the job's lease; 4 the lock store or the database cannot be asked."
    )

    as_program = False

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program."""
        self.as_program = True
        with printing_to_anyone(self):
            super().run_from_argv(argv)

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the actions, each with its options."""
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
        for name, action in ACTIONS.items():
            action.add_arguments(actions.add_parser(name, help=action.help, description=action.help))

    def get_check_kwargs(self, options: Any) -> Any:
        """Leave out the checks that ask a database, which those of models do on some: it may hang, or be down."""
        named: dict[Any, Any] = super().get_check_kwargs(options)
        return named | {"databases": []}

    def handle(self, *args: Any, action: str, **options: Any) -> None:
        """Do what was asked for."""
        chosen = ACTIONS[action]
        if self.as_program and (action != "run" or options["request"]):
            show_logs_somewhere(logging.ERROR)  # What was done is printed, and need not be there twice.
        try:
            if chosen.needs_store:
                with opened_backend() as backend:
                    chosen.run(self, registry, backend, **options)
            else:
                chosen.run(self, registry, None, **options)
        except CronductorError as error:
            raise CommandError(_told(error), returncode=_code(error)) from error


def _told(error: CronductorError) -> str:
    text = "\n".join(output.plain(line) for line in str(error).splitlines())
    named = not isinstance(error, BackendError) or text.startswith("The lock store")
    return text if named else f"The lock store cannot be used. {text}"


def _code(error: CronductorError) -> int:
    if isinstance(error, (ConfigurationError, JobNotFound)):
        return USAGE
    return UNREACHABLE if isinstance(error, (BackendError, DatabaseFailed)) else FAILED
