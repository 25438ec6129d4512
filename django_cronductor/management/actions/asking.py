"""What the actions ask: the jobs of some keys, who gives an order, a lock backend to work on."""

from __future__ import annotations

import getpass
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from django_cronductor.backends import create_backend
from django_cronductor.backends.base import LockBackend
from django_cronductor.history import in_transaction
from django_cronductor.jobs import JobRegistry, not_found
from django_cronductor.overview import Overview, get_overview

DATABASE_WAIT = 5.0
"""Seconds that a command waits for a database which hangs."""


def get_views(keys: Sequence[str], registry: JobRegistry, backend: LockBackend | None = None) -> Overview:
    """Return these jobs, or all. Raises JobNotFound for a key that nobody knows."""
    wait = database_wait()
    overview = get_overview(keys or None, backend=backend, registry=registry, database_wait=wait)
    missing = set(keys) - {view.key for view in overview.jobs}
    if missing:
        known = {view.key for view in get_overview(backend=backend, registry=registry, database_wait=wait).jobs}
        raise not_found(min(missing), known)
    return overview


def database_wait() -> float | None:
    """Return the seconds to wait for the database; None in a transaction: as in a test, only this thread sees it."""
    return None if in_transaction() else DATABASE_WAIT


@contextmanager
def opened_backend() -> Iterator[LockBackend]:
    """Make the backend of the settings, and close it at the end."""
    backend = create_backend()
    try:
        yield backend
    finally:
        backend.close()


def operator() -> str:
    """Return who gives an order on the command line."""
    try:
        return f"{getpass.getuser()} on the command line"
    except (KeyError, OSError, ImportError):  # A process in a container may be of a user that has no name.
        return "the command line"
