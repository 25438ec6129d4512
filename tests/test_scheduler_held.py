"""The loop where a lease stands in the way: overlap, dead holders, recovery, pauses and requested runs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_cronductor.exceptions import LeaseLost
from django_cronductor.jobs import JobRegistry
from django_cronductor.runner import RunContext
from tests.scheduler_world import LocalStore, RedisStore, World, at, end_runs, start_runs

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


# Held.


@pytest.mark.parametrize("others", [0, 1, 3])
def test_what_comes_during_a_run_is_reported_once_as_held_by_who_ran(
    world: World, caplog: pytest.LogCaptureFixture, others: int
) -> None:
    caplog.set_level(logging.INFO, logger="django_cronductor")
    world.slow_job("* * * * *")
    holder = world.replica(inline=False, instance="holder")
    for _ in range(others):
        world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 3, 30))
    assert world.ran() == [at(12, 1)]
    assert world.skipped() == []
    end_runs(world, holder)
    world.go(at(12, 3, 59))
    holder.settle()
    details = world.heard("job_skipped")
    assert [(one["scheduled_at"], one["reason"], one["holder"], one["count"]) for one in details] == [
        (at(12, 3), "held", "holder", 2)
    ]
    record = next(record for record in caplog.records if getattr(record, "outcome", "") == "held")
    assert (record.levelno, record.job, record.scheduled_at) == (logging.INFO, "job", at(12, 3))
    assert (world.ran(), world.missed(), world.abandoned()) == ([at(12, 1)], [], [])


def test_the_occurrence_after_a_long_run_runs(world: World) -> None:
    world.slow_job("* * * * *")
    holder, other = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 2, 30))
    end_runs(world, holder)
    world.go(at(12, 3), other)
    other.wait_for_workers()
    assert world.ran() == [at(12, 1), at(12, 3)]
    assert [context.missed for context in world.runs] == [0, 0]


def test_a_run_that_ends_between_occurrences_holds_nothing(world: World) -> None:
    world.slow_job("* * * * *")
    holder = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 1, 50))
    end_runs(world, holder)
    world.go(at(12, 2))
    holder.wait_for_workers()
    holder.settle()
    assert world.ran() == [at(12, 1), at(12, 2)]
    assert world.skipped() == []


def test_a_run_longer_than_its_ttl_is_not_overlapped(world: World) -> None:
    world.slow_job("* * * * *", ttl=5)
    holder, other = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 3, 30))
    assert world.ran() == [at(12, 1)]
    assert not world.runs[0].lease_lost
    end_runs(world, holder)
    world.tick(other)
    assert world.skipped() == [("job", at(12, 3), "held")]
    assert world.abandoned() == []


def test_two_replicas_that_ask_about_a_held_occurrence_again_and_again_do_not_run_it_later(world: World) -> None:
    world.slow_job("* * * * *", ttl=10)
    holder, one, two = world.replica(inline=False), world.replica(), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 2, 5))
    end_runs(world, holder)
    world.go(at(12, 2, 59), one, two)
    assert world.ran() == [at(12, 1)]
    assert world.skipped() == [("job", at(12, 2), "held")]


def test_a_skipped_condition_is_reported_with_its_reason(world: World) -> None:
    world.job("* * * * *", when=lambda context: context.scheduled_at != at(12, 1))
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 2))
    assert world.skipped() == [("job", at(12, 1), "condition")]
    assert world.ran() == [at(12, 2)]


# Dead holders.


@pytest.mark.parametrize("survivors", [1, 3])
def test_a_dead_run_is_reported_once_when_its_lease_ends(
    world: World, caplog: pytest.LogCaptureFixture, survivors: int
) -> None:
    world.slow_job("0 * * * *", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    rest = [world.replica() for _ in range(survivors)]
    world.tick()
    world.until(at(13))
    start_runs(world, victim)
    world.go(at(13, 0, 29), *rest)
    assert world.abandoned() == []
    world.go(at(13, 0, 31), *rest)
    assert world.abandoned() == [("job", at(13), "victim")]
    world.go(at(13, 10), *rest)
    assert world.abandoned() == [("job", at(13), "victim")]
    record = next(record for record in caplog.records if getattr(record, "outcome", "") == "abandoned")
    assert (record.levelno, record.job, record.scheduled_at, record.holder) == (
        logging.ERROR,
        "job",
        at(13),
        "victim",
    )
    assert world.ran() == [at(13)]


def test_the_newest_occurrence_due_runs_elsewhere_when_the_dead_lease_ends(world: World) -> None:
    world.slow_job("0,10,20 1 12 * * *", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    heir, late = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, victim)
    world.go(at(12, 1, 29), heir, late)
    assert world.ran() == [at(12, 1)]
    world.until(at(12, 1, 30))
    start_runs(world, heir, 2)
    end_runs(world, heir)
    world.tick(late)
    assert world.ran() == [at(12, 1), at(12, 1, 20)]
    assert world.runs[1].missed == 1
    assert world.runs[1].fencing_token > world.runs[0].fencing_token
    assert world.missed() == [("job", at(12, 1, 10), 1)]
    assert world.abandoned() == [("job", at(12, 1), "victim")]


def test_a_dead_run_is_reported_by_a_replica_that_starts_later(world: World) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    world.tick()
    world.until(at(13))
    start_runs(world, victim)
    world.until(at(18))
    one, two = world.replica(), world.replica()
    world.go(at(18, 1), one, two)
    assert world.abandoned() == [("job", at(13), "victim")]
    assert world.ran() == [at(13)]
    assert world.missed() == []


def test_a_run_whose_holder_comes_back_too_late_is_lost_and_its_release_changes_nothing(world: World) -> None:
    world.slow_job("* * * * *", ttl=30)
    victim, heir = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, victim)
    world.go(at(12, 1, 59), heir)
    world.clock.advance(1)
    start_runs(world, heir, 2)
    stale, fresh = world.runs
    assert stale.lease_lost
    with pytest.raises(LeaseLost):
        stale.check()
    assert fresh.fencing_token > stale.fencing_token
    world.tick(victim)
    victim.settle()
    lease = world.state().lease
    assert (lease.holder, lease.fence) == (fresh.instance, fresh.fencing_token)
    world.gate.set()
    victim.wait_for_workers()
    world.tick(victim)
    assert world.state().lease == lease, "the release of the one that was lost"
    end_runs(world, heir)
    victim.settle()
    assert [one["context"] for one in world.heard("lease_lost")] == [stale]
    assert {one["context"]: one["outcome"] for one in world.heard("job_finished")} == {
        stale: "lost",
        fresh: "succeeded",
    }
    assert [context.phase for _, context in world.errors] == ["renew"]


def test_recover_runs_a_dead_run_again_once_with_a_higher_token(world: World) -> None:
    world.slow_job("0 * * * *", ttl=30, recover=True)
    victim = world.replica(inline=False, instance="victim")
    heir, third = world.replica(inline=False, instance="heir"), world.replica()
    world.tick()
    world.until(at(13))
    start_runs(world, victim)
    world.go(at(13, 0, 29), heir, third)
    world.until(at(13, 0, 30))
    start_runs(world, heir, 2)
    world.tick(third)
    first, second = world.runs
    assert (second.scheduled_at, second.trigger, second.instance) == (at(13), "recover", "heir")
    assert second.fencing_token > first.fencing_token
    assert world.state().lease.attempt == 1
    end_runs(world, heir)
    world.go(at(13, 5), heir, third)
    assert len(world.runs) == 2
    assert world.abandoned() == [("job", at(13), "victim")]


def test_recover_does_not_try_a_third_time(world: World) -> None:
    world.slow_job("0 * * * *", ttl=30, recover=True)
    first = world.replica(inline=False, instance="first")
    second, third = world.replica(inline=False, instance="second"), world.replica()
    world.tick()
    world.until(at(13))
    start_runs(world, first)
    world.go(at(13, 0, 29), second, third)
    world.until(at(13, 0, 30))
    start_runs(world, second, 2)
    second.settle()
    world.go(at(13, 10), third)
    assert world.abandoned() == [("job", at(13), "first"), ("job", at(13), "second")]
    assert len(world.runs) == 2


def test_recover_is_not_for_a_run_that_ended(world: World) -> None:
    world.job("0 * * * *", ttl=30, recover=True)
    world.replica()
    world.replica()
    world.tick()
    world.go(at(13, 5), step=5)
    world.tick(world.replica())
    assert world.ran() == [at(13)]


def test_recover_is_not_for_a_paused_job_or_after_its_grace(world: World) -> None:
    world.slow_job("0 13 * * *", "paused", ttl=30, recover=True)
    world.slow_job("0 13 * * *", "old", ttl=30, grace=60, recover=True)
    victim = world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, victim, 2)
    world.backend.pause("paused")
    world.until(at(13, 1, 31))
    world.tick(world.replica())
    assert len(world.runs) == 2
    assert sorted(key for key, _, _ in world.abandoned()) == ["old", "paused"]


def test_a_lease_released_by_force_lets_the_next_occurrence_run_and_its_run_is_told(world: World) -> None:
    world.slow_job("* * * * *")
    holder, other = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 1, 30))
    world.backend.force_release("job")
    world.go(at(12, 1, 31.5), step=0.5)
    assert world.runs[0].lease_lost
    world.go(at(12, 1, 59))
    world.clock.advance(1)
    start_runs(world, other, 2)
    assert world.runs[1].fencing_token > world.runs[0].fencing_token
    end_runs(world, other)
    end_runs(world, holder)
    assert len(world.heard("lease_lost")) == 1
    assert sorted(world.outcomes()) == ["lost", "succeeded"]


# Paused.


def test_each_occurrence_of_a_paused_job_is_reported_once(world: World) -> None:
    world.job("* * * * *")
    for _ in range(3):
        world.replica()
    world.tick()
    world.backend.pause("job")
    world.go(at(12, 3))
    assert world.skipped() == [("job", at(12, minute), "paused") for minute in (1, 2, 3)]
    assert (world.runs, world.missed()) == ([], [])


def test_resume_makes_up_nothing(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.replica()
    world.tick()
    world.backend.pause("job")
    world.go(at(12, 2, 10))
    world.backend.resume("job")
    world.tick(world.replica())
    world.go(at(12, 2, 59))
    assert world.runs == []
    world.go(at(12, 3))
    assert world.ran() == [at(12, 3)]
    assert world.runs[0].missed == 0


def test_a_pause_lets_the_run_in_progress_go_on(world: World) -> None:
    world.slow_job("* * * * *")
    holder = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.backend.pause("job")
    world.go(at(12, 1, 50))
    assert not world.runs[0].lease_lost
    end_runs(world, holder)
    assert world.outcomes() == ["succeeded"]


# Requested runs.


def test_a_requested_run_is_made_once_over_replicas(world: World) -> None:
    world.job("0 15 * * *")
    for _ in range(3):
        world.replica()
    world.tick()
    assert world.backend.request_run("job")
    assert world.backend.request_run("job")
    world.go(at(12, 1))
    assert [(context.scheduled_at, context.trigger) for context in world.runs] == [(None, "manual")]
    assert world.outcomes() == ["succeeded"]


def test_a_requested_run_consumes_no_occurrence(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.go(at(12, 0, 57))
    world.backend.request_run("job")
    world.go(at(12, 1))
    assert [(context.scheduled_at, context.trigger) for context in world.runs] == [
        (None, "manual"),
        (at(12, 1), "schedule"),
    ]
    assert world.missed() == []


def test_an_occurrence_during_a_requested_run_is_held(world: World) -> None:
    world.slow_job("* * * * *")
    holder, other = world.replica(inline=False), world.replica()
    world.tick()
    world.go(at(12, 0, 58))
    world.backend.request_run("job")
    world.clock.advance(1)
    start_runs(world, holder)
    world.go(at(12, 1, 3))
    end_runs(world, holder)
    world.go(at(12, 1, 59), other)
    assert world.ran() == [None]
    assert world.skipped() == [("job", at(12, 1), "held")]


def test_a_request_during_a_run_waits_for_its_end(world: World) -> None:
    world.slow_job("0 13 * * *")
    holder, other = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, holder)
    world.backend.request_run("job")
    world.go(at(13, 0, 20))
    assert world.ran() == [at(13)]
    end_runs(world, holder)
    world.clock.advance(1)
    start_runs(world, other, 2)
    assert world.ran() == [at(13), None]


def test_a_request_during_a_run_here_is_taken_as_soon_as_that_ends(world: World) -> None:
    """Not at the next heartbeat: a job that is due every second may be at work in each of them."""
    world.slow_job("0 13 * * *")
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, replica)
    world.backend.request_run("job")
    world.go(at(13, 0, 2))
    world.gate.set()
    replica.wait_for_workers()
    start_runs(world, replica, 2)
    assert world.ran() == [at(13), None]


def test_a_request_nobody_took_is_gone_after_a_minute(world: World) -> None:
    world.job("0 15 * * *")
    world.tick(world.replica())
    world.backend.request_run("job")
    world.clock.advance(60.001)
    world.go(at(12, 3))
    assert world.runs == []
    assert world.state().requested is None


def test_a_paused_job_runs_on_request(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.backend.pause("job")
    world.backend.request_run("job")
    world.go(at(12, 1))
    assert [context.trigger for context in world.runs] == ["manual"]


def test_a_disabled_or_stopped_job_does_not_run_on_request(world: World) -> None:
    world.job("0 15 * * *", "off", enabled=False)
    world.job("0 15 * * *", "stopped").stop()
    world.replica()
    world.tick()
    world.backend.request_run("off")
    world.backend.request_run("stopped")
    world.go(at(12, 2))
    assert world.runs == []


def test_a_request_is_taken_by_a_replica_that_has_the_job(world: World) -> None:
    world.job("0 15 * * *")
    world.replica(registry=JobRegistry(), instance="without")
    world.replica(exclude=["job"], instance="excluding")
    world.replica(instance="with")
    world.tick()
    world.backend.request_run("job")
    world.go(at(12, 0, 5))
    assert [context.instance for context in world.runs] == ["with"]


def test_a_request_for_a_job_that_nobody_declared_is_refused(world: World) -> None:
    world.replica()
    world.tick()
    assert not world.backend.request_run("nobody's")
    world.go(at(12, 0, 5))
    assert world.replicas[0].link.count("take_request") == 0


def test_a_dead_requested_run_is_reported_at_the_next_occurrence(world: World) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    heir = world.replica(inline=False)
    world.tick()
    world.backend.request_run("job")
    world.clock.advance(1)
    start_runs(world, victim)
    world.go(at(12, 59, 59), heir, step=60)
    world.until(at(13))
    start_runs(world, heir, 2)
    end_runs(world, heir)
    assert world.abandoned() == [("job", None, "victim")]
    assert world.ran() == [None, at(13)]


def test_a_dead_requested_run_is_reported_by_who_takes_the_next_request(world: World) -> None:
    world.slow_job("0 15 * * *", ttl=30)
    victim = world.replica(inline=False, instance="victim")
    heir = world.replica(inline=False)
    world.tick()
    world.backend.request_run("job")
    world.clock.advance(1)
    start_runs(world, victim)
    world.go(at(12, 1), heir)
    world.backend.request_run("job")
    world.clock.advance(1)
    start_runs(world, heir, 2)
    end_runs(world, heir)
    assert world.abandoned() == [("job", None, "victim")]
    assert world.ran() == [None, None]


def test_a_request_waits_for_a_free_worker(world: World) -> None:
    world.slow_job("* * * * *", "busy")
    world.job("0 15 * * *", "asked")
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica)
    world.backend.request_run("asked")
    world.go(at(12, 1, 10))
    assert world.ran("asked") == []
    end_runs(world, replica)
    world.clock.advance(0.1)
    start_runs(world, replica, 2)
    assert world.ran("asked") == [None]


def test_a_run_started_by_hand_within_a_handler_sees_the_same_context_rules(world: World) -> None:
    seen: list[tuple[bool, bool, str]] = []

    def look(context: RunContext) -> None:
        context.check()
        seen.append((context.lease_lost, context.stopping, context.instance))

    world.job("0 15 * * *", body=look)
    world.replica(instance="here")
    world.tick()
    world.backend.request_run("job")
    world.go(at(12, 0, 2))
    assert seen == [(False, False, "here")]
