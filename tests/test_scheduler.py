"""The loop: each occurrence once, in time, by the store's clock; starting it, and one pass of it."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Iterator
from queue import Empty

import pytest

from django_cronductor import signals
from django_cronductor.backends.base import Declaration, Seeds
from django_cronductor.backends.local import LocalBackend
from django_cronductor.exceptions import BackendError, BackendRefused
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.runner import RunContext
from django_cronductor.scheduler import Scheduler
from tests.backends.conftest import new_prefix
from tests.scheduler_world import LocalStore, RedisStore, Replica, World, at

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


# Once, whatever the clocks say.


def test_an_occurrence_runs_once_over_replicas(world: World) -> None:
    world.job("* * * * *")
    for _ in range(3):
        world.replica()
    world.tick()
    world.go(at(12, 10))
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]


def test_an_occurrence_runs_once_whatever_the_replicas_clocks_say(world: World) -> None:
    world.job("* * * * *")
    for ahead in (0.0, 0.4, -0.4, 300.0, -86_400.0):
        world.replica(ahead=ahead, uptime=abs(ahead) * 7)
    world.tick()
    for replicas in itertools.islice(itertools.cycle([world.replicas, world.replicas[::-1]]), 360):
        world.clock.advance(0.5)
        world.tick(*replicas)
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]


@pytest.mark.parametrize("late", [0.001, 0.3, 1.05, 30.0, 59.9])
def test_a_replica_that_wakes_after_the_winner_has_released_does_not_run_it_again(world: World, late: float) -> None:
    world.job("* * * * *")
    punctual, sleeper = world.replica(), world.replica()
    world.tick()
    world.go(at(12, 1), punctual)
    assert world.state().lease is None, "released by the winner"
    world.clock.advance(late)
    world.tick(sleeper)
    assert world.ran() == [at(12, 1)]


def test_three_replicas_that_wake_apart_all_name_the_scheduled_instant(world: World) -> None:
    world.job("5 12 * * *")
    replicas = [world.replica() for _ in range(3)]
    world.tick()
    for replica, second in zip(replicas, (0.0, 0.9, 1.05), strict=True):
        world.until(at(12, 5, second))
        world.tick(replica)
    asked = {claim.occurrence for replica in replicas for claims in replica.link.asked("claim") for claim in claims}
    assert asked == {int(at(12, 5).timestamp() * 1000)}
    assert world.ran() == [at(12, 5)]


def test_two_apps_jobs_that_are_due_at_once_both_run(world: World) -> None:
    world.job("* * * * *", "first.process")
    world.job("* * * * *", "second.process")
    world.replica()
    world.tick()
    world.go(at(12, 1))
    assert sorted(context.key for context in world.runs) == ["first.process", "second.process"]


def test_two_prefixes_on_one_store_do_not_share_occurrences(world: World) -> None:
    other = World(type(world.store)())
    for one in (world, other):
        one.job("* * * * *")
        one.replica()
        one.tick()
        one.go(at(12, 1))
    other.close()
    assert [world.ran(), other.ran()] == [[at(12, 1)], [at(12, 1)]]


def test_many_jobs_due_at_once_run_once_each_over_replicas(world: World) -> None:
    keys = [f"job-{number:03}" for number in range(300)]
    for key in keys:
        world.job("* * * * *", key)
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 1))
    assert sorted(context.key for context in world.runs) == keys


def test_twenty_replicas_make_one_run_a_minute(world: World) -> None:
    world.job("* * * * *")
    for number in range(20):
        world.replica(uptime=number)
    world.tick()
    world.go(at(12, 10), step=5)
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]


def test_a_call_asks_about_250_jobs_and_no_more(world: World) -> None:
    for number in range(600):
        world.job("* * * * *", f"job-{number:03}", grace=30)
    replica = world.replica(inline=False, max_workers=1000)
    world.tick()
    world.until(at(12, 1, 31))  # Too late for any of them: nothing is to be run.
    world.tick()
    assert [len(claims) for claims in replica.link.asked("claim")] == [250, 250, 100]
    replica.settle()
    assert len(world.missed()) == 600


# In time.


def test_nothing_runs_before_its_instant_on_the_stores_clock(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica(ahead=0.5)
    world.tick()
    world.until(at(12, 0, 59.998))
    world.tick()
    assert world.ran() == []
    assert replica.tick() <= 0.0021
    world.until(at(12, 1))
    world.tick()
    world.clock.advance(0.001)
    world.tick()
    assert world.ran() == [at(12, 1)]
    assert world.runs[0].trigger == "schedule"


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_a_replica_whose_wall_clock_is_wrong_runs_on_time_and_warns_once(
    world: World, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    world.job("* * * * *")
    world.replica(ahead=ahead)
    world.tick()
    for minute in range(1, 11):
        world.until(at(12, minute, -0.001))
        world.tick()
        assert world.ran() == [at(12, earlier) for earlier in range(1, minute)]
        world.until(at(12, minute))
        world.tick()
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"300.0 s {'ahead of' if ahead > 0 else 'behind'} the lock store's" in warnings[0]


def test_a_replica_whose_clock_is_right_does_not_warn(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.job("* * * * *")
    world.replica(ahead=0.9)
    world.tick()
    world.go(at(12, 2))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_wall_clock_set_back_eight_hours_changes_nothing(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    world.go(at(12, 1, 30))
    replica.clocks.ahead = -8 * 3600
    world.go(at(12, 3))
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]


def test_a_loop_that_is_late_still_runs_the_occurrence_it_slept_over(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.go(at(12, 0, 59.9))
    world.clock.advance(1.2)
    world.tick()
    assert world.ran() == [at(12, 1)]
    world.go(at(12, 2))
    assert world.ran() == [at(12, 1), at(12, 2)]


def test_the_wait_for_a_job_in_years_is_at_most_a_second(world: World) -> None:
    world.job("0 0 29 2 *")
    replica = world.replica()
    assert 0 < replica.tick() <= 1
    assert world.replica(registry=JobRegistry()).tick() == 1


def test_the_wait_ends_a_little_before_the_instant_and_the_claim_connection_is_touched_then(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    world.until(at(12, 0, 59.5))
    assert replica.tick() == pytest.approx(0.497, abs=0.0005)
    world.clock.advance(0.498)
    assert replica.tick() == pytest.approx(0.002, abs=0.0005)
    assert replica.link.count("time") == 1
    assert replica.tick() == pytest.approx(0.002, abs=0.0005)
    assert replica.link.count("time") == 1, "once per instant"


def test_no_store_is_touched_whose_answer_would_come_when_the_job_is_due(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    replica.link.lag = Far()
    world.tick()
    world.until(at(12, 0, 59.5))
    replica.tick()
    world.until(at(12, 1, 0.008))  # All of the 20 ms is for the way back, and half of that is what it cannot know.
    assert 0 < replica.tick() < 0.003
    assert replica.link.count("time") == 0
    world.go(at(12, 1, 0.1), replica)
    assert len(world.runs) == 1


class Far(dict[str, float]):
    """What a store is that takes so long for every reply."""

    def pop(self, *_: object) -> float:  # type: ignore[override]
        return 0.02


def test_an_idle_replica_makes_one_call_a_second(world: World) -> None:
    world.job("0 0 1 1 *")
    replica = world.replica()
    world.tick()
    replica.link.calls.clear()
    for _ in range(1000):
        world.clock.advance(0.01)
        world.tick()
    assert [name for name, _ in replica.link.calls] == ["heartbeat"] * 10


def test_the_lateness_and_the_instant_are_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="django_cronductor")
    world.job("* * * * *")
    world.replica(instance="here")
    world.tick()
    world.until(at(12, 1, 1.5))
    world.tick()
    started = next(record for record in caplog.records if record.getMessage() == f"job for {at(12, 1)} started.")
    assert started.lateness == pytest.approx(1.5)
    assert (started.job, started.scheduled_at, started.instance) == ("job", at(12, 1), "here")
    assert started.fencing_token == world.runs[0].fencing_token


def test_a_lost_claim_is_told_at_debug_only(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="django_cronductor")
    world.job("* * * * *")
    winner, loser = world.replica(instance="winner"), world.replica(instance="loser")
    world.tick()
    world.until(at(12, 1))
    world.tick(winner)
    caplog.clear()
    world.tick(loser)
    assert [(record.levelno, record.outcome) for record in caplog.records] == [(logging.DEBUG, "taken")]


# Starting.


def test_the_first_tick_raises_when_the_store_cannot_be_reached_and_the_next_connects(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    replica.link.broken = {"all"}
    with pytest.raises(BackendError):
        replica.tick()
    replica.link.broken = set()
    world.tick()
    world.go(at(12, 1))
    assert world.ran() == [at(12, 1)]


def test_a_store_that_refuses_us_raises_at_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job("* * * * *")
    replica = world.replica()

    def refuse(instance: str) -> None:
        raise BackendRefused("NOPERM")

    monkeypatch.setattr(replica.link, "heartbeat", refuse)
    with pytest.raises(BackendRefused):
        replica.run()


def test_a_store_that_refuses_every_job_raises_at_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job("* * * * *", "a")
    world.job("* * * * *", "b")
    replica = world.replica()
    declare = replica.link.declare

    def refuse(declarations: list[object]) -> object:
        reply = declare(declarations)
        reply.answers[:] = [BackendRefused("NOPERM")] * len(declarations)
        return reply

    monkeypatch.setattr(replica.link, "declare", refuse)
    with pytest.raises(BackendRefused, match="NOPERM"):
        replica.run()


def test_the_shortest_ttl_bounds_how_long_a_call_may_wait(world: World) -> None:
    world.job("* * * * *", "a", ttl=1.5)
    world.job("* * * * *", "b", ttl=60)
    assert world.replica().link.timeout == pytest.approx(0.5)
    assert world.replica(only=["b"]).link.timeout == 1.0


def test_on_pass_is_called_at_each_pass(world: World) -> None:
    passes: list[int] = []
    replica = world.replica(on_pass=lambda: passes.append(1))
    for _ in range(3):
        replica.tick()
    assert len(passes) == 3


# Once and no more.


def test_run_once_runs_what_is_due_and_returns(world: World) -> None:
    world.job("0 13 * * *", "due")
    world.job("0 15 * * *", "later")
    assert world.replica().run_once() == 0
    assert world.runs == []
    world.until(at(13, 0, 5))
    assert world.replica().run_once() == 0
    assert world.ran("due") == [at(13)]
    assert world.state("due").lease is None
    world.until(at(13, 0, 10))
    assert world.replica().run_once() == 0
    assert world.ran("due") == [at(13)]
    assert world.backend.instances() == {}


def test_no_heartbeat_comes_after_the_instance_is_struck_off(world: World) -> None:
    world.job("0 13 * * *")
    replica = world.replica()
    beating: list[bool] = []
    replica.link.meanwhile["retire"] = lambda: beating.append(replica._keeper.running)
    assert replica.run_once() == 0
    assert beating == [False]


def test_run_once_raises_when_the_store_fails_while_it_is_asked(world: World) -> None:
    world.job("0 13 * * *")
    world.tick(world.replica())
    world.until(at(13))
    replica = world.replica()
    replica.link.broken = {"claim"}
    with pytest.raises(BackendError):
        replica.run_once()
    replica = world.replica()
    replica.link.broken = {"all"}
    with pytest.raises(BackendError):
        replica.run_once()


def test_run_once_declares_again_what_the_store_has_forgotten_meanwhile(world: World) -> None:
    world.job("0 13 * * *")
    world.tick(world.replica())
    world.until(at(13))
    replica = world.replica()
    replica.link.meanwhile["declare"] = world.flush
    assert replica.run_once() == 0
    assert replica.link.count("declare") in (2, 3), "once more where a heartbeat has noticed it as well"
    assert len(world.runs) <= 1
    assert world.state().since is not None


def test_run_once_gives_back_what_has_run_though_the_store_fails_after_it(world: World) -> None:
    replicas: list[Replica] = []

    def fail_from_here_on(context: RunContext) -> None:
        replicas[0].link.broken = {"claim"}

    world.job("0 13 * * *", "first", fail_from_here_on)
    world.job("0 13 * * *", "second", fail_from_here_on)
    world.tick(world.replica())
    world.until(at(13))
    replicas.append(world.replica())
    with pytest.raises(BackendError):
        replicas[0].run_once()
    assert len(world.runs) == 1
    assert [world.state(key).lease for key in ("first", "second")] == [None, None]


def test_run_once_tells_its_handler_to_stop(world: World) -> None:
    seen: list[bool] = []

    def stop(context: RunContext) -> None:
        replica.stop()
        seen.append(context.stopping)

    world.job("0 13 * * *", body=stop)
    world.tick(world.replica())
    world.until(at(13))
    replica = world.replica()
    assert replica.run_once() == 0
    assert seen == [True]


def test_run_once_keeps_to_a_timeout() -> None:
    ended: list[str] = []
    hung = asyncio.Event()

    async def hang() -> None:
        await hung.wait()

    def note(sender: Job, outcome: str, **details: object) -> None:
        ended.append(outcome)

    registry = JobRegistry()
    job = registry.schedule("* * * * * *", hang, key="job", timeout=0.1)
    backend = LocalBackend(prefix=new_prefix())
    fingerprint = job.schedule("UTC").fingerprint
    backend.declare([Declaration("job", fingerprint, 30_000, Seeds(since=backend.time() - 5_000))])
    signals.job_finished.connect(note)
    try:
        assert Scheduler(registry, backend, inline=True, timezone="UTC").run_once() == 0
    finally:
        signals.job_finished.disconnect(note)
    assert ended == ["timed out"]


def test_what_goes_wrong_with_a_message_is_not_taken_for_the_end_of_them(world: World) -> None:
    def act() -> None:
        raise Empty

    replica = world.replica()
    replica._inbox.put(act)
    with pytest.raises(Empty):
        replica.tick()
