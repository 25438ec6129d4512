"""Keep leases alive while their runs go on, and give them back: one thread, in batches."""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import InitVar, dataclass, field
from typing import Literal, Protocol, TypeVar

from django_cronductor.backends.base import (
    Heartbeat,
    Lease,
    LockBackend,
    Release,
    ReleaseResult,
    Reply,
    renewal_period,
)
from django_cronductor.clock import Clock
from django_cronductor.exceptions import BackendError
from django_cronductor.logs import get_logger

logger = get_logger(__name__)

T = TypeVar("T")

Phase = Literal["renew", "release", "heartbeat"]

CLOCK_STEP = 0.001
"""Seconds: the store counts whole milliseconds, so that what it has granted may end by so much earlier."""
HEARTBEAT = 1.0
"""Seconds between two heartbeats of an instance."""
GATHER_RELEASES = 0.005
"""Seconds for which the thread lets releases gather, so that runs that end together are given back in one call."""
RETRY_RELEASES = 0.05
"""Seconds before a release that failed is first sent again; doubled each time, up to a second."""


def deadline_of(sent: float, ttl: int) -> float:
    """Return until when a lease is sure that was asked for at `sent`, for `ttl` milliseconds."""
    return sent + ttl / 1000 - CLOCK_STEP


@dataclass(eq=False)
class HeldLease:
    """A lease that this process holds, and whether it still does. The request that won it was sent at `sent`."""

    lease: Lease
    sent: InitVar[float]
    clock: Clock
    deadline: float = field(init=False)
    """On the clock's monotonic time, counted from before the request that was answered: past it, it may have ended."""
    renew_at: float = field(init=False)
    told: bool = False
    ended: bool = False
    """Whether its holder is done with it: what happens to it now is no loss."""
    _lost: bool = False

    def __post_init__(self, sent: float) -> None:
        self.deadline = deadline_of(sent, self.lease.ttl)
        self.renew_at = sent + self.period

    @property
    def period(self) -> float:
        """Return the seconds between two renewals."""
        return renewal_period(self.lease.ttl) / 1000

    @property
    def lost(self) -> bool:
        """Tell whether the lease has ended, or may have. Once true, it stays so."""
        if not self.ended and self.clock.monotonic() >= self.deadline:
            self._lost = True
        return self._lost

    def renewed(self, sent: float) -> None:
        """Note a renewal that was sent at `sent`; it does not give back what was lost in between."""
        if not self.lost:
            self.deadline = deadline_of(sent, self.lease.ttl)
        self.renew_at = sent + self.period

    def lose(self) -> None:
        """Note that the store gave it to another."""
        self._lost = self._lost or not self.ended


class Listener(Protocol):
    """Who is told what the keeper finds out. Called in the keeper's thread: it must not wait."""

    def lease_lost(self, held: HeldLease, left: int | None) -> None:
        """
        Hear that a lease is lost; `left` is what another's has left (milliseconds; None: not known).

        Heard once; and once more, with `held.told` true, where the store says what is left only later.
        """

    def lease_released(self, held: HeldLease, result: ReleaseResult) -> None:
        """Hear the answer to a release."""

    def store_failed(self, phase: Phase, error: BackendError, leases: Sequence[Lease]) -> None:
        """Hear that a whole call failed: `renew`, `release` or `heartbeat`."""

    def lease_failed(self, phase: Phase, error: BackendError, lease: Lease) -> None:
        """Hear that the store could not work on this lease alone."""

    def store_answered(self, phase: Phase) -> None:
        """Hear that a call of that phase was answered."""

    def heart_beaten(self, heartbeat: Heartbeat, sent: float, received: float) -> None:
        """Hear the answer to a heartbeat, and between which two moments it was given."""


