"""Durations as users give them."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal

import pytest

from django_cronductor.durations import milliseconds
from django_cronductor.exceptions import ConfigurationError

YEAR = 366 * 86_400


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (30, 30_000),
        (0.3, 300),
        (0.001, 1),
        (0.0005001, 1),
        (1.0006, 1001),
        (timedelta(minutes=5), 300_000),
        (timedelta(milliseconds=1), 1),
        (YEAR, YEAR * 1000),
        (timedelta(days=366), YEAR * 1000),
    ],
)
def test_seconds_and_timedeltas_become_whole_milliseconds(value: object, expected: int) -> None:
    result = milliseconds(value, "ttl")
    assert result == expected
    assert type(result) is int


@pytest.mark.parametrize("value", [0, -1, -0.5, 0.0, 0.0001, timedelta(0), timedelta(seconds=-1), timedelta.min])
def test_what_is_not_positive_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"ttl must be at least 0\.001 seconds, not "):
        milliseconds(value, "ttl")


@pytest.mark.parametrize("value", [0, 0.0, timedelta(0)])
def test_zero_is_accepted_where_it_has_a_meaning(value: object) -> None:
    assert milliseconds(value, "SHUTDOWN_TIMEOUT", zero=True) == 0


@pytest.mark.parametrize("value", [-1, -0.0001, 0.0001, timedelta(microseconds=-1)])
def test_what_is_almost_zero_is_refused_also_where_zero_has_a_meaning(value: object) -> None:
    with pytest.raises(ConfigurationError, match="must be zero or more seconds"):
        milliseconds(value, "SHUTDOWN_TIMEOUT", zero=True)


@pytest.mark.parametrize(
    "value",
    [YEAR + 1, 1e300, pytest.param(10**400, id="huge"), float("inf"), timedelta(days=367), timedelta.max],
)
def test_more_than_a_year_is_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="ttl must be at most 366 days"):
        milliseconds(value, "ttl")


@pytest.mark.parametrize("value", [-1e300, pytest.param(-(10**400), id="huge"), float("-inf")])
def test_numbers_far_below_zero_are_refused_as_such(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"ttl must be at least 0\.001 seconds"):
        milliseconds(value, "ttl")


def test_what_is_not_a_number_at_all_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="not nan"):
        milliseconds(float("nan"), "ttl")


@pytest.mark.parametrize("value", ["30", None, True, False, b"1", Decimal(1), [1], 1j])
def test_other_types_are_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match="must be a number of seconds or a timedelta, not "):
        milliseconds(value, "The ttl of job shop.sync")


def test_errors_begin_with_what_the_user_called_it() -> None:
    with pytest.raises(ConfigurationError, match=r"^The ttl of job shop\.sync must"):
        milliseconds(-1, "The ttl of job shop.sync")
