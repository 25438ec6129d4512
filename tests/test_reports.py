"""What is told of occurrences that did not run, of dead runs and of lost leases."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest

from django_cronductor import signals
from django_cronductor.backends.base import MANUAL, ClaimResult, DeadRun, Lease
from django_cronductor.instants import to_datetime
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.leases import HeldLease
from django_cronductor.reports import MOST_COUNTED, Reports, count_occurrences
from django_cronductor.runner import RunContext
from django_cronductor.schedules import Schedule
from django_cronductor.testing.clock import START, ManualClock

NOON = int(START.timestamp() * 1000)
MINUTE = 60_000
MINUTELY = Schedule("* * * * *", "UTC")


class Ears:
    """Hears all signals."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any, dict[str, Any]]] = []
        self._receivers: list[tuple[Any, Callable[..., None]]] = []
        for name in ("job_skipped", "job_missed", "run_abandoned", "lease_lost"):
            self._connect(name)

    def _connect(self, name: str) -> None:
        def hear(sender: Any, signal: Any, **details: Any) -> None:
            self.heard.append((name, sender, details))

        signal = getattr(signals, name)
        signal.connect(hear, weak=False)
        self._receivers.append((signal, hear))

    def close(self) -> None:
        for signal, hear in self._receivers:
            signal.disconnect(hear)


@pytest.fixture
def ears() -> Iterator[Ears]:
    ears = Ears()
    yield ears
    ears.close()


@pytest.fixture
def job() -> Job:
    return JobRegistry().schedule("* * * * *", lambda: None, key="shop.sync")


@pytest.fixture
def reports(caplog: pytest.LogCaptureFixture) -> Reports:
    caplog.set_level(logging.DEBUG, logger="django_cronductor")
    return Reports("here", lambda call: call())


def record(caplog: pytest.LogCaptureFixture) -> Any:
    (only,) = caplog.records
    return only


def test_instants_are_aware_and_in_utc() -> None:
    assert to_datetime(NOON + 1) == datetime(2026, 1, 5, 12, 0, 0, 1000, tzinfo=timezone.utc)
    assert to_datetime(NOON).tzinfo is timezone.utc


@pytest.mark.parametrize(
    ("after", "until", "expected"),
    [
        (NOON, NOON, (0, None)),
        (NOON, NOON + MINUTE - 1, (0, None)),
        (NOON, NOON + MINUTE, (1, NOON + MINUTE)),
        (NOON - 1, NOON + MINUTE + 1, (2, NOON + MINUTE)),
        (NOON, NOON + 1000 * MINUTE, (1000, NOON + 1000 * MINUTE)),
        (0, NOON, (MOST_COUNTED, NOON)),
    ],
)
def test_occurrences_are_counted_after_one_and_until_another(
    after: int, until: int, expected: tuple[int, int | None]
) -> None:
    assert count_occurrences(MINUTELY, after, until) == expected


