"""
A fuzz of the lock backends: replicas that crash, pause, and lose replies, and a ledger that knows what should come out.

    python -m tests.backends.fuzz --seconds 60 --seed 7 [--only redis-threads]

A `World` runs in turns, by a clock that it moves itself: the same seed does the same again. A `Storm` runs the same
replicas in threads, by the machine's clock. What the ledger demands, of each job:

* no occurrence starts twice, but for one second attempt, under a higher fence, after the first was reported dead;
* fences rise from win to win;
* two runs are never both sure of their lease;
* each occurrence starts or is reported, and not both, and not twice; a run that died is reported once.

A report may be missing only where the one who had the answer died before reading it, or asked for it again only after
another decision. After a flush reports may be missing, too; the other demands stand while the database is asked.
"""

from __future__ import annotations

import argparse
import itertools
import os
import random
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from django_cronductor.backends.base import (
    Claim,
    ClaimResult,
    DeadRun,
    Declaration,
    Lease,
    LockBackend,
    Release,
    ReleaseResult,
    Seeds,
    renewal_period,
)
from django_cronductor.exceptions import BackendError
from tests.redis_server import RedisServer

T = TypeVar("T")
Key = str
Occurrence = int
Answer = ClaimResult | ReleaseResult


@dataclass(frozen=True)
class Shape:
    """How a world is made; lengths in milliseconds."""

    ttl: int = 900
    period: int = 500
    """From one occurrence to the next."""
    grace: int = 1_500
    longest_run: int = 1_400
    jobs: tuple[Key, ...] = ("plain", "recovering")
    replicas: int = 3
    lost: float = 0.08
    """How often a reply is lost; half as often a question is."""
    crash: float = 0.004
    nap: float = 0.004
    control: float = 0.01
    """How often somebody pauses or resumes a job, asks for a run or begins one, or forces a lease off."""
    flush: float = 0.0


class Violation(AssertionError):
    """The ledger found what must not be."""


@dataclass
class Start:
    """A run that began."""

    fence: int
    attempt: int
    replica: Replica
    deadline: int
    renewed: int
    over: bool = False


@dataclass
class Truth:
    """What the store answered, whether or not anybody heard it."""

    number: int
    key: Key
    token: str
    occurrence: Occurrence | None
    answer: Answer
    told: bool = False
    orphaned: bool = False
    """Whether the one who asked is dead."""


