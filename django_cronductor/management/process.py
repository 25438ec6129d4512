"""What the commands do with their process: where its log goes, and how it ends."""

from __future__ import annotations

import _thread
import contextlib
import io
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType

from django_cronductor.management.log_lines import LineHandler

FAILED, USAGE, HELD, UNREACHABLE = 1, 2, 3, 4
"""The exit codes of the `cron` command beside 0; its help explains them."""
SIGNALS = (signal.SIGTERM, signal.SIGINT)
"""Those that ask a command to stop."""
FLUSH_WAIT = 1.0
"""Seconds that an exit at once waits for what was printed and logged to be written."""


def show_logs_somewhere(level: int = logging.INFO) -> None:
    """Show our records from a level on, on stderr, in a project that has no logging for them."""
    logger = logging.getLogger("django_cronductor")
    if not logger.hasHandlers():
        handler = LineHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
        logger.addHandler(handler)
        logger.setLevel(level)


@contextlib.contextmanager
def printing_to_anyone() -> Iterator[None]:
    """Print to whatever reads: what it has no characters for as escapes, and nothing more once it has read enough."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Or the interpreter would try to flush it again at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(FAILED)


@contextlib.contextmanager
def heeding_signals(heed: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    """Call this at SIGTERM and SIGINT meanwhile; in another thread than the main one no signal can be had."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, heed) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def say_at_once(text: str) -> None:
    """Print a line to stderr from a signal handler, which may have interrupted another who prints."""
    with contextlib.suppress(OSError):
        os.write(2, f"{text}\n".encode())


def exit_at_once(code: int) -> None:
    """End the process although threads of jobs, and of asgiref's, may still work."""
    with contextlib.suppress(ValueError):  # Raised in another thread than the main one.
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)  # Each one more would begin all this again.
    # In a thread, as a handler's lock may be held, or the reader of a pipe have stalled. Not one of `threading`, whose
    # own lock the signal that brought us here may have interrupted.
    flushed = _thread.allocate_lock()
    flushed.acquire()
    with contextlib.suppress(RuntimeError):  # No thread can be had: then nothing is flushed.
        _thread.start_new_thread(_flush, (flushed,))
    flushed.acquire(timeout=FLUSH_WAIT)
    os._exit(code)


def _flush(done: _thread.LockType) -> None:
    """Flush what was printed and logged, as far as that can be done."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        logging.shutdown()
    with contextlib.suppress(Exception):
        sys.stderr.flush()
    done.release()
