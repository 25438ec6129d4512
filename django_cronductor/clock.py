"""The clock of this machine, as the loop and the leases read it; `django_cronductor.testing` has one to move."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What is asked of a clock: both in seconds, the second since the epoch."""

    def monotonic(self) -> float:
        """Return a clock that never goes back and runs on in suspend."""

    def time(self) -> float:
        """Return the wall clock."""


class SystemClock:
    """The machine's own clock."""

    # In suspend CLOCK_MONOTONIC stands still while leases end: where the system has a clock that goes on, use that.
    _steady = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC) if hasattr(time, "CLOCK_MONOTONIC") else None

    def monotonic(self) -> float:
        """Return seconds since some moment in the past."""
        return time.monotonic() if self._steady is None else time.clock_gettime(self._steady)

    def time(self) -> float:
        """Return seconds since the epoch."""
        return time.time()
