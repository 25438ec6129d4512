"""Each occurrence starts once: whatever the clocks say, however many are due at once, whoever is being restarted."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.faults.replicas import Replicas, assert_each_once, assert_none_twice, assert_tokens_rise

pytestmark = pytest.mark.faults

DAY = 24 * 60 * 60.0
PROMPT = 2.0
"""Seconds: far more than a start takes, even on a busy machine, and far less than any clock here is off by."""


CLOCKS = (0.0, -0.1, -0.3, -0.5, 0.4)
FOR = 45
"""Occurrences."""
A_WHILE = 4
"""Occurrences from one restart to the next."""


def test_every_occurrence_runs_once_over_five_replicas_whose_clocks_differ_and_which_are_replaced_in_turn(
    replicas: Replicas,
) -> None:
    living = list(zip(CLOCKS, replicas.start("tick", "brisk", clocks=CLOCKS), strict=True))
    journal = replicas.journal
    while len(journal.starts("tick")) <= FOR:
        replicas.wait_for_starts("tick", len(journal.starts("tick")) + A_WHILE)
        clock, oldest = living.pop(0)
        oldest.terminate()
        assert oldest.wait() == 0
        living.append((clock, *replicas.start("tick", "brisk", clocks=(clock,))))
    replicas.wait_for_starts("brisk", FOR + 1)
    replicas.finish()

    assert len(replicas.all) >= len(CLOCKS) + 6
    for job in ("tick", "brisk"):
        starts = journal.starts(job)
        assert_each_once(starts)
        assert_tokens_rise(starts)
        assert len({entry.replica for entry in starts}) > len(CLOCKS)
        # By the store's clock, which this process shares: never before its instant, but for a slewed clock's part.
        assert min(entry.lateness for entry in starts) > -0.005
        assert max(entry.lateness for entry in starts) < PROMPT
        outcomes = [entry.details["outcome"] for entry in journal.entries("finished", job)]
        assert outcomes == ["succeeded"] * len(starts)
    for event in ("missed", "skipped", "abandoned", "lost"):
        assert journal.entries(event) == []


def test_every_occurrence_runs_once_over_five_replicas_whose_clocks_agree(replicas: Replicas) -> None:
    replicas.start("tick", clocks=(0.0,) * 5)
    replicas.wait_for_starts("tick", 11)
    replicas.finish()
    assert_each_once(replicas.journal.starts("tick"))
    assert replicas.journal.entries("missed") == replicas.journal.entries("abandoned") == []


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


def test_five_hundred_jobs_due_in_one_second_run_once_each_and_are_shared_by_three_replicas(
    replicas: Replicas,
) -> None:
    jobs = [f"burst-{number:03}" for number in range(500)]
    replicas.start(*jobs, clocks=(0.0, 0.0, 0.0))
    replicas.wait("two occurrences of every job", lambda: len(replicas.journal.starts()) >= 2 * len(jobs))
    replicas.finish()

    starts = replicas.journal.starts()
    assert_none_twice(starts)
    runs = Counter(entry.occurrence for entry in starts)
    # All of it is over long before the next is due: what was begun last may be cut short by the end of the test.
    first, second = sorted(runs)[:2]
    assert runs[first] == runs[second] == len(jobs)
    shares = Counter(entry.replica for entry in starts if entry.occurrence in (first, second))
    # Far from even, where one of them has the processor; but none does it all, and none nothing.
    assert len(shares) == 3
    assert min(shares.values()) >= len(jobs) / 10
    assert replicas.journal.entries("missed") == []
