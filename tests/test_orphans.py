"""Runs without an end in the history whose holder has gone without a trace in the store."""

from __future__ import annotations

import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from django.db import DatabaseError

from django_cronductor.history import DatabaseHistory
from django_cronductor.models import JobRun
from django_cronductor.orphans import LOOK_EVERY
from django_cronductor.records import OpenRun
from tests.scheduler_world import LocalStore, RedisStore, Replica, World, at

pytestmark = pytest.mark.django_db

HERE = socket.gethostname()


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=50, inline=True)


def open_run(key: str = "job", holder: str = "gone:7:abc", **values: Any) -> JobRun:
    """Write a run of 11:00 that has begun."""
    slot = int(at(11).timestamp() * 1000)
    return JobRun.objects.create(
        **{"run_id": f"run of {key}", "job_key": key, "slot": slot, "scheduled_at": at(11), "started_at": at(11)}
        | {"holder": holder, "fencing_token": 5, "outcome": "running"}
        | values
    )


def outcome(run: JobRun) -> str:
    run.refresh_from_db()
    return run.outcome


def alone(replica: Replica) -> Replica:
    """Let a replica's store be one that no other process sees."""
    replica.link.shared = False  # type: ignore[misc]
    return replica


def ended_process() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_a_run_without_lease_and_holder_is_abandoned_at_the_second_look(
    world: World, history: DatabaseHistory, caplog: pytest.LogCaptureFixture
) -> None:
    job = world.job("0 0 1 1 *")
    row = open_run()
    world.replica(history=history)
    world.tick()
    world.go(at(12, 0, LOOK_EVERY - 1), step=5)
    assert (outcome(row), world.abandoned()) == ("running", [])
    with caplog.at_level(logging.ERROR, "django_cronductor"):
        world.go(at(12, 0, LOOK_EVERY + 1))
    assert outcome(row) == "abandoned"
    assert row.finished_at is not None
    assert world.abandoned() == [("job", at(11), "gone:7:abc")]
    assert world.heard("run_abandoned")[0]["job"] is job
    (record,) = caplog.records
    assert "was abandoned: it has no lease, and its holder has gone" in record.getMessage()
    assert (record.job, record.scheduled_at, record.outcome) == ("job", at(11), "abandoned")  # type: ignore[attr-defined]
    assert (record.holder, record.fencing_token) == ("gone:7:abc", 5)  # type: ignore[attr-defined]


def test_several_replicas_report_it_once(world: World, history: DatabaseHistory) -> None:
    world.job("0 0 1 1 *")
    open_run()
    for _ in range(3):
        world.replica(history=history)
    world.tick()
    world.go(at(12, 5), step=5)
    assert len(world.abandoned()) == 1


def test_a_run_whose_holder_lives_is_left_alone(world: World, history: DatabaseHistory) -> None:
    world.job("0 0 1 1 *")
    row = open_run(holder="replica-2")
    world.replica(history=history)
    world.replica(history=history)
    world.tick()
    world.go(at(12, 5), step=5)
    assert (outcome(row), world.abandoned()) == ("running", [])


def test_a_run_with_a_lease_is_left_to_those_who_find_the_lease(world: World, history: DatabaseHistory) -> None:
    """That of a holder who died is reported when the lease ends, by the claim that takes it away."""
    world.job("0 0 1 1 *", ttl=3600, grace=3600)
    world.replica(history=history)
    world.tick()
    row = open_run(slot=None, run_id="its token")
    world.backend.request_run("job")
    assert world.backend.take_request("job", "its token", 3_600_000, "gone:7:abc").verdict == "won"
    world.go(at(12, 30), step=20)
    assert (outcome(row), world.abandoned()) == ("running", [])


def test_a_run_of_a_job_that_nobody_declares_any_more_is_abandoned_too(world: World, history: DatabaseHistory) -> None:
    row = open_run("long.gone", slot=None, scheduled_at=None)
    world.replica(history=history)
    world.tick()
    world.go(at(12, 2), step=5)
    assert outcome(row) == "abandoned"
    assert world.heard("run_abandoned") == [
        {"job": None, "key": "long.gone", "scheduled_at": None, "holder": "gone:7:abc"}
    ]


def test_while_the_store_fails_nothing_is_given_up(world: World, history: DatabaseHistory) -> None:
    world.job("0 0 1 1 *")
    row = open_run()
    replica = world.replica(history=history)
    world.tick()
    replica.link.broken.add("all")
    world.go(at(12, 5), step=5)
    assert outcome(row) == "running"
    replica.link.broken.clear()
    world.go(at(12, 6), step=5)
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


def test_an_end_that_comes_meanwhile_stands(world: World, history: DatabaseHistory) -> None:
    world.job("0 0 1 1 *")
    row = open_run()
    world.replica(history=history)
    world.tick()
    JobRun.objects.update(outcome="succeeded")
    world.go(at(12, 5), step=5)
    assert (outcome(row), world.abandoned()) == ("succeeded", [])


def test_giving_up_answers_the_first_alone(history: DatabaseHistory) -> None:
    row = open_run()
    found: list[list[OpenRun]] = []
    history.open_runs(found.append)
    assert found == [[OpenRun(row.run_id, "job", row.slot, 0, "gone:7:abc", 5, at(11))]]
    answers: list[int] = []
    for number in (1, 2):
        history.give_up(found[0][0], lambda number=number: answers.append(number))  # type: ignore[misc]
    assert answers == [1]


