"""The clock of this machine, and the one that tests move."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from django_cronductor.clock import SystemClock
from django_cronductor.testing import ManualClock
from django_cronductor.testing.clock import START


class TestSystemClock:
    def test_the_wall_clock_is_the_machines(self) -> None:
        before = time.time()
        assert before <= SystemClock().time() <= time.time()

    def test_the_monotonic_clock_never_goes_back(self) -> None:
        clock = SystemClock()
        moments = [clock.monotonic() for _ in range(1000)]
        assert moments == sorted(moments)

    def test_the_monotonic_clock_is_one_that_runs_on_in_suspend_where_there_is_one(self) -> None:
        steady = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        before = time.clock_gettime(steady)
        assert before <= SystemClock().monotonic() <= time.clock_gettime(steady)

    def test_without_such_a_clock_pythons_own_is_used(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(SystemClock, "_steady", None)
        before = time.monotonic()
        assert before <= SystemClock().monotonic() <= time.monotonic()


class TestManualClock:
    def test_it_stands_still_until_it_is_moved(self) -> None:
        clock = ManualClock()
        assert (clock.time(), clock.monotonic()) == (clock.time(), clock.monotonic())
        assert clock.time() == START.timestamp()

    def test_both_clocks_advance_together(self) -> None:
        clock = ManualClock(100)
        before = clock.monotonic()
        clock.advance(2.5)
        assert clock.time() == 102.5
        assert clock.monotonic() - before == 2.5

    def test_small_steps_add_up_exactly(self) -> None:
        clock = ManualClock(0)
        for _ in range(1000):
            clock.advance(0.001)
        assert clock.time() == 1.0

    def test_the_monotonic_clock_does_not_notice_that_the_wall_clock_is_set(self) -> None:
        clock = ManualClock()
        before = clock.monotonic()
        clock.set_time(START - timedelta(hours=8))
        assert clock.time() == START.timestamp() - 8 * 3600
        assert clock.monotonic() == before

    def test_a_moment_is_given_in_seconds_or_as_an_aware_datetime_or_as_text(self) -> None:
        there = datetime(2026, 3, 29, 3, 0, 0, 1500, tzinfo=timezone(timedelta(hours=2)))
        assert ManualClock(there).time() == ManualClock(there.timestamp()).time() == there.timestamp()
        assert ManualClock("2026-03-29T03:00:00.001500+02:00").time() == there.timestamp()
        assert ManualClock("2026-03-29T01:00:00.001500Z").time() == there.timestamp()

    def test_time_does_not_go_back_by_itself(self) -> None:
        with pytest.raises(ValueError, match="use set_time"):
            ManualClock().advance(-1)

    def test_a_naive_datetime_is_refused(self) -> None:
        with pytest.raises(ValueError, match="give an aware datetime"):
            ManualClock(datetime(2026, 1, 5))
