"""The errors that the package raises."""

from __future__ import annotations

import inspect

import pytest

import django_cronductor
from django_cronductor import exceptions
from django_cronductor.exceptions import (
    BackendError,
    BackendRefused,
    ConfigurationError,
    CronductorError,
    JobNotFound,
    LeaseLost,
    NotAcquired,
    Stopping,
    shown,
)

ALL = [BackendError, BackendRefused, ConfigurationError, JobNotFound, LeaseLost, NotAcquired, Stopping]


def test_every_error_is_listed_here() -> None:
    defined = {value for value in vars(exceptions).values() if inspect.isclass(value)}
    assert defined == {CronductorError, *ALL}


@pytest.mark.parametrize("error", ALL)
def test_one_clause_catches_every_error_of_the_package(error: type[Exception]) -> None:
    assert issubclass(error, CronductorError)


@pytest.mark.parametrize("error", [CronductorError, *ALL])
def test_every_error_can_be_imported_from_the_package_and_says_what_it_is(error: type[Exception]) -> None:
    assert getattr(django_cronductor, error.__name__) is error
    assert error.__name__ in django_cronductor.__all__
    assert error.__doc__


def test_errors_are_also_what_python_calls_such_errors() -> None:
    assert issubclass(ConfigurationError, ValueError)
    assert issubclass(JobNotFound, LookupError)


def test_a_refusal_is_a_failure_of_the_store() -> None:
    assert issubclass(BackendRefused, BackendError)


@pytest.mark.parametrize("password", ["pa55word", "pa/ss", "p@/ss", "12/34", ""])
def test_a_value_is_shown_without_the_password_in_its_url(password: str) -> None:
    assert shown(f"redis://ada:{password}@host/1") == "'redis://ada:***@host/1'"
    assert shown([f"redis://:{password}@host"]) == "['redis://:***@host']"


def test_a_value_without_a_password_is_shown_as_it_is() -> None:
    for value in ("redis://ada@host:6379/1", "redis://host:6379/1", "at 12:30 for ada@example.com"):
        assert shown(value) == repr(value)


@pytest.mark.parametrize("error", [NotAcquired, LeaseLost, Stopping])
def test_contention_and_loss_are_not_failures_of_the_store(error: type[Exception]) -> None:
    assert not issubclass(error, BackendError)
