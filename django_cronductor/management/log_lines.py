"""How the log comes to the terminal where a project has not said how."""

from __future__ import annotations

import logging
import threading
from collections import deque

MOST_WAITING = 1_000
"""Lines that may wait for the write of another thread; with more, those who log wait, too."""


class LineHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """
    Writes to stderr what several threads log at once with one write, so that none waits for another's.

    The handler of the standard library locks itself around each line. Writing lets other threads run, which then wait
    for that lock: in a burst of short runs that took as long as the runs. Here who writes also writes the lines that
    have come meanwhile. Lines keep their order, and each is written as soon as nobody is writing.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lines: deque[str] = deque()
        self._writing = threading.Lock()

    def handle(self, record: logging.LogRecord) -> bool:
        """Emit what no filter leaves out, without a lock."""
        wanted = self.filter(record)
        if wanted:
            self.emit(wanted if isinstance(wanted, logging.LogRecord) else record)  # A filter may give another.
        return bool(wanted)

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, or leave it to who is writing."""
        try:
            self._lines.append(self.format(record) + self.terminator)
            # Looked at again after each write: who found it going on has left a line and gone.
            while self._lines and self._writing.acquire(blocking=len(self._lines) > MOST_WAITING):
                try:
                    self._write()
                finally:
                    self._writing.release()
        except Exception:  # noqa: BLE001 - As logging has it.
            self.handleError(record)

    def _write(self) -> None:
        lines = [self._lines.popleft() for _ in range(len(self._lines))]
        self.stream.write("".join(lines))
        self.stream.flush()
