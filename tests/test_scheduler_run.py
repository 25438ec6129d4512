"""`run`, from its start to its drain."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator

import pytest
from django.core.checks import Warning  # noqa: A004

from django_cronductor.backends.base import ReleaseResult
from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.clock import SystemClock
from django_cronductor.exceptions import BackendError, BackendRefused
from django_cronductor.leases import HeldLease
from django_cronductor.runner import RunContext
from tests.scheduler_world import DEADLINE, Link, LocalStore, Passes, RedisStore, Replica, World, at, start_runs

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


@pytest.fixture
def live() -> Iterator[World]:
    """Return a world for replicas on the machine's own clock."""
    world = World()
    world.backend = LocalBackend(clock=SystemClock(), store=Store())
    yield world
    world.close()


class Loop:
    """`run` of a replica on the machine's clock, in a thread of its own."""

    def __init__(self, world: World, **options: object) -> None:
        self.replica = Replica(world.registry, Link(world.backend, lambda seconds: None), **options)  # type: ignore[arg-type]
        self.code: int | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            self.code = self.replica.run()
        except Exception as error:
            self.error = error

    def start(self) -> Loop:
        self._thread.start()
        return self

    def join(self) -> int | None:
        self._thread.join(DEADLINE)
        assert not self._thread.is_alive()
        return self.code

    def stop(self) -> int | None:
        self.replica.stop()
        return self.join()


# Draining.


def test_a_drain_tells_runs_to_stop_and_waits_for_them(world: World) -> None:
    def leave(context: RunContext) -> None:
        while not world.gate.wait(0.001):
            context.check()

    world.job("* * * * *", body=leave)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    assert not world.runs[0].stopping
    replica.stop()
    assert replica.run() == 0
    assert world.runs[0].stopping
    assert world.outcomes() == ["interrupted"]
    assert world.state().lease is None
    assert world.errors == []
    assert world.backend.instances() == {}


def test_a_drain_lets_a_run_finish_and_keeps_its_lease_meanwhile(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_cronductor")

    def finish(context: RunContext) -> None:
        world.gate.wait(DEADLINE)
        assert context.stopping

    world.job("* * * * *", body=finish)
    passes = Passes()
    replica = world.replica(inline=False, on_pass=passes)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    replica.stop()
    seen = passes.count
    loop = threading.Thread(target=replica.run)
    loop.start()
    passes.wait(seen + 2)
    assert world.state().lease is not None
    assert caplog.messages[-1] == "Stopping: waiting up to 25 s for a run: job."
    world.gate.set()
    loop.join(DEADLINE)
    assert world.outcomes() == ["succeeded"]
    assert world.state().lease is None
    assert caplog.messages[-1] == "Stopped."


def test_a_drain_that_takes_too_long_reports_what_it_cuts_off_and_leaves_the_lease_to_lapse(world: World) -> None:
    world.slow_job("* * * * *", ttl=30)
    replica, other = world.replica(inline=False, shutdown_timeout=0.0), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    replica.stop()
    assert replica.run() == 1
    assert world.outcomes() == ["interrupted"]
    assert world.state().lease.holder == "replica-1"
    world.go(at(12, 1, 40), other)
    assert world.abandoned() == [("job", at(12, 1), "replica-1")]
    world.gate.set()
    replica.wait_for_workers()
    assert world.outcomes() == ["interrupted"], "told once"


def test_after_stop_nothing_new_is_claimed(live: World) -> None:
    live.slow_job("* * * * * *", "slow", ttl=3)
    live.job("* * * * * *", "quick")
    passes = Passes()
    loop = Loop(live, on_pass=passes).start()
    live.wait(lambda: len(live.ran("slow")) == 1)
    loop.replica.stop()
    passes.wait(passes.count + 1)
    claims = loop.replica.link.count("claim")
    before = len(live.runs)
    passes.wait(passes.count + 2)  # A pass a second: an occurrence of each has come by.
    assert loop.replica.link.count("claim") == claims
    live.gate.set()
    assert loop.join() == 0
    assert len(live.runs) == before


def test_a_drain_reports_what_was_held_though_the_answer_to_the_release_is_slow_to_come(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.slow_job("* * * * *")
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 1)
    world.go(at(12, 2, 10))
    drained = threading.Event()
    hear, retire = replica.lease_released, replica.link.retire

    def hear_late(held: HeldLease, result: ReleaseResult) -> None:
        drained.wait(0.3)  # As long as the drain does not wait for it, or else this long.
        hear(held, result)

    def note(instance: str) -> None:
        drained.set()
        retire(instance)

    monkeypatch.setattr(replica, "lease_released", hear_late)
    monkeypatch.setattr(replica.link, "retire", note)
    world.gate.set()
    replica.stop()
    assert replica.run() == 0
    assert world.skipped() == [("job", at(12, 2), "held")]


def queue_two(world: World, **options: object) -> Replica:
    """Return a replica with one worker and two slow jobs won: a worker that has just come free counts twice."""
    end = threading.Event()
    world.job("59 0 12 * * *", "earlier", lambda context: end.wait(DEADLINE))
    for key in ("first", "second"):
        world.slow_job("0 1 12 * * *", key)
    replica = world.replica(inline=False, max_workers=1, **options)
    world.tick()
    world.until(at(12, 0, 59))
    start_runs(world, replica, 1)
    world.go(at(12, 1, 5))
    end.set()
    replica.wait_for_workers()
    start_runs(world, replica, 2)
    assert [len(claims) for claims in replica.link.asked("claim")] == [1, 2]
    return replica


def test_wins_that_wait_for_a_worker_run_in_the_drain(world: World) -> None:
    replica = queue_two(world)
    world.gate.set()
    replica.stop()
    assert replica.run() == 0
    assert len(world.runs) == 3
    assert world.outcomes() == ["succeeded"] * 3


def test_wins_that_wait_for_a_worker_are_reported_when_the_drain_is_over_and_never_start(world: World) -> None:
    replica = queue_two(world, shutdown_timeout=0.0)
    replica.stop()
    assert replica.run() == 1
    assert world.outcomes() == ["succeeded", "interrupted", "interrupted"]
    world.gate.set()
    replica.wait_for_workers()
    assert len(world.runs) == 2
    assert world.outcomes() == ["succeeded", "interrupted", "interrupted"]


# The loop in a thread.


def test_run_in_a_thread_runs_jobs_until_stop_from_outside(live: World) -> None:
    live.job("* * * * * *")
    loop = Loop(live, instance="here").start()
    live.wait(lambda: len(live.runs) >= 2)
    assert list(live.backend.instances()) == ["here"]
    assert loop.stop() == 0
    assert live.backend.instances() == {}
    assert len(set(live.ran())) == len(live.ran())
    assert all(0 <= (one.started_at - one.scheduled_at).total_seconds() < 1 for one in live.runs if one.scheduled_at)


def test_stop_before_run_ends_it_at_once(live: World) -> None:
    loop = Loop(live)
    loop.replica.stop()
    assert loop.start().join() == 0
    assert loop.replica.link.calls == []


def test_on_pass_is_called_while_the_store_cannot_be_reached_at_start_and_it_is_waited_for(
    live: World, caplog: pytest.LogCaptureFixture
) -> None:
    live.job("* * * * * *")
    passes = Passes()
    loop = Loop(live, on_pass=passes)
    loop.replica.link.broken = {"all"}
    loop.start()
    passes.wait(3)
    assert live.runs == []
    loop.replica.link.broken = set()
    live.wait(lambda: len(live.runs) == 1)
    assert loop.stop() == 0
    assert [record.levelno for record in caplog.records if record.levelno > logging.INFO] == [
        logging.ERROR,
        logging.WARNING,
    ]


def test_stop_while_the_store_cannot_be_reached_ends_at_once(live: World) -> None:
    passes = Passes()
    loop = Loop(live, on_pass=passes)
    loop.replica.link.broken = {"all"}
    loop.start()
    passes.wait(1)
    assert loop.stop() == 0


def test_on_pass_is_called_while_the_store_is_away_later(world: World) -> None:
    passes = Passes()
    world.job("* * * * *")
    replica = world.replica(on_pass=passes)
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(12, 2))
    assert passes.count == 121


