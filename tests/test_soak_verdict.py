"""The soak's verdict sees each kind of broken promise, and lets pass what the design says may happen."""

from __future__ import annotations

from typing import Any

import pytest

from tests.soak_faults import Fault
from tests.soak_verdict import Entry, Verdict

OFFSET = 1_000_000.0
"""Wall clock less monotonic clock."""
FLUSH = Fault("flush", 2.5, 2.5, loses_data=True)


class Record:
    """A journal of a job that is due every second, written by hand; moments are seconds of the monotonic clock."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._call = 0

    def write(self, event: str, due: float | None, at: float, replica: str = "one", **details: Any) -> None:
        occurrence = None if due is None else round((due + OFFSET) * 1000)
        job = "job" if due is not None else ""
        self.entries.append(Entry(len(self.entries), event, job, occurrence, replica, at, details))

    def run(self, due: float, length: float = 0.1, **details: Any) -> None:
        """Write a run from its start to its end."""
        start = {"token": int(due), "trigger": "schedule", "instance": "one:1", "row": True, "lost": False, **details}
        at = start.pop("at", due + 0.01)
        replica = start.pop("replica", "one")
        end_lost = start.pop("end_lost", False)
        self.write("started", due, at, replica, **start)
        if length:
            self.write("ended", due, at + length, replica, token=start["token"], lost=end_lost)

    def ask(self, due: float, at: float, replica: str = "one", answer: dict[str, Any] | None = None) -> None:
        """Write a claim, and its answer if it was heard."""
        self._call += 1
        occurrence = round((due + OFFSET) * 1000)
        self.write("asked", None, at, replica, call=self._call, kind="claim", questions=[["job", occurrence]])
        if answer is not None:
            self.write("answered", None, at, replica, call=self._call, answers=[answer])

    def judge(self, *faults: Fault, died: dict[str, float] | None = None, history: bool = True) -> Verdict:
        self.entries.sort(key=lambda entry: entry.at)
        jobs = {"job": "* * * * * *"}
        return Verdict(self.entries, list(faults), died or {}, jobs, history=history, offset=OFFSET)


@pytest.fixture
def record() -> Record:
    record = Record()
    for due in (1.0, 2.0, 5.0):
        record.run(due)
    return record


def violations(verdict: Verdict) -> str:
    return "\n".join(what for what, _, _ in verdict.violations)


def missed(due: float) -> dict[str, Any]:
    """Return the answer of one who is to report the occurrence before as passed over."""
    return {"verdict": "won", "previous": round((due - 2 + OFFSET) * 1000), "dead": None}


def test_occurrences_that_ran_or_were_reported_once_are_fine(record: Record) -> None:
    record.write("missed", 3.0, 3.5, count=1)
    record.write("skipped", 4.0, 4.5, count=1, reason="held")
    verdict = record.judge()
    assert verdict.violations == []
    assert verdict.known == []
    assert verdict.rows == [["job", "* * * * * *", 5, 3, 0, 2, 0, 0, 0]]


def test_what_was_due_in_the_wake_of_a_fault_is_counted_to_it(record: Record) -> None:
    record.write("missed", 3.0, 3.5, count=1)
    record.run(12.0)
    verdict = record.judge(Fault("kill", 1.5, 1.5), Fault("flush", 2.5, 2.6), Fault("kill", 3.2, 3.2))
    assert verdict.by_fault == {
        "kill": {"times": 2, "occurrences": 7, "runs": 2, "reported": 1, "lost": 4},
        "flush": {"times": 1, "occurrences": 5, "runs": 1, "reported": 1, "lost": 3},
        "none": {"occurrences": 5, "runs": 2, "lost": 3},
    }


def test_a_job_that_never_ran_is_seen() -> None:
    assert "never ran" in violations(Record().judge())


def test_a_report_may_cover_several(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    assert record.judge().violations == []


def test_a_loss_without_a_word_is_seen(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=1)
    assert "neither run nor reported" in violations(record.judge())


def test_a_second_start_is_seen(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(2.0, at=2.6, token=3)
    assert "started twice while data was kept" in violations(record.judge())
    assert "although its row was in the history" in violations(record.judge(FLUSH))


def test_a_second_start_after_a_loss_of_data_is_known_where_no_history_is_kept(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(2.0, at=2.6, token=3)
    verdict = record.judge(FLUSH, history=False)
    assert verdict.violations == []
    assert len(verdict.known) == 1


def test_a_second_attempt_is_no_second_start_but_a_third_is(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(2.0, at=2.6, token=3, trigger="recover")
    assert record.judge().violations == []
    record.run(2.0, at=2.8, token=4, trigger="recover")
    assert "started twice" in violations(record.judge())


def test_an_early_start_is_seen(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(6.0, at=5.5)
    assert "early" in violations(record.judge())


def test_a_token_that_does_not_rise_is_seen_unless_its_run_knows_that_it_is_lost(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(6.0, token=5, lost=True)
    assert record.judge().violations == []
    record.run(7.0, token=5)
    assert "token 5 began after 5" in violations(record.judge())


def test_two_runs_at_once_are_seen_unless_the_earlier_one_is_told_that_it_is_lost(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(6.0, length=3.0, end_lost=True)
    record.run(7.0, length=3.0)
    assert record.judge().violations == []
    record.run(8.0)
    assert "ran beside" in violations(record.judge())


def test_a_report_of_what_ran_and_a_second_report_are_seen(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.write("missed", 2.0, 2.9, count=1)
    assert "reported although it ran" in violations(record.judge())


def test_a_dead_run_is_to_be_named_once(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(6.0, length=0, replica="two", instance="two:2")
    died = {"two": 6.5}
    assert "dead run of 1000006000 was not reported" in violations(record.judge(died=died))
    record.write("abandoned", 6.0, 9.0, holder="two:2")
    assert record.judge(died=died).violations == []
    record.write("abandoned", 6.0, 9.1, holder="two:2")
    assert "reported 2 times" in violations(record.judge(died=died))


def test_a_run_without_an_end_in_a_living_replica_is_seen(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=2)
    record.run(6.0, length=0)
    assert "has no end" in violations(record.judge())


def test_a_loss_is_known_if_who_was_to_tell_died_and_else_he_is_named(record: Record) -> None:
    record.write("missed", 3.0, 3.5, count=1)
    record.ask(5.0, 5.0, answer=missed(5.0))
    assert "although one heard of it" in violations(record.judge())
    assert "although one heard of it" in violations(record.judge(died={"one": 9.0}))
    verdict = record.judge(died={"one": 5.5})
    assert verdict.violations == []
    assert [reason for reason, _, _ in verdict.known] == ["not reported: who was to tell died; last fault: none"]


def test_a_loss_is_known_if_an_answer_was_not_heard(record: Record) -> None:
    record.write("missed", 3.0, 3.5, count=1)
    record.ask(4.0, 4.1)
    verdict = record.judge()
    assert verdict.violations == []
    assert len(verdict.known) == 1


def test_a_loss_with_the_stores_data_is_known_with_a_history_only_for_what_came_during_a_run(record: Record) -> None:
    record.write("missed", 4.0, 4.5, count=1)
    record.entries = [entry for entry in record.entries if entry.occurrence != (2.0 + OFFSET) * 1000]
    flush = Fault("flush", 3.4, 3.4, loses_data=True)
    assert record.judge(flush, history=False).violations == []
    assert "neither run nor reported" in violations(record.judge(flush))
    record.run(2.0, length=1.5)
    assert record.judge(flush).violations == []
