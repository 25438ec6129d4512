"""How the admin says instants, lengths of time and outcomes."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from django.utils import timezone as django_timezone
from django.utils import translation

from django_cronductor.admin import words
from django_cronductor.models import JobRun

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 ms"),
        (0, "0 ms"),
        (0.0126, "13 ms"),
        (0.0994, "99 ms"),
        (0.0996, "0.1 s"),
        (1, "1 s"),
        (2.54, "2.5 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.94, "60 s"),
        (59.96, "1 min"),
        (61, "1 min 1 s"),
        (3600, "1 h"),
        (3660, "1 h 1 min"),
        (86_399, "23 h 59 min"),
        (86_400, "1 day"),
        (90_000 * 2, "2 days 2 h"),
    ],
)
def test_a_length_of_time_has_two_units_at_most(seconds: float, text: str) -> None:
    assert words.length(seconds) == text


def test_how_long_ago_and_until() -> None:
    assert words.ago(NOON, NOON + timedelta(seconds=5.4)) == "5 s ago"
    assert words.ago(NOON, NOON + timedelta(seconds=0.25)) == "0.2 s ago"
    assert words.ago(NOON + timedelta(minutes=2), NOON) == "in 2 min"


def test_a_moment_is_in_the_zone_asked_for_or_the_users() -> None:
    assert "Mon 2026-06-01 14:00:00 CEST</time>" in words.moment(NOON, ZoneInfo("Europe/Berlin"))
    with django_timezone.override("Asia/Tokyo"):
        assert words.moment(NOON).endswith("Mon 2026-06-01 21:00:00 JST</time>")
    assert 'datetime="2026-06-01T12:00:00+00:00"' in words.moment(NOON)


def test_a_moment_in_short_has_no_day_if_it_is_today_and_no_seconds_if_there_are_none() -> None:
    assert ">12:00 UTC<" in words.short_moment(NOON, NOON)
    assert ">12:00:05 UTC<" in words.short_moment(NOON + timedelta(seconds=5), NOON)
    assert ">Tue 2 Jun 12:00 UTC<" in words.short_moment(NOON + timedelta(days=1), NOON)


def test_every_outcome_has_a_kind_a_mark_and_a_word() -> None:
    kinds = {outcome: words.kind_of(outcome) for outcome in JobRun.Outcome.values}
    assert {outcome for outcome, kind in kinds.items() if kind == "good"} == {"succeeded", "enqueued"}
    assert {outcome for outcome, kind in kinds.items() if kind == "skipped"} == {
        "held",
        "missed",
        "paused",
        "condition",
    }
    assert {outcome for outcome, kind in kinds.items() if kind == "running"} == {"running"}
    for outcome in JobRun.Outcome.values:
        assert words.outcome_label(outcome) in words.outcome(outcome)


def test_an_outcome_of_another_version_is_shown_as_it_is() -> None:
    assert words.outcome("<new>").endswith("</span> &lt;new&gt;</span>")
    assert words.trigger("<new>") == "<new>"


def test_numbers_are_those_of_the_users_language() -> None:
    with translation.override("de"):
        assert words.length(2.5) == "2,5 s"


def test_a_long_text_is_cut() -> None:
    assert words.shortened("x" * 60) == "x" * 60
    assert words.shortened("x" * 61) == "x" * 59 + "…"
