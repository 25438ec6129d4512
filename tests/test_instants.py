"""Instants as the database has them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

from django.test import override_settings

from django_cronductor.instants import as_stored, from_stored

SUMMER = datetime(2024, 7, 1, 12, 30, tzinfo=timezone.utc)


def test_with_time_zones_an_instant_is_stored_as_it_is() -> None:
    assert as_stored(SUMMER) is SUMMER
    assert from_stored(SUMMER.astimezone(timezone(timedelta(hours=5)))) == SUMMER
    assert from_stored(SUMMER).tzinfo is timezone.utc


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_without_them_it_is_stored_in_the_default_zone() -> None:
    assert as_stored(SUMMER) == datetime(2024, 7, 1, 14, 30)
    assert from_stored(as_stored(SUMMER)) == SUMMER
    assert from_stored(as_stored(SUMMER)).tzinfo is timezone.utc


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_of_a_time_that_comes_twice_the_second_is_meant_once_it_has_passed() -> None:
    first, second = (datetime(2024, 10, 27, hour, 30, tzinfo=timezone.utc) for hour in (0, 1))
    assert as_stored(first) == as_stored(second) == datetime(2024, 10, 27, 2, 30)
    assert from_stored(as_stored(first)) == second


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_of_a_time_that_comes_twice_the_one_is_meant_that_is_near_to_what_is_known() -> None:
    for hour in (0, 1):
        instant = datetime(2024, 10, 27, hour, 30, tzinfo=timezone.utc)
        assert from_stored(as_stored(instant), instant + timedelta(minutes=20)) == instant
    assert from_stored(as_stored(SUMMER), SUMMER + timedelta(hours=5)) == SUMMER


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_of_a_time_that_comes_twice_the_first_is_meant_while_the_second_is_to_come() -> None:
    first = datetime(2092, 10, 26, 0, 30, tzinfo=timezone.utc)
    assert from_stored(as_stored(first)) == first
