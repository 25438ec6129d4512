"""The loop and its workers: how much is claimed, timeouts, what a run may do."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_cronductor import signals
from django_cronductor.exceptions import Stopping
from django_cronductor.runner import RunContext
from django_cronductor.workers import WorkerPool
from tests.scheduler_world import DEADLINE, LocalStore, RedisStore, Replica, World, at, end_runs, start_runs

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


# How much is claimed.


def test_a_replica_wins_no_more_than_its_workers_can_start(world: World) -> None:
    for number in range(10):
        world.slow_job("* * * * *", f"job-{number}")
    replica = world.replica(inline=False, max_workers=3)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 3)
    assert [len(claims) for claims in replica.link.asked("claim")] == [3]
    world.go(at(12, 1, 5))
    assert len(world.runs) == 3
    other = world.replica(inline=False, max_workers=20)
    start_runs(world, other, 10)
    assert sorted(context.instance for context in world.runs) == ["replica-1"] * 3 + ["replica-2"] * 7
    end_runs(world, replica, other)


def test_two_replicas_share_a_burst_of_slow_jobs(world: World) -> None:
    for number in range(8):
        world.slow_job("* * * * *", f"job-{number}")
    replicas = [world.replica(inline=False, max_workers=4) for _ in range(2)]
    world.tick()
    world.until(at(12, 1))
    for runs, replica in zip((4, 8), replicas, strict=True):
        start_runs(world, replica, runs)
    assert sorted(context.instance for context in world.runs) == ["replica-1"] * 4 + ["replica-2"] * 4
    end_runs(world, *replicas)
    assert world.skipped() == []


def test_who_asks_about_what_another_runs_wins_no_more_then_than_it_has_workers_for(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("random.shuffle", lambda items: None)  # All ask in the same order.
    for number in range(6):
        world.slow_job("0 13 * * *", f"slow-{number}")
    replicas = [world.replica(inline=False, max_workers=1) for _ in range(3)]
    world.tick()
    world.until(at(13))
    for number, replica in enumerate(replicas, 1):
        start_runs(world, replica, number)
    assert [replica.begun for replica in replicas] == [1, 1, 1]


def test_what_waited_for_a_worker_runs_when_one_is_free(world: World) -> None:
    world.slow_job("0 1 12 * * *", "first")
    world.slow_job("1 1 12 * * *", "second")
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    world.go(at(12, 1, 20))
    assert world.ran("second") == []
    end_runs(world, replica)
    world.clock.advance(0.1)
    start_runs(world, replica, 2)
    assert world.ran("second") == [at(12, 1, 1)]


def tick_until(replica: Replica, condition: Callable[[], bool]) -> None:
    """Make passes as a loop does that is woken whenever a worker comes free."""
    end = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < end
        replica.tick()


def test_one_slow_job_does_not_hold_up_others(world: World) -> None:
    world.slow_job("0 1 12 * * *", "slow")
    world.job("* * * * *", "minutely")
    replica = world.replica(inline=False, max_workers=2)
    world.tick()
    for minute in range(1, 61):
        world.until(at(12 + minute // 60, minute % 60))
        tick_until(replica, lambda count=minute: world.outcomes().count("succeeded") == count)  # type: ignore[misc]
    assert len(world.ran("minutely")) == 60


def test_an_occurrence_of_a_job_that_runs_here_is_asked_about_though_no_worker_is_free(world: World) -> None:
    world.slow_job("* * * * *")
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    world.go(at(12, 2))
    assert world.state().pending == int(at(12, 2).timestamp() * 1000)
    end_runs(world, replica)
    assert world.skipped() == [("job", at(12, 2), "held")]


def test_what_is_too_late_is_reported_though_no_worker_is_free(world: World) -> None:
    world.slow_job("0 1 12 * * *", "busy")
    world.job("30 1 12 * * *", "late", grace=60, ttl=30)
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    world.go(at(12, 2, 30))
    replica.settle()
    assert world.missed() == []
    world.go(at(12, 2, 33))
    replica.settle()
    assert world.missed() == [("late", at(12, 1, 30), 1)]


def test_a_run_for_which_a_worker_comes_free_after_its_grace_is_missed(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where runs are short more are won than there are workers: then comes a long one, and they wait behind it."""
    monkeypatch.setattr(WorkerPool, "look_for_room", lambda self: 2)
    for key in ("a", "b"):
        world.slow_job("0 13 * * *", key, ttl=30, grace=60)
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    world.until(at(13))
    start_runs(world, replica)
    assert replica.begun == 2
    world.go(at(13, 1, 2))
    end_runs(world, replica)
    [ran] = world.runs
    [other] = {"a", "b"} - {ran.key}
    assert world.missed() == [(other, at(13), 1)]
    assert (world.state(other).lease, world.state(other).last.outcome) == (None, "missed")