def test_a_database_that_fails_is_asked_again_later(
    world: World, history: DatabaseHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("* * * * *")  # With no thread of its own, the history tries again when there is more to write.
    row = open_run()
    world.replica(history=history)
    with monkeypatch.context() as patch:
        patch.setattr("django_cronductor.history._for_writing", fail)
        world.tick()
        world.go(at(12, 1), step=5)
    world.go(at(12, 3), step=5)
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


def fail(error: Exception | None = None) -> Any:
    raise error or DatabaseError("gone away")


def test_a_key_that_is_spoilt_hides_the_run_of_its_own_job_alone(world: World, history: DatabaseHistory) -> None:
    world.job("0 0 1 1 *")
    row, spoilt = open_run(), open_run("spoilt")
    replica = world.replica(history=history)
    replica.link.spoiled.add("spoilt")
    world.tick()
    world.go(at(12, 5), step=5)
    assert (outcome(row), outcome(spoilt)) == ("abandoned", "running")
    assert [key for key, _, _ in world.abandoned()] == ["job"]


def test_after_a_failure_of_another_kind_it_is_looked_again(
    world: World, history: DatabaseHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One after which what waits is left out, such as that of a router."""
    world.job("0 0 1 1 *")
    row = open_run()
    world.replica(history=history)
    with monkeypatch.context() as patch:
        patch.setattr("django_cronductor.history._for_writing", lambda: fail(ValueError("no such database")))
        world.tick()
    world.go(at(12, 3), step=5)
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


def test_where_the_history_is_too_far_behind_to_be_asked_it_is_looked_again(
    world: World, history: DatabaseHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("0 0 1 1 *")
    row = open_run()
    world.replica(history=history)
    with monkeypatch.context() as patch:
        patch.setattr("django_cronductor.history.MOST_WAITING", 0)
        world.tick()
    world.go(at(12, 3), step=5)
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


# A store in the memory of one process: with it, its leases and instances are gone.


def test_on_the_single_instance_backend_a_killed_process_s_run_is_abandoned_at_once(
    world: World, history: DatabaseHistory
) -> None:
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{ended_process()}:abc")
    alone(world.replica(history=history))
    world.tick()
    world.tick()
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


def test_one_that_had_this_process_s_number_is_known_to_be_gone(world: World, history: DatabaseHistory) -> None:
    """As in a container that was restarted: its first process is number 1 again."""
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{os.getpid()}:abc")
    alone(world.replica(history=history))
    world.tick()
    world.tick()
    assert outcome(row) == "abandoned"


def test_a_run_of_another_process_that_lives_is_left_alone(world: World, history: DatabaseHistory) -> None:
    """Such as one that an operator has started by hand: it is in no memory but its own."""
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{os.getppid()}:abc", started_at=datetime.now(timezone.utc))
    alone(world.replica(history=history))
    world.tick()
    world.go(at(12, 5), step=5)
    assert (outcome(row), world.abandoned()) == ("running", [])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems do not tell when a process began")
def test_a_process_that_began_after_the_run_only_has_the_number_of_its_holder(
    world: World, history: DatabaseHistory
) -> None:
    """As after a restart of the machine, or of a container with several processes."""
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{os.getppid()}:abc", started_at=datetime.now(timezone.utc) - timedelta(days=5000))
    alone(world.replica(history=history))
    world.tick()
    world.tick()
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


def test_where_it_is_not_told_when_a_process_began_one_that_lives_is_the_holder(
    world: World, history: DatabaseHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_cronductor.orphans.Path", lambda path: Path("/nowhere"))
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{os.getppid()}:abc")
    alone(world.replica(history=history))
    world.tick()
    world.go(at(12, 5), step=5)
    assert outcome(row) == "running"


def test_one_pass_and_no_more_sees_it_too(world: World, history: DatabaseHistory) -> None:
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{ended_process()}:abc")
    replica = alone(world.replica(history=history))
    world.replicas.remove(replica)
    assert replica.run_once() == 0
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)


class LateHistory(DatabaseHistory):
    """A history that is asked, and answers, only when it is waited for: as one with a thread of its own may be."""

    def __init__(self) -> None:
        super().__init__(keep=50, inline=True)
        self._waiting: list[Callable[[], object]] = []

    def open_runs(self, answer: Callable[[list[OpenRun]], object]) -> None:
        self._waiting.append(lambda: super(LateHistory, self).open_runs(answer))

    def give_up(self, run: OpenRun, answer: Callable[[], object]) -> None:
        self._waiting.append(lambda: super(LateHistory, self).give_up(run, answer))

    def flush(self, timeout: float) -> bool:
        waiting, self._waiting = self._waiting, []
        for work in waiting:
            work()
        return super().flush(timeout)


def test_what_the_history_tells_only_at_the_end_is_acted_upon(world: World) -> None:
    world.job("0 0 1 1 *")
    row = open_run(holder=f"{HERE}:{ended_process()}:abc")
    replica = alone(world.replica(history=LateHistory()))
    world.replicas.remove(replica)
    assert replica.run_once() == 0
    assert (outcome(row), len(world.abandoned())) == ("abandoned", 1)
