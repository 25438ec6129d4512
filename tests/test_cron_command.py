"""The command `cron`, as an operator types it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Declaration
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.commands import cron

# Which jobs are paused is asked.
pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _settings(prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
        yield


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> Iterator[JobRegistry]:
    """Give the command jobs of its own."""
    registry = JobRegistry()
    registry.schedule("30 2 * * *", print, key="shop.nightly", timezone="Europe/Berlin")
    registry.schedule("0 * * * *", print, key="shop.hourly")
    monkeypatch.setattr(cron, "registry", registry)
    return registry


@pytest.fixture
def no_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the library that says schedules in words be missing."""
    monkeypatch.setitem(sys.modules, "cron_descriptor", None)


def upcoming(*arguments: str) -> list[str]:
    """Return what `cron next` prints, line by line."""
    out = StringIO()
    call_command("cron", "next", *arguments, stdout=out)
    return out.getvalue().splitlines()


@pytest.mark.usefixtures("registry", "no_words")
class TestNext:
    def test_a_job_is_shown_in_its_zone_and_in_utc(self) -> None:
        assert upcoming("shop.nightly", "--from", "2026-01-05", "-n", "2") == [
            "shop.nightly: 30 2 * * * (Europe/Berlin)",
            "  Mon 2026-01-05 02:30:00 +0100  2026-01-05 01:30:00 UTC",
            "  Tue 2026-01-06 02:30:00 +0100  2026-01-06 01:30:00 UTC",
        ]

    def test_an_expression_needs_no_job(self) -> None:
        lines = upcoming("--expression", "15 10 * * 1", "--timezone", "Asia/Kathmandu", "--from", "2026-01-05", "-n1")
        assert lines == [
            "15 10 * * 1 (Asia/Kathmandu)",
            "  Mon 2026-01-05 10:15:00 +0545  2026-01-05 04:30:00 UTC",
        ]

    @pytest.mark.parametrize("expression", ["H H * * *", "0 h(1-5) * * *"])
    def test_an_expression_that_is_hashed_by_a_jobs_key_needs_one(self, expression: str) -> None:
        with pytest.raises(CommandError, match=r"^H depends on a job's key: name a job\.$") as caught:
            upcoming("--expression", expression)
        assert caught.value.returncode == 2

    @pytest.mark.parametrize("expression", ["H 61 * * *", "R * * * *"])
    def test_other_faults_of_such_an_expression_are_named_first(self, expression: str) -> None:
        with pytest.raises(CommandError, match=r"^The schedule .* cannot be used: "):
            upcoming("--expression", expression)

    def test_a_time_that_does_not_exist_is_marked(self) -> None:
        [line] = upcoming("shop.nightly", "--from", "2026-03-28T12:00+01:00", "-n", "1")[1:]
        assert line.endswith("2026-03-29 01:00:00 UTC  02:30 does not exist this day: runs at 03:00")

    def test_a_time_that_comes_twice_is_marked(self) -> None:
        [line] = upcoming("shop.nightly", "--from", "2026-10-24T12:00Z", "-n", "1")[1:]
        assert line.endswith("2026-10-25 00:30:00 UTC  02:30 comes twice this day: runs the first time only")

    def test_both_passes_of_a_job_that_follows_real_time_are_marked(self) -> None:
        arguments = ("--expression", "30 * * * *", "--timezone", "Europe/Berlin", "--from", "2026-10-25T01:40")
        notes = [line.partition("UTC  ")[2] for line in upcoming(*arguments, "-n", "3")[1:]]
        assert notes == [
            "02:30 comes twice this day: the first time",
            "02:30 comes twice this day: the second time",
            "",
        ]

    def test_without_a_job_all_are_shown_in_order(self) -> None:
        lines = upcoming("--from", "2026-01-05T00:30Z", "-n", "3")
        assert [line.split()[-1] for line in lines] == ["shop.hourly", "shop.nightly", "shop.hourly"]

    def test_a_stopped_job_is_left_out_of_all(self, registry: JobRegistry) -> None:
        registry.get("shop.hourly").stop()
        assert [line.split()[-1] for line in upcoming("-n", "2")] == ["shop.nightly", "shop.nightly"]

    def test_what_is_left_out_of_all_is_named(self, registry: JobRegistry) -> None:
        registry.schedule("* * * * *", print, key="it's off", enabled=False)
        err = StringIO()
        call_command("cron", "next", stdout=StringIO(), stderr=err)
        assert err.getvalue() == """Disabled, and left out: 'it'"'"'s off'.\n"""

    def test_a_disabled_job_is_shown_as_such_with_when_it_would_run(self, registry: JobRegistry) -> None:
        registry.schedule("* * * * *", print, key="off", enabled=False)
        lines = upcoming("off", "-n1")
        assert lines[1] == "  No occurrence of it runs: disabled"
        assert len(lines) == 3

    def test_a_paused_job_is_shown_as_such_with_when_it_would_run(self) -> None:
        backend = create_backend()
        backend.declare([Declaration("shop.hourly", "v1", 1000)])
        backend.pause("shop.hourly")
        backend.close()
        assert upcoming("shop.hourly", "-n1")[1] == "  No occurrence of it runs: paused"
        assert upcoming("--from", "2026-01-05T00:30Z", "-n", "1")[0].endswith("  shop.hourly (paused)")

    def test_all_is_printed_as_json(self) -> None:
        found = json.loads("\n".join(upcoming("--from", "2026-03-29T00:30Z", "-n", "2", "--json")))
        assert found == {
            "occurrences": [
                {
                    "key": "shop.hourly",
                    "paused": False,
                    "utc": "2026-03-29T01:00:00+00:00",
                    "local": "2026-03-29T01:00:00+00:00",
                    "clock_change": None,
                },
                {
                    "key": "shop.nightly",
                    "paused": False,
                    "utc": "2026-03-29T01:00:00+00:00",
                    "local": "2026-03-29T03:00:00+02:00",
                    "clock_change": "02:30 does not exist this day: runs at 03:00",
                },
            ],
            "disabled": [],
        }

    def test_a_job_is_printed_as_json(self) -> None:
        found = json.loads("\n".join(upcoming("shop.hourly", "--from", "2026-01-05", "-n", "1", "--json")))
        assert (found["key"], found["schedule"], found["timezone"]) == ("shop.hourly", "0 * * * *", "UTC")
        assert (found["status"], found["paused"]) == ("idle", False)
        assert [one["utc"] for one in found["occurrences"]] == ["2026-01-05T01:00:00+00:00"]

    def test_an_expression_is_printed_as_json(self) -> None:
        found = json.loads("\n".join(upcoming("--expression", "0 0 29 2 *", "--from", "9996-02-28", "--json")))
        assert found["occurrences"][-1]["utc"] == "9996-02-29T00:00:00+00:00"
        assert "key" not in found

    def test_ten_are_shown_from_now_on(self) -> None:
        assert len(upcoming("shop.hourly")) == 11

    def test_a_schedule_that_ends_says_so(self) -> None:
        lines = upcoming("--expression", "0 0 29 2 *", "--from", "9996-02-28", "-n", "5")
        assert lines[-1] == "  and none after that."

    def test_an_unknown_job_names_the_nearest(self) -> None:
        with pytest.raises(CommandError, match=r"shop\.nightly"):
            upcoming("shop.nightley")

    def test_no_job_at_all_is_said(self, registry: JobRegistry) -> None:
        for job in registry:
            job.destroy()
        with pytest.raises(CommandError, match="No job is declared"):
            upcoming()

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (("--expression", "0 0 31 2 *"), "never runs"),
            (("--expression", "* * * * *", "--timezone", "Mars/Olympus"), "Mars/Olympus"),
            (("shop.hourly", "--expression", "* * * * *"), "not both"),
            (("shop.hourly", "--timezone", "UTC"), "--timezone goes with --expression"),
            (("-n", "0"), "'0' is not a number from 1 to 10000"),
            (("-n", "99999999999"), "is not a number"),
            (("--from", "yesterday"), "'yesterday' is not a date or time"),
            (("--from", "2026-02-30"), "2026-02-30"),
            (("--from", "2026-02-03T12:00+25:00"), r"[^.]\.$"),
        ],
    )
    def test_bad_input_is_refused_with_what_is_wrong(self, arguments: tuple[str, ...], message: str) -> None:
        with pytest.raises(CommandError, match=message):
            upcoming(*arguments)

    @pytest.mark.parametrize("arguments", [("shop.hourly", "--expression", "0 0 * * *"), ("--timezone", "UTC")])
    def test_options_that_do_not_go_together_are_wrong_usage(self, arguments: tuple[str, ...]) -> None:
        with pytest.raises(CommandError) as caught:
            upcoming(*arguments)
        assert caught.value.returncode == 2


@pytest.mark.usefixtures("registry")
def test_the_schedule_is_said_in_words_where_the_library_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    class Words:
        @staticmethod
        def get_description(expression: str) -> str:
            return f"words for {expression}"

    monkeypatch.setitem(sys.modules, "cron_descriptor", Words)
    assert upcoming("shop.nightly", "-n1")[0] == "shop.nightly: 30 2 * * * (Europe/Berlin): words for 30 2 * * *"