class LeaseKeeper:
    """
    Renews every lease it is given until its release is answered, and beats the instance's heart.

    Drive it by `start` (a thread of its own) or by calling `tick`.
    """

    def __init__(self, backend: LockBackend, clock: Clock, listener: Listener, instance: str | None = None) -> None:
        self._backend = backend
        self._clock = clock
        self._listener = listener
        self._instance = instance
        self._held: dict[str, HeldLease] = {}
        self._given_back: deque[tuple[HeldLease, str]] = deque()
        """Leases to release that the next pass finds."""
        self._releases: dict[str, tuple[HeldLease, str]] = {}
        self._release_at = 0.0
        self._down = False
        """Whether the last call of releases failed as a whole: new ones then wait with the others."""
        self._retry = RETRY_RELEASES
        self._beat_at = 0.0
        self._look_at = math.inf
        """When the thread makes its next pass if nobody wakes it."""
        self._changed = threading.Condition()
        self._dirty = False
        self._stopped = False
        self._thread: threading.Thread | None = None

    def stay_unlisted(self) -> None:
        """Send no heartbeats: the instance takes no part in what the others do."""
        self._instance = None

    def hold(self, lease: Lease, sent: float) -> HeldLease:
        """Keep a lease alive that was won by a request sent at `sent`, on the clock's monotonic time."""
        held = HeldLease(lease, sent, self._clock)
        with self._changed:
            self._held[lease.token] = held
            if held.renew_at < self._look_at:
                self._wake()
        return held

    def release(self, held: HeldLease, outcome: str) -> None:
        """Give the lease back, soon: the listener hears the answer."""
        held.ended = True
        # Without the lock, for which many workers at once would wait longer than they work.
        self._given_back.append((held, outcome))
        if not self._dirty:
            with self._changed:
                self._wake()

    def withdraw(self, held: HeldLease) -> None:
        """Send its release no more, and let it lapse."""
        self._collect_releases()
        self._drop(held)

    def start(self) -> None:
        """Keep the leases in a thread of its own until `stop`."""
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cronductor-leases", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread after its current pass."""
        with self._changed:
            self._stopped = True
            self._wake()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    @property
    def running(self) -> bool:
        """Tell whether the thread runs (in a forked child it does not)."""
        return self._thread is not None and self._thread.is_alive()

    def _wake(self) -> None:
        self._dirty = True
        self._changed.notify()

    def _run(self) -> None:
        while not self._stopped:
            if self._given_back and not self._stopped:
                # Not time.sleep(), which fails under a clock that libfaketime moves.
                threading.Event().wait(GATHER_RELEASES)
            self._dirty, self._look_at = False, math.inf  # Before the pass: what comes during it is seen after it.
            try:
                wait = self.tick()
            except Exception:  # A fault of ours must not end renewals: everything depends on this thread.
                logger.exception("A pass over the leases failed.")
                wait = min((held.period for held in list(self._held.values())), default=1.0)
            with self._changed:
                if not self._dirty and not self._stopped:
                    self._look_at = self._clock.monotonic() + wait
                    self._changed.wait(wait)

    def tick(self) -> float:
        """Make one pass: releases, renewals, heartbeat. Return the seconds until the next is due."""
        now = self._clock.monotonic()
        self._collect_releases()
        if self._releases and now >= self._release_at:
            self._send_releases()
        due = [held for held in list(self._held.values()) if held.renew_at <= now + held.period / 2]
        # Half a period early rather than late: leases that began at different moments then go in one call.
        if any(held.renew_at <= now for held in due):
            self._send_renewals(due)
        if self._instance is not None and now >= self._beat_at:
            self._beat(self._instance)
        self._notice_deadlines()
        return self._until_next()

    def _until_next(self) -> float:
        if self._given_back:
            return 0.0
        moments = [held.renew_at for held in list(self._held.values())]
        moments += [held.deadline for held in list(self._held.values()) if not held.told and not held.ended]
        if self._releases:
            moments.append(self._release_at)
        if self._instance is not None:
            moments.append(self._beat_at)
        return max(0.0, min(moments, default=self._clock.monotonic() + 60.0) - self._clock.monotonic())

    def _collect_releases(self) -> None:
        with self._changed:
            while self._given_back:
                held, outcome = self._given_back.popleft()
                self._releases[held.lease.token] = (held, outcome)
                if not self._down:
                    self._release_at = 0.0  # It does not wait for another that fails alone.

    def _drop(self, held: HeldLease) -> None:
        with self._changed:
            self._releases.pop(held.lease.token, None)
            self._held.pop(held.lease.token, None)

    def _send_releases(self) -> None:
        batch = list(self._releases.values())
        requests = [Release(held.lease, outcome) for held, outcome in batch]
        leases = [held.lease for held, _ in batch]
        reply = self._ask("release", lambda: self._backend.release(requests), leases)
        failed = self._down = reply is None
        for (held, _), answer in zip(batch, reply.answers if reply else (), strict=False):
            if isinstance(answer, BackendError):
                self._listener.lease_failed("release", answer, held.lease)
                failed = True
                continue
            self._drop(held)
            self._listener.lease_released(held, answer)
        if failed:
            self._release_at = self._clock.monotonic() + self._retry
        self._retry = min(1.0, self._retry * 2) if failed else RETRY_RELEASES

    def _send_renewals(self, batch: list[HeldLease]) -> None:
        sent = self._clock.monotonic()
        leases = [held.lease for held in batch]
        reply = self._ask("renew", lambda: self._backend.renew(leases), leases)
        for held, answer in zip(batch, reply.answers if reply else [None] * len(batch), strict=True):
            if isinstance(answer, BackendError):
                self._listener.lease_failed("renew", answer, held.lease)
            if answer is None or isinstance(answer, BackendError):
                held.renew_at = sent + held.period  # Never backed off: the lease runs on meanwhile.
            elif answer.ok:
                held.renewed(sent)
            else:
                held.lose()
                self._held.pop(held.lease.token, None)  # A release under way is still to be answered.
                self._tell(held, answer.left)

    def _beat(self, instance: str) -> None:
        sent = self._clock.monotonic()
        self._beat_at = sent + HEARTBEAT
        try:
            heartbeat = self._backend.heartbeat(instance)
        except BackendError as error:
            self._listener.store_failed("heartbeat", error, [])
        else:
            self._listener.store_answered("heartbeat")
            self._listener.heart_beaten(heartbeat, sent, self._clock.monotonic())

    def _notice_deadlines(self) -> None:
        for held in list(self._held.values()):
            if held.lost:
                self._tell(held, None)

    def _tell(self, held: HeldLease, left: int | None) -> None:
        if not held.told or left is not None:
            self._listener.lease_lost(held, left)
            held.told = True

    def _ask(self, phase: Phase, send: Callable[[], Reply[T]], leases: list[Lease]) -> Reply[T] | None:
        try:
            reply = send()
        except BackendError as error:
            self._listener.store_failed(phase, error, leases)
            return None
        self._listener.store_answered(phase)
        return reply
