"""A clock that tests move by hand."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

START = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)
"""A Monday at noon, far from any change of the clocks."""


class ManualClock:
    """
    A wall clock and a monotonic clock that stand still until a test moves them.

    Instants are seconds since the epoch, or aware datetimes. Time is kept in whole nanoseconds, so that many small
    steps add up exactly.
    """

    def __init__(self, start: float | datetime = START) -> None:
        self._lock = threading.Lock()
        self._wall = _nanoseconds(start)
        self._monotonic = 1_000 * 10**9

    def time(self) -> float:
        """Return the wall time in seconds since the epoch."""
        return self._wall / 10**9

    def monotonic(self) -> float:
        """Return the monotonic time in seconds, from a point that means nothing."""
        return self._monotonic / 10**9

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks; never backwards."""
        if seconds < 0:
            raise ValueError("Time does not go back by itself: use set_time to step the wall clock.")
        with self._lock:
            self._wall += round(seconds * 10**9)
            self._monotonic += round(seconds * 10**9)

    def set_time(self, instant: float | datetime) -> None:
        """Step the wall clock, forwards or back, as an operator would: the monotonic clock does not notice."""
        with self._lock:
            self._wall = _nanoseconds(instant)


def _nanoseconds(instant: float | datetime) -> int:
    if not isinstance(instant, datetime):
        return round(instant * 10**9)
    if instant.tzinfo is None:
        raise ValueError("A clock needs an aware datetime.")
    since = instant - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1_000
