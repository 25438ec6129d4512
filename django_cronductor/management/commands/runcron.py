"""Run the scheduled jobs of the project."""

from __future__ import annotations

import contextlib
import logging
import signal
import sys
import threading
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

from django.apps import apps
from django.core.management.base import BaseCommand, CommandError
from django.utils import autoreload

import django_cronductor
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import LockBackend
from django_cronductor.conf import Config, get_config, scheduler_options
from django_cronductor.exceptions import BackendError, ConfigurationError, JobNotFound, shown
from django_cronductor.history import DatabaseHistory, in_transaction, open_history
from django_cronductor.jobs import registry
from django_cronductor.management.process import (
    FLUSH_WAIT,
    SIGNALS,
    exit_at_once,
    flush_errors,
    heeding_signals,
    open_closed_streams,
    printing_if_possible,
    say_at_once,
    show_logs_somewhere,
)
from django_cronductor.management.reloading import Reloader, is_child
from django_cronductor.orders import taking_orders
from django_cronductor.scheduler import Scheduler

METRICS_HOST = "127.0.0.1"
RELOAD_TIMEOUT = 5.0
"""Seconds that runs have to finish when code has changed."""


def _port(text: str) -> int:
    """Read the number of a port, or 0."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or int(text) > 65_535:
        raise ArgumentTypeError(f"{text!r} is no port: give a number from 0 to 65535.")
    return int(text)


class Command(BaseCommand):
    """Put the scheduler together from the settings, and stop it on signals."""

    help = (
        "Runs the scheduled jobs declared in the apps' cron.py modules until SIGTERM or SIGINT, then lets running jobs "
        "finish. Start one on each replica: every occurrence of a job runs on one of them."
    )
    scheduler: Scheduler | None = None
    told_to_stop = False
    as_program = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the options."""
        parser.add_argument("--only", nargs="+", default=[], metavar="KEY", help="Run these jobs and no others.")
        parser.add_argument("--exclude", nargs="+", default=[], metavar="KEY", help="Run all jobs but these.")
        parser.add_argument("--once", action="store_true", help="Run what is due now and exit when that is done.")
        parser.add_argument("--reload", action="store_true", help="Restart when code changes: for development.")
        parser.add_argument(
            "--heartbeat-file",
            type=Path,
            metavar="PATH",
            help="Touch this file every second while the loop is alive, whether the lock store answers or not.",
        )
        parser.add_argument(
            "--metrics-port",
            type=_port,
            metavar="PORT",
            help="Serve metrics for Prometheus at this port; 0: any free one.",
        )
        parser.add_argument(
            "--metrics-host",
            metavar="HOST",
            help=f"The address to serve metrics at (default: {METRICS_HOST}); in a container 0.0.0.0 or ::.",
        )

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as a program: threads that still work at the end must not hold its exit."""
        self.as_program = True
        open_closed_streams(self)
        with heeding_signals(self._on_signal):
            try:
                super().run_from_argv(argv)
                with printing_if_possible(self):
                    sys.stdout.flush()  # What jobs have printed.
                flush_errors()
            except SystemExit as end:
                if end.code:
                    exit_at_once(end.code if isinstance(end.code, int) else 1)
                raise

    def get_check_kwargs(self, options: Any) -> Any:
        """Leave out the checks that ask a database, which those of models do on some: it may hang, or be down."""
        named: dict[Any, Any] = super().get_check_kwargs(options)
        return named | {"databases": []}

    def handle(self, *args: Any, **options: Any) -> None:
        """Run until a signal, or once."""
        if options["reload"] and options["once"]:
            raise CommandError("--once ends by itself: leave out --reload.")
        if options["reload"] and is_child():
            self._run_until_code_changes(options)
        elif options["reload"]:
            sys.exit(Reloader(lambda text: self.stderr.write(self.style.WARNING(text))).run())
        else:
            with heeding_signals(self._on_signal):
                self._run(**options)

    def _run_until_code_changes(self, options: dict[str, Any]) -> None:
        ended = threading.Event()

        def run() -> None:
            try:
                self._run(**options)
            except CommandError as error:  # A file that is to be mended is waited for.
                self.stderr.write(self.style.ERROR(str(error)))
            finally:
                ended.set()

        # Django's reloader ends by Ctrl-C itself, and takes SIGTERM over.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            autoreload.run_with_reloader(run)
        finally:
            for number in SIGNALS:
                signal.signal(number, self._on_signal)
            self.told_to_stop = True
            if self.scheduler is not None:
                self.scheduler.stop()
                ended.wait(RELOAD_TIMEOUT + FLUSH_WAIT)

    def _run(self, **options: Any) -> None:
        show_logs_somewhere()
        try:
            config = get_config()
            backend = create_backend(config)
            # In a test's transaction it is written there; elsewhere nobody waits for a database that hangs.
            history = open_history(config.history, inline=options["once"] and in_transaction())
            scheduler = self.scheduler = _make_scheduler(config, backend, history, options)
        except (ConfigurationError, JobNotFound) as error:
            raise CommandError(str(error)) from error
        if self.told_to_stop:
            scheduler.stop()
        try:
            with printing_if_possible(self):
                self._introduce(scheduler, config.autodiscover, config.timezone)
            with (
                taking_orders(backend, registry, history),
                self._metrics(scheduler, history=history is not None, **options),
            ):
                code = scheduler.run_once() if options["once"] else scheduler.run()
        except (BackendError, ConfigurationError) as error:
            raise CommandError(str(error)) from error
        finally:
            backend.close()
            if history is not None:
                history.close()
        if options["once"] and not scheduler.begun:
            with printing_if_possible(self):
                self.stdout.write("There was nothing to run.")
        if code:
            self.stderr.write(self.style.ERROR("Some jobs were still running when SHUTDOWN_TIMEOUT was over."))
            sys.exit(code)

    def _introduce(self, scheduler: Scheduler, module: str | None, zone: str) -> None:
        """Say what was found, as the first thing an operator sees."""
        jobs = scheduler.jobs
        self.stdout.write(f"django-cronductor {django_cronductor.__version__}, instance {scheduler.instance}")
        self.stdout.write(f"Locks: {scheduler.backend.describe()}")
        active = sum(job.active for job in jobs)
        disabled = f", {len(jobs) - active} of them disabled" if active < len(jobs) else ""
        self.stdout.write(f"Jobs: {len(jobs)}{disabled}")
        for instant, job in scheduler.upcoming(3):
            schedule = job.schedule(zone)
            when = f"{instant:%Y-%m-%d %H:%M:%S} UTC ({schedule.expression} in {schedule.timezone})"
            self.stdout.write(f"  next: {job.key} at {when}")
        if not jobs:
            searched = ", ".join(config.label for config in apps.get_app_configs())
            where = f"no module named {module!r} in {searched} declares any" if module else "AUTODISCOVER is off"
            why = f"--only and --exclude leave none of {len(registry)}" if len(registry) else where
            self.stderr.write(self.style.WARNING(f"There are no jobs to run: {why}."))
        self.stdout.flush()

    @contextlib.contextmanager
    def _metrics(
        self,
        scheduler: Scheduler,
        *,
        history: bool,
        once: bool,
        metrics_host: str | None,
        metrics_port: int | None,
        **_: Any,
    ) -> Iterator[None]:
        """Serve metrics meanwhile, if that is asked for."""
        if metrics_port is None:
            if metrics_host is not None:
                raise CommandError("--metrics-host goes with --metrics-port: name the port, too.")
            yield
            return
        if once:
            raise CommandError("--metrics-port is for a runcron that stays: nobody would scrape one with --once.")
        try:
            from django_cronductor.contrib import prometheus
        except ModuleNotFoundError as error:
            if error.name != "prometheus_client":
                raise
            raise CommandError(
                "--metrics-port needs prometheus-client: install django-cronductor[prometheus]."
            ) from error
        with prometheus.serving(scheduler, metrics_host or METRICS_HOST, metrics_port, history=history) as address:
            with printing_if_possible(self):
                self.stdout.write(f"Metrics: {address}")
                self.stdout.flush()
            yield

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self.told_to_stop:
            say_at_once("Ended at once: the leases of what ran stay until their time is over.")
            exit_at_once(1)
        self.told_to_stop = True
        if self.scheduler is not None:
            self.scheduler.stop()


def _make_scheduler(
    config: Config, backend: LockBackend, history: DatabaseHistory | None, options: dict[str, Any]
) -> Scheduler:
    """Return the scheduler that settings and options ask for. Raises ConfigurationError, or JobNotFound."""
    heartbeat = HeartbeatFile(options["heartbeat_file"]) if options["heartbeat_file"] else None
    if options["once"] and not backend.shared and history is None:
        raise ConfigurationError(
            "--once needs to know what ran before, and the single-instance backend forgets it with the process: "
            "use a Redis cache, keep a history, or leave out --once."
        )
    chosen = scheduler_options(config)
    if options["reload"]:
        chosen["shutdown_timeout"] = min(config.shutdown_timeout, RELOAD_TIMEOUT)
    return Scheduler(
        registry,
        backend,
        only=options["only"],
        exclude=options["exclude"],
        inline=options["once"],
        on_pass=heartbeat,
        history=history,
        **chosen,
    )


class HeartbeatFile:
    """A file whose mtime says that the loop is alive."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._touched = 0.0
        self._failing = False
        try:
            path.open("ab").close()  # Not touch(), which a directory would take too.
        except (OSError, ValueError) as error:  # The latter for a NUL in the name.
            raise ConfigurationError(f"--heartbeat-file: {shown(str(path))} cannot be written: {error}.") from error

    def __call__(self) -> None:
        """Touch the file, at most twice a second."""
        now = time.monotonic()
        if now - self._touched < 0.5:
            return
        self._touched = now
        try:
            self._path.touch()
            self._failing = False
        except OSError as error:
            # The loop matters more; whoever watches the file will notice.
            if not self._failing:
                logging.getLogger(__name__).warning("The heartbeat file cannot be touched: %s", error)
            self._failing = True
