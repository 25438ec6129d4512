"""A scheduler at work, in a thread of its own and by real clocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.history import DatabaseHistory
from django_cronductor.jobs import JobRegistry
from django_cronductor.runner import RunContext
from django_cronductor.scheduler import Scheduler
from django_cronductor.signals import job_finished
from tests.history_records import end

DEADLINE = 60.0


class Loop:
    """Enter it to start, leave it to stop. Jobs are declared before."""

    def __init__(self, *, workers: int = 4) -> None:
        self.registry = JobRegistry()
        self.backend = LocalBackend(store=Store())
        self.history = DatabaseHistory(keep=1000)
        self.scheduler = Scheduler(self.registry, self.backend, max_workers=workers, history=self.history)
        self.starts: list[tuple[RunContext, float]] = []
        """Runs, and how late each began, in seconds."""
        self.ends: list[tuple[str, str]] = []
        """Keys and outcomes."""
        self._thread = threading.Thread(target=self.scheduler.run, name="loop")

    def job(self, expression: str, key: str, work: Callable[[RunContext], object] = lambda context: None) -> None:
        """Declare a job that notes its starts."""

        def handler(context: RunContext) -> None:
            due = time.time() if context.scheduled_at is None else context.scheduled_at.timestamp()
            self.starts.append((context, time.time() - due))
            work(context)

        self.registry.schedule(expression, handler, key=key, takes_context=True)

    def __enter__(self) -> Loop:
        job_finished.connect(self._hear)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()
        end(self.history)
        job_finished.disconnect(self._hear)

    def _hear(self, sender: Any, outcome: str, **details: Any) -> None:
        self.ends.append((sender.key, outcome))

    def stop(self) -> float:
        """Stop it and return how many seconds its drain took."""
        before = time.monotonic()
        self.scheduler.stop()
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return time.monotonic() - before

    def run_now(self, key: str) -> str:
        """Have a job run once, and return the outcome when all of it is written."""
        count = len(self.ends)
        self.wait("the job to be known", lambda: self.backend.request_run(key))
        self.wait("the run that was asked for", lambda: len(self.ends) > count)
        assert self.history.flush(DEADLINE)
        return self.ends[-1][1]

    def wait(self, what: str, condition: Callable[[], object]) -> None:
        """Wait until it holds."""
        wait(what, condition)


def wait(what: str, condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if it does not come to that."""
    deadline = time.monotonic() + DEADLINE
    pause = threading.Event()
    while not condition():
        assert time.monotonic() < deadline, f"waited {DEADLINE:g} s in vain for {what}"
        pause.wait(0.02)
