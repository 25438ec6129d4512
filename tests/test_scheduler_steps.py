"""The loop where clocks are set by an hour, where a machine sleeps, and after a long time without any replica."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import timedelta

import pytest

from tests.scheduler_world import LocalStore, RedisStore, World, at, end_runs, start_runs

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db

HOUR = 3600.0


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_replicas_clock_set_by_an_hour_changes_nothing(
    world: World, step: float, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *")
    stepped, _ = world.replica(), world.replica()
    world.tick()
    world.go(at(12, 2, 30))
    stepped.clocks.ahead = step
    world.go(at(12, 5))
    stepped.clocks.ahead = 0.0
    world.go(at(12, 7))
    assert world.ran() == [at(12, minute) for minute in range(1, 8)]
    assert world.missed() == world.abandoned() == []
    assert len([record for record in caplog.records if "lock store's, by which" in record.getMessage()]) == 1


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_a_replicas_clock_set_by_an_hour_in_a_run_costs_it_nothing(world: World, step: float) -> None:
    world.slow_job("* * * * *", ttl=30)
    holder, other = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    holder.clocks.ahead = step
    world.go(at(12, 1, 50))
    assert not world.runs[0].lease_lost
    end_runs(world, holder)
    world.tick(other)
    (finished,) = world.heard("job_finished")
    assert (finished["outcome"], finished["duration"]) == ("succeeded", pytest.approx(50, abs=1))
    assert world.abandoned() == world.missed() == []


@pytest.mark.parametrize("step", [HOUR, -HOUR])
def test_the_stores_clock_set_by_an_hour_in_a_run_makes_no_second_run_beside_it(world: World, step: float) -> None:
    world.slow_job("* * * * *", ttl=30)
    holder, other = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 1, 5))
    world.step_store(step)
    # By its own clock the lease ended an hour ago, or ends in an hour: until the holder renews it.
    holder.tick()
    world.go(at(12, 1, 59), holder, other)
    assert len(world.runs) == 1
    assert not world.runs[0].lease_lost
    end_runs(world, holder)
    assert world.outcomes() == ["succeeded"]
    assert world.abandoned() == []


def test_a_run_whose_lease_the_stores_clock_has_jumped_over_is_told_so_by_whoever_asks_first(world: World) -> None:
    world.slow_job("* * * * *", ttl=30)
    holder, other = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.step_store(HOUR)
    world.clock.advance(0.01)
    other._keeper.tick()
    start_runs(world, other, 2)
    world.clock.advance(2)
    holder._keeper.tick()
    holder.tick()
    stale, fresh = world.runs
    assert stale.lease_lost
    assert not fresh.lease_lost
    assert fresh.fencing_token > stale.fencing_token
    assert (fresh.scheduled_at, world.abandoned()) == (at(13, 1), [("job", at(12, 1), "replica-1")])
    end_runs(world, holder, other)
    assert sorted(world.outcomes()) == ["lost", "succeeded"]


def test_the_stores_clock_set_back_by_an_hour_runs_nothing_again_and_then_goes_on(world: World) -> None:
    world.job("*/10 * * * *")
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 30, 5), step=5)
    world.step_store(-HOUR)
    # An hour until it has caught up, and ten minutes on.
    world.go(at(13, 41), step=5)
    assert world.ran() == [at(12, 10), at(12, 20), at(12, 30), at(12, 40)]
    assert world.missed() == []


@pytest.mark.parametrize("sleeps", [0.0, 2 * HOUR], ids=["its monotonic clock runs on", "and stands still"])
def test_a_machine_that_wakes_up_runs_the_newest_occurrence_at_once(world: World, sleeps: float) -> None:
    world.job("* * * * *")
    replica = world.replica(uptime=3 * HOUR)
    world.tick()
    world.go(at(12, 1, 30))
    world.clock.advance(2 * HOUR)
    replica.clocks._uptime -= sleeps
    world.go(at(14, 1, 31))
    assert world.ran() == [at(12, 1), at(14, 1)]
    assert world.missed() == [("job", at(14), 119)]
    world.go(at(14, 3))
    assert world.ran()[2:] == [at(14, 2), at(14, 3)]


@pytest.mark.parametrize("sleeps", [0.0, 58 * 60], ids=["its monotonic clock runs on", "and stands still"])
def test_a_machine_that_slept_in_a_run_learns_that_its_lease_is_lost(world: World, sleeps: float) -> None:
    world.slow_job("0 * * * *", ttl=30)
    sleeper, heir = world.replica(inline=False, uptime=3 * HOUR), world.replica()
    world.tick()
    world.until(at(13))
    start_runs(world, sleeper)
    world.go(at(13, 59), heir, step=10)
    assert world.abandoned() == [("job", at(13), "replica-1")]
    sleeper.clocks._uptime -= sleeps
    sleeper.tick()
    sleeper._keeper.tick()
    sleeper.tick()
    sleeper.settle()
    assert world.runs[0].lease_lost
    assert len(world.heard("lease_lost")) == 1
    end_runs(world, sleeper)
    assert world.outcomes() == ["lost"]


def test_three_hundred_missed_minutes_are_one_run_and_one_report_over_all_replicas(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *", "patient")
    world.job("* * * * *", "strict", grace=30, ttl=30)
    world.tick(world.replica())
    world.until(at(12) + timedelta(minutes=300, seconds=45))
    fresh = [world.replica() for _ in range(3)]
    world.go(at(17, 1, 45), *fresh)
    assert [(context.scheduled_at, context.trigger, context.missed) for context in world.runs] == [
        (at(17), "catch-up", 299),
        (at(17, 1), "schedule", 0),
        (at(17, 1), "schedule", 0),
    ]
    assert sorted(world.missed()) == [("patient", at(16, 59), 299), ("strict", at(17), 300)]
    told = sorted(record.getMessage() for record in caplog.records if record.levelno == logging.WARNING)
    assert told == [
        "patient missed 2026-01-05 16:59:00+00:00 (299 in all): passed over for a newer one.",
        "strict missed 2026-01-05 17:00:00+00:00 (300 in all): too late to start.",
    ]


def test_a_first_instant_that_was_missed_after_a_deploy_runs_within_its_grace_and_is_told_after_it(
    world: World,
) -> None:
    world.job("1 12 * * *", "patient")
    world.job("1 12 * * *", "strict", grace=20, ttl=20)
    world.clock.set_time(at(12, 0, 50))
    world.tick(world.replica())
    world.until(at(12, 1, 30))
    fresh = [world.replica() for _ in range(2)]
    world.go(at(12, 3), *fresh)
    assert [(context.key, context.scheduled_at, context.trigger) for context in world.runs] == [
        ("patient", at(12, 1), "catch-up")
    ]
    assert world.missed() == [("strict", at(12, 1), 1)]
