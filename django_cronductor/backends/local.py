"""
The single-instance backend: the contract of `base`, kept in the memory of one process.

The rules are those of the Redis scripts, under the same names. There is no rest after a loss: when the memory of the
process is gone, so is everybody who held a lease in it. In a subclass that is `shared` there is: it has the same rules
for another store, which it reads into its `Store` when `store.lock` is taken, and writes back when that is given up.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from django_cronductor.backends.base import (
    INSTANCE_LIFETIME,
    MANUAL,
    REQUEST_LIFETIME,
    Acquired,
    Claim,
    ClaimResult,
    DeadRun,
    Declaration,
    Heartbeat,
    JobState,
    LastLease,
    Lease,
    LockBackend,
    Release,
    ReleaseResult,
    RenewResult,
    Reply,
    Seeds,
    rest_of,
)
from django_cronductor.logs import get_logger

logger = get_logger(__name__)
T = TypeVar("T")
Q = TypeVar("Q")


class WallClock(Protocol):
    """What tells the time: the module `time`, or a clock that a test moves."""

    def time(self) -> float:
        """Return seconds since the epoch."""


@dataclass(slots=True)
class Job:
    """What is known of one job. -1 and None mean none."""

    since: int | None = None
    fingerprint: str | None = None
    occurrence: int = -1
    pending: int = -1
    asked: str | None = None
    answer: ClaimResult | ReleaseResult | None = None
    lease: Lease | None = None
    started: int = 0
    expires: int = 0
    fence: int = 0
    paused: bool = False
    requested: int | None = None
    last: LastLease | None = None
    quiet: int = 0
    """Until when nothing is decided; only where the store is shared."""

    def resting(self, now: int) -> bool:
        """Tell whether living holders are to write their leases back before anything is decided."""
        return self.quiet > now

    def live(self, now: int) -> bool:
        """Tell whether somebody runs."""
        return self.lease is not None and self.expires > now

    def is_requested(self, now: int) -> bool:
        """Tell whether there is a request to run it that still counts."""
        return self.requested is not None and now - self.requested <= REQUEST_LIFETIME

    def dead(self, now: int) -> DeadRun | None:
        """Return the run whose lease has ended and that nobody was told of."""
        return None if self.live(now) else self.run()

    def run(self) -> DeadRun | None:
        """Return the run that has the lease, live or dead."""
        lease = self.lease
        return None if lease is None else DeadRun(_run(lease), lease.holder, lease.attempt, self.fence)

    def drop(self, ended: int, outcome: str) -> None:
        """End the lease; the fence stays."""
        if self.lease:
            self.last = LastLease(self.lease.holder, _run(self.lease), self.lease.fence, self.started, ended, outcome)
        self.lease = None

    def drop_dead(self) -> None:
        """End a lease that lapsed."""
        self.drop(self.expires, "abandoned")

    def win(self, lease: Lease, now: int) -> None:
        """Start a lease over whatever dead one was there."""
        self.drop_dead()
        # Never below the clock: fences rise even if the process was restarted.
        self.fence = max(self.fence + 1, now)
        self.lease = replace(lease, fence=self.fence)
        self.started, self.expires = now, now + lease.ttl

    def say(self, token: str, answer: T) -> T:
        """Keep the whole answer under its token: a retry hears the same."""
        assert isinstance(answer, (ClaimResult, ReleaseResult))
        self.asked, self.answer = token, answer
        return answer

    def cut(self, now: int, ttl: int) -> None:
        """Where the clock went back, let no lease and no rest last longer than it was made for."""
        if self.lease:
            self.expires = min(self.expires, now + self.lease.ttl)
        self.quiet = min(self.quiet, now + rest_of(ttl))

    def replay(self, token: str, ttl: int, now: int) -> ClaimResult:
        """Answer a retry."""
        answer = self.answer
        assert isinstance(answer, ClaimResult)
        if not answer.runs:
            return answer
        if self.lease is None or self.lease.token != token:
            return ClaimResult("lost", previous=answer.previous, dead=answer.dead)
        self.expires = now + ttl
        return answer

    def own(self, lease: Lease, now: int) -> Literal["ours", "lost", "less"]:
        """Say what a holder's lease is here; `less`: less is known here than by its holder."""
        if self.lease and self.lease.token == lease.token:
            return "ours"
        # An equal fence without the lease was released, abandoned or forced off; at rest it is the holder's, as a seed.
        ended = self.fence > lease.fence or (self.fence == lease.fence and not self.resting(now))
        return "lost" if self.live(now) or ended else "less"

    def left(self, now: int) -> int | None:
        """Return what another's lease has left."""
        return max(0, self.expires - now) if self.lease else None

    def restore(self, lease: Lease, now: int) -> None:
        """Write a lease back."""
        self.lease, self.fence, self.started, self.expires = lease, lease.fence, now, now + lease.ttl
        if isinstance(lease.run, int):
            self.occurrence = max(self.occurrence, lease.run)