class Ledger:
    """What happened, and what must not."""

    def __init__(self, shape: Shape, slack: int = 0) -> None:
        self.shape, self.slack = shape, slack
        # Two clocks that are both cut to whole milliseconds can differ by one over the same time.
        self.rounding = 1 if slack else 0
        self.lock = threading.RLock()
        self.truths: list[Truth] = []
        self.latest: dict[str, Truth] = {}
        """The last answer under each token."""
        self.number = itertools.count()
        self.starts: dict[tuple[Key, Occurrence], list[Start]] = defaultdict(list)
        self.reports: dict[tuple[Key, Occurrence], list[str]] = defaultdict(list)
        self.dead: dict[tuple[Key, int], list[str]] = defaultdict(list)
        self.died: dict[tuple[Key, int], Lease] = {}
        self.ended: set[tuple[Key, int]] = set()
        """Leases that the store gave up at their release, told or not."""
        self.current: dict[Key, list[Start]] = defaultdict(list)
        self.fences: dict[Key, list[tuple[int, int]]] = defaultdict(list)
        self.since: dict[Key, int] = {}
        self.decided: dict[Key, int] = {}
        self.interrupted: dict[Key, int] = defaultdict(lambda: -1)
        """The number of the last forced release or flush."""
        self.flushed_at = -1
        self.counts: dict[str, int] = defaultdict(int)

    def occurrences(self, after: int, until: int) -> Iterator[Occurrence]:
        """Yield the occurrences in (after, until]."""
        period = self.shape.period
        yield from range((after // period + 1) * period, until + 1, period)

    def newest(self, now: int) -> Occurrence:
        """Return the newest occurrence that is due."""
        return now // self.shape.period * self.shape.period

    # What the store did.

    def answered(self, key: Key, token: str, occurrence: Occurrence | None, answer: Answer) -> None:
        """Note a decision at the moment it was made; telling it again is none."""
        with self.lock:
            known = self.latest.get(name_of(token, answer))
            if known and not tells(answer, known.answer) and not self.slack and not self.overtaken(known):
                raise Violation(f"{key}: asked again, {token} was told {answer} after {known.answer}")
            if decides(answer) and not (known and tells(answer, known.answer)):
                truth = Truth(next(self.number), key, token, occurrence, answer)
                self.truths.append(truth)
                self.latest[name_of(token, answer)] = truth

    def heard(self, token: str, answer: Answer) -> None:
        """Note that an answer has reached the one who asked."""
        known = self.latest.get(name_of(token, answer))
        if known and tells(answer, known.answer):
            known.told = True

    def interrupt(self, keys: tuple[Key, ...]) -> None:
        """Note a forced release or a flush."""
        for key in keys:
            self.interrupted[key] = next(self.number)

    # What a replica was told.

    def told(self, key: Key, token: str, occurrence: Occurrence | None, answer: ClaimResult) -> None:
        """Take in an answer to a claim that reached its replica, and do its reports."""
        with self.lock:
            self.counts[answer.verdict] += 1
            self.heard(token, answer)
            if answer.dead:
                self.report_dead(key, answer.dead)
            if occurrence is None:
                return
            if answer.previous is not None:
                self.report(key, answer.previous, occurrence - 1, "missed")
            if answer.verdict in ("missed", "paused"):
                self.report(key, occurrence - 1, occurrence, answer.verdict)
            if answer.verdict in ("won", "recovered", "missed", "paused"):
                self.decided[key] = max(self.decided.get(key, -1), occurrence)

    def released(self, lease: Lease, answer: ReleaseResult) -> None:
        """Take in an answer to a release."""
        with self.lock:
            self.counts["released" if answer.ok else "release lost"] += 1
            self.heard(lease.token, answer)
            if answer.held:
                self.report(lease.key, *answer.held, "held")
                self.decided[lease.key] = max(self.decided.get(lease.key, -1), answer.held[1])

    def report(self, key: Key, after: int, until: int, reason: str) -> None:
        """Report the occurrences in (after, until]."""
        for occurrence in self.occurrences(after, until):
            self.reports[key, occurrence].append(reason)
            self.counts[reason] += 1

    def report_dead(self, key: Key, dead: DeadRun) -> None:
        """Report a dead run."""
        self.counts["dead"] += 1
        self.dead[key, dead.fence].append(dead.holder)
        if isinstance(dead.run, int):
            self.reports[key, dead.run].append("abandoned")

    def started(self, lease: Lease, replica: Replica, deadline: int, sent: int, now: int) -> Start:
        """Note that a run starts, and see whether it may."""
        with self.lock:
            start = Start(lease.fence, lease.attempt, replica, deadline, sent)
            # Forced off, or lost by the store, while the answer was on its way.
            start.over = self.interrupted[lease.key] > self.latest[lease.token].number
            for fence, replied in self.fences[lease.key]:
                if replied < sent and fence >= lease.fence:
                    raise Violation(f"{lease.key}: fence {lease.fence} after {fence}")
            self.fences[lease.key].append((lease.fence, now))
            for other in self.current[lease.key]:
                # What a holder has not written back after a flush, the store cannot know.
                sure = not other.over and now < other.deadline - self.rounding and other.renewed > self.flushed_at
                if sure:
                    raise Violation(f"{lease.key}: {lease.run} starts at {now} while {other} is sure of its lease")
            self.current[lease.key] = [other for other in self.current[lease.key] if not other.over] + [start]
            if isinstance(lease.run, int):
                self.may_start(lease, start)
            return start

    def may_start(self, lease: Lease, start: Start) -> None:
        """See whether an occurrence may start now."""
        assert isinstance(lease.run, int)
        earlier = self.starts[lease.key, lease.run]
        if lease.attempt == 0 and earlier:
            raise Violation(f"{lease.key}: {lease.run} starts twice: {earlier}, {start}")
        if lease.attempt and (lease.key != "recovering" or any(other.attempt for other in earlier)):
            raise Violation(f"{lease.key}: {lease.run} is recovered wrongly: {earlier}, {start}")
        if any(other.fence >= lease.fence for other in earlier):
            raise Violation(f"{lease.key}: {lease.run} is recovered under a lower fence: {earlier}, {start}")
        earlier.append(start)

    # The end.

    def settle(self, until: int) -> None:
        """See that every occurrence up to `until` started or was reported, and nothing twice."""
        excused = self.excused()
        for key, since in self.since.items():
            for occurrence in self.occurrences(since, until):
                self.settle_one(key, occurrence, (key, occurrence) in excused)
        for (key, fence), holders in self.dead.items():
            if len(holders) > 1:
                raise Violation(f"{key}: the death of {fence} was reported {len(holders)} times")
        untold = {
            (truth.key, truth.answer.dead.fence)
            for truth in self.truths
            if not truth.told and isinstance(truth.answer, ClaimResult) and truth.answer.dead
        }
        for died, lease in self.died.items():
            known = died in self.dead or died in self.ended or died in untold
            if not known and not self.shape.flush:
                raise Violation(f"nobody reported the death of {lease}")

    def settle_one(self, key: Key, occurrence: Occurrence, excused: bool) -> None:
        """See that one occurrence came out right."""
        starts, reports = self.starts[key, occurrence], self.reports[key, occurrence]
        skips = [reason for reason in reports if reason != "abandoned"]
        if len(skips) > 1 or (skips and starts):
            raise Violation(f"{key}: {occurrence} started {len(starts)} times and was reported {reports}")
        if not starts and not reports and not excused and not self.shape.flush:
            raise Violation(f"{key}: {occurrence} was lost")
        abandoned = reports.count("abandoned")
        # A lease that was written back by one who had been superseded can die again.
        if self.shape.flush:
            return
        if abandoned > 2 or (abandoned == 2 and key != "recovering"):
            raise Violation(f"{key}: {occurrence} was reported dead {abandoned} times")

    def excused(self) -> set[tuple[Key, Occurrence]]:
        """Return what could not be reported: its answer was lost for good, and for a known reason."""
        excused = set[tuple[Key, Occurrence]]()
        for truth in self.truths:
            if truth.told:
                continue
            if not (truth.orphaned or self.overtaken(truth)):
                raise Violation(f"an answer was lost without a reason: {truth}")
            self.counts["excused"] += 1
            excused |= {(truth.key, occurrence) for occurrence in self.reports_of(truth)}
        return excused

    def overtaken(self, truth: Truth) -> bool:
        """Tell whether another decision about the job was made before the answer was asked for again."""
        # Threads note a little after the fact, so that two notes may stand in the wrong order: hence the slack.
        after = truth.number - self.slack
        others = (other for other in self.truths if other.key == truth.key and other is not truth)
        return any(other.number > after for other in others) or self.interrupted[truth.key] > after

    def reports_of(self, truth: Truth) -> Iterator[Occurrence]:
        """Yield the occurrences that an answer would have had its reader report."""
        answer = truth.answer
        if isinstance(answer, ReleaseResult):
            assert answer.held is not None
            yield from self.occurrences(*answer.held)
            return
        if answer.dead and isinstance(answer.dead.run, int):
            yield answer.dead.run
        if truth.occurrence is not None:
            if answer.previous is not None:
                yield from self.occurrences(answer.previous, truth.occurrence - 1)
            if answer.verdict in ("missed", "paused"):
                yield truth.occurrence


def name_of(token: str, answer: Answer) -> str:
    """Return the name that an answer is kept under."""
    return f"{token}:released" if isinstance(answer, ReleaseResult) else token


def decides(answer: Answer) -> bool:
    """Tell whether an answer is kept for a retry."""
    if isinstance(answer, ReleaseResult):
        return answer.held is not None
    return answer.verdict in ("won", "recovered", "missed", "paused") or answer.dead is not None


def tells(answer: Answer, first: Answer) -> bool:
    """Tell whether an answer says all that the first one did."""
    if isinstance(answer, ClaimResult) and isinstance(first, ClaimResult) and answer.verdict == "lost":
        return first.runs and (answer.previous, answer.dead) == (first.previous, first.dead)
    return answer == first


@dataclass
class Run:
    """A run as its replica knows it."""

    lease: Lease
    start: Start
    ends: int
    renew_at: int
    lost: bool = False


@dataclass
class Tracked:
    """What a replica knows of one job."""

    asked: int = 0
    since: int = 0
    look: int | None = None
    due_again: int = 0
    question: Claim | None = None
    request: str | None = None
    unasked: bool = False
    """Whether the run is a person's at this replica, whom nobody has asked for it."""


class Replica:
    """A replica's part in the contract, and nothing else."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.random = random.Random(f"{world.seed}-{name}")
        self.jobs = {key: Tracked() for key in world.shape.jobs}
        self.runs: list[Run] = []
        self.tokens = itertools.count()
        self.declared = self.beaten = self.dead = False
        self.beat_at = self.asleep_until = 0
        self.rest = 3 * renewal_period(world.shape.ttl)

    def step(self) -> None:
        """Do what is due."""
        if self.dead or self.world.monotonic() < self.asleep_until:
            return
        for work in (self.begin, self.beat, self.renew, self.release, self.ask, self.take):
            with suppress(BackendError):
                work()

    def begin(self) -> None:
        """Declare the jobs at the start."""
        if not self.declared:
            self.declare(self.world.shape.jobs)
            self.declared = True

    def token(self) -> str:
        """Return a token for one question."""
        return f"{self.name}-{next(self.tokens)}"

    def call(self, ask: Callable[[], T], note: Callable[[T], None] | None = None) -> T:
        """Call the store over a network that loses questions and replies."""
        if self.random.random() < self.world.lost / 2:
            raise BackendError("the question was lost")
        with self.world.order:
            reply = ask()
            if note:
                note(reply)
        self.world.delay(self.random)
        if self.random.random() < self.world.lost:
            raise BackendError("the reply was lost")
        return reply

    def declare(self, keys: tuple[Key, ...]) -> None:
        """Declare jobs, with what is known of them, and begin at their declaration."""
        declarations = [Declaration(key, "v1", self.world.shape.ttl, self.seeds(key)) for key in keys]
        reply = self.call(lambda: self.world.backend.declare(declarations), self.note_since(keys))
        for key, since in zip(keys, reply.answers, strict=True):
            assert isinstance(since, int)
            self.jobs[key].asked = self.jobs[key].since = since

    def note_since(self, keys: tuple[Key, ...]) -> Callable[[Any], None]:
        """Return what notes since when the jobs are."""

        def note(reply: Any) -> None:
            for key, since in zip(keys, reply.answers, strict=True):
                self.world.ledger.since.setdefault(key, since)

        return note

    def seeds(self, key: Key) -> Seeds:
        """Return what the database and this replica know."""
        ledger, job = self.world.ledger, self.jobs[key]
        with ledger.lock:
            decided = max(ledger.decided.get(key, -1), job.asked if self.declared else -1)
            fence = max((fence for fence, _ in ledger.fences[key]), default=None)
            since = ledger.since.get(key)
        return Seeds(None if decided < 0 else decided, fence, None, since)

    def beat(self) -> None:
        """Say that we live, see whether the store lost its data, and which runs are asked for."""
        now = self.world.monotonic()
        if now < self.beat_at or not self.declared:
            return
        answer = self.call(lambda: self.world.backend.heartbeat(self.name))
        self.beat_at = now + renewal_period(self.world.shape.ttl)
        if self.beaten and not answer.known:
            self.beaten = False
            self.declare(self.world.shape.jobs)
        self.beaten = True
        for key in answer.requests:
            job = self.jobs[key]
            job.request = job.request or self.token()

    def renew(self) -> None:
        """Renew what is due to be renewed."""
        now = self.world.monotonic()
        due = [run for run in self.runs if not run.lost and run.renew_at <= now]
        if not due:
            return
        reply = self.call(lambda: self.world.backend.renew([run.lease for run in due]))
        for run, answer in zip(due, reply.answers, strict=True):
            assert not isinstance(answer, BackendError)
            run.renew_at = now + renewal_period(self.world.shape.ttl)
            if answer.ok:
                run.start.deadline, run.start.renewed = now + self.world.shape.ttl, now
            else:
                run.lost = run.start.over = True
                self.look_again(run.lease.key, answer.left)

    def release(self) -> None:
        """Release what has ended."""
        now = self.world.monotonic()
        ended = [run for run in self.runs if run.ends <= now]
        for run in ended:
            run.start.over = True
        asked = [run for run in ended if not run.lost]
        if asked:
            releases = [Release(run.lease) for run in asked]
            reply = self.call(lambda: self.world.backend.release(releases), self.note_releases(asked))
            for run, answer in zip(asked, reply.answers, strict=True):
                assert isinstance(answer, ReleaseResult)
                self.world.ledger.released(run.lease, answer)
                if not answer.ok:
                    self.look_again(run.lease.key, answer.left)
        self.runs = [run for run in self.runs if run not in ended]

    def note_releases(self, runs: list[Run]) -> Callable[[Any], None]:
        """Return what notes the store's answers to releases."""

        def note(reply: Any) -> None:
            for run, answer in zip(runs, reply.answers, strict=True):
                self.world.ledger.answered(run.lease.key, run.lease.token, None, answer)
                if answer.ok:
                    self.world.ledger.ended.add((run.lease.key, run.lease.fence))

        return note

    def look_again(self, key: Key, left: int | None) -> None:
        """Look when another's lease ends."""
        if left is not None:
            at, job = self.world.monotonic() + left, self.jobs[key]
            job.look = at if job.look is None else min(job.look, at)

    def ask(self) -> None:
        """Claim what is due, or ask again what is in doubt."""
        if not self.declared:
            return
        sent = self.world.monotonic()
        for key, job in self.jobs.items():
            job.question = job.question or self.next_question(key, job, sent)
        claims = [job.question for job in self.jobs.values() if job.question]
        if not claims:
            return
        reply = self.call(lambda: self.world.backend.claim(claims, self.name), self.note_claims(claims))
        unknown = []
        for claim, answer in zip(claims, reply.answers, strict=True):
            assert isinstance(answer, ClaimResult)
            if answer.verdict == "undeclared":
                unknown.append(claim.key)
            else:
                self.jobs[claim.key].question = None
                self.hear(claim, answer, sent)
        if unknown:
            asked = {key: self.jobs[key].asked for key in unknown}
            self.declare(tuple(unknown))
            for key, before in asked.items():
                self.jobs[key].asked = before

    def next_question(self, key: Key, job: Tracked, now: int) -> Claim | None:
        """Return what is to be asked about a job now."""
        if now < job.due_again:
            return None
        newest = self.world.ledger.newest(self.world.wall())
        if newest > job.asked:
            occurrence = newest
        elif job.look is not None and job.look <= now:
            job.look, occurrence = None, job.asked
        else:
            return None
        shape = self.world.shape
        return Claim(key, occurrence, self.token(), shape.ttl, shape.grace, recover=key == "recovering")

    def note_claims(self, claims: list[Claim]) -> Callable[[Any], None]:
        """Return what notes the store's answers to claims."""

        def note(reply: Any) -> None:
            for claim, answer in zip(claims, reply.answers, strict=True):
                self.world.ledger.answered(claim.key, claim.token, claim.occurrence, answer)

        return note

    def hear(self, claim: Claim, answer: ClaimResult, sent: int) -> None:
        """Act on the answer to a claim."""
        now, job = self.world.monotonic(), self.jobs[claim.key]
        if answer.verdict == "early":
            job.asked, job.look, job.due_again = job.since, None, now + min(answer.left, self.rest)
            return
        job.asked, job.due_again = max(job.asked, claim.occurrence), 0
        job.look = now + answer.left if answer.left else None
        self.world.ledger.told(claim.key, claim.token, claim.occurrence, answer)
        if answer.runs:
            lease = Lease(claim.key, claim.token, answer.fence, claim.ttl, self.name, claim.occurrence, answer.attempt)
            self.start(lease, sent)

    def take(self) -> None:
        """Take a request for a run, or ask again whether we have."""
        for key, job in self.jobs.items():
            if job.request is None and self.world.lost and self.random.random() < self.world.shape.control:
                job.request, job.unasked = self.token(), True
            if job.request is None:
                continue
            token, sent = job.request, self.world.monotonic()
            answer = self.call(
                lambda key=key, token=token, unasked=job.unasked: self.world.backend.take_request(  # type: ignore[misc]
                    key, token, self.world.shape.ttl, self.name, unasked=unasked
                ),
                lambda answer, key=key, token=token: self.world.ledger.answered(key, token, None, answer),  # type: ignore[misc]
            )
            job.request, job.unasked = None, False
            self.world.ledger.told(key, token, None, answer)
            if answer.runs:
                self.start(Lease(key, token, answer.fence, self.world.shape.ttl, self.name, "manual"), sent)

    def start(self, lease: Lease, sent: int) -> None:
        """Start a run, unless its lease may be over already."""
        now, deadline = self.world.monotonic(), sent + self.world.shape.ttl
        if now >= deadline:
            self.world.ledger.counts["read too late"] += 1
            self.world.ledger.died[lease.key, lease.fence] = lease
            return
        start = self.world.ledger.started(lease, self, deadline, sent, now)
        ends = now + self.random.randrange(self.world.shape.longest_run)
        self.runs.append(Run(lease, start, ends, sent + renewal_period(self.world.shape.ttl)))

    def crash(self) -> None:
        """Die: nobody does anything more for its runs, and nobody reads its answers."""
        self.dead = True
        with self.world.ledger.lock:
            for run in self.runs:
                run.start.over = True
                if not run.lost:
                    self.world.ledger.died[run.lease.key, run.lease.fence] = run.lease
            for truth in self.world.ledger.truths:
                truth.orphaned |= truth.token.startswith(f"{self.name}-")

    @property
    def idle(self) -> bool:
        """Tell whether nothing is under way."""
        waits = any(job.question or job.request or job.look is not None for job in self.jobs.values())
        return self.dead or not (self.runs or waits)


class World:
    """Replicas in turns on one thread, by a clock that the world moves."""

    order: AbstractContextManager[Any] = nullcontext()

    def __init__(
        self,
        backend: LockBackend,
        seed: int,
        shape: Shape,
        *,
        advance: Callable[[int], None] | None = None,
        lose: Callable[[], None] | None = None,
    ) -> None:
        self.backend, self.seed, self.shape = backend, seed, shape
        self.random = random.Random(seed)
        self.ledger = Ledger(shape)
        self.lost = shape.lost
        self.names = itertools.count()
        self._advance, self._lose = advance, lose
        self._begin = self.backend.time()
        self._now = self._begin
        self.replicas = [self.replica() for _ in range(shape.replicas)]

    def replica(self) -> Replica:
        """Return a new replica."""
        return Replica(self, f"r{next(self.names)}")

    def wall(self) -> int:
        """Return the store's time as the replicas have learned it."""
        return self._now

    def monotonic(self) -> int:
        """Return the time that replicas count with."""
        return self._now - self._begin

    def advance(self, milliseconds: int) -> None:
        """Let time pass."""
        assert self._advance is not None
        self._advance(milliseconds)
        self._now += milliseconds

    def delay(self, dice: random.Random) -> None:
        """Let a reply travel for a while, now and then for longer than a lease."""
        if self.lost and dice.random() < 0.01:
            self.advance(dice.randrange(2 * self.shape.ttl))

    def run(self, steps: int) -> Ledger:
        """Let things happen, then let them settle, and see that all is accounted for."""
        for _ in range(steps):
            self.disturb()
            self.advance(self.random.choice((0, 1, 5, 20, 60, 150)))
            self.random.choice(self.replicas).step()
        self.calm()
        until = self.ledger.newest(self._now)
        # The next occurrences, undisturbed: they bring to light what was left lying.
        end = until + 8 * self.shape.period + 4 * self.shape.ttl
        while self._now < end:
            self.advance(10)
            for replica in self.replicas:
                replica.step()
        self.ledger.settle(until)
        return self.ledger

    def calm(self) -> None:
        """End all disturbances; one replica more comes up, so that at least one is alive."""
        self.lost = 0.0
        for key in self.shape.jobs:
            self.backend.resume(key)
        for replica in self.replicas:
            replica.asleep_until = 0
        self.replicas.append(self.replica())

    def disturb(self) -> None:
        """Do one of the things that happen."""
        shape, dice = self.shape, self.random
        if dice.random() < shape.crash:
            position = dice.randrange(len(self.replicas))
            self.replicas[position].crash()
            self.replicas[position] = self.replica()
            self.ledger.counts["crashes"] += 1
        if dice.random() < shape.nap:
            dice.choice(self.replicas).asleep_until = self.monotonic() + dice.randrange(3 * shape.ttl)
            self.ledger.counts["naps"] += 1
        if dice.random() < shape.control:
            self.control(
                dice.choice(shape.jobs), dice.choice(("pause", "resume", "resume", "resume", "request", "force"))
            )
        if dice.random() < shape.flush:
            assert self._lose is not None
            with self.order:
                self._lose()
                self.ledger.interrupt(shape.jobs)
                self.ledger.flushed_at = self.monotonic()
            self.ledger.counts["flushes"] += 1

    def control(self, key: Key, what: str) -> None:
        """Do what a person may do to a job."""
        self.ledger.counts[what] += 1
        if what == "pause":
            self.backend.pause(key)
        elif what == "resume":
            self.backend.resume(key)
        elif what == "request":
            self.backend.request_run(key)
        else:
            with self.order, self.ledger.lock:
                gone = self.backend.force_release(key)
                self.ledger.interrupt((key,))
                for start in self.ledger.current[key]:
                    # It is told at its next renewal; until then it is as sure as before, and wrong.
                    start.over = True
                if gone:
                    self.ledger.report_dead(key, gone)


class Storm(World):
    """The same replicas, each in a thread, by the machine's clock."""

    def __init__(self, backend: LockBackend, seed: int, shape: Shape) -> None:
        super().__init__(backend, seed, shape)
        self.ledger = Ledger(shape, slack=20)
        self._started = time.monotonic_ns()
        self.stopping = threading.Event()
        self.failures: list[BaseException] = []

    def wall(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic(self) -> int:
        return (time.monotonic_ns() - self._started) // 1_000_000

    def delay(self, dice: random.Random) -> None:
        """Replies take what they take."""

    def live(self, replica: Replica) -> None:
        """Be one replica until the end."""
        try:
            while not self.stopping.is_set() and not replica.dead:
                replica.step()
                self.stopping.wait(0.001)
        except BaseException as error:
            self.failures.append(error)
            self.stopping.set()

    def rage(self, seconds: float) -> Ledger:
        """Let things happen for so long, then let them settle, and see that all is accounted for."""
        threads = [self.thread(replica) for replica in self.replicas]
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.stopping.wait(0.003):
            before = list(self.replicas)
            self.disturb()
            threads += [self.thread(replica) for replica in self.replicas if replica not in before]
        self.calm()
        threads.append(self.thread(self.replicas[-1]))
        until = self.ledger.newest(self.wall())
        self.stopping.wait((8 * self.shape.period + 4 * self.shape.ttl) / 1000)
        self.stopping.set()
        for thread in threads:
            thread.join()
        if self.failures:
            raise self.failures[0]
        self.ledger.settle(until)
        return self.ledger

    def thread(self, replica: Replica) -> threading.Thread:
        """Start a replica's thread."""
        thread = threading.Thread(target=self.live, args=(replica,), daemon=True)
        thread.start()
        return thread


@contextmanager
def case(redis: bool, clocked: bool) -> Iterator[Any]:
    """Set up a backend with its hooks, as the conformance suite has them."""
    from tests.backends.conftest import ClockedRedisCase, LocalCase, RedisCase

    kind = (ClockedRedisCase if clocked else RedisCase) if redis else LocalCase
    made = kind()
    made.setup_method()
    if not redis and not clocked:
        from django_cronductor.backends.local import LocalBackend, Store

        made.backend = LocalBackend(prefix="fuzz", clock=time, store=Store())  # type: ignore[arg-type]
    try:
        yield made
    finally:
        made.lose(made.backend)
        made.teardown_method()


def shape_for(seed: int, flush: float = 0.0) -> Shape:
    """Return a shape that goes with a seed: occurrences come more or less often, and runs take more or less time."""
    dice = random.Random(seed)
    return Shape(
        ttl=dice.choice((600, 900, 1_500)),
        period=dice.choice((300, 500, 1_000, 3_000)),
        longest_run=dice.choice((20, 700, 2_500)),
        grace=dice.choice((900, 2_000, 6_000)),
        replicas=dice.choice((2, 3, 4)),
        flush=flush,
    )


def in_turns(seed: int, *, flush: float = 0.0, redis: bool = False, steps: int = 400) -> Ledger:
    """Run one world."""
    shape = shape_for(seed, flush)
    with case(redis, clocked=True) as made:
        world = World(made.backend, seed, shape, advance=made.advance, lose=lambda: made.lose(made.backend))
        return world.run(steps)


STORM = Shape(ttl=240, period=60, grace=400, longest_run=200, crash=0.006, nap=0.006, control=0.02, replicas=4)


def in_threads(seed: int, *, redis: bool = False, seconds: float = 1.0, shape: Shape = STORM) -> Ledger:
    """Run one storm."""
    with case(redis, clocked=False) as made:
        return Storm(made.backend, seed, shape).rage(seconds)


FLUSH = 0.004
MODES: dict[str, Callable[[int], Ledger]] = {
    "turns": in_turns,
    "flush": lambda seed: in_turns(seed, flush=FLUSH),
    "threads": lambda seed: in_threads(seed, seconds=3),
    "redis-turns": lambda seed: in_turns(seed, redis=True),
    "redis-flush": lambda seed: in_turns(seed, redis=True, flush=FLUSH),
    "redis-threads": lambda seed: in_threads(seed, redis=True, seconds=3),
}


def main() -> int:
    """Run from the command line: each mode in turn, one seed after the other, until the time is over."""
    parser = argparse.ArgumentParser(description="Fuzz the lock backends.")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--only", choices=MODES, help="one mode alone")
    options = parser.parse_args()
    modes = [options.only] if options.only else list(MODES)
    end = time.monotonic() + options.seconds
    with RedisServer() as server:
        os.environ["CRONDUCTOR_TEST_REDIS_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        for mode in modes:
            share = (end - time.monotonic()) / (len(modes) - modes.index(mode))
            if not run_mode(mode, options.seed, time.monotonic() + share):
                return 1
    return 0


def run_mode(mode: str, first: int, end: float) -> bool:
    """Run one mode until then, say what happened, and tell whether all was well."""
    counts: dict[str, int] = defaultdict(int)
    for seed in itertools.count(first):
        try:
            ledger = MODES[mode](seed)
        except Violation as error:
            print(f"{mode}, seed {seed}: {error}", flush=True)
            return False
        for name, count in ledger.counts.items():
            counts[name] += count
        if time.monotonic() >= end:
            break
    summary = ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
    print(f"{mode}, seeds {first} to {seed}: {summary}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
