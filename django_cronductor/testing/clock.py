"""A clock that tests move by hand."""

from __future__ import annotations

import threading
from datetime import datetime, timezone

START = datetime(2026, 1, 5, 12, 0, tzinfo=timezone.utc)
"""A Monday at noon, far from any change of the clocks."""


class ManualClock:
    """
    A wall clock and a monotonic clock that stand still until a test moves them.

    Instants are seconds since the epoch, aware datetimes, or text in ISO 8601 with an offset from UTC. Time is kept in
    whole nanoseconds, so that many small steps add up exactly.
    """

    def __init__(self, start: float | datetime | str = START) -> None:
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

    def set_time(self, instant: float | datetime | str) -> None:
        """Step the wall clock, forwards or back, as an operator would: the monotonic clock does not notice."""
        with self._lock:
            self._wall = _nanoseconds(instant)


def to_instant(instant: datetime | str) -> datetime:
    """Return an instant as an aware datetime in UTC. Raises ValueError for one without an offset from UTC."""
    if isinstance(instant, str):
        # Python 3.10 reads no "Z".
        instant = datetime.fromisoformat(f"{instant[:-1]}+00:00" if instant.endswith(("Z", "z")) else instant)
    if instant.utcoffset() is None:
        raise ValueError(f"{instant} has no offset from UTC: give an aware datetime, or text as in {instant}+00:00.")
    return instant.astimezone(timezone.utc)


def _nanoseconds(instant: float | datetime | str) -> int:
    if isinstance(instant, (int, float)):
        return round(instant * 10**9)
    since = to_instant(instant) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return ((since.days * 86_400 + since.seconds) * 10**6 + since.microseconds) * 1_000
