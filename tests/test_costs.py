"""What things cost, counted rather than timed: calls of the store, steps of the loop, memory, statements, imports."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any

import pytest
from django.db import connection

from django_cronductor.backends.base import Heartbeat, Lease
from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.history import DatabaseHistory
from django_cronductor.leases import LeaseKeeper
from django_cronductor.testing import ManualClock
from django_cronductor.workers import WorkerPool
from tests.history_records import end, finish, run
from tests.scheduler_world import DEADLINE, LocalStore, Replica, World, at

PATIENCE = 10.0
WARM = 1100
"""Calls after which Python allocates nothing more for what is called: 3.10 gives code a cache at the 1,024th."""
SELDOM = "0 0 1 7 *"


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.close()


class AnsweringStore(LocalStore):
    """A store that answers a heartbeat without looking at all jobs, so that what a pass costs is the loop's alone."""

    class Backend(LocalBackend):
        def heartbeat(self, instance: str) -> Heartbeat:
            return Heartbeat(self.time(), known=True, requests=frozenset())

    def __init__(self) -> None:
        super().__init__()
        self.backend = self.Backend(clock=self, store=Store())


@contextmanager
def idle_replica(jobs: int) -> Iterator[Callable[[], None]]:
    """Give what lets a second go by in a replica that has so many jobs, none of them due."""
    world = World(AnsweringStore())
    try:
        replica = replica_with(world, jobs)
        yield partial(pass_a_second, world, replica)
    finally:
        world.close()


def pass_a_second(world: World, replica: Replica) -> None:
    """Let a replica make its pass after a second, and note nothing of it."""
    world.clock.advance(1)
    replica.tick()
    replica.link.calls.clear()


def steps_of(call: Callable[[], object]) -> int:
    """Count the instructions of Python in a call: those of loops and comprehensions, too."""

    def count(frame: FrameType, event: str, argument: object) -> Any:
        nonlocal steps
        frame.f_trace_opcodes = True
        steps += event == "opcode"
        return count

    call()  # Once before: what it finds only then is not to be counted.
    steps, before = 0, sys.gettrace()
    sys._getframe().f_trace_opcodes = True  # Python 3.12 looks when tracing begins whether anybody wants opcodes.
    gc.disable()
    sys.settrace(count)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return steps


@contextmanager
def traced_memory() -> Iterator[None]:
    """Trace what is allocated, if nobody does already."""
    ours = not tracemalloc.is_tracing()
    if ours:
        tracemalloc.start()
    try:
        yield
    finally:
        if ours:
            tracemalloc.stop()


def growth_of(call: Callable[[], object], times: int) -> int:
    """Return how many bytes more there are after so many calls."""
    for _ in range(WARM):
        call()
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    for _ in range(times):
        call()
    gc.collect()
    return tracemalloc.get_traced_memory()[0] - before


def peak_of(call: Callable[[], object]) -> int:
    """Return how many bytes a call needs at most."""
    for _ in range(3):
        call()
    gc.collect()
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    call()
    return tracemalloc.get_traced_memory()[1] - before


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


def test_a_busy_second_is_a_heartbeat_a_claim_and_a_release(world: World) -> None:
    world.clock.advance(0.95)  # So that its heart beats shortly before a job is due.
    world.job("* * * * * *", "busy")
    replica = replica_with(world, 100)
    for second in range(3, 13):
        for moment in (0.95, 0.998, 1):
            world.until(at(12, 0, second + moment))
            replica.tick()
    assert [name for name, _ in replica.link.calls] == ["heartbeat", "claim", "release"] * 10


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


def test_an_idle_second_takes_as_many_steps_with_many_jobs_as_with_few() -> None:
    with idle_replica(10) as few, idle_replica(1000) as many:
        assert 500 < steps_of(few) == steps_of(many) < 3000


def test_a_job_that_is_due_costs_as_many_steps_among_many_as_among_few() -> None:
    def steps_with(jobs: int) -> int:
        world = World(AnsweringStore())
        try:
            world.job("* * * * * *", "due")
            replica = replica_with(world, jobs)
            world.runs.clear()
            steps = steps_of(partial(pass_a_second, world, replica))
            assert len(world.runs) == 2
            return steps
        finally:
            world.close()

    assert steps_with(1000) == steps_with(10)


def test_an_idle_second_leaves_nothing_behind() -> None:
    with traced_memory(), idle_replica(10) as second:
        assert growth_of(second, 1000) < 4000, "a list with something of each second would be 8,000 at least"


def test_nor_does_a_pass_of_the_running_loop(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_pass() -> None:
        nonlocal passes
        passes += 1
        world.clock.advance(1)
        replica.link.calls.clear()
        if passes in (WARM, WARM + 1000):
            gc.collect()
            sizes.append(tracemalloc.get_traced_memory()[0])
        if passes == WARM + 1000:
            replica.stop()

    monkeypatch.setattr("django_cronductor.scheduler.LONGEST_WAIT", 0.0)
    passes, sizes = 0, list[int]()
    world.job(SELDOM)
    replica = world.replica(inline=False, on_pass=on_pass)
    with traced_memory():
        assert replica.run() == 0
    assert sizes[1] - sizes[0] < 4000


def test_an_idle_second_needs_no_more_memory_with_many_jobs_than_with_few() -> None:
    with traced_memory(), idle_replica(10) as few, idle_replica(1000) as many:
        assert peak_of(many) < peak_of(few) + 2000, "a list of them all would be 8,000"


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


@pytest.mark.django_db(transaction=True)
def test_the_ends_of_a_burst_are_written_by_one_statement_when_its_starts_are_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    statements: list[str] = []

    def note(execute: Callable[..., Any], statement: str, *arguments: Any) -> Any:
        statements.append(statement.partition(" ")[0])
        return execute(statement, *arguments)

    def start(ours: bool) -> None:
        if note not in connection.execute_wrappers:  # The connection is that of the thread that writes.
            connection.execute_wrappers.append(note)
        started.release()

    monkeypatch.setattr("django_cronductor.history.time", ManualClock())  # However long it takes: all at one moment.
    started = threading.Semaphore(0)
    history = DatabaseHistory(keep=100)
    try:
        for number in range(50):
            history.begun(run(number), start)
            assert started.acquire(timeout=PATIENCE)
            finish(history, run(number))
        assert statements.count("UPDATE") == 0
        assert history.flush(PATIENCE)
        assert statements.count("UPDATE") == 1
    finally:
        end(history)


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
    needed = {"apps", "backends", "checks", "conf", "durations", "exceptions", "fields"}
    needed |= {"handlers", "jobs", "keys", "models", "schedules"}
    assert imported == {f"django_cronductor.{name}" for name in needed}
