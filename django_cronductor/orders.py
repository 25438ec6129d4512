"""What operators order of a process that keeps the lock store in its own memory, where no other can reach it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone

from django.db import Error, connections, reset_queries
from django.db.models import Q, QuerySet

from django_cronductor.backends.base import REQUEST_LIFETIME, JobState, LockBackend
from django_cronductor.exceptions import CronductorError
from django_cronductor.history import drop_stale_connections
from django_cronductor.instants import from_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.logs import get_logger
from django_cronductor.masking import mask
from django_cronductor.models import DeclaredJob, for_writing
from django_cronductor.operations import take_lease_away
from django_cronductor.records import History

logger = get_logger(__name__)

LOOK_EVERY = 1.0
"""Seconds from one look at the orders to the next."""
LIFETIME = timedelta(milliseconds=REQUEST_LIFETIME)
"""How long an order to run or to release a job counts: one that nobody carried out is not to come as a surprise."""
STOP_WAIT = 1.0
"""Seconds that the end waits for the thread, which may hang with its database."""


@contextmanager
def taking_orders(backend: LockBackend, registry: JobRegistry, history: History | None) -> Iterator[None]:
    """Carry out orders meanwhile, where the backend is in this process's memory and there is a database to ask."""
    if backend.shared or history is None:
        yield
        return
    orders = Orders(backend, registry, history)
    orders.start()
    try:
        yield
    finally:
        orders.stop()


class Orders:
    """
    Looks once a second for orders in the database and carries them out on a backend of this process.

    A pause is obeyed for as long as it stands there; an order to run or to release is taken once, and no later than a
    minute after it was given. All in a thread of its own: the loop never waits for the database.
    """

    def __init__(self, backend: LockBackend, registry: JobRegistry, history: History) -> None:
        self._backend = backend
        self._registry = registry
        self._history = history
        self._failing = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="cronductor-orders", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join(STOP_WAIT)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(LOOK_EVERY):
                self.look()
                reset_queries()
        finally:
            connections.close_all()

    def look(self) -> None:
        """Carry out what is ordered now; a database that fails is told of once, and asked again."""
        try:
            self._carry_out(list(_ordered()))
        except Error as error:
            drop_stale_connections()
            if not self._failing:
                logger.error("The database does not tell what operators have ordered: %s", mask(error))
            self._failing = True
        except Exception:  # Whatever is wrong with one order, the next are to be seen.
            logger.exception("An order could not be carried out.")
        else:
            self._failing = False

    def _carry_out(self, rows: list[DeclaredJob]) -> None:
        self._obey_pauses({row.key for row in rows if row.paused_at is not None})
        for row in rows:
            if self._take(row, "run_requested_at"):
                self._request(row.key)
            if self._take(row, "release_requested_at"):
                self._release(row.key)

    def _obey_pauses(self, wanted: set[str]) -> None:
        for state in self._states(job.key for job in self._registry):
            if state.key in wanted and not state.paused:
                self._backend.pause(state.key)
            elif state.paused and state.key not in wanted:
                self._backend.resume(state.key)

    def _states(self, keys: Iterable[str]) -> list[JobState]:
        answers = self._backend.states(list(keys)).answers
        return [state for state in answers if isinstance(state, JobState) and state.since is not None]

    def _take(self, row: DeclaredJob, column: str) -> bool:
        """Clear an order, and tell whether it is to be carried out: once, and while it counts."""
        at: datetime | None = getattr(row, column)
        if at is None or not for_writing(DeclaredJob).filter(pk=row.pk, **{column: at}).update(**{column: None}):
            return False
        if datetime.now(timezone.utc) - from_stored(at) <= LIFETIME:
            return True
        what = "run" if column == "run_requested_at" else "release"
        text = "%s: the order to %s it is more than a minute old and is not carried out."
        logger.warning(text, row.key, what, extra={"job": row.key})
        return False

    def _request(self, key: str) -> None:
        if not self._backend.request_run(key):
            logger.warning("%s is not run as ordered: it is not declared here.", key, extra={"job": key})

    def _release(self, key: str) -> None:
        job = self._registry.get(key) if key in self._registry else None
        try:
            dead = take_lease_away(key, job, self._backend, "an order", self._history)
        except CronductorError as error:
            logger.error("%s: its lease was not released as ordered: %s", key, error, extra={"job": key})
            return
        if dead is None:
            logger.info("%s: nobody holds the lease that was to be released.", key, extra={"job": key})


def _ordered() -> QuerySet[DeclaredJob]:
    nothing = Q(paused_at=None, run_requested_at=None, release_requested_at=None)
    rows: QuerySet[DeclaredJob] = for_writing(DeclaredJob).exclude(nothing).order_by("key")
    return rows
