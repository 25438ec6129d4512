"""Outages of the lock store: their first failures, and how long they lasted."""

from __future__ import annotations

import pytest

from django_cronductor.testing import ManualClock
from django_cronductor.trouble import Outage


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def outage(clock: ManualClock) -> Outage:
    return Outage(clock)


def test_it_begins_with_the_first_failure_only(outage: Outage) -> None:
    assert outage.failed("acquire")
    assert not outage.failed("acquire")
    assert not outage.failed("renew")


def test_it_ends_once_and_tells_how_long_it_lasted(clock: ManualClock, outage: Outage) -> None:
    outage.failed("acquire")
    clock.advance(5)
    outage.failed("acquire")
    clock.advance(2)
    assert outage.answered("acquire") == pytest.approx(7)
    assert outage.answered("acquire") is None


def test_an_answer_without_an_outage_ends_nothing(outage: Outage) -> None:
    assert outage.answered("acquire") is None


@pytest.mark.parametrize("last", ["acquire", "heartbeat"])
def test_it_lasts_while_any_phase_fails(clock: ManualClock, outage: Outage, last: str) -> None:
    first = "heartbeat" if last == "acquire" else "acquire"
    assert outage.failed(first)
    assert not outage.failed(last)
    clock.advance(1)
    assert outage.answered(first) is None
    assert not outage.failed(last)
    clock.advance(1)
    assert outage.answered(last) == pytest.approx(2)


def test_an_answer_in_another_phase_does_not_end_it(outage: Outage) -> None:
    assert outage.failed("renew")
    assert outage.answered("heartbeat") is None
    assert not outage.failed("renew")


def test_it_is_known_which_phases_fail(outage: Outage) -> None:
    assert not outage.is_failing("acquire")
    outage.failed("acquire")
    assert outage.is_failing("acquire")
    assert not outage.is_failing("renew")
    outage.answered("acquire")
    assert not outage.is_failing("acquire")


def test_the_first_failure_of_each_phase_is_told_from_the_others(outage: Outage) -> None:
    outage.failed("acquire")
    assert outage.is_first("acquire")
    outage.failed("renew")
    assert outage.is_first("renew")
    outage.failed("acquire")
    assert not outage.is_first("acquire")


def test_every_outage_has_first_failures_of_its_own(outage: Outage) -> None:
    outage.failed("acquire")
    outage.failed("acquire")
    outage.answered("acquire")
    assert outage.failed("acquire")
    assert outage.is_first("acquire")
