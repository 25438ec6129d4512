"""The lock store's clock, as one replica knows it."""

from __future__ import annotations

from django_cronductor.clock import Clock


class StoreClock:
    """
    The store's time: this machine's monotonic clock plus an offset learned from every reply.

    Not the wall clock: however wrong that is, or how often it is set, nothing here changes.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._offset: float | None = None
        self.quickest = float("inf")
        """Seconds of the quickest call so far, there and back."""

    def learn(self, now: int, sent: float, received: float) -> float:
        """
        Learn from a reply: `now` (milliseconds) was true at some moment between the two on the monotonic clock.

        Returns by how many seconds the store's clock has moved against what was known of it.
        """
        took, before = received - sent, self._offset
        if before is None:
            # It opened a connection, too: half of it would be far too much.
            self.quickest, self._offset = took, now / 1000 - received
            return 0.0
        quicker = took < self.quickest / 2
        self.quickest = min(self.quickest, took)
        # Half of the quickest call is for the way back; or else, where the way back is shorter, what is sent when it is
        # due by this clock takes longer to get there. So it does not come early, but for what the clocks drift apart.
        way = self.quickest / 2
        low, high = now / 1000 - received + way, (now + 1) / 1000 - sent - way
        if quicker:  # What was known was a guess, and no clock has moved.
            self._offset = low
            return 0.0
        self._offset = min(max(before, low), high)
        return self._offset - before

    def now(self) -> int:
        """Return the store's time in milliseconds since the epoch."""
        # A float holds a quarter of a microsecond: without the addition, a whole millisecond may read as one less.
        return int((self._clock.monotonic() + (self._offset or 0.0)) * 1000 + 0.001)

    def until(self, instant: int) -> float:
        """Return the seconds until an instant given in milliseconds since the epoch."""
        return instant / 1000 - (self._offset or 0.0) - self._clock.monotonic()

    def ahead(self) -> float:
        """Return by how many seconds this machine's wall clock is ahead of the store's."""
        return self._clock.time() - self._clock.monotonic() - (self._offset or 0.0)
