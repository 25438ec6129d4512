"""The loop when the store loses its data, or has its clock set."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from tests.scheduler_world import LocalStore, RedisStore, World, at, end_runs, start_runs

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


@pytest.fixture
def redis_world() -> Iterator[World]:
    """Return a world whose store rests after it has lost its data: other processes may hold leases in it."""
    world = World(RedisStore())
    yield world
    world.close()


def texts(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


# A store that lost its data.


@pytest.mark.parametrize("second", [30, 59, 59.9])
def test_a_flush_in_mid_run_makes_no_second_run_and_tokens_rise(redis_world: World, second: float) -> None:
    world = redis_world
    world.slow_job("* * * * *", ttl=30)
    holder, other = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 1, second), step=0.5)
    world.flush()
    world.go(at(12, 2, 30), other, holder, step=0.5)
    assert world.ran() == [at(12, 1)]
    assert not world.runs[0].lease_lost
    assert world.state().lease.fence == world.runs[0].fencing_token
    end_runs(world, holder)
    world.go(at(12, 2, 59), other)
    world.clock.advance(1)
    start_runs(world, other, 2)
    end_runs(world, other)
    assert world.ran() == [at(12, 1), at(12, 3)]
    assert world.runs[1].fencing_token > world.runs[0].fencing_token
    assert world.skipped() == [("job", at(12, 2), "held")]


def test_a_flush_between_runs_runs_nothing_again(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.job("* * * * *")
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 1, 20))
    world.flush()
    world.go(at(12, 1, 59))
    assert world.ran() == [at(12, 1)]
    assert len([text for text in texts(caplog, logging.WARNING) if "lost its data" in text]) == 2, "one per replica"
    world.go(at(12, 2))
    assert world.ran() == [at(12, 1), at(12, 2)]
    assert world.runs[1].fencing_token > world.runs[0].fencing_token


def test_a_replica_that_starts_after_a_flush_does_not_run_again_what_others_remember(world: World) -> None:
    world.job("* * * * *", grace=3600)
    old = world.replica()
    world.tick()
    world.go(at(12, 1, 20))
    world.flush()
    world.go(at(12, 1, 25), old)
    fresh = world.replica()
    world.go(at(12, 1, 59), fresh, old)
    assert world.ran() == [at(12, 1)]


def test_the_replica_that_knows_least_may_declare_first_after_a_flush(redis_world: World) -> None:
    world = redis_world
    world.job("* * * * *", grace=3600)
    behind, other = world.replica(), world.replica()
    world.tick()
    world.go(at(12, 1, 20), other)
    world.flush()
    world.clock.advance(1)
    world.tick(behind, other)
    world.go(at(12, 1, 59), behind, other)
    assert world.ran() == [at(12, 1)]


def test_an_occurrence_that_came_right_after_a_flush_runs_after_the_rest(redis_world: World) -> None:
    world = redis_world
    world.job("* * * * *")
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 1, 59.5), step=0.5)
    world.flush()
    world.go(at(12, 2, 2), step=0.5)
    assert world.ran() == [at(12, 1)], "at rest: a holder could still write its lease back"
    world.go(at(12, 2, 10), step=0.5)
    assert world.ran() == [at(12, 1), at(12, 2)]
    assert world.missed() == []


def test_a_false_alarm_changes_nothing(world: World) -> None:
    world.job("* * * * *")
    sleeper, awake = world.replica(), world.replica()
    world.tick()
    world.go(at(12, 3, 30), awake)
    world.go(at(12, 6), sleeper, awake)
    assert world.ran() == [at(12, minute) for minute in range(1, 7)]
    assert world.missed() == []


def test_a_pause_is_forgotten_by_a_store_that_lost_it_and_the_job_runs(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.backend.pause("job")
    world.go(at(12, 1, 20))
    world.flush()
    world.go(at(12, 2))
    assert world.ran() == [at(12, 2)]


# The store's clock.


def test_a_job_rests_until_the_stores_clock_has_caught_up_and_one_warning_says_so(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *")
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 10))
    world.step_store(-300)
    world.go(at(12, 15, 59))
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]
    told = [text for text in texts(caplog, logging.WARNING) if "went back by 300.0 s" in text]
    assert len(told) == 2, "one per replica"
    world.go(at(12, 17))
    assert world.ran() == [at(12, minute) for minute in range(1, 13)], "by the store's clock"
    assert world.missed() == []


def test_a_replica_that_starts_while_the_stores_clock_is_behind_runs_nothing_again(world: World) -> None:
    world.job("* * * * *", grace=3600)
    world.tick(world.replica())
    world.go(at(12, 10))
    world.step_store(-300)
    fresh = world.replica()
    world.go(at(12, 14, 59), fresh)
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]


def test_a_lease_is_no_longer_than_its_ttl_when_the_stores_clock_goes_back(world: World) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    heir = world.replica()
    world.tick()
    world.until(at(13))
    start_runs(world, victim)
    world.tick(heir)
    world.step_store(-3600)
    world.go(at(13, 1, 5), heir)
    assert world.abandoned() == [("job", at(13), "victim")]


def test_the_stores_clock_an_hour_ahead_is_one_run_of_the_newest(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 3, 10))
    world.step_store(3600)
    world.go(at(12, 3, 49))
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3), at(13, 3)]
    assert world.missed() == [("job", at(13, 2), 59)]
    world.go(at(12, 4))
    assert world.ran()[4:] == [at(13, 4)]


def test_a_clock_that_goes_back_during_a_run_makes_no_negative_duration(world: World) -> None:
    world.job("* * * * *", body=lambda context: world.clock.set_time(at(11)))
    world.replica()
    world.tick()
    world.until(at(12, 1))
    world.tick()
    (finished,) = world.heard("job_finished")
    assert finished["duration"] >= 0
    assert finished["outcome"] == "succeeded"


def test_a_store_that_comes_back_empty_runs_nothing_again(redis_world: World) -> None:
    world = redis_world
    world.job("0 * * * *", ttl=30)
    replica = world.replica()
    world.tick()
    world.go(at(13, 0, 30), step=30)
    replica.link.broken = {"all"}
    world.go(at(13, 0, 33))
    world.flush()
    replica.link.broken = set()
    world.go(at(13, 1, 30))
    assert world.ran() == [at(13)]
