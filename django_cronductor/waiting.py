"""Asking a database that may hang."""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import TypeVar

from django.db import OperationalError, connections

T = TypeVar("T")


class NoAnswer(OperationalError):
    """The database has not answered in time; what it was asked for may yet happen."""


def within(seconds: float | None, ask: Callable[[], T]) -> T:
    """Ask in a thread with a connection of its own, and raise NoAnswer if that takes longer. None: ask here."""
    if seconds is None:
        return ask()
    answer: SimpleQueue[tuple[T] | Exception] = SimpleQueue()

    def work() -> None:
        found: tuple[T] | Exception
        try:
            found = (ask(),)
        except Exception as error:  # noqa: BLE001 - Raised again below, by who waits for it.
            found = error
        connections.close_all()
        answer.put(found)

    threading.Thread(target=work, name="cronductor-asking", daemon=True).start()
    try:
        found = answer.get(timeout=seconds)
    except Empty:
        raise NoAnswer(f"it has not answered for {seconds:g} s") from None
    if isinstance(found, Exception):
        raise found
    return found[0]
