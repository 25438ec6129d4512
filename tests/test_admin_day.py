"""The last day of a job: lanes, gaps, overlaps, and how far back it is known."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone as django_timezone

from django_cronductor.admin.day import MOST_LANES, Day
from django_cronductor.admin.pictures import Span, Timeline
from django_cronductor.instants import as_stored
from django_cronductor.models import JobRun
from django_cronductor.schedules import Schedule

NOON = datetime(2026, 6, 1, 12, tzinfo=timezone.utc)
MIDNIGHT = NOON - timedelta(hours=12)
HOURLY = Schedule("0 * * * *")
YESTERDAY = NOON - timedelta(days=2)


def run(hours: float, minutes: float = 10, outcome: str = "succeeded", **values: Any) -> JobRun:
    """Return a run that began that many hours before noon and took so many minutes."""
    began = NOON - timedelta(hours=hours)
    ended = None if outcome == "running" else began + timedelta(minutes=minutes)
    defaults: dict[str, Any] = {"slot": int(began.timestamp() * 1000), "holder": "web-1", "duration": minutes * 60}
    return JobRun(scheduled_at=began, started_at=began, finished_at=ended, outcome=outcome, **defaults | values)


def skip(hours: float, outcome: str = "held", count: int = 1) -> JobRun:
    at = NOON - timedelta(hours=hours)
    return JobRun(
        slot=int(at.timestamp() * 1000), scheduled_at=at, finished_at=at, outcome=outcome, count=count, attempt=-1
    )


def drawn(day: Day) -> Timeline:
    return day.picture()


def lane(picture: Timeline, name: str) -> list[Span]:
    [found] = [lane for lane in picture.lanes if lane.name == name]
    return list(found.spans)


def kinds(spans: Any) -> list[str]:
    return [span.kind for span in spans]


def test_each_replica_has_a_lane_and_the_last_is_what_did_not_run() -> None:
    rows = [run(1, holder="web-2"), skip(2), run(3), run(4, outcome="failed")]
    picture = drawn(Day(rows, NOON, known_since=YESTERDAY))
    assert [lane.name for lane in picture.lanes] == ["web-2", "web-1", "not run"]
    assert kinds(lane(picture, "web-1")) == ["bad", "good"]
    assert kinds(lane(picture, "not run")) == ["skipped"]


def test_a_run_is_where_it_began_and_as_long_as_it_took() -> None:
    [span] = lane(drawn(Day([run(12, minutes=360)], NOON, known_since=YESTERDAY)), "web-1")
    assert (span.start, span.end) == (0.5, 0.75)
    assert span.title == "00:00:00 succeeded, 6 h"


def test_a_run_that_goes_on_reaches_until_now() -> None:
    [span] = lane(drawn(Day([run(6, outcome="running")], NOON, known_since=YESTERDAY)), "web-1")
    assert (span.start, span.end, span.kind) == (0.75, 1.0, "running")


def test_two_runs_at_once_are_marked_across_all_lanes() -> None:
    day = Day([run(2, minutes=30, holder="web-2"), run(2.25, minutes=30)], NOON, known_since=YESTERDAY)
    [overlap] = drawn(day).across
    assert overlap.kind == "overlap"
    assert overlap.title == "Two runs at once for 15 min"
    assert "1 overlap." in day.summary()


def test_runs_that_follow_each_other_do_not_overlap() -> None:
    day = Day([run(1, minutes=60), run(2, minutes=60)], NOON, known_since=YESTERDAY)
    assert drawn(day).across == []
    assert "no overlaps." in day.summary()


def test_occurrences_without_a_record_are_a_gap() -> None:
    rows = [run(hours) for hours in range(1, 24) if hours not in (5, 6, 9)]
    day = Day(rows, NOON, HOURLY, known_since=YESTERDAY)
    gaps = [span for span in lane(drawn(day), "not run") if span.kind == "gap"]
    assert [gap.title for gap in gaps] == [
        "No record of 1 occurrence: 03:00:00",
        "No records of 2 occurrences: 06:00:00 - 07:00:00",
    ]
    assert "3 occurrences without a record" in day.summary()


def test_a_row_that_stands_for_several_occurrences_leaves_no_gap() -> None:
    # Held or paused for long: one row, which has the newest of them.
    rows = (
        [run(hours) for hours in range(1, 5)] + [skip(5, "paused", count=15)] + [run(hours) for hours in range(20, 24)]
    )
    assert kinds(lane(drawn(Day(rows, NOON, HOURLY, known_since=YESTERDAY)), "not run")) == ["skipped"]


def test_what_came_during_a_run_that_goes_on_is_no_gap() -> None:
    rows = [run(3, outcome="running")] + [run(hours) for hours in range(4, 24)]
    assert kinds(lane(drawn(Day(rows, NOON, HOURLY, known_since=YESTERDAY)), "not run")) == []


def test_the_newest_occurrence_may_not_have_been_written_yet() -> None:
    rows = [run(hours) for hours in range(1, 24)]
    assert kinds(lane(drawn(Day(rows, NOON, HOURLY, known_since=YESTERDAY)), "not run")) == []


def test_nothing_was_expected_before_the_schedule_was_declared() -> None:
    day = Day([run(1), run(20)], NOON, HOURLY, known_since=YESTERDAY, scheduled_since=NOON - timedelta(hours=2))
    assert kinds(lane(drawn(day), "not run")) == []


def test_nothing_is_expected_without_a_schedule() -> None:
    assert kinds(lane(drawn(Day([run(1), run(20)], NOON, known_since=YESTERDAY)), "not run")) == []


def test_reaches_back_a_day_or_as_far_as_the_history() -> None:
    whole = Day([run(1)], NOON, HOURLY, known_since=YESTERDAY)
    assert not whole.is_cut
    assert "from 12:00:00 to 12:00:00" in drawn(whole).title
    pruned = Day([run(1), run(2)], NOON, HOURLY)
    assert pruned.is_cut
    assert pruned.known_since == NOON - timedelta(hours=2)
    assert "from 10:00:00 to 12:00:00" in drawn(pruned).title
    assert drawn(pruned).across == []


def test_what_is_before_a_history_of_some_minutes_is_marked_as_unknown() -> None:
    day = Day([run(0.05, minutes=1)], NOON)
    [unknown] = drawn(day).across
    assert unknown.kind == "unknown"
    assert (unknown.start, round(unknown.end, 3)) == (0.0, 0.7)


def test_runs_before_the_day_are_left_out() -> None:
    assert Day([run(30)], NOON, known_since=YESTERDAY).summary() == "No runs in the last 24 hours."
    assert "1 succeeded" in Day([run(30, minutes=400)], NOON, known_since=YESTERDAY).summary()


def test_no_rows_at_all_are_a_day_without_runs() -> None:
    day = Day([], NOON)
    assert day.summary() == "No runs in the last 24 hours."
    assert [lane.name for lane in drawn(day).lanes] == ["not run"]


def test_the_newest_replicas_have_lanes_and_the_others_share_one() -> None:
    rows = [run(hours, minutes=1, holder=f"web-{hours}") for hours in range(1, 21)]
    lanes = drawn(Day(rows, NOON, known_since=YESTERDAY)).lanes
    assert len(lanes) == MOST_LANES + 1
    assert [lanes[0].name, lanes[-2].name] == ["web-1", "9 other replicas"]
    assert len(lanes[-2].spans) == 9


def test_the_axis_has_round_times_of_the_users_clock() -> None:
    with django_timezone.override("Asia/Kathmandu"):  # UTC+05:45
        ticks = list(drawn(Day([run(1)], NOON, known_since=YESTERDAY)).ticks)
    assert [label for _place, label in ticks] == [
        "18:00",
        "21:00",
        "00:00",
        "03:00",
        "06:00",
        "09:00",
        "12:00",
        "15:00",
    ]
    # 00:00 there is 18:15 UTC.
    assert {label: place for place, label in ticks}["00:00"] == pytest.approx(6.25 / 24)


def test_a_short_history_has_an_axis_of_minutes() -> None:
    ticks = [label for _place, label in drawn(Day([run(0.5)], NOON)).ticks]
    assert ticks == ["11:30", "11:35", "11:40", "11:45", "11:50", "11:55", "12:00"]


def test_a_job_of_every_second_takes_no_time_to_draw() -> None:
    rows = [run(number / 3600, minutes=0.005) for number in range(1, 500)]
    began = datetime.now(timezone.utc)
    drawn(Day(rows, NOON, Schedule("* * * * * *"), known_since=YESTERDAY))
    assert datetime.now(timezone.utc) - began < timedelta(seconds=2)


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_runs_of_the_hour_that_comes_twice_do_not_overlap_where_times_are_naive() -> None:
    rows = []
    for hour in (1, 0):
        began = datetime(2024, 10, 27, hour, 30, tzinfo=timezone.utc)
        slot, ended = int(began.timestamp() * 1000), began + timedelta(minutes=10)
        times = {"scheduled_at": as_stored(began), "started_at": as_stored(began), "finished_at": as_stored(ended)}
        rows.append(JobRun(slot=slot, outcome="succeeded", holder="web-1", duration=600, **times))
    day = Day(rows, datetime(2024, 10, 27, 12, tzinfo=timezone.utc))
    assert day.summary() == "2 succeeded, on 1 replica, no overlaps."
