"""The signals, as a receiver in a project sees them."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from django.dispatch import Signal

from django_cronductor import signals
from tests.scheduler_world import SIGNALS, LocalStore, World, at

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


def test_the_signals_are_those_documented() -> None:
    found = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert found == set(SIGNALS)
    source = inspect.getsource(signals)
    assert all(f'{name} = Signal()\n"""' in source for name in found), "each says what it is sent with"


def test_a_run_is_told_at_its_start_and_its_end_with_its_context(world: World) -> None:
    job = world.job("* * * * *")
    world.replica()
    world.tick()
    world.go(at(12, 1))
    (context,) = world.runs
    started, finished = world.told
    assert started == ("job_started", {"job": job, "context": context})
    name, details = finished
    assert name == "job_finished"
    assert set(details) == {"job", "context", "outcome", "duration", "error"}
    assert (details["job"], details["context"], details["outcome"], details["error"]) == (
        job,
        context,
        "succeeded",
        None,
    )
    assert isinstance(details["duration"], float)


def test_the_error_of_a_run_is_told_with_its_end(world: World) -> None:
    error = ValueError("no")

    def fail(context: object) -> None:
        raise error

    world.job("* * * * *", body=fail)
    world.replica()
    world.tick()
    world.go(at(12, 1))
    (finished,) = world.heard("job_finished")
    assert (finished["outcome"], finished["error"]) == ("failed", error)


def test_a_receiver_can_listen_to_one_job(world: World) -> None:
    wanted = world.job("* * * * *", "wanted")
    world.job("* * * * *", "other")
    heard: list[Any] = []

    def hear(sender: Any, **details: Any) -> None:
        heard.append(sender)

    signals.job_started.connect(hear, sender=wanted)
    world.replica()
    world.tick()
    world.go(at(12, 2))
    assert heard == [wanted, wanted]


def test_an_occurrence_that_did_not_run_is_told_by_one_replica_alone(world: World) -> None:
    paused = world.job("* * * * *", "paused")
    late = world.job("0 13 * * *", "late", grace=60)
    for _ in range(3):
        world.replica()
    world.tick()
    world.backend.pause("paused")
    world.go(at(12, 1))
    assert world.heard("job_skipped") == [
        {
            "job": paused,
            "key": "paused",
            "scheduled_at": at(12, 1),
            "reason": "paused",
            "holder": None,
            "count": 1,
        }
    ]
    world.until(at(13, 5))
    world.tick()
    missed = [details for details in world.heard("job_missed") if details["key"] == "late"]
    assert missed == [{"job": late, "key": "late", "scheduled_at": at(13), "count": 1}]


@pytest.mark.parametrize("name", ["job_started", "job_finished", "job_skipped", "job_missed"])
def test_a_receiver_that_raises_changes_nothing(world: World, name: str) -> None:
    def fail(**details: Any) -> None:
        raise RuntimeError("a receiver's own fault")

    SIGNALS[name].connect(fail)
    try:
        world.job("* * * * *", when=lambda context: context.scheduled_at != at(12, 2))
        world.job("30 0 12 * * *", "late", grace=60)
        world.replica()
        world.tick()
        world.go(at(12, 0, 29))
        world.until(at(12, 2))
        world.tick()
        world.go(at(12, 3))
    finally:
        SIGNALS[name].disconnect(fail)
    assert world.ran() == [at(12, 3)]
    assert world.skipped() == [("job", at(12, 2), "condition")]
    assert world.missed() == [("job", at(12, 1), 1), ("late", at(12, 0, 30), 1)] or world.missed() == [
        ("late", at(12, 0, 30), 1),
        ("job", at(12, 1), 1),
    ]
    assert world.outcomes() == ["succeeded"]
    assert world.state().lease is None