@dataclass(slots=True)
class PlainLock:
    """A plain lock; gone at its end."""

    lease: Lease
    expires: int


@dataclass(slots=True)
class Store:
    """What a process knows under one prefix."""

    lock: AbstractContextManager[Any] = field(default_factory=threading.Lock)
    jobs: dict[str, Job] = field(default_factory=dict)
    locks: dict[str, PlainLock] = field(default_factory=dict)
    fence: int = 0
    instances: dict[str, int] = field(default_factory=dict)

    def job(self, key: str) -> Job:
        """Return the job to be changed."""
        return self.jobs.setdefault(key, Job())

    def plain_lock(self, key: str, now: int) -> PlainLock | None:
        """Return the lock if anybody holds it."""
        there = self.locks.get(key)
        if there and there.expires <= now:
            del self.locks[key]
            return None
        return there


_stores: dict[str, Store] = {}
_stores_lock = threading.Lock()


def _shared_store(prefix: str) -> Store:
    with _stores_lock:
        if prefix not in _stores:
            _stores[prefix] = Store()
            logger.warning(
                "Claims and leases are kept in the memory of this process (prefix %r): every other process would run "
                "each job as well. Name a shared lock backend where more than one runs.",
                prefix,
            )
        return _stores[prefix]


class LocalBackend(LockBackend):
    """
    Claims and leases in the memory of this process, shared by all who use the same prefix in it.

    With a `clock` of its own it has a store of its own too, unless one is handed over (another's `store`).
    """

    shared: ClassVar[bool] = False

    def __init__(
        self,
        *,
        cache: str = "default",
        prefix: str = "cronductor",
        clock: WallClock | None = None,
        store: Store | None = None,
    ) -> None:
        super().__init__(cache=cache, prefix=prefix)
        self._clock = clock or time
        self._store = store or (Store() if clock else None)

    @property
    def store(self) -> Store:
        """Return what is known; the first use of the memory that a prefix stands for warns of what it is."""
        if self._store is None:
            self._store = _shared_store(self.prefix)
        return self._store

    def describe(self) -> str:
        """Say that it is this process's memory."""
        return f"memory of this process (single instance, prefix {self.prefix!r})"

    def time(self) -> int:
        """Return the wall clock."""
        # A float holds a quarter of a microsecond: without the addition, a whole millisecond may read as one less.
        return math.floor(self._clock.time() * 1000 + 0.001)

    def declare(self, declarations: Sequence[Declaration]) -> Reply[int]:
        """Make the jobs known; see the contract."""
        return self._batch(declarations, lambda one, now: self._declare(self.store.job(one.key), one, now))

    def _declare(self, job: Job, declaration: Declaration, now: int) -> int:
        seeds, new = declaration.seeds, job.since is None
        if new or job.resting(now):
            job.occurrence = max(job.occurrence, -1 if seeds.occurrence is None else seeds.occurrence)
        if new:
            job.fence = max(job.fence, seeds.fence or 0)
            job.paused = job.paused or bool(seeds.paused)
            if self.shared and seeds != Seeds():
                job.quiet = now + rest_of(declaration.ttl)
        if job.since is None or job.fingerprint != declaration.fingerprint:
            job.fingerprint = declaration.fingerprint
            job.since = now if seeds.since is None else seeds.since
        return job.since

    def claim(self, claims: Sequence[Claim], holder: str) -> Reply[ClaimResult]:
        """Decide one occurrence of each job; see the contract."""
        return self._batch(claims, lambda one, now: self._claim(self.store.job(one.key), one, holder, now))

    def _claim(self, job: Job, claim: Claim, holder: str, now: int) -> ClaimResult:
        if job.since is None:
            return ClaimResult("undeclared")
        job.cut(now, claim.ttl)
        if job.asked == claim.token:
            return job.replay(claim.token, claim.ttl, now)
        if job.resting(now):
            return ClaimResult("early", left=job.quiet - now)
        decided = claim.occurrence <= job.occurrence
        if not decided and claim.occurrence > now:
            return ClaimResult("early", left=claim.occurrence - now)
        if job.lease and job.live(now):
            if not decided:
                job.pending = max(job.pending, claim.occurrence)
            return ClaimResult("taken" if decided else "held", left=job.expires - now, holder=job.lease.holder)
        dead = job.dead(now)
        return self._look(job, claim, holder, dead, now) if decided else self._decide(job, claim, holder, dead, now)

    def _look(self, job: Job, claim: Claim, holder: str, dead: DeadRun | None, now: int) -> ClaimResult:
        """Answer about a decided occurrence that nobody runs."""
        if dead is None:
            return ClaimResult("taken")
        again = claim.recover and (dead.run, dead.attempt) == (claim.occurrence, 0)
        if again and not job.paused and now - job.expires <= claim.grace:
            job.win(Lease(claim.key, claim.token, 0, claim.ttl, holder, claim.occurrence, 1), now)
            return job.say(claim.token, ClaimResult("recovered", dead=dead, fence=job.fence, attempt=1))
        job.drop_dead()
        return job.say(claim.token, ClaimResult("taken", dead=dead))

    def _decide(self, job: Job, claim: Claim, holder: str, dead: DeadRun | None, now: int) -> ClaimResult:
        """Decide an occurrence that is due and new."""
        assert job.since is not None
        previous = max(job.occurrence, job.since)
        job.occurrence, job.pending = claim.occurrence, -1
        if job.paused or now - claim.occurrence > claim.grace:
            job.drop_dead()
            verdict: Literal["paused", "missed"] = "paused" if job.paused else "missed"
            return job.say(claim.token, ClaimResult(verdict, previous=previous, dead=dead))
        job.win(Lease(claim.key, claim.token, 0, claim.ttl, holder, claim.occurrence), now)
        return job.say(claim.token, ClaimResult("won", previous=previous, dead=dead, fence=job.fence))

    def renew(self, leases: Sequence[Lease]) -> Reply[RenewResult]:
        """Move the ends of the leases; see the contract."""
        return self._batch(leases, lambda one, now: (self._renew_lock if one.run is None else self._renew)(one, now))

    def _renew(self, lease: Lease, now: int) -> RenewResult:
        job = self.store.job(lease.key)
        owned = job.own(lease, now)
        if owned == "lost":
            return RenewResult(False, job.left(now))
        if owned == "less":
            job.restore(lease, now)
        job.expires = now + lease.ttl
        return RenewResult(True)

    def _renew_lock(self, lease: Lease, now: int) -> RenewResult:
        there = self.store.plain_lock(lease.key, now)
        if there is None and self.store.fence < lease.fence:
            self.store.fence = lease.fence
            there = self.store.locks[lease.key] = PlainLock(lease, 0)
        if there is None or there.lease.token != lease.token:
            return RenewResult(False, None if there is None else there.expires - now)
        there.expires = now + lease.ttl
        return RenewResult(True)

    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        """Give leases back; see the contract."""
        return self._batch(
            releases,
            lambda one, now: self._release_lock(one.lease, now) if one.lease.run is None else self._release(one, now),
        )

    def _release(self, release: Release, now: int) -> ReleaseResult:
        lease, job = release.lease, self.store.job(release.lease.key)
        retry = f"{lease.token}:released"
        if job.asked == retry and isinstance(job.answer, ReleaseResult):
            return job.answer
        owned = job.own(lease, now)
        if owned == "lost":
            return ReleaseResult(False, job.left(now))
        if owned == "less":
            job.restore(lease, now)
        job.drop(now, release.outcome)
        # What came during the run is consumed by its end: overlap skips, once, told by the one who caused it.
        pending, decided, job.pending = job.pending, job.occurrence, -1
        if pending <= decided:
            return ReleaseResult(True)
        job.occurrence = pending
        held = (max(decided, -1 if job.since is None else job.since), pending)
        return job.say(retry, ReleaseResult(True, held=held))

    def _release_lock(self, lease: Lease, now: int) -> ReleaseResult:
        there = self.store.plain_lock(lease.key, now)
        if there and there.lease.token != lease.token:
            return ReleaseResult(False, there.expires - now)
        self.store.locks.pop(lease.key, None)
        return ReleaseResult(True)

    def states(self, keys: Sequence[str]) -> Reply[JobState]:
        """Read jobs, changing nothing."""
        return self._batch(keys, lambda key, now: _state(key, self.store.jobs.get(key, Job()), now))

    def pause(self, key: str) -> None:
        """Let no scheduled occurrence run."""
        with self.store.lock:
            self.store.job(key).paused = True

    def resume(self, key: str) -> None:
        """Lift the pause."""
        with self.store.lock:
            self.store.job(key).paused = False

    def force_release(self, key: str) -> DeadRun | None:
        """Take the lease away and raise the fence: its holder's is behind, and cannot be written back."""
        with self.store.lock:
            job = self.store.job(key)
            gone = job.run()
            job.drop(self.time(), "released by force")
            job.fence += 1
            return gone

    def forget(self, key: str) -> None:
        """Delete the job."""
        with self.store.lock:
            self.store.jobs.pop(key, None)

    def request_run(self, key: str) -> bool:
        """Ask for a run of the job now."""
        with self.store.lock:
            job = self.store.job(key)
            if job.since is None:
                return False
            job.requested = self.time()
            return True

    def take_request(self, key: str, token: str, ttl: int, holder: str, *, unasked: bool = False) -> ClaimResult:
        """Take a request and the lease in one step; see the contract."""
        with self.store.lock:
            job, now = self.store.job(key), self.time()
            job.cut(now, ttl)
            if job.asked == token:
                return job.replay(token, ttl, now)
            if unasked and job.since is None:
                return ClaimResult("undeclared")
            if job.resting(now):
                return ClaimResult("busy", left=job.quiet - now)
            if job.lease and job.live(now):
                return ClaimResult("busy", left=job.expires - now, holder=job.lease.holder)
            if not unasked:
                fresh, job.requested = job.is_requested(now), None
                if not fresh:
                    return ClaimResult("none")
            dead = job.dead(now)
            job.win(Lease(key, token, 0, ttl, holder, MANUAL), now)
            return job.say(token, ClaimResult("won", dead=dead, fence=job.fence))

    def heartbeat(self, instance: str) -> Heartbeat:
        """Say that the instance lives."""
        with self.store.lock:
            now, instances = self.time(), self.store.instances
            known = instance in instances
            instances[instance] = now
            for name in [name for name, seen in instances.items() if now - seen > INSTANCE_LIFETIME]:
                del instances[name]
            requested = frozenset(key for key, job in self.store.jobs.items() if job.is_requested(now))
            return Heartbeat(now, known, requested)

    def instances(self) -> dict[str, int]:
        """Return the instances heard of in the last minute."""
        with self.store.lock:
            now = self.time()
            return {name: seen for name, seen in self.store.instances.items() if now - seen <= INSTANCE_LIFETIME}

    def retire(self, instance: str) -> None:
        """Strike the instance from the list."""
        with self.store.lock:
            self.store.instances.pop(instance, None)

    def acquire(self, key: str, token: str, ttl: int, holder: str) -> Acquired:
        """Take a plain lock; see the contract."""
        with self.store.lock:
            now = self.time()
            there = self.store.plain_lock(key, now)
            if there and there.lease.token != token:
                return Acquired(holder=there.lease.holder, left=there.expires - now)
            if there is None:
                self.store.fence = max(self.store.fence + 1, now)
                there = PlainLock(Lease(key, token, self.store.fence, ttl, holder), 0)
                self.store.locks[key] = there
            there.expires = now + ttl
            return Acquired(there.lease.fence, holder, ttl)

    def close(self) -> None:
        """Do nothing: others use the store too."""

    def _batch(self, questions: Sequence[Q], answer: Callable[[Q, int], T]) -> Reply[T]:
        with self.store.lock:
            now = self.time()
            return Reply(now, [answer(question, now) for question in questions])


def _run(lease: Lease) -> int | Literal["manual"]:
    assert lease.run is not None, "a plain lock is no job's"
    return lease.run


def _state(key: str, job: Job, now: int) -> JobState:
    return JobState(
        key,
        since=job.since,
        fingerprint=job.fingerprint,
        occurrence=None if job.occurrence < 0 else job.occurrence,
        paused=job.paused,
        lease=job.lease,
        started=job.started if job.lease else None,
        expires=job.expires if job.lease else None,
        fence=job.fence,
        pending=None if job.pending < 0 else job.pending,
        requested=job.requested if job.is_requested(now) else None,
        last=job.last,
    )
