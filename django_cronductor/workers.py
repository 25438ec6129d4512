"""Our own worker threads: an executor's would hold the exit of the process."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from django.db import connections

from django_cronductor.clock import Clock
from django_cronductor.logs import get_logger

logger = get_logger(__name__)

RECENT = 0.02
"""Seconds for which a finished call counts as recent."""


class WorkerPool:
    """
    Daemon threads, started as they are needed, that call what is submitted in the order it came.

    `on_room` is called when calls have ended and more may come: a thread is free, or half of the queue is done.
    """

    def __init__(self, size: int, name: str, clock: Clock, on_room: Callable[[], object] | None = None) -> None:
        self.size = size
        self._on_room = on_room
        self._name = name
        self._clock = clock
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        # The threads take no lock between calls: where calls are short they would spend their time waiting for it.
        self._ended: deque[float] = deque()
        """When calls have ended that count as recent, or did when somebody looked."""
        self._open_or_recent = 0
        """Calls that have not ended, and those of `_ended`."""
        self._refill_at = 0
        """With no more than so many calls in the queue, others may come."""
        self._told = False
        self._waited_for = False
        self._changed = threading.Condition()

    def submit(self, call: Callable[[], object]) -> None:
        """Call it in one of the threads, now or as soon as one is free."""
        with self._changed:
            self._forget()
            self._open_or_recent += 1
            if len(self._threads) < min(self._open, self.size):
                self._start_thread()
            self._calls.put(call)
            self._refill_at = self._calls.qsize() // 2

    def look_for_room(self) -> int:
        """
        Return how many calls can start soon: on free threads, and on those that come free as fast as of late.

        0 or less, while no thread is free and the queue is longer than what could be added: few large batches cost
        less. `on_room` is called again for what ends after this.
        """
        with self._changed:
            self._told = False  # First: whoever ends from here on tells.
            self._forget()
            room = self.size + len(self._ended) - self._open
            return room if self._open < self.size or room >= self._open else min(room, 0)

    def wait_idle(self, timeout: float) -> bool:
        """Wait until everything submitted has been called; tell whether it came to that within `timeout` seconds."""
        with self._changed:
            self._waited_for = True  # First: whoever ends from here on notifies.
            return self._changed.wait_for(lambda: self._open == 0, timeout)

    def close(self) -> None:
        """Let the threads end once they have called what was submitted."""
        for _ in self._threads:
            self._calls.put(None)

    @property
    def _open(self) -> int:
        """Return how many calls have been submitted and have not ended."""
        return self._open_or_recent - len(self._ended)

    def _forget(self) -> None:
        """Count no longer as recent what is not."""
        earliest = self._clock.monotonic() - RECENT
        while self._ended and self._ended[0] < earliest:
            self._ended.popleft()
            self._open_or_recent -= 1

    def _start_thread(self) -> None:
        thread = threading.Thread(target=self._work, name=f"{self._name}-{len(self._threads) + 1}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:  # The system has no more threads to give.
            if not self._threads:
                self._open_or_recent -= 1
                raise
            logger.warning("%d threads have to do the work of %d: %s.", len(self._threads), self.size, error)
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except BaseException:  # Nothing that user code raises, SystemExit included, may cost a thread.
                logger.exception("A call in a worker thread failed.")
            self._ended.append(self._clock.monotonic())
            if self._on_room is not None and not self._told and self._calls.qsize() <= self._refill_at:
                self._told = True
                self._on_room()
            if self._waited_for:
                with self._changed:
                    self._changed.notify_all()
        connections.close_all()  # Those that may live on between calls must not outlive the thread.
