"""What every database must keep as it is told: keys, texts, instants, and one row per job and per occurrence."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.core.management import call_command
from django.test import TestCase, override_settings

from django_cronductor.history import DatabaseHistory
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.commands import runcron
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.records import DeadRecord, SkipRecord
from tests.history_records import MINUTE, SLOT, finish, job, run, skip

pytestmark = pytest.mark.django_db

LONG = "😀" * 200


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=5, inline=True)


@pytest.fixture
def answers() -> list[bool]:
    return []


class Unspeakable(Exception):
    """Nothing can be said of it."""

    def __str__(self) -> str:
        raise SystemExit(3)

    __repr__ = __str__


@pytest.mark.parametrize(
    "keys",
    [
        ("shop.sync", "shop.Sync"),
        ("shop.uber", "shop.über"),
        ("shop.strasse", "shop.straße"),
        ("shop.😀", "shop.😁"),
        ("shop.sync", "shop.sync\u0301"),
        (LONG[:-1] + "a", LONG[:-1] + "A"),
    ],
)
class TestKeysThatAreNearlyTheSame:
    def test_are_two_jobs(self, history: DatabaseHistory, keys: tuple[str, str]) -> None:
        history.declared(job(key) for key in keys)
        history.declared(job(key, expression=f"{number} * * * *") for number, key in enumerate(keys))
        found = dict(DeclaredJob.objects.values_list("key", "expression"))
        assert found == {keys[0]: "0 * * * *", keys[1]: "1 * * * *"}

    def test_run_for_one_instant_each(
        self, history: DatabaseHistory, keys: tuple[str, str], answers: list[bool]
    ) -> None:
        for number, key in enumerate(keys):
            history.begun(run(key=key, id=f"run-{number}"), answers.append)
        assert answers == [True, True]
        assert set(JobRun.objects.values_list("job_key", flat=True)) == set(keys)

    def test_know_their_own_seeds(self, history: DatabaseHistory, keys: tuple[str, str], answers: list[bool]) -> None:
        for number, key in enumerate(keys):
            history.begun(run(number, key=key), answers.append)
        seeds = history.seeds(keys, ["print"] * 2, 1.0)
        assert [(one.occurrence, one.fence) for one in seeds] == [(SLOT, 7), (SLOT + MINUTE, 8)]

    def test_push_out_no_rows_of_each_other(
        self, history: DatabaseHistory, keys: tuple[str, str], answers: list[bool]
    ) -> None:
        for number in range(12):
            record = run(number, key=keys[number > 0])
            history.begun(record, answers.append)
            finish(history, record)
        assert JobRun.objects.filter(job_key=keys[0]).count() == 1

    def test_are_abandoned_and_skipped_by_themselves(
        self, history: DatabaseHistory, keys: tuple[str, str], answers: list[bool]
    ) -> None:
        for number, key in enumerate(keys):
            history.begun(run(key=key, id=f"run-{number}"), answers.append)
        history.abandoned(DeadRecord(keys[0], SLOT, 0, "host:1:a", 7))
        history.skipped(SkipRecord(keys[1], SLOT + MINUTE, 1, "held", "host:1:a"))
        assert dict(JobRun.objects.filter(job_key=keys[0]).values_list("outcome", "count")) == {"abandoned": 1}
        assert dict(JobRun.objects.filter(job_key=keys[1]).values_list("outcome", "count")) == {"running": 1, "held": 1}


class TestTexts:
    @pytest.mark.parametrize(
        ("text", "kept"),
        [
            ("naïve 😀 ∑ 漢字", "naïve 😀 ∑ 漢字"),
            ("cut\x00here", "cut\\x00here"),
            ("half \ud83d of a pair", "half \\ud83d of a pair"),
            ("100 % of %s, 'quoted' \\ and {braced}", "100 % of %s, 'quoted' \\ and {braced}"),
        ],
    )
    def test_of_errors_are_kept_whatever_is_in_them(
        self, history: DatabaseHistory, answers: list[bool], text: str, kept: str
    ) -> None:
        history.begun(run(), answers.append)
        finish(history, run(), "failed", error=ValueError(text))
        found = JobRun.objects.get()
        assert (found.outcome, found.error_message) == ("failed", kept)
        assert kept in found.traceback

    def test_of_errors_that_cannot_be_shown_are_replaced(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        finish(history, run(), "failed", error=Unspeakable())
        found = JobRun.objects.get()
        assert (found.outcome, found.error_type) == ("failed", "Unspeakable")

    def test_of_huge_errors_are_cut_and_hold_no_secret(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(), answers.append)
        finish(history, run(), "failed", error=ValueError("password=hunter2secret " + "😀" * 3_000_000))
        found = JobRun.objects.get()
        assert (len(found.error_message), len(found.traceback)) == (1_000, 20_000)
        assert "hunter2secret" not in found.error_message + found.traceback

    def test_that_are_too_long_are_cut(self, history: DatabaseHistory, answers: list[bool]) -> None:
        long = "😀" * 5_000
        history.declared([job(LONG, app_label=long, expression=long, timezone=long, fingerprint=long)])
        history.begun(run(key=LONG, holder=long), answers.append)
        history.skipped(SkipRecord(LONG, SLOT + MINUTE, 1, "held", long))
        history.skipped(SkipRecord(LONG, SLOT + 2 * MINUTE, 1, "held", long))
        history.abandoned(DeadRecord(LONG, SLOT + 3 * MINUTE, 0, long, 9))
        assert answers == [True]
        assert set(JobRun.objects.values_list("holder", flat=True)) == {long[:300]}
        assert DeclaredJob.objects.get().expression == long[:1000]


class TestRecordsThatCannotBeStored:
    """A number that no column holds stands for all that is wrong with a record."""

    def test_let_those_beside_them_be_written(self, history: DatabaseHistory, caplog: pytest.LogCaptureFixture) -> None:
        answers: dict[int, bool] = {}
        bad = {3: 2**70}

        def begin(number: int) -> None:
            record = run(number, **({"fencing_token": bad[number]} if number in bad else {}))
            history._batch.begun.append((record, lambda ours: answers.update({number: ours})))

        for number in range(10):
            begin(number)
        history._work()
        assert answers == dict.fromkeys(range(10), True), "a run is not refused for what cannot be written of it"
        assert set(JobRun.objects.values_list("slot", flat=True)) >= {
            SLOT + number * MINUTE for number in range(10) if number not in bad
        }
        assert "does not take" not in caplog.text

    def test_let_what_comes_after_them_be_written(self, history: DatabaseHistory, answers: list[bool]) -> None:
        history.begun(run(0, slot=10**15), answers.append)
        history.skipped(skip(10**9))
        history.abandoned(DeadRecord("shop.sync", 10**17, 0, "host:1:a", 7))
        history.begun(run(1), answers.append)
        finish(history, run(1))
        assert answers == [True, True]
        assert JobRun.objects.get(run_id="run-1").outcome == "succeeded"

    def test_at_an_end_are_left_out_alone(self, history: DatabaseHistory, answers: list[bool]) -> None:
        for number in range(4):
            history.begun(run(number), answers.append)
        history._batch.ended = {
            f"run-{number}": (run(number, outcome="succeeded", lateness=1.0 if number else "late"), {})
            for number in range(4)
        }
        history._work()
        outcomes = JobRun.objects.order_by("slot").values_list("outcome", flat=True)
        assert list(outcomes) == ["running", "succeeded", "succeeded", "succeeded"]


class TestInstants:
    @pytest.mark.parametrize("use_tz", [True, False])
    def test_are_kept_to_the_microsecond_with_time_zones_and_without(
        self, history: DatabaseHistory, answers: list[bool], use_tz: bool
    ) -> None:
        started = datetime(2026, 7, 5, 12, 0, 0, 123456, tzinfo=timezone.utc)
        with override_settings(USE_TZ=use_tz, TIME_ZONE="Europe/Berlin"):
            history.declared([job()])
            history.begun(run(started_at=started), answers.append)
            finish(history, run(started_at=started))
            found = JobRun.objects.get()
            assert found.started_at is not None
            zone = None if use_tz else ZoneInfo("Europe/Berlin")
            assert (found.started_at.tzinfo is None) is not use_tz
            assert (found.started_at if zone is None else found.started_at.replace(tzinfo=zone)) == started

    def test_of_occurrences_are_known_to_the_store_after_the_settings_changed(
        self, history: DatabaseHistory, answers: list[bool]
    ) -> None:
        with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"):
            history.begun(run(), answers.append)
        with override_settings(USE_TZ=True, TIME_ZONE="Asia/Shanghai"):
            assert history.seeds(["shop.sync"], ["print"], 1.0)[0].occurrence == SLOT
            history.begun(run(id="again"), answers.append)
        assert answers == [True, False]


def test_a_declaration_is_one_row_however_often_it_is_written(history: DatabaseHistory) -> None:
    for number in range(3):
        history.declared([job(expression=f"{number} * * * *")])
    assert DeclaredJob.objects.get().expression == "2 * * * *"


class TestInATestCase(TestCase):
    """Inside the transaction of a test."""

    def test_a_pass_of_the_command_writes_into_it_and_leaves_it_usable(self) -> None:
        registry = JobRegistry()
        runs: list[Any] = []
        registry.schedule("* * * * * *", runs.append, key="shop.tick", takes_context=True, grace=3600, ttl=1)
        # A declaration of an hour ago: something is due at once.
        history = DatabaseHistory(keep=5, inline=True)
        history.declared(
            [job("shop.tick", fingerprint=registry.get("shop.tick").schedule("UTC").fingerprint, since=SLOT)]
        )
        with (
            pytest.MonkeyPatch.context() as patch,
            override_settings(CRONDUCTOR={"BACKEND": "django_cronductor.backends.local.LocalBackend"}),
        ):
            patch.setattr(runcron, "registry", registry)
            call_command("runcron", once=True, verbosity=0)
        assert len(runs) == 1
        assert JobRun.objects.get(outcome="succeeded").job_key == "shop.tick"
        assert JobRun.objects.filter(outcome="missed").count() == 1