def test_what_the_store_warns_of_is_logged_once_at_the_start(
    live: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    passes = Passes()
    loop = Loop(live, on_pass=passes)
    text = "It forgets."
    monkeypatch.setattr(loop.replica.link, "warnings", lambda: [Warning(text, hint="Tell it not to.", id="x.W001")])
    loop.start()
    passes.wait(2)
    assert loop.stop() == 0
    assert [record.getMessage() for record in caplog.records].count("It forgets. Tell it not to.") == 1


def test_a_store_that_cannot_say_what_it_warns_of_is_served_all_the_same(
    live: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise BackendError("not now")

    live.job("* * * * * *")
    loop = Loop(live)
    monkeypatch.setattr(loop.replica.link, "warnings", fail)
    loop.start()
    live.wait(lambda: bool(live.runs))
    assert loop.stop() == 0


def test_a_store_that_refuses_us_ends_run_with_its_error(live: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Loop(live)

    def refuse(instance: str) -> None:
        raise BackendRefused("NOPERM")

    monkeypatch.setattr(loop.replica.link, "heartbeat", refuse)
    assert loop.start().join() is None
    assert isinstance(loop.error, BackendRefused)


def test_run_leaves_no_thread_behind(live: World) -> None:
    before = set(threading.enumerate())
    live.job("* * * * * *")
    loop = Loop(live).start()
    live.wait(lambda: len(live.runs) == 1)
    assert loop.stop() == 0
    for thread in set(threading.enumerate()) - before:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def test_a_run_longer_than_its_ttl_keeps_its_lease_in_real_time(live: World) -> None:
    live.slow_job("* * * * * *", ttl=0.3)
    passes = Passes()
    loop = Loop(live, on_pass=passes).start()
    live.wait(lambda: len(live.runs) == 1)
    passes.wait(passes.count + 3)
    assert not live.runs[0].lease_lost
    assert len(live.runs) == 1
    live.gate.set()
    assert loop.stop() == 0
    assert set(live.outcomes()) == {"succeeded"}
