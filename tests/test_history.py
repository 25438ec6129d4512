"""The history of runs in the database."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connection
from django.db.models import QuerySet
from django.db.models.signals import pre_delete
from django.test import override_settings
from pytest_django import DjangoAssertNumQueries

from django_cronductor.backends.base import Seeds
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.history import MOST_TRACEBACKS, MOST_WAITING, DatabaseHistory
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.records import DeadRecord
from tests.history_records import MINUTE, NOON, SLOT, end, finish, job, run, skip

pytestmark = pytest.mark.django_db


@pytest.fixture
def answers() -> list[bool]:
    return []


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=5, inline=True)


def row(**lookup: Any) -> JobRun:
    return JobRun.objects.get(**lookup)


class TestRuns:
    def test_a_run_has_a_row_from_its_start_on(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        found = row()
        assert answers == [True]
        assert (found.job_key, found.slot, found.attempt, found.outcome) == ("shop.sync", SLOT, 0, "running")
        assert (found.scheduled_at, found.started_at) == (NOON, NOON + timedelta(milliseconds=3))
        assert (found.holder, found.fencing_token, found.trigger) == ("host:1:a", 7, "schedule")
        assert found.finished_at is None

    def test_its_end_is_written_into_that_row(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        finish(history, run())
        found = row()
        assert (found.outcome, found.duration) == ("succeeded", 1.5)
        assert found.finished_at == NOON + timedelta(seconds=1.503)

    def test_an_error_is_kept_with_its_traceback(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        try:
            raise ValueError("no such customer")
        except ValueError as error:
            finish(history, run(), "failed", error=error)
        found = row()
        assert (found.error_type, found.error_message) == ("ValueError", "no such customer")
        assert "test_an_error_is_kept_with_its_traceback" in found.traceback

    def test_long_errors_are_cut_where_they_matter_least(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        finish(history, run(), "failed", error=ValueError("begins " + "x" * 100_000))
        found = row()
        assert found.error_message.startswith("begins ")
        assert len(found.error_message) == 1_000
        assert len(found.traceback) == 20_000

    def test_a_second_run_of_a_slot_is_told_so(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        history.begun(run(id="another"), answers.append)
        assert answers == [True, False]
        assert row().run_id == "run-0"

    def test_a_repeated_announcement_of_one_run_is_not_taken_for_a_second(
        self, history: DatabaseHistory, answers: list[bool]
    ) -> None:
        history.begun(run(), answers.append)
        history.begun(run(), answers.append)
        assert answers == [True, True]

    def test_a_recovered_run_has_a_row_of_its_own(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        history.begun(run(id="again", attempt=1), answers.append)
        assert answers == [True, True]
        assert JobRun.objects.count() == 2

    def test_manual_runs_take_no_slot(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(id="one", slot=None, trigger="manual"), answers.append)
        history.begun(run(id="two", slot=None, trigger="manual"), answers.append)
        assert answers == [True, True]
        assert set(JobRun.objects.values_list("scheduled_at", flat=True)) == {None}

    def test_a_run_whose_start_was_never_written_is_written_at_its_end(self, history: DatabaseHistory) -> None:
        finish(history, run())
        assert row().outcome == "succeeded"

    def test_many_starts_take_a_few_queries(
        self, history: DatabaseHistory, answers: list[bool], django_assert_max_num_queries: DjangoAssertNumQueries
    ) -> None:
        history._batch.begun = [(run(number), answers.append) for number in range(150)]
        with django_assert_max_num_queries(6):
            history._write_batch()
        assert answers == [True] * 150

    def test_many_ends_take_a_few_queries_and_each_run_has_its_own(
        self, history: DatabaseHistory, answers: list[bool], django_assert_max_num_queries: DjangoAssertNumQueries
    ) -> None:
        history._batch.begun = [(run(number), answers.append) for number in range(150)]
        history._write_batch()
        failed = ({"error_type": "ValueError", "error_message": "no", "traceback": "line"}, "failed")
        for number in range(150):
            texts, outcome = failed if number % 3 == 0 else ({}, "succeeded")
            record = replace(run(number), outcome=outcome, duration=float(number))
            history._batch.ended[record.id] = (record, texts)
        with django_assert_max_num_queries(8):  # Of which three prune a job.
            history._write_batch()
        for found in JobRun.objects.all():
            number = int(found.duration or 0)
            assert found.run_id == run(number).id
            assert found.finished_at == found.started_at + timedelta(seconds=number)
            wanted = ("failed", "ValueError", "no", "line") if number % 3 == 0 else ("succeeded", "", "", "")
            assert (found.outcome, found.error_type, found.error_message, found.traceback) == wanted

    def test_of_many_ends_those_without_a_row_get_one(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(0), answers.append)
        for number in (0, 1):
            record = replace(run(number), outcome="succeeded", duration=1.0)
            history._batch.ended[record.id] = (record, {})
        history._write_batch()
        rows = JobRun.objects.order_by("run_id").values_list("run_id", "slot", "outcome")
        assert list(rows) == [("run-0", SLOT, "succeeded"), ("run-1", None, "succeeded")]

    @override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
    def test_both_passes_of_a_repeated_hour_have_rows_without_time_zones(
        self, history: DatabaseHistory, answers: list[bool]
    ) -> None:
        first = int(datetime(2026, 10, 25, 0, 30, tzinfo=timezone.utc).timestamp() * 1000)
        history.begun(run(id="first", slot=first), answers.append)
        history.begun(run(id="second", slot=first + 60 * MINUTE), answers.append)
        assert answers == [True, True]
        assert set(JobRun.objects.values_list("scheduled_at", flat=True)) == {datetime(2026, 10, 25, 2, 30)}


class TestDeadRuns:
    def test_the_row_of_a_dead_run_says_abandoned(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        history.abandoned(DeadRecord("shop.sync", SLOT, 0, "host:1:a", 7))
        assert row().outcome == "abandoned"
        assert row().finished_at is not None

    def test_a_dead_run_without_a_row_gets_one(self, history: DatabaseHistory) -> None:
        history.abandoned(DeadRecord("shop.sync", SLOT, 0, "host:1:a", 7))
        assert (row().outcome, row().holder, row().slot) == ("abandoned", "host:1:a", SLOT)

    def test_a_dead_manual_run_is_known_by_its_token(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(id="one", slot=None, fencing_token=1), answers.append)
        history.begun(run(id="two", slot=None, fencing_token=2), answers.append)
        history.abandoned(DeadRecord("shop.sync", None, 0, "host:1:a", 2))
        assert (row(run_id="one").outcome, row(run_id="two").outcome) == ("running", "abandoned")

    def test_a_run_that_has_ended_stays_as_it_ended(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        finish(history, run())
        history.abandoned(DeadRecord("shop.sync", SLOT, 0, "host:1:a", 7))
        assert row().outcome == "succeeded"

    def test_a_holder_that_comes_back_says_how_it_ended(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        history.abandoned(DeadRecord("shop.sync", SLOT, 0, "host:1:a", 7))
        finish(history, run(), "lost")
        assert row().outcome == "lost"


class TestSkippedOccurrences:
    def test_an_occurrence_that_was_not_run_has_a_row(self, history: DatabaseHistory) -> None:
        history.skipped(skip(reason="missed", count=3))
        assert (row().outcome, row().slot, row().count, row().scheduled_at) == ("missed", SLOT, 3, NOON)

    def test_those_of_one_reason_in_a_row_share_one(self, history: DatabaseHistory) -> None:
        for number in range(4):
            history.skipped(skip(number))
        assert (row().count, row().slot) == (4, SLOT + 3 * MINUTE)

    def test_another_reason_or_a_run_in_between_begins_another(
        self, history: DatabaseHistory, answers: list[bool]
    ) -> None:
        history.skipped(skip(0))
        history.skipped(skip(1, reason="paused"))
        history.begun(run(2), answers.append)
        history.skipped(skip(3, reason="paused"))
        assert list(JobRun.objects.order_by("id").values_list("outcome", flat=True)) == [
            "held",
            "paused",
            "running",
            "paused",
        ]


class TestPruning:
    def test_only_the_newest_runs_of_a_job_are_kept(self, history: DatabaseHistory, answers: list[bool]) -> None:
        for number in range(20):
            history.begun(run(number), answers.append)
            finish(history, run(number))
        kept = list(JobRun.objects.order_by("slot").values_list("slot", flat=True))
        assert kept[-5:] == [SLOT + number * MINUTE for number in range(15, 20)]
        assert len(kept) < 8

    def test_the_first_run_of_a_process_prunes_what_those_before_it_have_left(
        self, history: DatabaseHistory, answers: list[bool]
    ) -> None:
        for number in range(20):
            short_lived = DatabaseHistory(keep=5, inline=True)
            short_lived.begun(run(number), answers.append)
            finish(short_lived, run(number))
        assert JobRun.objects.count() == 5

    def test_a_run_that_goes_on_is_never_deleted(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(0), answers.append)
        for number in range(1, 20):
            history.begun(run(number), answers.append)
            finish(history, run(number))
        assert row(outcome="running").run_id == "run-0"

    def test_skipped_occurrences_push_out_no_runs(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(0), answers.append)
        finish(history, run(0))
        for number in range(1, 30):
            history.skipped(skip(number, reason="held" if number % 2 else "paused"))
        assert JobRun.objects.filter(outcome="succeeded").count() == 1
        assert JobRun.objects.exclude(outcome="succeeded").count() < 8

    def test_other_jobs_are_left_alone(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(0, id="other", key="shop.other"), answers.append)
        finish(history, run(0, id="other", key="shop.other"))
        for number in range(20):
            history.begun(run(number), answers.append)
            finish(history, run(number))
        assert JobRun.objects.filter(job_key="shop.other").count() == 1


class TestSeeds:
    def test_a_store_that_lost_its_data_is_told_the_newest_occurrence_and_fence(
        self, history: DatabaseHistory, answers: list[bool]
    ) -> None:
        history.declared([job()])
        history.begun(run(0), answers.append)
        history.begun(run(1), answers.append)
        assert history.seeds(["shop.sync"], ["print"], 1.0) == [
            Seeds(occurrence=SLOT + MINUTE, fence=8, paused=False, since=SLOT - 5 * MINUTE)
        ]

    def test_skipped_occurrences_count_as_decided(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(0), answers.append)
        history.skipped(skip(4))
        assert history.seeds(["shop.sync"], ["print"], 1.0)[0].occurrence == SLOT + 4 * MINUTE

    def test_a_pause_is_known(self, history: DatabaseHistory) -> None:
        history.declared([job()])
        DeclaredJob.objects.update(paused_at=NOON)
        assert history.seeds(["shop.sync"], ["print"], 1.0)[0].paused is True

    def test_another_schedule_starts_anew(self, history: DatabaseHistory) -> None:
        history.declared([job()])
        assert history.seeds(["shop.sync"], ["other"], 1.0)[0].since is None

    def test_nothing_is_known_of_a_new_job(self, history: DatabaseHistory) -> None:
        assert history.seeds(["shop.new"], ["print"], 1.0) == [Seeds()]


class TestDeclaredJobs:
    def test_a_job_has_one_row_which_follows_its_declaration(self, history: DatabaseHistory) -> None:
        history.declared([job()])
        first = DeclaredJob.objects.get()
        history.declared([job(expression="*/5 * * * *", enabled=False)])
        found = DeclaredJob.objects.get()
        assert (found.pk, found.expression, found.enabled) == (first.pk, "*/5 * * * *", False)
        assert found.first_seen == first.first_seen
        assert found.last_seen > first.last_seen

    def test_a_pause_outlives_a_new_declaration(self, history: DatabaseHistory) -> None:
        history.declared([job()])
        DeclaredJob.objects.update(paused_at=NOON, paused_by="ada", pause_note="until the import is mended")
        history.declared([job()])
        assert DeclaredJob.objects.get().paused_by == "ada"

    def test_what_is_missing_are_said_to_need_migrate(
        self, history: DatabaseHistory, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connection.introspection, "table_names", lambda cursor: ["auth_user"])
        with pytest.raises(ConfigurationError, match="run migrate"):
            history.check()

    def test_tables_that_are_there_are_fine(self, history: DatabaseHistory) -> None:
        history.check()


class TestFailures:
    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], None]]:
        """Let every write of rows fail until it is called."""
        real = JobRun.objects.bulk_create

        def fail(*args: Any, **kwargs: Any) -> None:
            raise OperationalError("the server has gone away: password=hunter2secret")

        monkeypatch.setattr(JobRun.objects, "bulk_create", fail)
        return lambda: monkeypatch.setattr(JobRun.objects, "bulk_create", real)

    def test_what_a_database_did_not_take_is_written_when_it_does(
        self,
        history: DatabaseHistory,
        answers: list[bool],
        broken: Callable[[], None],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with caplog.at_level(logging.WARNING, "django_cronductor.history"):
            history.begun(run(0), answers.append)
            history.begun(run(1), answers.append)
            finish(history, run(0))
            assert answers == [True, True], "nobody waits for a database that is known to fail"
            broken()
            history.skipped(skip(2))
        assert answers == [True, True]
        assert list(JobRun.objects.order_by("slot").values_list("outcome", flat=True)) == [
            "succeeded",
            "running",
            "held",
        ]
        messages = [record.getMessage() for record in caplog.records]
        assert len(messages) == 2, "one line when it begins, one when it is over"
        assert "hunter2secret" not in messages[0]

    def test_runs_that_wait_may_start_once_one_was_late(self, caplog: pytest.LogCaptureFixture) -> None:
        history = DatabaseHistory(keep=5)
        hanging, answers = threading.Event(), list[bool]()
        history._write = lambda batch: (hanging.wait(20), batch.clear())  # type: ignore[method-assign,assignment,func-returns-value]
        try:
            history.begun(run(0), answers.append)
            while not history._writing:
                assert history._thread is not None
                history._thread.join(0.01)
            history.begun(run(1), answers.append)
            assert answers == []
            history.overdue()
            history.overdue()
            assert answers == [True], "what has come meanwhile waits no longer"
            history.begun(run(2), answers.append)
            assert answers == [True, True], "nor does what comes now"
        finally:
            hanging.set()
            end(history)
        assert caplog.text.count("it does not answer") == 1
        assert caplog.text.count("takes the history of runs again") == 1

    def test_a_failure_that_is_over_at_the_second_try_is_no_outage(
        self,
        history: DatabaseHistory,
        answers: list[bool],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        real, failures = JobRun.objects.bulk_create, [OperationalError("deadlock detected")]

        def fail_once(*args: Any, **kwargs: Any) -> Any:
            if failures:
                raise failures.pop()
            return real(*args, **kwargs)

        monkeypatch.setattr(JobRun.objects, "bulk_create", fail_once)
        history.begun(run(), answers.append)
        assert answers == [True]
        assert row().outcome == "running"
        assert caplog.records == []

    def test_what_a_router_raises_costs_what_it_concerns_and_no_more(
        self,
        history: DatabaseHistory,
        answers: list[bool],
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        with monkeypatch.context() as patch:
            patch.setattr("django_cronductor.history.router.db_for_write", lambda model: 1 / 0)
            history.begun(run(0), answers.append)
        history.begun(run(1), answers.append)
        assert answers == [True, True], "no run is refused for it"
        assert row().run_id == "run-1"
        assert "could not be written and is left out" in caplog.text

    def test_characters_that_a_column_cannot_hold_are_written_out(
        self, history: DatabaseHistory, answers: list[bool], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        real = QuerySet.update

        def update(rows: QuerySet[JobRun], **values: Any) -> int:
            if not all(text.isascii() for text in values.values() if isinstance(text, str)):
                raise OperationalError(1366, "Incorrect string value")
            return real(rows, **values)

        history.begun(run(), answers.append)
        monkeypatch.setattr(QuerySet, "update", update)
        finish(history, run(), "failed", error=ValueError("naïve 😀"))
        assert (row().outcome, row().error_message) == ("failed", "na\\xefve \\U0001f600")

    def test_what_comes_while_too_much_waits_is_left_out_and_counted(
        self,
        history: DatabaseHistory,
        answers: list[bool],
        broken: Callable[[], None],
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        history.begun(run(0), answers.append)
        history._batch.skipped = [skip(number) for number in range(1, MOST_WAITING)]
        for number in range(3):
            history.begun(run(number), answers.append)
            history.skipped(skip(0))
        assert answers == [True] * 4, "runs go on"
        assert caplog.text.count("records behind") == 1
        history._batch.skipped = []
        broken()
        assert history.flush(1.0)
        assert "again (6 records were left out)" in caplog.text

    def test_ends_that_wait_in_great_number_are_kept_without_their_tracebacks(
        self, history: DatabaseHistory, broken: Callable[[], None]
    ) -> None:
        for number in range(MOST_TRACEBACKS + 2):
            history._batch.ended[f"run-{number}"] = (run(number), {})
        finish(history, run(-1), "failed", error=ValueError("x"))
        [(kept, texts)] = [one for one in history._batch.ended.values() if one[0].id == "run--1"]
        assert kept.error is None, "it would hold all that its frames hold"
        assert texts == {"error_type": "ValueError", "error_message": "x"}
        history._batch.clear()

    def test_an_inline_history_writes_at_the_flush_what_could_not_be_written_before(
        self, history: DatabaseHistory, answers: list[bool], broken: Callable[[], None]
    ) -> None:
        history.begun(run(), answers.append)
        assert not history.flush(0.01)
        broken()
        assert history.flush(0.01)
        assert row().run_id == "run-0"

    def test_a_database_that_does_not_answer_at_the_start_is_said_to_fail(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        hanging = threading.Event()
        monkeypatch.setattr("django_cronductor.history.CHECK_WAIT", 0.01)
        monkeypatch.setattr("django_cronductor.history._what_is_missing", lambda: hanging.wait(20) and [])
        DatabaseHistory(keep=5).check()
        hanging.set()
        for thread in threading.enumerate():
            if thread.name == "cronductor-history":
                thread.join(20)
        assert "does not take the history of runs, which go on all the same: it has not answered" in caplog.text

    def test_one_that_fails_at_the_start_is_waited_for(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, history: DatabaseHistory
    ) -> None:
        def fail() -> list[str]:
            raise OperationalError("connection refused")

        monkeypatch.setattr("django_cronductor.history._what_is_missing", fail)
        history.check()
        assert "all the same: connection refused" in caplog.text

    def test_a_project_without_a_database_is_told_how_to_do_without(
        self, monkeypatch: pytest.MonkeyPatch, history: DatabaseHistory
    ) -> None:
        def fail() -> list[str]:
            raise ImproperlyConfigured("There is no database.")

        monkeypatch.setattr("django_cronductor.history._what_is_missing", fail)
        with pytest.raises(ConfigurationError, match=r'There is no database\. CRONDUCTOR\["HISTORY"\] can be 0'):
            history.check()

    def test_seeds_of_a_database_that_hangs_are_not_waited_for(self, caplog: pytest.LogCaptureFixture) -> None:
        history = DatabaseHistory(keep=5)
        hanging = threading.Event()
        history._write = lambda batch: (hanging.wait(20), batch.clear())  # type: ignore[method-assign,assignment,func-returns-value]
        try:
            assert history.seeds(["shop.sync"], ["print"], 0.01) == [Seeds()]
            assert not history.flush(0.01)
        finally:
            hanging.set()
            end(history)
        assert "did not tell" in caplog.text


@pytest.mark.django_db(transaction=True)
def test_a_thread_of_its_own_writes_without_anybody_waiting(answers: list[bool]) -> None:
    history = DatabaseHistory(keep=5)
    try:
        for number in range(3):
            history.begun(run(number), answers.append)
            finish(history, run(number))
        assert history.flush(10.0)
        assert answers == [True] * 3
        assert JobRun.objects.filter(outcome="succeeded").count() == 3
    finally:
        end(history)


@pytest.mark.django_db(transaction=True)
def test_while_runs_start_their_ends_gather(answers: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts are waited for, ends are not."""
    monkeypatch.setattr("django_cronductor.history.GATHER_REST", 3600.0)
    started = threading.Event()
    history = DatabaseHistory(keep=5)

    def start(ours: bool) -> None:
        answers.append(ours)
        started.set()

    try:
        for number in range(3):
            started.clear()
            history.begun(run(number), start)
            assert started.wait(10.0)
            finish(history, run(number))
        assert answers == [True] * 3
        assert JobRun.objects.filter(outcome="running").exists()
        assert history.flush(10.0), "whoever asks for all of it does not wait"
        assert not JobRun.objects.filter(outcome="running").exists()
    finally:
        end(history)


