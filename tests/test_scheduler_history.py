"""The loop and the history of runs: what is written, what a store is seeded from, and what stands in for it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.utils import timezone

from django_cronductor.backends.base import Declaration, Seeds
from django_cronductor.history import DatabaseHistory
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.records import RunRecord
from tests.scheduler_world import LocalStore, RedisStore, Replica, World, at

pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=50, inline=True)


class Forgetful(DatabaseHistory):
    """A history that cannot say what it knows: its rows are all that is left."""

    def seeds(self, keys: Any, fingerprints: Any, timeout: float) -> list[Seeds]:
        return [Seeds() for _ in keys]


class Hanging(DatabaseHistory):
    """A history whose database does not answer for now."""

    def __init__(self) -> None:
        super().__init__(keep=50, inline=True)
        self.waiting: list[tuple[RunRecord, Callable[[bool], object]]] = []
        self.late = 0

    def overdue(self) -> None:
        self.late += 1

    def begun(self, run: RunRecord, answer: Callable[[bool], object]) -> None:
        self.waiting.append((run, answer))


class Later(DatabaseHistory):
    """A history that says only while the loop waits that a row is written."""

    def begun(self, run: RunRecord, answer: Callable[[bool], object]) -> None:
        super().begun(run, lambda ours: threading.Timer(0.02, answer, [ours]).start())


def rows(*fields: str) -> list[Any]:
    return list(JobRun.objects.order_by("id").values_list(*(fields or ("scheduled_at", "outcome"))))


def restarted(world: World, gone: Replica, **options: Any) -> Replica:
    """Return a new replica in place of one whose process has ended."""
    world.replicas.remove(gone)
    return world.replica(**options)


def test_a_run_is_written_with_its_outcome_and_how_late_it_was(world: World, history: DatabaseHistory) -> None:
    world.job("* * * * *")
    world.replica(history=history)
    world.tick()
    world.until(at(12, 1, 0.25))
    world.tick()
    found = JobRun.objects.get()
    assert (found.scheduled_at, found.outcome, found.trigger, found.attempt) == (at(12, 1), "succeeded", "schedule", 0)
    assert found.lateness == pytest.approx(0.25, abs=0.001)
    assert (found.holder, found.fencing_token) == ("replica-1", world.runs[0].fencing_token)


def test_a_failed_run_is_written_with_its_error(world: World, history: DatabaseHistory) -> None:
    def fail(context: Any) -> None:
        raise LookupError("no rates for today")

    world.job("* * * * *", body=fail)
    world.replica(history=history)
    world.tick()
    world.go(at(12, 1))
    assert rows("outcome", "error_type", "error_message") == [("failed", "LookupError", "no rates for today")]


def test_a_run_whose_condition_is_not_met_says_so(world: World, history: DatabaseHistory) -> None:
    world.job("* * * * *", when=lambda context: False)
    world.replica(history=history)
    world.tick()
    world.go(at(12, 1))
    assert rows() == [(at(12, 1), "condition")]


def test_occurrences_that_were_not_run_are_written_by_the_one_who_reports_them(
    world: World, history: DatabaseHistory
) -> None:
    world.job("* * * * *", grace=30)
    world.replica(history=history)
    world.replica(history=history)
    world.tick()
    world.until(at(12, 3, 45))
    world.tick()
    assert rows("scheduled_at", "outcome", "count") == [(at(12, 3), "missed", 3)]


def test_a_paused_job_fills_one_row(world: World, history: DatabaseHistory) -> None:
    world.job("* * * * *")
    world.replica(history=history)
    world.tick()
    world.backend.pause("job")
    world.go(at(12, 5), step=20)
    assert rows("scheduled_at", "outcome", "count") == [(at(12, 5), "paused", 5)]


def test_jobs_are_written_as_they_are_declared(world: World, history: DatabaseHistory) -> None:
    world.job("*/5 * * * *", timezone="Europe/Berlin")
    world.replica(history=history)
    world.tick()
    found = DeclaredJob.objects.get()
    assert (found.key, found.expression, found.timezone, found.enabled) == ("job", "*/5 * * * *", "Europe/Berlin", True)
    assert found.since == world.state().since


def test_an_occurrence_that_the_store_gives_away_again_is_not_run_again(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    history = Forgetful(keep=50, inline=True)
    world.job("* * * * *")
    first = world.replica(history=history)
    world.tick()
    world.go(at(12, 1))
    since = world.state().since
    world.flush()
    second = restarted(world, first, history=history)
    fingerprint = second._agenda.entries["job"].fingerprint
    world.backend.declare([Declaration("job", fingerprint, 30_000, Seeds(since=since))])
    with caplog.at_level(logging.INFO, "django_cronductor"):
        world.go(at(12, 1, 30))
    assert world.ran() == [at(12, 1)], "the row of the first run stands in the way of the second"
    assert rows() == [(at(12, 1), "succeeded")]
    assert [record.levelname for record in caplog.records if "was run before" in record.getMessage()] == ["INFO"]
    world.go(at(12, 2))
    assert world.ran() == [at(12, 1), at(12, 2)], "its lease was given back, and the job goes on"


def test_a_store_that_lost_its_data_is_seeded_by_a_replica_that_knew_nothing(
    world: World, history: DatabaseHistory
) -> None:
    world.job("* * * * *")
    first = world.replica(history=history)
    world.tick()
    world.go(at(12, 1, 5))
    token = world.runs[0].fencing_token
    world.flush()
    restarted(world, first, history=history)
    world.go(at(12, 1, 20))
    assert world.ran() == [at(12, 1)]
    assert world.state().occurrence == at(12, 1).timestamp() * 1000
    world.go(at(12, 2))
    assert world.ran() == [at(12, 1), at(12, 2)]
    assert world.runs[1].fencing_token > token


def test_what_was_due_while_all_was_down_runs_within_its_grace_though_the_store_forgot(
    world: World, history: DatabaseHistory
) -> None:
    world.job("* * * * *")
    first = world.replica(history=history)
    world.tick()
    world.go(at(12, 1))
    world.flush()
    world.until(at(12, 4, 20))
    restarted(world, first, history=history)
    world.go(at(12, 4, 30))
    assert world.ran() == [at(12, 1), at(12, 4)]
    assert world.runs[1].trigger == "catch-up"
    assert world.missed() == [("job", at(12, 3), 2)]


def test_a_pause_outlives_the_store(world: World, history: DatabaseHistory) -> None:
    world.job("* * * * *")
    first = world.replica(history=history)
    world.tick()
    world.backend.pause("job")
    DeclaredJob.objects.update(paused_at=timezone.now())
    world.flush()
    restarted(world, first, history=history)
    world.go(at(12, 1))
    assert world.ran() == []
    assert world.state().paused


def test_a_database_that_hangs_delays_a_start_by_a_second_and_loses_no_run(world: World) -> None:
    history = Hanging()
    world.job("* * * * *")
    world.replica(history=history)
    world.tick()
    world.until(at(12, 1))
    world.tick()
    assert world.ran() == [], "it waits for its row"
    world.go(at(12, 1, 1.1), step=0.1)
    assert world.ran() == [at(12, 1)]
    assert history.late == 1, "the history is told"
    assert rows("scheduled_at", "slot", "outcome") == [(at(12, 1), None, "succeeded")], "its end is written by itself"


def test_an_answer_that_comes_after_the_start_changes_nothing(world: World) -> None:
    history = Hanging()
    world.job("* * * * *")
    world.replica(history=history)
    world.tick()
    world.go(at(12, 1, 2), step=0.5)
    [(_, answer)] = history.waiting
    answer(False)
    world.tick()
    assert world.ran() == [at(12, 1)]
    assert world.outcomes() == ["succeeded"]


def test_one_pass_and_no_more_waits_for_rows_and_tells_no_run_to_stop(world: World) -> None:
    history = Hanging()
    stopping: list[bool] = []
    world.job("* * * * *", body=lambda context: stopping.append(context.stopping))
    first = world.replica(history=history)
    world.tick()
    world.until(at(12, 1, 10))
    replica = restarted(world, first, history=history)
    # The answer comes while it waits for it.
    read = replica._read_inbox

    def answer_then_read(wait: float) -> None:
        while wait and history.waiting:
            history.waiting.pop()[1](True)
        read(wait)

    replica._read_inbox = answer_then_read  # type: ignore[method-assign]
    assert replica.run_once() == 0
    assert world.ran() == [at(12, 1)]
    assert stopping == [False]


@pytest.mark.django_db(transaction=True)
def test_a_run_that_waits_for_its_row_takes_a_worker_place(world: World) -> None:
    history = Hanging()
    for number in range(4):
        world.job("* * * * *", key=f"job-{number}")
    replica = world.replica(history=history, inline=False, max_workers=2)
    world.tick()
    world.until(at(12, 1))
    world.tick()
    assert len(history.waiting) == 2
    assert replica._look_for_room() == 0
    for _, answer in history.waiting:
        answer(True)
    world.tick()
    world.wait(lambda: len(world.runs) == 2)


@pytest.mark.django_db(transaction=True)
def test_a_dead_run_and_its_second_attempt_have_a_row_each(world: World, history: DatabaseHistory) -> None:
    world.slow_job("0 * * * *", ttl=10, recover=True)
    world.until(at(12, 59, 59))
    dying = world.replica(history=history, inline=False)
    dying.tick()
    world.until(at(13))
    dying.tick()
    world.wait(lambda: len(world.runs) == 1)
    world.replicas.remove(dying)
    other = world.replica(history=history, inline=False)
    world.go(at(13, 0, 11), other)
    world.wait(lambda: len(world.runs) == 2)
    assert rows("attempt", "outcome") == [(0, "abandoned"), (1, "running")]
    world.gate.set()
    other.wait_for_workers()
    dying.wait_for_workers()
    other.tick()
    assert JobRun.objects.get(attempt=1).outcome == "succeeded"


def test_once_leaves_what_becomes_due_while_it_works_to_the_next_time(world: World) -> None:
    def take_longer_than_a_minute(context: Any) -> None:
        world.clock.advance(90)
        if len(world.runs) > 3:
            replica.stop()

    world.job("* * * * *", body=take_longer_than_a_minute)
    assert world.replica(history=Later(keep=50, inline=True)).run_once() == 0
    world.until(at(12, 1, 0.25))
    replica = world.replica(history=Later(keep=50, inline=True))
    assert replica.run_once() == 0
    assert world.ran() == [at(12, 1)]
