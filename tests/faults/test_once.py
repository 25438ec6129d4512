"""Each occurrence starts once: whatever the clocks say, however many are due at once, whoever is being restarted."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.replicas import Replicas, assert_each_once, assert_none_twice, assert_tokens_rise

pytestmark = pytest.mark.faults

DAY = 24 * 60 * 60.0
PROMPT = 2.0
"""Seconds: far more than a start takes, even on a busy machine, and far less than any clock here is off by."""


@pytest.mark.parametrize(
    "clocks",
    [
        pytest.param((0.0, 0.0, 0.0, 0.0, 0.0), id="clocks agree"),
        pytest.param((0.0, -0.1, -0.3, -0.5, 0.4), id="clocks differ"),
    ],
)
def test_sixty_occurrences_run_once_each_over_five_replicas(replicas: Replicas, clocks: tuple[float, ...]) -> None:
    replicas.start("tick", clocks=clocks)
    replicas.wait_for_starts("tick", 61, within=75)
    replicas.finish()

    starts = replicas.journal.starts("tick")
    assert_each_once(starts)
    assert len({entry.occurrence for entry in starts}) >= 60
    assert_tokens_rise(starts)
    # By the store's clock, which this process shares: never before its instant (but for a slewed clock's millisecond).
    assert min(entry.lateness for entry in starts) > -0.005
    assert max(entry.lateness for entry in starts) < PROMPT
    assert replicas.journal.entries("missed") == []
    assert replicas.journal.entries("abandoned") == []


def test_replicas_a_day_ahead_and_a_day_behind_run_on_time_and_change_nothing_for_the_others(
    replicas: Replicas,
) -> None:
    replicas.start("tick")
    (ahead,) = replicas.start("tick", "ahead", clocks=(DAY,))
    (behind,) = replicas.start("tick", "behind", clocks=(-DAY,))
    for job in ("tick", "ahead", "behind"):
        replicas.wait_for_starts(job, 5)
    replicas.finish()

    for job in ("tick", "ahead", "behind"):
        starts = replicas.journal.starts(job)
        assert_each_once(starts)
        assert min(entry.lateness for entry in starts) > -0.005
        assert max(entry.lateness for entry in starts) < PROMPT
    assert replicas.journal.entries("missed") == []
    assert "This machine's clock is 86400.0 s ahead of the lock store's" in ahead.log
    assert "This machine's clock is 86400.0 s behind the lock store's" in behind.log


def test_two_hundred_jobs_due_in_one_second_run_once_each_over_three_replicas(replicas: Replicas) -> None:
    jobs = [f"burst-{number:03}" for number in range(200)]
    replicas.start(*jobs, clocks=(0.0, 0.0, 0.0))
    replicas.wait("two occurrences of every job", lambda: len(replicas.journal.starts()) >= 2 * len(jobs))
    replicas.finish()

    starts = replicas.journal.starts()
    assert_none_twice(starts)
    runs = Counter(entry.occurrence for entry in starts)
    # All of it is over long before the next is due: what was begun last may be cut short by the end of the test.
    first, second = sorted(runs)[:2]
    assert runs[first] == runs[second] == len(jobs)
    assert len({entry.replica for entry in starts}) == 3
    assert replicas.journal.entries("missed") == []


def test_every_occurrence_runs_once_while_replicas_are_replaced_one_after_the_other(replicas: Replicas) -> None:
    living = replicas.start("brisk", clocks=(0.0, 0.0, 0.0))
    for _ in range(5):
        replicas.wait_for_starts("brisk", len(replicas.journal.starts("brisk")) + 3)
        oldest = living.pop(0)
        oldest.terminate()
        assert oldest.wait() == 0
        living += replicas.start("brisk")
    replicas.wait_for_starts("brisk", len(replicas.journal.starts("brisk")) + 3)
    replicas.finish()

    starts = replicas.journal.starts("brisk")
    assert_each_once(starts)
    assert_tokens_rise(starts)
    assert [entry.details["outcome"] for entry in replicas.journal.entries("finished")] == ["succeeded"] * len(starts)
    assert len({entry.replica for entry in starts}) > 3
    for event in ("missed", "skipped", "abandoned", "lost"):
        assert replicas.journal.entries(event) == []
