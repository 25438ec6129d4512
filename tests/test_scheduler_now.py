"""`run_now`: one job, here and now, under its lease."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_cronductor.backends.base import ClaimResult, Declaration, Seeds
from django_cronductor.exceptions import BackendError, BackendRefused, JobNotFound, NotAcquired, Stopping
from django_cronductor.jobs import JobRegistry
from django_cronductor.runner import RunContext
from tests.scheduler_world import DEADLINE, LocalStore, RedisStore, Replica, World, at

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


def move_clock_once_it_runs(world: World) -> threading.Thread:
    def move() -> None:
        world.wait(lambda: bool(world.runs))
        world.clock.advance(5)

    mover = threading.Thread(target=move)
    mover.start()
    return mover


def test_a_job_runs_in_the_callers_thread_and_its_lease_is_given_back(world: World) -> None:
    threads = []
    world.job("0 15 * * *", body=lambda context: threads.append(threading.current_thread()))
    assert world.replica().run_now("job") == "succeeded"
    [context] = world.runs
    assert (context.trigger, context.scheduled_at, context.missed) == ("manual", None, 0)
    assert threads == [threading.current_thread()]
    assert world.outcomes() == ["succeeded"]
    state = world.state()
    assert state.lease is None
    assert (state.last.holder, state.last.run, state.last.outcome) == ("replica-1", "manual", "succeeded")


def test_a_failure_is_the_outcome(world: World) -> None:
    def fail(context: RunContext) -> None:
        raise ValueError("broken")

    world.job("0 15 * * *", body=fail)
    assert world.replica().run_now("job") == "failed"
    assert [context.phase for _, context in world.errors] == ["handler"]


def test_a_condition_that_is_not_met_is_the_outcome(world: World) -> None:
    world.job("0 15 * * *", when=lambda context: False)
    assert world.replica().run_now("job") == "condition"
    assert world.runs == []


def test_no_other_job_is_declared_and_nothing_that_is_due_runs(world: World) -> None:
    world.job("* * * * *")
    world.job("* * * * *", "other")
    world.replica().run_now("job")
    world.until(at(12, 1))
    world.replica().run_now("job")
    assert [context.trigger for context in world.runs] == ["manual", "manual"]
    assert world.state("other").since is None


def test_a_schedule_that_the_replicas_have_declared_stays(world: World) -> None:
    """By hand another version of the code may be run: what it says of the schedule is not theirs."""
    world.job("* * * * *", ttl=30, grace=30)
    replica = world.replica()
    world.tick()
    world.go(at(12, 1))
    since = world.state().since
    others = JobRegistry()
    world.job("*/2 * * * *", registry=others)
    world.until(at(12, 3, 40))
    assert world.replica(registry=others).run_now("job") == "succeeded"
    assert world.state().since == since
    world.tick(replica)
    assert world.missed() == [("job", at(12, 3), 2)]


@pytest.mark.parametrize("moment", ["before", "declare"])
def test_what_is_stopped_before_it_has_the_lease_does_not_begin(world: World, moment: str) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    if moment == "before":
        replica.stop()
    else:
        replica.link.meanwhile[moment] = replica.stop
    with pytest.raises(Stopping, match="job was not started: the process is shutting down"):
        replica.run_now("job")
    assert world.runs == []
    assert world.state().lease is None


def test_a_paused_or_disabled_job_runs(world: World) -> None:
    world.job("0 15 * * *", enabled=False)
    world.backend.pause("job")
    assert world.replica().run_now("job") == "succeeded"
    assert world.state().paused


def test_who_holds_the_lease_is_named(world: World) -> None:
    world.job("* * * * *", ttl=10)
    world.tick(world.replica(instance="elsewhere"))
    assert world.backend.take_request("job", "token", 10_000, "elsewhere", unasked=True).verdict == "won"
    replica = world.replica()
    with pytest.raises(NotAcquired, match=r"^job is running: elsewhere holds it, and its lease has 10\.0 s left"):
        replica.run_now("job")
    assert world.runs == []


def test_a_dead_run_is_reported_by_the_one_who_takes_its_place(world: World) -> None:
    world.job("* * * * *", ttl=10)
    world.tick(world.replica(instance="elsewhere"))
    world.backend.take_request("job", "token", 10_000, "elsewhere", unasked=True)
    world.clock.advance(10)
    assert world.replica().run_now("job") == "succeeded"
    assert world.abandoned() == [("job", None, "elsewhere")]


def test_the_process_is_not_listed_as_a_replica(world: World) -> None:
    listed = []
    world.job("0 15 * * *", body=lambda context: listed.append(dict(world.backend.instances())))
    world.replica().run_now("job")
    assert listed == [{}]
    assert world.replicas[0].link.count("heartbeat") == 0


def test_the_lease_is_renewed_while_the_handler_has_the_thread(world: World) -> None:
    renewed = threading.Event()
    world.job("0 15 * * *", ttl=10, body=lambda context: renewed.wait(DEADLINE))
    replica = world.replica()

    def answered(phase: str) -> None:
        if phase == "renew":
            renewed.set()

    replica.store_answered = answered  # type: ignore[method-assign,assignment]
    mover = move_clock_once_it_runs(world)
    assert replica.run_now("job") == "succeeded"
    mover.join()
    assert renewed.is_set()


def test_a_timeout_is_noticed_while_the_handler_has_the_thread(world: World) -> None:
    def wait(context: RunContext) -> None:
        end = time.monotonic() + DEADLINE
        while not context.stopping and time.monotonic() < end:
            world.gate.wait(0.005)

    world.job("0 15 * * *", timeout=4, body=wait)
    mover = move_clock_once_it_runs(world)
    assert world.replica().run_now("job") == "timed out"
    mover.join()


def test_to_stop_tells_the_run(world: World) -> None:
    def leave(context: RunContext) -> None:
        replica.stop()
        context.check()

    world.job("0 15 * * *", body=leave)
    replica = world.replica()
    assert replica.run_now("job") == "interrupted"


def while_it_rests(replica: Replica, call: Callable[[], object]) -> None:
    """Do something when a job that was declared anew is found to rest."""
    meanwhile = replica.link.meanwhile
    meanwhile["declare"] = lambda: meanwhile.update(take_request=call)


def test_a_store_that_lost_its_data_is_waited_for() -> None:
    world = World(RedisStore())
    world.job("0 15 * * *", ttl=1)
    replica = world.replica()
    replica._roster._seeds = lambda entries, wait: [Seeds(fence=5)]  # type: ignore[method-assign]
    while_it_rests(replica, lambda: world.clock.advance(1))
    assert replica.run_now("job") == "succeeded"
    assert replica.link.count("take_request") == 3
    world.close()


def test_a_reply_that_was_lost_is_asked_for_again(world: World) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    replica.link.deaf["take_request"] = 1
    assert replica.run_now("job") == "succeeded"
    assert len(world.runs) == 1


def test_a_store_that_fails_runs_nothing(world: World) -> None:
    world.job("0 15 * * *")
    for broken in ("time", "declare", "take_request", "all"):
        replica = world.replica()
        replica.link.broken = {broken}
        with pytest.raises(BackendError):
            replica.run_now("job")
    assert world.runs == []


def test_a_store_that_refuses_is_not_asked_again(world: World) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    asked = []

    def refuse(*question: object, **options: object) -> ClaimResult:
        asked.append(question)
        raise BackendRefused("no permission")

    replica.backend.take_request = refuse  # type: ignore[method-assign]
    with pytest.raises(BackendRefused, match="no permission"):
        replica.run_now("job")
    assert len(asked) == 1


def test_a_store_that_forgets_each_declaration_is_given_up(world: World) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    replica.backend.take_request = lambda *question, **options: ClaimResult("undeclared")  # type: ignore[method-assign]
    with pytest.raises(BackendError, match="keeps losing its data: job was not started"):
        replica.run_now("job")
    assert world.runs == []


def test_an_answer_that_comes_when_the_lease_is_over_starts_nothing(world: World) -> None:
    world.job("0 15 * * *", ttl=1)
    world.backend.declare([Declaration("job", "v1", 1000)])
    replica = world.replica()
    replica.link.lag["take_request"] = 2.0
    with pytest.raises(BackendError, match="too late: job was not started"):
        replica.run_now("job")
    assert world.runs == []


def test_to_stop_before_the_job_began_starts_nothing() -> None:
    world = World(RedisStore())
    world.job("0 15 * * *", ttl=1)
    replica = world.replica()
    replica._roster._seeds = lambda entries, wait: [Seeds(fence=5)]  # type: ignore[method-assign]
    while_it_rests(replica, replica.stop)
    with pytest.raises(Stopping, match="job was not started"):
        replica.run_now("job")
    assert world.runs == []
    world.close()


def test_an_unknown_job_names_the_nearest(world: World) -> None:
    world.job("0 15 * * *", "shop.sync")
    with pytest.raises(JobNotFound, match=r"did you mean shop\.sync"):
        world.replica().run_now("shop.snyc")