def test_a_win_with_nothing_passed_over_says_nothing(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    assert reports.answer(job, MINUTELY, NOON + MINUTE, ClaimResult("won", previous=NOON, fence=1)) == 0
    assert (ears.heard, caplog.records) == ([], [])


@pytest.mark.parametrize("verdict", ["won", "lost"])
def test_what_was_passed_over_is_one_report_with_the_newest_and_a_count(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture, verdict: Any
) -> None:
    assert reports.answer(job, MINUTELY, NOON + 4 * MINUTE, ClaimResult(verdict, previous=NOON)) == 3
    assert ears.heard == [
        ("job_missed", job, {"key": "shop.sync", "scheduled_at": to_datetime(NOON + 3 * MINUTE), "count": 3})
    ]
    told = caplog.records[0]
    assert told.levelno == logging.WARNING
    assert told.getMessage() == "shop.sync missed 2026-01-05 12:03:00+00:00 (3 in all): passed over for a newer one."


def test_one_alone_is_not_counted(reports: Reports, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "django_cronductor")
    reports.answer(job, MINUTELY, NOON + MINUTE, ClaimResult("missed", previous=NOON))
    reports.skipped(job, NOON + MINUTE, "held", None, 1)
    assert caplog.messages == [
        "shop.sync missed 2026-01-05 12:01:00+00:00: too late to start.",
        "shop.sync skipped 2026-01-05 12:01:00+00:00: its last run was still going.",
    ]


def test_a_missed_answer_reports_its_own_occurrence_with_those_before(reports: Reports, job: Job, ears: Ears) -> None:
    assert reports.answer(job, MINUTELY, NOON + 4 * MINUTE, ClaimResult("missed", previous=NOON)) == 3
    assert ears.heard == [
        ("job_missed", job, {"key": "shop.sync", "scheduled_at": to_datetime(NOON + 4 * MINUTE), "count": 4})
    ]


def test_a_paused_answer_reports_its_occurrence_and_what_was_passed_over(
    reports: Reports, job: Job, ears: Ears
) -> None:
    reports.answer(job, MINUTELY, NOON + 2 * MINUTE, ClaimResult("paused", previous=NOON))
    assert [(name, details["scheduled_at"]) for name, _, details in ears.heard] == [
        ("job_missed", to_datetime(NOON + MINUTE)),
        ("job_skipped", to_datetime(NOON + 2 * MINUTE)),
    ]
    assert ears.heard[1][2]["reason"] == "paused"


def test_the_count_stops_at_a_thousand_and_says_so(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    reports.answer(job, MINUTELY, NOON, ClaimResult("missed", previous=NOON - 5000 * MINUTE))
    assert ears.heard[0][2]["count"] == 1000
    assert "(1000+ in all): too late to start." in caplog.text


def test_a_missed_record_has_its_fields(reports: Reports, job: Job, caplog: pytest.LogCaptureFixture) -> None:
    reports.missed(job, NOON, 2)
    told = record(caplog)
    assert (told.job, told.scheduled_at, told.instance, told.outcome, told.count) == (
        "shop.sync",
        to_datetime(NOON),
        "here",
        "missed",
        2,
    )


def test_a_skipped_occurrence_is_told_with_its_reason_and_holder(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    reports.skipped(job, NOON, "held", "there", 2)
    assert ears.heard == [
        (
            "job_skipped",
            job,
            {"key": "shop.sync", "scheduled_at": to_datetime(NOON), "reason": "held", "holder": "there", "count": 2},
        )
    ]
    told = record(caplog)
    assert (told.levelno, told.outcome, told.holder) == (logging.INFO, "held", "there")
    assert "its last run was still going" in told.getMessage()


@pytest.mark.parametrize(("verdict", "recovering"), [("taken", False), ("won", False), ("recovered", True)])
def test_a_dead_run_is_told_by_job_occurrence_and_holder(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture, verdict: Any, recovering: bool
) -> None:
    reports.answer(job, MINUTELY, NOON, ClaimResult(verdict, dead=DeadRun(NOON, "pod-7:1:ab", 0, 42)))
    assert ears.heard[0] == (
        "run_abandoned",
        job,
        {"key": "shop.sync", "scheduled_at": to_datetime(NOON), "holder": "pod-7:1:ab"},
    )
    told = caplog.records[0]
    assert (told.levelno, told.outcome, told.holder, told.fencing_token) == (
        logging.ERROR,
        "abandoned",
        "pod-7:1:ab",
        42,
    )
    for part in ("shop.sync", "2026-01-05 12:00:00", "pod-7:1:ab"):
        assert part in told.getMessage()
    assert told.getMessage().endswith("It is run again here.") is recovering


def test_a_dead_requested_run_has_no_instant(reports: Reports, job: Job, ears: Ears) -> None:
    reports.abandoned(job, DeadRun(MANUAL, "pod-7:1:ab"), recovering=False)
    assert ears.heard[0][2]["scheduled_at"] is None


@pytest.mark.parametrize("verdict", ["taken", "held"])
def test_an_ordinary_refusal_is_for_debugging(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture, verdict: Any
) -> None:
    reports.answer(job, MINUTELY, NOON, ClaimResult(verdict, left=5))
    assert ears.heard == []
    assert (record(caplog).levelno, record(caplog).outcome) == (logging.DEBUG, verdict)


def test_a_lost_lease_is_told_with_the_runs_context(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    held = HeldLease(Lease("shop.sync", "token", 42, 30_000, "here", NOON), 0.0, ManualClock())
    context = RunContext("shop.sync", to_datetime(NOON), "schedule", "here", held)
    reports.lost(job, context)
    assert ears.heard == [("lease_lost", job, {"context": context})]
    told = record(caplog)
    assert (told.levelno, told.job, told.scheduled_at, told.fencing_token, told.instance) == (
        logging.ERROR,
        "shop.sync",
        to_datetime(NOON),
        42,
        "here",
    )


def test_receivers_are_called_where_they_may_wait(job: Job, ears: Ears) -> None:
    later: list[Callable[[], object]] = []
    Reports("here", later.append).missed(job, NOON, 1)
    assert ears.heard == []
    for call in later:
        call()
    assert [name for name, _, _ in ears.heard] == ["job_missed"]


def test_a_receiver_that_raises_stops_neither_the_others_nor_the_report(
    reports: Reports, job: Job, ears: Ears, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**details: Any) -> None:
        raise ValueError("no")

    signals.job_missed.connect(fail)
    try:
        reports.missed(job, NOON, 1)
    finally:
        signals.job_missed.disconnect(fail)
    assert [name for name, _, _ in ears.heard] == ["job_missed"]


def test_a_receiver_that_exits_ends_nothing_and_is_logged(job: Job, caplog: pytest.LogCaptureFixture) -> None:
    def leave(**details: Any) -> None:
        raise SystemExit

    signals.job_missed.connect(leave)
    try:
        Reports("host:1:a", lambda call: call()).missed(job, NOON, 1)
    finally:
        signals.job_missed.disconnect(leave)
    assert "A receiver of job_missed exited: those after it are not told of shop.sync." in caplog.text