@pytest.mark.django_db(transaction=True)
def test_an_end_that_nothing_else_comes_with_is_written_at_once(
    answers: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("django_cronductor.history.RETRY_BATCH", 3600.0)
    history = DatabaseHistory(keep=5)
    try:
        finish(history, run())
        deadline = time.monotonic() + 10
        while not JobRun.objects.exists():
            assert time.monotonic() < deadline
    finally:
        end(history)


@pytest.mark.parametrize("outcome", ["condition", "missed"])
def test_runs_that_were_won_and_not_made_push_out_none_that_were(
    history: DatabaseHistory, answers: list[bool], outcome: str
) -> None:
    history.begun(run(0), answers.append)
    finish(history, run(0))
    for number in range(1, 20):
        history.begun(run(number), answers.append)
        finish(history, run(number), outcome)
    assert JobRun.objects.filter(outcome="succeeded").count() == 1
    assert JobRun.objects.filter(outcome=outcome).count() < 9


def test_manual_runs_do_not_push_out_the_newest_slot(history: DatabaseHistory, answers: list[bool]) -> None:
    history.begun(run(0), answers.append)
    finish(history, run(0))
    for number in range(1, 30):
        manual = run(number, slot=None, trigger="manual")
        history.begun(manual, answers.append)
        finish(history, manual)
    assert history.seeds(["shop.sync"], ["print"], 1.0)[0].occurrence == SLOT


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_fails_when_rows_are_deleted_is_not_asked_for_ever(
    history: DatabaseHistory, answers: list[bool], caplog: pytest.LogCaptureFixture
) -> None:
    def fail(**kwargs: Any) -> None:
        raise LookupError("no such index")

    pre_delete.connect(fail)
    try:
        for number in range(12):
            history.begun(run(number), answers.append)
            finish(history, run(number))
    finally:
        pre_delete.disconnect(fail)
    assert 0 < caplog.text.count("could not be written") < 12
    assert JobRun.objects.filter(outcome="succeeded").count() == 12


def test_jobs_are_noted_as_seen_in_a_few_queries_whoever_has_written_them_last(
    history: DatabaseHistory, django_assert_max_num_queries: DjangoAssertNumQueries
) -> None:
    jobs = [job(f"job-{number}") for number in range(100)]
    history.declared(jobs)
    DeclaredJob.objects.update(last_seen=NOON)
    DeclaredJob.objects.filter(key="job-7").update(fingerprint="of another version", expression="@daily")
    DeclaredJob.objects.filter(key="job-8").delete()
    history._note_seen()
    with django_assert_max_num_queries(8):
        history._write_batch()
    assert DeclaredJob.objects.filter(last_seen__gt=NOON).count() == 100
    assert DeclaredJob.objects.get(key="job-7").expression == "* * * * *"


def test_a_job_that_is_gone_is_seen_no_more(history: DatabaseHistory) -> None:
    history.declared([job("shop.kept"), job("shop.gone")])
    history.dropped(["shop.gone"])
    assert list(history._jobs) == ["shop.kept"]


def test_nobody_waits_again_for_a_database_that_did_not_answer() -> None:
    history = DatabaseHistory(keep=5)
    hanging = threading.Event()
    history._write = lambda batch: (hanging.wait(20), batch.clear())  # type: ignore[method-assign,assignment,func-returns-value]
    try:
        history.seeds(["shop.sync"], ["print"], 0.01)
        assert history.seeds(["shop.sync"], ["print"], 20.0) == [Seeds()]
    finally:
        hanging.set()
        end(history)
