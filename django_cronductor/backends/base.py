"""
The contract between the scheduler and a lock store.

Every operation is one atomic step in the store, judged by the store's own clock. All instants are whole milliseconds
since the epoch, all lengths of time are whole milliseconds: no replica's clock is ever compared with another's.

What a store keeps of a job, and why:

* the *declaration*: the schedule's fingerprint, and since when the store knows it;
* the *decision*: the newest occurrence ever decided, which finishing a run never undoes; the whole answer of the last
  deciding call under its token, so that a retry after a lost reply hears the same again; the newest occurrence that
  came while a lease was live;
* the *lease* of who is running: gone when released. A lease past its end stays until somebody has been told of it: it
  means that its holder died;
* the *fence*, which only rises; the pause; a request to run the job now.

Subclass `LockBackend` to write a backend, and run `django_cronductor.testing.conformance.BackendConformance` over it.
"""

from __future__ import annotations

import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeVar

from django_cronductor.exceptions import BackendError

if TYPE_CHECKING:
    from django.core.checks import CheckMessage

T = TypeVar("T")

MANUAL: Literal["manual"] = "manual"
REQUEST_LIFETIME = 60_000
"""How long a request for a manual run waits for a replica, in milliseconds."""
INSTANCE_LIFETIME = 60_000
"""How long an instance is listed after its last heartbeat, in milliseconds."""
SILENCE = 10_000
"""After how many milliseconds without a heartbeat, which comes every second, an instance is dead, or hangs."""


