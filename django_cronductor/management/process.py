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
from typing import TextIO

from django.core.management.base import BaseCommand, OutputWrapper

from django_cronductor.logs import get_logger
from django_cronductor.management.log_lines import LineHandler

logger = get_logger(__name__)

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
def printing_to_anyone(command: BaseCommand) -> Iterator[None]:
    """Print to whatever reads: what it has no characters for as escapes, and nothing more once it has read enough."""
    open_closed_streams(command)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            flush_errors()
            _flush_output()
    except BrokenPipeError:
        _print_nowhere(sys.stdout)
        sys.exit(FAILED)


def open_closed_streams(command: BaseCommand) -> None:
    """Let a program that was started without stdout or stderr print nowhere: Python has None in their place."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.open(os.devnull, os.O_WRONLY), "w", closefd=False)  # noqa: SIM115 - As Python opens its own.
            setattr(sys, name, stream)
            setattr(command, name, OutputWrapper(stream))


@contextlib.contextmanager
def printing_if_possible(command: BaseCommand) -> Iterator[None]:
    """Print what is not the purpose of a command, and go on where that fails; a program prints no more then."""
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        logger.warning("What was to be said cannot be printed: %s", error)
        if getattr(command, "as_program", False):
            _print_nowhere(sys.stdout)


def flush_errors() -> None:
    """Drop at the end of a program what stderr cannot take."""
    try:
        sys.stderr.flush()
    except OSError:
        _print_nowhere(sys.stderr)


def _flush_output() -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        _print_nowhere(sys.stdout)
        sys.exit(f"What was to be said cannot be printed: {error}")


def _print_nowhere(stream: TextIO) -> None:
    """Print no more, or the interpreter would write what is left, and fail with a code of its own."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


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
    if sys.__stderr__ is None:  # It was closed at the start: whatever has been opened since may be the second file.
        return
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
