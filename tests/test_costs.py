"""What things cost, counted rather than timed: calls of the store, steps of the loop, wakes of threads, imports."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import pytest

from django_cronductor.backends.base import Lease
from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.leases import LeaseKeeper
from django_cronductor.testing import ManualClock
from django_cronductor.workers import WorkerPool
from tests.scheduler_world import DEADLINE, Replica, World, at

PATIENCE = 10.0
SELDOM = "0 0 1 7 *"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


def steps_of(call: Callable[[], object]) -> int:
    """Count the functions that are called in a call."""

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal steps
        steps += event in ("call", "c_call")

    steps = 0
    sys.setprofile(count)
    try:
        call()
    finally:
        sys.setprofile(None)
    return steps


def replica_with(world: World, jobs: int, **options: Any) -> Replica:
    """Return a replica that has declared so many jobs that are not due for months, and has nothing left to do."""
    for number in range(jobs):
        world.job(SELDOM, f"seldom-{number}")
    replica = world.replica(**options)
    replica.tick()
    world.go(at(12, 0, 3), replica)
    replica.link.calls.clear()
    return replica


def run_all(world: World, replica: Replica, jobs: int) -> None:
    """Let a replica run so many jobs that are due, always with workers that are done."""
    while len(world.runs) < jobs:
        replica.tick()
        replica.wait_for_workers()
    replica.tick()


def test_an_idle_second_is_one_call_of_the_store(world: World) -> None:
    replica = replica_with(world, 100)
    world.go(at(12, 0, 13), replica)
    assert [name for name, _ in replica.link.calls] == ["heartbeat"] * 10


def test_a_due_job_among_many_is_one_claim_of_one_question_and_one_release(world: World) -> None:
    world.job("0 1 12 * * *", "due")
    replica = replica_with(world, 100)
    world.go(at(12, 0, 59), replica)
    replica.link.calls.clear()
    world.go(at(12, 1, 0), replica)
    assert [(name, len(asked)) for name, asked in replica.link.calls if name != "heartbeat"] == [
        ("claim", 1),
        ("release", 1),
    ]


def test_a_burst_is_claimed_and_released_in_few_calls(world: World) -> None:
    turnstile = threading.Event()
    for number in range(1000):
        world.job("0 1 12 * * *", f"job-{number}", lambda context: turnstile.wait(DEADLINE))
    replica = world.replica(inline=False)
    replica.tick()
    world.until(at(12, 1))
    replica.link.calls.clear()
    while len(world.runs) < 1000:
        turnstile.clear()  # How many workers come free while it asks would be a matter of luck.
        replica.tick()
        turnstile.set()
        replica.wait_for_workers()
    replica.tick()
    assert replica.link.count("claim") <= 10
    assert replica.link.count("release") <= 10


def test_three_replicas_share_a_burst_in_few_calls_each(world: World) -> None:
    for number in range(1000):
        world.job("0 1 12 * * *", f"job-{number}")
    replicas = [world.replica(inline=False) for _ in range(3)]
    world.tick()
    world.until(at(12, 1))
    for replica in replicas:
        replica.link.calls.clear()
    while any(replica._agenda.ready for replica in replicas) or len(world.runs) < 1000:
        for replica in replicas:
            replica.tick()
            replica.wait_for_workers()
    world.tick()
    assert sorted(context.key for context in world.runs) == sorted(f"job-{number}" for number in range(1000))
    assert max(replica.link.count("claim") for replica in replicas) <= 30


def test_a_replica_that_comes_late_to_a_burst_asks_in_few_calls(world: World) -> None:
    for number in range(1000):
        world.job("0 1 12 * * *", f"job-{number}")
    first, late = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    run_all(world, first, 1000)
    late.link.calls.clear()
    late.tick()
    assert not late._agenda.ready
    assert late.link.count("claim") <= 10


def test_an_idle_pass_takes_no_more_steps_with_many_jobs_than_with_few() -> None:
    def steps_with(jobs: int) -> int:
        world = World()
        try:
            return steps_of(replica_with(world, jobs).tick)
        finally:
            world.close()

    few, many = steps_with(10), steps_with(1000)
    assert many == few
    assert few < 200


def test_a_job_that_is_due_costs_hardly_more_steps_among_many_than_among_few() -> None:
    def steps_with(jobs: int) -> int:
        world = World()
        try:
            world.job("0 1 12 * * *", "due")
            replica = replica_with(world, jobs)
            world.go(at(12, 0, 59), replica)
            world.until(at(12, 1))
            replica._keeper.tick()  # Its heartbeat, which the store in memory answers by looking at all jobs.
            steps = steps_of(replica.tick)
            assert world.ran("due") == [at(12, 1)]
            return steps
        finally:
            world.close()

    assert steps_with(1000) <= steps_with(10) + 20


def test_workers_tell_once_that_there_is_room_until_somebody_looks() -> None:
    told: list[int] = []
    gate = threading.Event()
    pool = WorkerPool(2, "test-costs", ManualClock(), lambda: told.append(1))
    try:
        for _ in range(100):
            pool.submit(lambda: gate.wait(PATIENCE))
        gate.set()
        assert pool.wait_idle(PATIENCE)
        assert told == [1]
        assert pool.look_for_room() == 102
        pool.submit(lambda: None)
        assert pool.wait_idle(PATIENCE)
        assert told == [1, 1]
    finally:
        pool.close()


def test_nothing_more_is_asked_for_while_half_of_the_queue_is_left() -> None:
    gate, entered = threading.Event(), threading.Semaphore(0)
    pool = WorkerPool(1, "test-costs", ManualClock())

    def wait() -> None:
        entered.release()
        gate.wait(PATIENCE)

    try:
        for _ in range(20):
            pool.submit(lambda: None)
        pool.submit(wait)
        for _ in range(14):
            pool.submit(lambda: None)
        assert entered.acquire(timeout=PATIENCE)
        # 20 have ended of late, so that 6 could be added to the 15 that are still to end.
        assert pool.look_for_room() == 0
    finally:
        gate.set()
        pool.close()


class Silence:
    """Hears what a keeper of leases finds out, and does nothing."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *arguments: None


def test_a_lease_that_is_won_does_not_wake_the_keeper_before_it_is_to_be_renewed() -> None:
    clock = ManualClock()
    keeper = LeaseKeeper(LocalBackend(clock=clock, store=Store()), clock, Silence(), "me")  # type: ignore[arg-type]
    keeper._look_at = clock.monotonic() + 0.5
    keeper.hold(Lease("a", "1", 1, 30_000, "me", 0), clock.monotonic())
    assert not keeper._dirty
    keeper.hold(Lease("b", "2", 1, 900, "me", 0), clock.monotonic())
    assert keeper._dirty


def test_a_web_worker_imports_no_more_than_it_needs_to_declare_jobs() -> None:
    code = """
import json, sys
import django, redis
from django.conf import settings
settings.configure(INSTALLED_APPS=["django_cronductor"], SECRET_KEY="x")
django.setup()
from django_cronductor import cron
cron("*/5 * * * *", key="job")(lambda: None)
print(json.dumps(sorted(name for name in sys.modules if name.startswith(("django_cronductor.", "croniter")))))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    imported = set(json.loads(done.stdout))
    heavy = {"scheduler", "runner", "locks", "leases", "backends.base", "backends.redis", "history"}
    assert not imported & ({f"django_cronductor.{name}" for name in heavy} | {"croniter"})
    assert "django_cronductor.jobs" in imported
