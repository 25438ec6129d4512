"""How the log comes to the terminal where a project has not said how."""

from __future__ import annotations

import logging
import os
import threading
from collections import deque

MOST_WAITING = 1_000
"""Lines that may wait for the write of another thread; with more, those who log wait, too."""
MOST_ROUNDS = 10
"""Writes that may follow one another while others leave lines: then these wait, so that nobody writes for ever."""


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """
    Writes to stderr what several threads log at once with one write, so that none waits for another's.

    The handler of the standard library locks itself around each line. Writing lets other threads run, which then wait
    for that lock: in a burst of short runs that took as long as the runs. Here who writes also writes the lines that
    have come meanwhile. Lines keep their order, and each is written as soon as nobody is writing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._renew()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._renew)

    def _renew(self) -> None:
        """Begin anew: in a forked process there is nobody who would write what waits, or let go of the lock."""
        self._waiting: deque[tuple[logging.LogRecord, str]] = deque()
        self._writing = threading.Lock()
        self._writer: int | None = None
        self._rounds = 0

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit what no filter leaves out, without a lock."""
        wanted = self.filter(record)
        if wanted:
            self.emit(wanted if isinstance(wanted, logging.LogRecord) else record)  # A filter may give another.
        return bool(wanted)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or leave it to who is writing."""
        try:
            line = self.format(record) + self.terminator
        except Exception:  # noqa: BLE001 - As logging has it.
            self.handleError(record)
            return
        self._waiting.append((record, line))
        # Looked at again after each write: who found it going on has left a line and gone.
        while self._waiting and self._writing.acquire(blocking=self._must_wait()):
            try:
                self._write()
            finally:
                self._writing.release()

    def flush(self) -> None:
        """Wait until all lines are written: the process may end after it."""
        if self._writer != threading.get_ident():  # Else it is asked within a write.
            with self._writing:
                self._write()

    def _must_wait(self) -> bool:
        many = len(self._waiting) > MOST_WAITING or self._rounds >= MOST_ROUNDS
        return many and self._writer != threading.get_ident()

    def _write(self) -> None:
        """Write what waits; the lock is the caller's."""
        self._writer = threading.get_ident()
        taken = [self._waiting.popleft() for _ in range(len(self._waiting))]
        self._rounds += 1
        try:
            self.stream.write("".join(line for _, line in taken))
            self.stream.flush()
        except Exception:  # noqa: BLE001 - As logging has it.
            for record, _ in taken:
                self.handleError(record)
        finally:
            self._writer = None
            if not self._waiting:
                self._rounds = 0