def renewal_period(ttl: int) -> int:
    """Return how often a lease of that length is renewed: every second, or three times in its length. Milliseconds."""
    return max(1, min(1000, ttl // 3))


def rest_of(ttl: int) -> int:
    """
    Return how long a job of that ttl rests after its store lost what it knew of it, in milliseconds.

    Three renewal periods: in these everybody who lives and holds its lease writes it back.
    """
    return 3 * renewal_period(ttl)


def new_instance() -> str:
    """Return the name of a new instance: host, process and a random part, so that no two are ever the same."""
    return f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"


def new_token() -> str:
    """Return a token for one question to the store."""
    return secrets.token_hex(10)


@dataclass(frozen=True, slots=True)
class Seeds:
    """What is known of a job outside the store, for a store that lost its data. None: not known."""

    occurrence: int | None = None
    fence: int | None = None
    paused: bool | None = None
    since: int | None = None

    def joined(self, other: Seeds) -> Seeds:
        """Return what the two know together: the newer of each."""
        return Seeds(
            _newer(self.occurrence, other.occurrence),
            _newer(self.fence, other.fence),
            other.paused if self.paused is None else self.paused,
            other.since if self.since is None else self.since,
        )


def _newer(one: int | None, other: int | None) -> int | None:
    return max((value for value in (one, other) if value is not None), default=None)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A job as a replica declares it. `fingerprint` tells one meaning of a schedule from another."""

    key: str
    fingerprint: str
    ttl: int
    seeds: Seeds = Seeds()


@dataclass(frozen=True, slots=True)
class Claim:
    """
    One question: may I run this occurrence of this job?

    `token` is new for every question; only the retry of a question whose reply did not come carries the same again.
    """

    key: str
    occurrence: int
    token: str
    ttl: int
    grace: int
    recover: bool = False


@dataclass(frozen=True, slots=True)
class DeadRun:
    """A run whose lease ended before its holder released it."""

    run: int | Literal["manual"]
    holder: str
    attempt: int = 0
    fence: int = 0


Verdict = Literal[
    "undeclared", "early", "taken", "held", "won", "recovered", "paused", "missed", "lost", "busy", "none"
]


@dataclass(frozen=True, slots=True)
class ClaimResult:
    """
    The answer to a claim, or to `take_request`.

    * `won`, `recovered`: run it, under `fence`. `recovered` is the second attempt of `dead`, which died.
    * `paused`, `missed`: decided now, not run: the job is paused, or it is later than its grace. Yours to report.
    * `held`: a lease is live (`holder`); nothing is consumed: whoever releases that lease reports the occurrence.
    * `taken`: decided before, by somebody.
    * `early`: not yet, by the store's clock; or the job rests after the store lost its data.
    * `lost`: it was won under this token, but the lease has gone since.
    * `undeclared`: the store does not know the job: declare it, then ask again.
    * `busy`, `none` (`take_request` alone): a lease is live (`holder`), or the job rests; there is no request.

    `left`: milliseconds until asking again makes sense, 0 if never. `previous`: the newest occurrence decided before
    this one (never before the declaration): all between the two are passed over, and yours to report. `dead`: a dead
    run that this call took away: yours to report.
    """

    verdict: Verdict
    left: int = 0
    previous: int | None = None
    dead: DeadRun | None = None
    holder: str | None = None
    fence: int = 0
    attempt: int = 0

    @property
    def runs(self) -> bool:
        """Tell whether the caller now holds the lease."""
        return self.verdict in ("won", "recovered")


@dataclass(frozen=True, slots=True)
class Lease:
    """
    A lease as its holder knows it: enough to write it back into a store that lost its data.

    `run` is the occurrence, "manual", or None for a plain lock, which is no job's.
    """

    key: str
    token: str
    fence: int
    ttl: int
    holder: str
    run: int | Literal["manual"] | None = None
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """A lease given back, with how its run ended (kept for the eye only)."""

    lease: Lease
    outcome: str = ""


@dataclass(frozen=True, slots=True)
class RenewResult:
    """Whether the lease still stands; if not, `left` is what another's has left (None: nobody holds it)."""

    ok: bool
    left: int | None = None


@dataclass(frozen=True, slots=True)
class ReleaseResult:
    """
    Whether the lease still stood when it was released; if not, `left` as in RenewResult.

    `held`: (previous, last): the occurrences after `previous` up to `last` came during the run, are consumed by its
    end, and are the releaser's to report.
    """

    ok: bool
    left: int | None = None
    held: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Acquired:
    """The answer to `acquire`: a fence above 0 if the lock is ours; else who holds it and for how long yet."""

    fence: int = 0
    holder: str | None = None
    left: int = 0


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """
    The store's time; whether it still knew this instance; the keys of jobs with a request to run now.

    `known` is False at the first heartbeat, and when the store has lost its data.
    """

    now: int
    known: bool
    requests: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class LastLease:
    """Who held a job's lease last, from when to when, and how that ended. Information that no rule reads."""

    holder: str
    run: int | Literal["manual"]
    fence: int
    started: int
    ended: int
    outcome: str


@dataclass(frozen=True, slots=True)
class JobState:
    """What the store knows of a job. Without `since` it does not know it. `requested` is of a request that counts."""

    key: str
    since: int | None = None
    fingerprint: str | None = None
    occurrence: int | None = None
    paused: bool = False
    lease: Lease | None = None
    started: int | None = None
    expires: int | None = None
    fence: int = 0
    pending: int | None = None
    requested: int | None = None
    last: LastLease | None = None


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """The answers of one batch, in the order of its questions, and the store's time when it gave them."""

    now: int
    answers: list[T | BackendError] = field(default_factory=list)


class LockBackend(ABC):
    """
    A store of claims and leases.

    Every method is atomic, safe to call from several threads, and raises `BackendError` when the store failed: then
    nothing is known to have happened. In a batch one bad key is a `BackendError` in its place and never stops the
    others. Making a backend opens no connection. `cache` and `prefix` are the settings CACHE and PREFIX.
    """

    shared: ClassVar[bool]
    """Whether other processes see the same store."""

    timeout: float = 1.0
    """How long one call may wait for the store, in seconds. Set before the first call."""

    def __init__(self, *, cache: str = "default", prefix: str = "cronductor") -> None:
        self.cache = cache
        self.prefix = prefix

    @classmethod
    def check(cls, *, cache: str, prefix: str, deploy: bool) -> list[CheckMessage]:
        """Return system check messages about this backend. It may reach the store only when `deploy` is true."""
        return []

    def warnings(self) -> list[CheckMessage]:
        """Return what about the store, as it is set up now, puts locks at risk. May ask it, and raise BackendError."""
        return []

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words where the store is, without any secret."""

    @abstractmethod
    def time(self) -> int:
        """Return the store's clock."""

    @abstractmethod
    def declare(self, declarations: Sequence[Declaration]) -> Reply[int]:
        """
        Make the jobs known and return since when each is.

        A job that is known with the same fingerprint keeps its `since`; another fingerprint starts it anew, from the
        seed if there is one, else from now. Where the store did not know the job at all, the occurrence and the fence
        are raised to the seeds, a pause is taken over, and, if there was any seed and the store is shared, the job
        rests for three renewal periods: living holders are to write their leases back first, and who declares later may
        know of a newer occurrence: it is raised to theirs, too. Never touches a lease.
        """

    @abstractmethod
    def claim(self, claims: Sequence[Claim], holder: str) -> Reply[ClaimResult]:
        """
        Decide one occurrence of each job. In this order:

        1. a job that is not declared: `undeclared`;
        2. where the store's clock went back, a lease is cut to its own length and a rest to three periods;
        3. a token that was answered before: the same answer; a lease won under it is renewed, or `lost` if it went;
        4. a job at rest: `early`, also for what is decided; an undecided occurrence in the future: `early`;
        5. a live lease: `held` if the occurrence is newer than what was decided (and remembered), else `taken`;
        6. a decided occurrence: `taken`. The first to ask takes a dead lease away and is told of it; where `recover`
           is set and the dead lease was the first attempt at this very occurrence, not paused, and ended no longer
           than `grace` ago, it is `recovered`;
        7. a newer one is decided now: `paused`, `missed` if later than `grace`, else `won`.

        A win's fence is above every fence before it and never below the store's time.
        """

    @abstractmethod
    def renew(self, leases: Sequence[Lease]) -> Reply[RenewResult]:
        """
        Move the end of each lease to its ttl from now.

        Where the store lost the lease, it is written back. It is lost only if another lease is live, or a fence
        stands there that is higher, or equal and not just come from a seed.
        """

    @abstractmethod
    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        """Give leases back, each by its owner only, and consume what came during the run. A retry hears it again."""

    @abstractmethod
    def states(self, keys: Sequence[str]) -> Reply[JobState]:
        """Read the state of each job, changing nothing."""

    @abstractmethod
    def pause(self, key: str) -> None:
        """Let no scheduled occurrence of the job run until `resume`; the one that runs goes on."""

    @abstractmethod
    def resume(self, key: str) -> None:
        """Lift the pause."""

    @abstractmethod
    def force_release(self, key: str) -> DeadRun | None:
        """Take the job's lease away, live or dead, raise its fence, and return the run that held it, to be reported."""

    @abstractmethod
    def forget(self, key: str) -> None:
        """Delete everything about a job that is no longer declared."""

    @abstractmethod
    def request_run(self, key: str) -> bool:
        """
        Ask the replicas to run the job now, paused or not; False if it is not declared.

        One request per job. Heartbeats carry it until it is taken, or for a minute.
        """

    @abstractmethod
    def take_request(self, key: str, token: str, ttl: int, holder: str, *, unasked: bool = False) -> ClaimResult:
        """
        Take the request and the lease in one step: `won`, `busy`, `none`, or as `claim` for a repeated token.

        `unasked`: take the lease for a manual run without a request, and leave one that is there alone; a job that is
        not declared is `undeclared`.
        """

    @abstractmethod
    def heartbeat(self, instance: str) -> Heartbeat:
        """Say that the instance lives."""

    @abstractmethod
    def instances(self) -> dict[str, int]:
        """Return the instances heard of in the last minute, each with the instant of its last heartbeat."""

    def survey(self, keys: Sequence[str]) -> tuple[Reply[JobState], dict[str, int]]:
        """
        Return what `states` and `instances` do, for who shows both.

        One call, where the store can answer both at once. The reply has the time also where no key is given.
        """
        instances, states = self.instances(), self.states(keys)
        return Reply(states.now or self.time(), states.answers), instances

    @abstractmethod
    def retire(self, instance: str) -> None:
        """Strike the instance from the list: it has ended."""

    @abstractmethod
    def acquire(self, key: str, token: str, ttl: int, holder: str) -> Acquired:
        """
        Take a plain lock, which shares no name with a job. `renew` and `release` take its lease as well.

        The same token asked again gets the same fence and the full ttl. Fences rise over all plain locks of a prefix.
        """

    @abstractmethod
    def close(self) -> None:
        """Close what this backend opened. A later call opens it again."""
