"""A holder that dies, or stands still past the end of its lease."""

from __future__ import annotations

import time

import pytest

from django_cronductor.backends.base import JobState
from django_cronductor.backends.redis import RedisBackend
from tests.faults.replicas import Entry, Replicas, assert_each_once_or_told, assert_tokens_rise

pytestmark = pytest.mark.faults

SLACK = 1.0
"""Seconds beyond what is promised: for a machine that is busy with other things."""


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
    told = [replica for replica in replicas.others(holder) if "abandoned" in replica.log]
    assert [replica.log.count(f"by {holder.instance} was abandoned") for replica in told] == [1]


def test_a_dead_run_that_asked_for_recovery_runs_once_more_elsewhere_with_a_higher_token_and_never_a_third_time(
    replicas: Replicas,
) -> None:
    first = run_in_progress(replicas, "careful")
    killed = replicas.named(first.replica).kill()
    second = replicas.wait_for_start("careful", after=killed)
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
