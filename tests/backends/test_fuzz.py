"""The fuzz, bounded; and that its ledger sees what a backend may do wrong."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, ClassVar

import pytest

from django_cronductor.backends.base import Claim, ClaimResult, DeadRun, Release, ReleaseResult
from django_cronductor.backends.local import Job, LocalBackend
from django_cronductor.testing import ManualClock
from tests.backends.fuzz import FLUSH, Ledger, Shape, Violation, World, in_threads, in_turns

ALL_HAPPENED = {"won", "held", "taken", "missed", "paused", "dead", "recovered", "excused", "read too late", "crashes"}


def total(ledgers: list[Ledger]) -> dict[str, int]:
    """Return how often each thing happened."""
    return {name: sum(ledger.counts[name] for ledger in ledgers) for name in ALL_HAPPENED | {"flushes"}}


def test_replicas_in_turns_lose_and_double_nothing() -> None:
    counts = total([in_turns(seed) for seed in range(40)])
    assert all(counts[name] for name in ALL_HAPPENED), counts


def test_replicas_in_turns_double_nothing_when_the_store_loses_its_data() -> None:
    counts = total([in_turns(seed, flush=FLUSH) for seed in range(20)])
    assert counts["flushes"]
    assert counts["recovered"]


def test_replicas_in_turns_on_redis_lose_and_double_nothing() -> None:
    counts = total([in_turns(seed, redis=True) for seed in range(3)])
    assert counts["won"]
    assert counts["dead"]


def test_replicas_in_turns_on_redis_double_nothing_when_it_loses_its_data() -> None:
    counts = total([in_turns(seed, redis=True, flush=FLUSH) for seed in range(3)])
    assert counts["flushes"]
    assert counts["won"]


@pytest.mark.parametrize("redis", [False, True], ids=["local", "redis"])
def test_replicas_in_threads_lose_and_double_nothing(redis: bool) -> None:
    ledger = in_threads(1, redis=redis, seconds=1.0)
    assert ledger.counts["won"] > 10
    assert ledger.counts["held"]


def test_a_world_with_the_same_seed_is_the_same() -> None:
    assert in_turns(5).counts == in_turns(5).counts


class Faulty(LocalBackend):
    """A backend with a fault."""

    says: ClassVar[str]


class ForgetsTheDecision(Faulty):
    """Its release deletes all there is, as a lock per job does."""

    says = "starts twice"

    def _release(self, release: Release, now: int) -> ReleaseResult:
        result = super()._release(release, now)
        self.store.job(release.lease.key).occurrence = -1
        return result


class HasNoLease(Faulty):
    """It lets a newer occurrence start while the one before it runs."""

    says = "is sure of its lease"

    def _claim(self, job: Job, *rest: Any) -> ClaimResult:
        job.drop_dead()
        return super()._claim(job, *rest)


class ForgetsWhatWasHeld(Faulty):
    """Its release consumes what came meanwhile without a word."""

    says = "was lost"

    def _release(self, release: Release, now: int) -> ReleaseResult:
        job = self.store.job(release.lease.key)
        job.occurrence, job.pending = max(job.occurrence, job.pending), -1
        return super()._release(release, now)


class ForgetsItsAnswer(Faulty):
    """A retry after a lost reply is a question like any other."""

    says = "asked again"

    def _claim(self, job: Job, *rest: Any) -> ClaimResult:
        job.asked = None
        return super()._claim(job, *rest)


class BuriesTheDead(Faulty):
    """It takes dead leases away and tells nobody."""

    says = "nobody reported the death"

    def _claim(self, job: Job, claim: Any, holder: str, now: int) -> ClaimResult:
        if not job.live(now):
            job.drop_dead()
        return super()._claim(job, claim, holder, now)


class ReportsTheDeadAgain(Faulty):
    """It tells everybody of a dead lease."""

    says = "reported"

    def _look(self, job: Job, *rest: Any) -> ClaimResult:
        lease, expires = job.lease, job.expires
        result = super()._look(job, *rest)
        if result.verdict == "taken":
            job.lease, job.expires = lease, expires
        return result


class HasEqualFences(Faulty):
    """Its fences do not rise."""

    says = "fence 7 after 7"

    def _decide(self, job: Job, *rest: Any) -> ClaimResult:
        result = super()._decide(job, *rest)
        if result.runs:
            job.fence = 7
            assert job.lease is not None
            job.lease = replace(job.lease, fence=7)
            job.answer = result = replace(result, fence=7)
        return result


class MissesTwice(Faulty):
    """It counts what was passed over from one too early."""

    says = "was reported"

    def _decide(self, job: Job, *rest: Any) -> ClaimResult:
        before = job.occurrence
        result = super()._decide(job, *rest)
        if before > 0 and result.previous is not None:
            job.answer = result = replace(result, previous=result.previous - 1)
        return result


class RecoversForEver(Faulty):
    """It recovers a run that was recovered before."""

    says = "recovered wrongly"

    def _look(self, job: Job, claim: Claim, holder: str, dead: DeadRun | None, now: int) -> ClaimResult:
        return super()._look(job, claim, holder, dead and replace(dead, attempt=0), now)


def violation(kind: type[Faulty], seed: int) -> str:
    """Return what the ledger says of a world with this backend, if anything."""
    clock, dice = ManualClock(), random.Random(seed)
    shape = Shape(crash=0.05, longest_run=1_500, period=dice.choice((400, 3_000)), grace=6_000)
    world = World(kind(clock=clock), seed, shape, advance=lambda milliseconds: clock.advance(milliseconds / 1000))
    try:
        world.run(200)
    except Violation as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", Faulty.__subclasses__(), ids=lambda kind: kind.__name__)
def test_the_ledger_sees_the_fault(kind: type[Faulty]) -> None:
    assert any(kind.says in violation(kind, seed) for seed in range(60))
