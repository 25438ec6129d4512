"""A holder that dies, or stands still past the end of its lease."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from functools import partial

import pytest

from django_cronductor.backends.base import JobState
from django_cronductor.backends.redis import RedisBackend
from tests.faults.replicas import Entry, Replica, Replicas, assert_each_once_or_told, assert_tokens_rise

pytestmark = pytest.mark.faults

SLACK = 1.0
"""Seconds beyond what is promised: for a machine that is busy with other things."""

ROWS = "SELECT outcome, holder FROM django_cronductor_jobrun WHERE job_key = 'long' AND attempt >= 0 ORDER BY slot"
"""Runs only: an occurrence that was not run has a negative attempt."""


def state(backend: RedisBackend, key: str) -> JobState:
    answer = backend.states([key]).answers[0]
    assert isinstance(answer, JobState)
    return answer


def run_in_progress(replicas: Replicas, job: str) -> Entry:
    """Start three replicas and return the run of the job that one of them is in, which lasts until it is let go."""
    replicas.hold.touch()
    replicas.start(job, clocks=(0.0, 0.0, 0.0))
    return replicas.wait_for_start(job)


def test_the_next_occurrence_runs_elsewhere_within_one_ttl_of_a_holders_death_and_the_dead_run_is_named(
    replicas: Replicas,
) -> None:
    dead = run_in_progress(replicas, "long")
    holder = replicas.named(dead.replica)
    killed = holder.kill()
    replicas.hold.unlink()
    following = replicas.wait_for_start("long", after=killed)
    replicas.wait_for_starts("long", 3, after=killed)
    replicas.finish()

    assert following.replica != dead.replica
    assert following.at - killed <= 3 + SLACK
    assert following.occurrence > dead.occurrence
    assert_tokens_rise(replicas.journal.starts("long"))
    assert_each_once_or_told(replicas.journal, "long")
    reports = replicas.journal.entries("abandoned")
    assert [(entry.occurrence, entry.details["holder"]) for entry in reports] == [(dead.occurrence, holder.instance)]
    assert reports[0].at - killed <= 3 + SLACK
    told = [replica for replica in replicas.others(holder) if "abandoned" in replica.log]
    assert [replica.log.count(f"by {holder.instance} was abandoned") for replica in told] == [1]


def test_a_dead_run_that_asked_for_recovery_runs_once_more_elsewhere_with_a_higher_token_and_never_a_third_time(
    replicas: Replicas,
) -> None:
    first = run_in_progress(replicas, "careful")
    killed = replicas.named(first.replica).kill()
    second = replicas.wait_for_start("careful", after=killed)
    # It is told by a thread of its own, which is not to die before it could.
    replicas.wait("the first death to be told", lambda: replicas.journal.entries("abandoned"))
    replicas.named(second.replica).kill()
    replicas.hold.unlink()
    replicas.wait("the second death to be told", lambda: len(replicas.journal.entries("abandoned")) == 2)
    replicas.finish()

    assert second.occurrence == first.occurrence
    assert second.replica != first.replica
    assert second.at - killed <= 2 + SLACK
    assert (first.details["trigger"], second.details["trigger"]) == ("schedule", "recover")
    assert [entry.occurrence for entry in replicas.journal.starts("careful")].count(first.occurrence) == 2
    assert_tokens_rise(replicas.journal.starts("careful"))
    assert [(entry.occurrence, entry.details["holder"]) for entry in replicas.journal.entries("abandoned")] == [
        (run.occurrence, run.details["instance"]) for run in (first, second)
    ]


def test_the_row_of_a_dead_run_is_running_no_more_once_its_lease_has_ended(replicas: Replicas) -> None:
    database = replicas.keep_history()

    def outcomes() -> list[tuple[str, str]]:
        with contextlib.closing(sqlite3.connect(database, timeout=5)) as connection:
            return connection.execute(ROWS).fetchall()

    dead = run_in_progress(replicas, "long")
    holder = replicas.named(dead.replica)
    replicas.wait("its row", lambda: outcomes() == [("running", holder.instance)])
    killed = holder.kill()
    replicas.wait("its row to say so", lambda: outcomes()[0] == ("abandoned", holder.instance), within=3 + 2 * SLACK)
    replicas.hold.unlink()
    replicas.wait_for_starts("long", 2, after=killed)
    replicas.finish()
    (first, *others) = outcomes()
    assert first == ("abandoned", holder.instance)
    assert {outcome for outcome, _ in others} == {"succeeded"}


MOMENTS = {
    "frail": "between claim and start",
    "tough-at-start": "between claim and start",
    "tough-at-end": "between end and release",
    "tough-after": "before hearing of its release",
}
"""When the holder of a run of each of these jobs dies; the tough ones ask for recovery."""


def die_in_runs_of_one_instant(replicas: Replicas) -> tuple[dict[str, Replica], Replica, int]:
    """Let a replica for each job die at its moment while another stands still; return those, and the instant."""
    for ahead in (8, 16, 24):  # More than once where the machine is busy.
        due = replicas.due_in(ahead)
        doomed = {job: replicas.start_doomed(job, dies=moment) for job, moment in MOMENTS.items()}
        (heir,) = replicas.start(*MOMENTS)
        everybody = [heir, *doomed.values()]
        replicas.wait("all to be at work", partial(replicas.at_work, everybody))
        heir.stop()
        if time.time() < due / 1000:
            break
        for replica in everybody:
            replica.kill()
    replicas.wait("each to die at its moment", lambda: all(one.process.poll() is not None for one in doomed.values()))
    heir.go_on()
    return doomed, heir, due


def test_a_death_before_the_start_or_the_release_is_told_once_and_is_run_again_only_with_recover(
    replicas: Replicas,
) -> None:
    doomed, heir, due = die_in_runs_of_one_instant(replicas)

    def of_then(event: str) -> list[Entry]:
        return [entry for entry in replicas.journal.entries(event) if entry.occurrence == due]

    replicas.wait("the deaths to be told", lambda: len(of_then("abandoned")) >= 3)
    replicas.wait("two to run again", lambda: sum(entry.replica == heir.name for entry in of_then("started")) >= 2)
    replicas.finish()

    told = sorted((entry.job, entry.details["holder"]) for entry in of_then("abandoned"))
    # Of the fourth the lease was given back: nothing is to be told, or to be made up for.
    assert told == [(job, doomed[job].instance) for job in ("frail", "tough-at-end", "tough-at-start")]
    starts = of_then("started")
    ran = {job: [entry.details["trigger"] for entry in starts if entry.job == job] for job in MOMENTS}
    assert ran == {
        "frail": [],
        "tough-at-start": ["recover"],
        "tough-at-end": ["schedule", "recover"],
        "tough-after": ["schedule"],
    }
    assert_tokens_rise([entry for entry in starts if entry.job == "tough-at-end"])
    assert of_then("missed") == []


def test_a_job_that_kills_its_process_is_tried_twice_and_not_on_every_replica(replicas: Replicas) -> None:
    all_replicas = [replicas.start_doomed("deadly") for _ in range(4)]
    replicas.wait("both deaths to be told", lambda: len(replicas.journal.entries("abandoned")) >= 2)
    living = [replica for replica in all_replicas if replica.process.poll() is None]
    replicas.finish()

    starts = replicas.journal.starts("deadly")
    assert [entry.details["trigger"] for entry in starts] == ["schedule", "recover"]
    assert len({entry.occurrence for entry in starts}) == 1
    assert_tokens_rise(starts)
    assert len(living) == 2
    assert [entry.details["holder"] for entry in replicas.journal.entries("abandoned")] == [
        entry.details["instance"] for entry in starts
    ]


def test_a_holder_that_is_killed_while_it_drains_is_told_of_and_begins_nothing_after_the_first_signal(
    replicas: Replicas,
) -> None:
    replicas.hold.touch()
    replicas.start("deaf", "tick", clocks=(0.0, 0.0))
    replicas.wait_for_starts("tick", 1)
    dead = replicas.wait_for_start("deaf")
    holder = replicas.named(dead.replica)
    holder.terminate()
    replicas.wait("the drain", lambda: "Stopping: waiting up to 20 s for a run: deaf." in holder.log)
    draining = time.monotonic()
    replicas.wait_for_starts("tick", 3, after=draining)
    assert holder.process.poll() is None
    killed = holder.kill()
    replicas.hold.unlink()
    following = replicas.wait_for_start("deaf", after=killed)
    replicas.finish()

    assert [entry for entry in replicas.journal.starts("tick", by=holder.name) if entry.at > draining] == []
    assert following.replica != dead.replica
    assert following.at - killed <= 3 + SLACK
    assert following.token > dead.token
    reports = replicas.journal.entries("abandoned")
    assert [(entry.occurrence, entry.details["holder"]) for entry in reports] == [(dead.occurrence, holder.instance)]
    assert_each_once_or_told(replicas.journal, "tick")
    assert_each_once_or_told(replicas.journal, "deaf")


def test_a_holder_that_stood_still_past_its_lease_is_told_so_and_its_late_release_changes_nothing(
    replicas: Replicas, backend: RedisBackend
) -> None:
    slow = run_in_progress(replicas, "long")
    holder = replicas.named(slow.replica)
    holder.stop()
    stopped = time.monotonic()
    following = replicas.wait_for_start("long", after=stopped)
    holder.go_on()
    woken = time.monotonic()

    replicas.wait("the holder to leave its run", lambda: replicas.journal.entries("finished", by=holder.name))
    replicas.wait("the holder to be told", lambda: replicas.journal.entries("lost", by=holder.name))
    replicas.wait("its release to be answered", lambda: "no longer there when it was released" in holder.log)
    after_release = state(backend, "long")
    # The new holder's run goes on past its own length of lease: it is renewed, and nobody else begins.
    replicas.wait("the new run to have outlived its lease", lambda: time.monotonic() > following.at + 4)
    starts_meanwhile = replicas.journal.starts("long")
    replicas.hold.unlink()
    replicas.wait_for_starts("long", 1, after=time.monotonic())
    replicas.finish()

    assert following.replica != slow.replica
    assert following.token > slow.token
    (left,) = replicas.journal.entries("finished", by=holder.name)[:1]
    assert (left.token, left.details["outcome"]) == (slow.token, "lost")
    assert left.at - woken < SLACK  # By check(): the handler would have gone on until it is let go.
    assert [entry.token for entry in replicas.journal.entries("lost")] == [slow.token]
    assert after_release.lease is not None
    assert (after_release.lease.holder, after_release.lease.fence) == (following.details["instance"], following.token)
    assert [entry.token for entry in starts_meanwhile] == [slow.token, following.token]
    assert_tokens_rise(replicas.journal.starts("long"))
    assert_each_once_or_told(replicas.journal, "long")
