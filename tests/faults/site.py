"""A site whose replicas are loops in threads of this process: for faults of the store, where processes add nothing."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from datetime import datetime
from typing import Any

from django.conf import settings
from django.test import override_settings

from django_cronductor import signals
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.exceptions import BackendError
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.runner import RunContext
from django_cronductor.scheduler import Scheduler
from tests.faults.replicas import PATIENCE, SECOND, Entry

LOGGER = logging.getLogger("django_cronductor")
FAILED = "The lock store failed, and nothing starts until it is back"
BACK = "The lock store is back after"
LOST_DATA = "The lock store has lost its data"
RESUMES_WITHIN = 5.0
"""Seconds from the store's return to the next run."""
TIMEOUT = 5.0
"""Seconds that a call may take: so long that a busy machine alone makes no outage."""
STEP = 0.02
"""Seconds between two looks at what is waited for."""


class Log(logging.Handler):
    """What the loops have logged, each under the name of its thread."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[tuple[str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append((record.threadName or "", record.getMessage()))


class Loop:
    """One replica: `run` of a scheduler in a thread of its own."""

    def __init__(self, scheduler: Scheduler, log: Log) -> None:
        self.scheduler = scheduler
        self.name = scheduler.instance
        self.code: int | None = None
        self.error: BackendError | None = None
        self._log = log
        self._thread = threading.Thread(target=self._run, name=self.name)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.code = self.scheduler.run()
        except BackendError as error:
            self.error = error

    @property
    def alive(self) -> bool:
        """Tell whether it is at work."""
        return self._thread.is_alive()

    def count(self, text: str) -> int:
        """Return how many of its own lines in the log contain a text."""
        return sum(text in line for line in self.lines)

    @property
    def lines(self) -> list[str]:
        """Return what its own thread has logged."""
        return [line for name, line in self._log.lines if name == self.name]

    @property
    def outages(self) -> tuple[int, int]:
        """Return how many outages it has said to begin, and how many to end."""
        return self.count(FAILED), self.count(BACK)

    def stop(self) -> int | None:
        """Let it end in good order; return its code."""
        self.scheduler.stop()
        return self.join()

    def join(self) -> int | None:
        """Wait for its end; return its code."""
        self._thread.join(PATIENCE)
        assert not self.alive, f"{self.name} did not end"
        self.scheduler.backend.close()
        return self.code


class Site:
    """Jobs, the replicas that run them, and a journal of what happened, as `Journal` of the processes has it."""

    def __init__(self) -> None:
        self.registry = JobRegistry()
        self.loops: list[Loop] = []
        self.log = Log()
        self.let_go = threading.Event()
        """Set, it ends the runs of jobs that hold."""
        self._entries: list[Entry] = []
        self._stack = contextlib.ExitStack()
        LOGGER.addHandler(self.log)
        self._stack.callback(LOGGER.removeHandler, self.log)
        self._stack.callback(LOGGER.setLevel, LOGGER.level)
        LOGGER.setLevel(logging.INFO)
        for name, signal in (
            ("missed", signals.job_missed),
            ("skipped", signals.job_skipped),
            ("abandoned", signals.run_abandoned),
            ("finished", signals.job_finished),
            ("lost", signals.lease_lost),
        ):
            self._listen(name, signal)

    def _listen(self, event: str, signal: Any) -> None:
        def hear(sender: Job, key: str = "", scheduled_at: datetime | None = None, **details: Any) -> None:
            if not any(job is sender for job in self.registry):
                return
            context = details.pop("context", None)
            if context is not None:
                self._write_run(event, context, outcome=details.get("outcome"))
            else:
                self._write(event, key, scheduled_at, count=details.get("count", 1))

        signal.connect(hear, weak=False)
        self._stack.callback(signal.disconnect, hear)

    def _write(self, event: str, key: str, scheduled_at: datetime | None, by: str = "", **details: object) -> None:
        occurrence = 0 if scheduled_at is None else round(scheduled_at.timestamp() * SECOND)
        self._entries.append(Entry(event, key, occurrence, by, time.monotonic(), details))

    def _write_run(self, event: str, context: RunContext, **details: object) -> None:
        details |= {"token": context.fencing_token, "trigger": context.trigger}
        self._write(event, context.key, context.scheduled_at, context.instance, **details)

    # Building.

    def job(self, key: str = "tick", expression: str = "* * * * * *", *, holds: bool = False, **options: Any) -> Job:
        """Declare a job, by default one of every second; one that `holds` goes on until it is let go."""

        def handler(context: RunContext) -> None:
            self._write_run("started", context)
            while holds and not self.let_go.wait(STEP):
                context.check()

        return self.registry.schedule(expression, handler, key=key, takes_context=True, **options)

    def backend(self, url: str, **cache: Any) -> RedisBackend:
        """Return a backend on a server, by a cache with these settings."""
        alias = f"site-{id(self)}-{len(settings.CACHES)}"
        chosen = {**settings.CACHES["locks"], "LOCATION": url, **cache}
        self._stack.enter_context(override_settings(CACHES={**settings.CACHES, alias: chosen}))
        backend = RedisBackend(cache=alias)
        backend.describe()  # Now, while the settings are there.
        return backend

    def start(self, url: str, *, timeout: float = TIMEOUT, cache: Any = None, **options: Any) -> Loop:
        """Start one more replica, on the server at an address; `timeout` is the longest that its calls may take."""
        name = f"loop-{id(self)}-{len(self.loops) + 1}"
        backend = self.backend(url, **(cache or {}))
        backend.timeout = timeout
        scheduler = Scheduler(self.registry, backend, instance=name, **options)
        self.loops.append(Loop(scheduler, self.log))
        return self.loops[-1]

    def close(self) -> None:
        """End all loops."""
        self.let_go.set()
        for loop in self.loops:
            loop.scheduler.stop()
        for loop in self.loops:
            loop.join()
        self._stack.close()
        for name, line in self.log.lines:
            print(name, line)  # Seen where a test failed.

    # Looking.

    def entries(self, event: str, job: str | None = None, *, by: str | None = None) -> list[Entry]:
        """Return the entries of one kind, all or those of one job, or of one replica."""
        return [
            entry
            for entry in list(self._entries)
            if entry.event == event and job in (None, entry.job) and by in (None, entry.replica)
        ]

    def starts(self, job: str | None = None, *, by: str | None = None) -> list[Entry]:
        """Return the runs that began."""
        return self.entries("started", job, by=by)

    # Waiting.

    def wait(self, what: str, condition: Callable[[], object], within: float = PATIENCE) -> float:
        """
        Wait until it holds; fail if it does not within so many seconds, or if a loop ends meanwhile.

        Returns for how many seconds the machine kept this from looking.
        """
        deadline, stalled = time.monotonic() + within, 0.0
        while not condition():
            before = time.monotonic()
            assert all(loop.alive for loop in self.loops), f"a loop ended while waiting for {what}"
            assert before < deadline, f"waited {within:g} s in vain for {what}"
            time.sleep(STEP)
            stalled += time.monotonic() - before - STEP
        return stalled

    def wait_for_starts(self, count: int, job: str = "tick", *, after: float = 0.0) -> float:
        """Wait until so many runs of a job have begun after a moment of the monotonic clock."""
        what = f"{count} runs of {job}"
        return self.wait(what, lambda: sum(entry.at > after for entry in self.starts(job)) >= count)

    def wait_for_failure(self) -> None:
        """Wait until each loop has said that the store failed."""
        self.wait("each loop to notice", lambda: all(loop.count(FAILED) for loop in self.loops))

    def wait_for_return(self, job: str = "tick", since: float | None = None) -> None:
        """Wait until a job runs again, as soon as is promised, and each loop has said that the store is back."""
        returned = since or time.monotonic()
        stalled = self.wait_for_starts(1, job, after=returned)
        first = next(entry for entry in self.starts(job) if entry.at > returned)
        assert first.at - returned <= RESUMES_WITHIN + stalled
        # With a run in time all that came before it is decided, and reported if it did not run.
        self.wait(
            "a run in time", lambda: any(entry.at > returned and entry.lateness < 1 for entry in self.starts(job))
        )
        self.wait("each loop to say so", lambda: all(loop.count(FAILED) == loop.count(BACK) for loop in self.loops))

    def finish(self) -> None:
        """Let runs end, and all loops, in good order."""
        self.let_go.set()
        assert [loop.stop() for loop in self.loops] == [0] * len(self.loops)