def test_a_dead_run_is_looked_at_though_no_worker_is_free(world: World) -> None:
    world.slow_job("0 1 12 * * *", "dead", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    world.tick()
    world.until(at(12, 1))
    start_runs(world, victim, 1)
    world.slow_job("5 1 12 * * *", "busy")
    witness = world.replica(inline=False, max_workers=1, instance="witness")
    witness.tick()
    world.until(at(12, 1, 5))
    start_runs(world, witness, 2)
    world.go(at(12, 1, 33), witness)
    witness.settle()
    assert world.abandoned() == [("dead", at(12, 1), "victim")]


def test_full_workers_are_told_once_with_the_names_of_the_jobs_that_have_them(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    for key in ("greedy", "hungry"):
        world.slow_job("0 1 12 * * *", key)
    replica = world.replica(inline=False, max_workers=2)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 2)
    world.go(at(12, 1, 30))
    assert caplog.text == "", "nobody waits"
    world.job("35 1 12 * * *", "waiting")
    world.go(at(12, 2, 30))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage() == "All 2 workers are busy and 1 jobs wait for one. Running: greedy, hungry."
    assert record.instance == "replica-1"
    end_runs(world, replica)


def test_jobs_that_use_all_workers_for_a_moment_are_no_matter_for_a_warning(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *", "one")
    world.job("* * * * *", "two")
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    for minute in range(1, 5):
        world.until(at(12, minute))
        for runs in (1, 2):
            start_runs(world, replica, 2 * minute - 2 + runs)
            replica.wait_for_workers()
            replica.tick()
            world.clock.advance(0.1)
    assert caplog.text == ""


# Timeouts.


def test_a_timeout_is_reported_when_it_passes_and_the_lease_is_kept(world: World) -> None:
    world.slow_job("* * * * *", timeout=10, ttl=5)
    replica, other = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    world.go(at(12, 1, 9.5), step=0.5)
    replica.settle()
    assert world.outcomes() == []
    assert replica.tick() <= 0.5
    world.go(at(12, 1, 10))
    replica.settle()
    threads = threading.active_count()
    assert world.outcomes() == ["timed out"]
    assert world.heard("job_finished")[0]["duration"] == pytest.approx(10)
    context = world.runs[0]
    assert context.stopping
    assert not context.lease_lost
    with pytest.raises(Stopping, match="timeout"):
        context.check()
    world.go(at(12, 4, 30))
    assert world.ran() == [at(12, 1)], "held, never overlapped"
    assert threading.active_count() == threads
    end_runs(world, replica)
    world.tick(other)
    assert world.outcomes() == ["timed out"], "told once"
    assert [(one["scheduled_at"], one["reason"], one["count"]) for one in world.heard("job_skipped")] == [
        (at(12, 4), "held", 3)
    ]
    assert world.state().lease is None


def test_an_async_handler_is_cancelled_at_its_timeout(world: World) -> None:
    ended: list[str] = []
    started = threading.Event()

    async def wait_for_ever() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    world.registry.schedule("* * * * *", wait_for_ever, key="job", timeout=10)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    replica.tick()
    assert started.wait(DEADLINE)
    world.go(at(12, 1, 10))
    replica.wait_for_workers()
    replica.tick()
    replica.settle()
    assert ended == ["cancelled"]
    assert world.outcomes() == ["timed out"]
    assert world.state().lease is None


def test_an_async_handler_is_cancelled_when_its_lease_is_lost(world: World) -> None:
    started = threading.Event()

    async def wait_for_ever() -> None:
        started.set()
        await asyncio.Event().wait()

    world.registry.schedule("* * * * *", wait_for_ever, key="job")
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    replica.tick()
    assert started.wait(DEADLINE)
    world.backend.force_release("job")
    world.go(at(12, 1, 2))
    replica.wait_for_workers()
    replica.tick()
    replica.settle()
    assert world.outcomes() == ["lost"]


def test_a_run_within_its_timeout_is_not_told_to_stop(world: World) -> None:
    world.slow_job("* * * * *", timeout=10)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    world.go(at(12, 1, 9))
    end_runs(world, replica)
    assert world.outcomes() == ["succeeded"]
    assert not world.runs[0].stopping


def test_a_job_that_always_raises_ends_only_its_runs(world: World) -> None:
    def fail(context: RunContext) -> None:
        raise SystemExit if context.scheduled_at == at(12, 2) else ValueError("no")

    world.job("* * * * *", body=fail)
    replica = world.replica(inline=False)
    world.tick()
    for minute in (1, 2, 3):
        world.until(at(12, minute))
        start_runs(world, replica, minute)
        replica.wait_for_workers()
        replica.tick()
    replica.settle()
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]
    assert world.outcomes() == ["failed"] * 3
    assert [context.phase for _, context in world.errors] == ["handler"] * 3


def test_a_receiver_that_waits_does_not_hold_up_the_loop(world: World) -> None:
    heard = threading.Event()

    def wait(**details: object) -> None:
        heard.set()
        world.gate.wait(DEADLINE)

    world.job("0 1 12 * * *", "late", grace=60)
    world.job("* * * * *", "minutely")
    replica = world.replica(inline=False)
    world.tick()
    signals.job_missed.connect(wait)
    world.until(at(12, 5))
    start_runs(world, replica, 1)
    assert heard.wait(DEADLINE)
    world.until(at(12, 6))
    start_runs(world, replica, 2)
    signals.job_missed.disconnect(wait)
    end_runs(world, replica)


def test_a_warning_names_no_more_jobs_than_one_can_read(world: World, caplog: pytest.LogCaptureFixture) -> None:
    for number in range(25):
        world.slow_job("0 1 12 * * *", f"job-{number:02}")
    world.job("5 1 12 * * *", "waiting")
    replica = world.replica(inline=False, max_workers=25)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 25)
    world.go(at(12, 2))
    (record,) = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert record.getMessage().endswith("job-18, job-19, ....")
    end_runs(world, replica)


def test_a_timeout_is_written_down_though_a_receiver_hangs(world: World, caplog: pytest.LogCaptureFixture) -> None:
    hung = threading.Event()

    def hang(**details: object) -> None:
        hung.wait(20)

    world.slow_job("0 1 12 * * *", timeout=5)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    replica._tell(hang)
    world.go(at(12, 1, 6))
    assert any("timed out" in record.getMessage() for record in caplog.records)
    hung.set()
    end_runs(world, replica)
