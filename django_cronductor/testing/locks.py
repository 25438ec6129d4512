"""Locks for tests that have no lock store."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, TypeVar
from unittest import mock

from django.conf import settings
from django.test.utils import TestContextDecorator, override_settings

from django_cronductor.backends import LOCAL_BACKEND
from django_cronductor.backends.local import Store, _stores

F = TypeVar("F", bound=Callable[..., Any])


class local_locks(TestContextDecorator):  # noqa: N801 - Used like a function.
    """
    Keep `lock`, `try_lock` and `run_exclusive`, and what commands ask of jobs, in memory: a new one at each entry.

    A context manager, and a decorator of functions and of unittest classes, each of whose tests then has its own.
    """

    def __call__(self, decorated: F) -> F:
        """Return what is decorated, so that each call, or each test of the class, has a new store."""
        return super().__call__(decorated)

    def enable(self) -> None:
        """Begin with a store in which nobody holds anything."""
        prefix = f"test-{secrets.token_hex(6)}"
        given = getattr(settings, "CRONDUCTOR", {})
        self._settings = override_settings(CRONDUCTOR={**given, "BACKEND": LOCAL_BACKEND, "PREFIX": prefix})
        # Put there beforehand: who made it would warn that other processes do not see it.
        self._store: Any = mock.patch.dict(_stores, {prefix: Store()})
        self._store.start()
        self._settings.enable()

    def disable(self) -> None:
        """Go back to the store that the settings name."""
        self._settings.disable()
        self._store.stop()
