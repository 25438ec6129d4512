"""What the arguments of a Scheduler must be."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, cast

from django_cronductor.backends.base import LockBackend
from django_cronductor.exceptions import ConfigurationError, shown
from django_cronductor.handlers import check_on_error
from django_cronductor.jobs import JobRegistry

MOST = 366 * 24 * 3600 * 1000
"""No number is larger: the longest of all lengths of time, in milliseconds."""


def check_arguments(**given: object) -> None:
    """Raise ConfigurationError, which names the argument, if one is not what it must be."""
    for name, value in given.items():
        fits, wanted = ARGUMENTS[name]
        if not fits(value):
            raise ConfigurationError(f"The {name} of a Scheduler must be {wanted}, not {shown(value)}.")
    if (on_error := given.get("on_error")) is not None:
        check_on_error(cast("Callable[..., object]", on_error), "The on_error of a Scheduler")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST


def _are_keys(value: object) -> bool:
    return isinstance(value, Collection) and not isinstance(value, (str, bytes))


ARGUMENTS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "registry": (lambda value: isinstance(value, JobRegistry), "a JobRegistry"),
    "backend": (lambda value: isinstance(value, LockBackend), "a LockBackend"),
    "default_ttl_ms": (_is_count, "a whole number of milliseconds"),
    "default_grace_ms": (_is_count, "a whole number of milliseconds"),
    "timezone": (lambda value: value is None or isinstance(value, str), "the name of a time zone"),
    "max_workers": (_is_count, "a whole number above 0"),
    "shutdown_timeout": (lambda value: isinstance(value, (int, float)) and 0 <= value <= MOST, "seconds"),
    "on_error": (lambda value: value is None or callable(value), "a function on_error(error, context)"),
    "only": (_are_keys, "a collection of keys"),
    "exclude": (_are_keys, "a collection of keys"),
    "instance": (lambda value: value is None or (isinstance(value, str) and value.isprintable()), "printable text"),
    "on_pass": (lambda value: value is None or callable(value), "a function"),
}
