"""
What an operator does: run a job now, pause it, resume it, release its lease.

Where the lock store is shared, it is done at once. The single-instance store is in the memory of the process that runs
the jobs: there an order is left in the database, which runcron carries out within a second or two.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from functools import partial
from typing import Any

from django.db import Error, router, transaction

from django_cronductor.backends.base import (
    MANUAL,
    REQUEST_LIFETIME,
    SILENCE,
    DeadRun,
    JobState,
    LockBackend,
    new_token,
)
from django_cronductor.conf import get_config
from django_cronductor.exceptions import BackendError, CronductorError
from django_cronductor.history import SEEN_EVERY, DatabaseHistory
from django_cronductor.instants import as_stored, from_stored, to_datetime
from django_cronductor.jobs import Job, JobRegistry, not_found
from django_cronductor.jobs import registry as default_registry
from django_cronductor.keys import LONGEST_KEY, plain
from django_cronductor.logs import get_logger
from django_cronductor.masking import mask, storable
from django_cronductor.models import DeclaredJob, JobRun, for_writing
from django_cronductor.records import DeadRecord, History
from django_cronductor.runner import send
from django_cronductor.waiting import NoAnswer, within

logger = get_logger(__name__)

ROWS_PER_DELETE = 500
NOT_PAUSED: dict[str, Any] = {"paused_at": None, "paused_by": "", "pause_note": ""}
CORRECTIONS = 3
"""How often a pause is written again where others change it at the same time."""
NOT_SEEN = timedelta(seconds=3 * SEEN_EVERY)
"""A job that no replica has noted as seen for so long has none that runs it."""


class Refused(CronductorError):
    """The operation makes no sense as things are; the text says why, and what to do."""


class DatabaseFailed(CronductorError):
    """The database cannot be asked; its error is the cause."""

    def __init__(self, error: Error) -> None:
        super().__init__(mask(f"The database failed: {error}"))


@dataclass(frozen=True)
class Done:
    """
    What an operation came to.

    `ordered`: it is left to runcron as an order in the database. `unrecorded`: why the database could not note it, in
    plain words; what was asked of the lock store is done all the same. `run`: the run whose lease was released, None if
    there was none, or if it is ordered. `repeated`: it was asked before, and was not asked again.
    """

    key: str
    ordered: bool = False
    unrecorded: str | None = None
    run: DeadRun | None = None
    repeated: bool = False


def request_run(
    key: str,
    *,
    backend: LockBackend,
    by: str,
    registry: JobRegistry = default_registry,
    database_wait: float | None = None,
    once: str = "",
) -> Done:
    """
    Ask the replicas to run a job now, once, paused or not: the first that has a worker free, for a minute.

    `once` is a name for it: what is asked again under this name, within a minute, is not asked of a shared store.

    This and its like raise JobNotFound for a job that nobody knows, Refused where it could come to nothing, and
    BackendError or DatabaseFailed if the store or the database failed. `database_wait`: seconds to wait for a database
    that may hang, which is asked in a thread then.
    """
    key, job = _find(key, backend, registry, database_wait)
    if job is not None and not job.enabled:
        raise Refused(f"{key} is disabled in the code (enabled=False): no replica would run it.")
    if not backend.shared:
        _order(key, "run_requested_at", database_wait)
    elif not _anybody_lives(backend):
        raise Refused("No replica is alive that could run it: start runcron.")
    elif once and not backend.acquire(f"asked {once}", new_token(), REQUEST_LIFETIME, by).fence:
        return Done(key, repeated=True)
    elif not backend.request_run(key):
        raise Refused(f"No replica has declared {key} to the lock store yet: start runcron on the version that has it.")
    _note("%s: a run was requested by %s.", key, by)
    return Done(key, ordered=not backend.shared)


def _anybody_lives(backend: LockBackend) -> bool:
    reply, heard_of = backend.survey([])
    return any(reply.now - at <= SILENCE for at in heard_of.values())


def pause(
    key: str,
    *,
    backend: LockBackend,
    by: str,
    note: str = "",
    registry: JobRegistry = default_registry,
    database_wait: float | None = None,
) -> Done:
    """Let no occurrence of a job run until `resume`; a run in progress goes on."""
    key, _ = _find(key, backend, registry, database_wait)
    now = as_stored(datetime.now(timezone.utc))
    values = {"paused_at": now, "paused_by": storable(by, 200), "pause_note": storable(note)}
    done = _set_pause(key, backend, True, values, database_wait)
    _note("%s was paused by %s.", key, by)
    return done


def resume(
    key: str,
    *,
    backend: LockBackend,
    by: str,
    registry: JobRegistry = default_registry,
    database_wait: float | None = None,
) -> Done:
    """Let a paused job run again, from its next occurrence on."""
    key, _ = _find(key, backend, registry, database_wait)
    done = _set_pause(key, backend, False, NOT_PAUSED, database_wait)
    _note("%s was resumed by %s.", key, by)
    return done


def release(
    key: str,
    *,
    backend: LockBackend,
    by: str,
    registry: JobRegistry = default_registry,
    database_wait: float | None = None,
) -> Done:
    """
    Take the lease of a job away from its holder, whose run is reported as abandoned.

    A holder that lives is told that its lease is lost, and may go on with its work until it looks.
    """
    key, job = _find(key, backend, registry, database_wait)
    if not backend.shared:
        _order(key, "release_requested_at", database_wait)
        _note("%s: the release of its lease was ordered by %s.", key, by)
        return Done(key, ordered=True)
    return Done(key, run=take_lease_away(key, job, backend, by, wait=database_wait))


def take_lease_away(
    key: str,
    job: Job | None,
    backend: LockBackend,
    by: str,
    history: History | None = None,
    wait: float | None = None,
) -> DeadRun | None:
    """Release a lease by force in the store at hand, and report the run that had it; None if none had."""
    state = backend.states([key]).answers[0]
    if isinstance(state, BackendError):
        raise state
    dead = None if state.lease is None else backend.force_release(key)
    if dead is None:
        return None
    slot = None if dead.run == MANUAL else int(dead.run)
    at = None if slot is None else to_datetime(slot)
    fields = {"scheduled_at": at, "outcome": "abandoned", "holder": dead.holder, "fencing_token": dead.fence}
    _note("%s: its lease, held by %s, was released by %s.", key, dead.holder, by, **fields)
    keep = get_config().history
    if history is None and keep:
        history = DatabaseHistory(keep, inline=True)
    if history is not None:
        record = DeadRecord(key, slot, dead.attempt, dead.holder, dead.fence)
        with suppress(NoAnswer):
            within(wait, partial(history.abandoned, record))
    send("run_abandoned", job, {"job": key, **fields}, key=key, scheduled_at=at, holder=dead.holder)
    return dead


@dataclass(frozen=True)
class GoneJob:
    """A job in the database that is not declared here. `kept` says why it is not to be deleted; None: it can be."""

    row: DeclaredJob
    runs: int
    kept: str | None

    @property
    def key(self) -> str:
        """Return its key."""
        return self.row.key


def gone_jobs(
    older_than: timedelta, *, backend: LockBackend, registry: JobRegistry = default_registry
) -> list[GoneJob]:
    """Return the jobs in the database that are not declared here, by key, and what speaks against forgetting them."""
    try:
        rows = [row for row in for_writing(DeclaredJob).order_by("key") if row.key not in registry]
        runs = {row.key: JobRun.objects.filter(job_key=row.key).count() for row in rows}
    except Error as error:
        raise DatabaseFailed(error) from error
    now = datetime.now(timezone.utc)
    states: list[JobState | BackendError | None] = [None] * len(rows)
    if backend.shared:
        reply = backend.states([row.key for row in rows])
        states, now = list(reply.answers), to_datetime(reply.now) if reply.now else now
    return [
        GoneJob(row, runs[row.key], _reason_to_keep(row, state, now, max(older_than, NOT_SEEN)))
        for row, state in zip(rows, states, strict=True)
    ]


def prune(job: GoneJob, *, backend: LockBackend, registry: JobRegistry = default_registry) -> bool:
    """Delete a job's runs and row and forget it in the store; False if a replica has declared it meanwhile."""
    if job.kept is not None or job.key in registry:
        raise Refused(f"{job.key} is not deleted: {job.kept or 'it is declared here'}.")
    try:
        row = for_writing(DeclaredJob).filter(pk=job.row.pk, last_seen=job.row.last_seen)
        if not row.exists():
            return False
        _delete_runs(job.key)
        if backend.shared:
            backend.forget(job.key)
        gone = bool(row.delete()[0])
    except Error as error:
        raise DatabaseFailed(error) from error
    _note("%s is no longer declared, and is forgotten with its %d runs.", job.key, job.runs)
    return gone


def _span(age: timedelta) -> str:
    minutes = age.total_seconds() / 60
    return f"{minutes:.0f} minutes" if minutes < 48 * 60 else f"{age.days} days"


def _reason_to_keep(
    row: DeclaredJob, state: JobState | BackendError | None, now: datetime, age: timedelta
) -> str | None:
    if isinstance(state, BackendError):
        return "the lock store fails on it"
    if now - from_stored(row.last_seen) < age:
        return f"a replica has declared it in the last {_span(age)}"
    if state is None:
        return None
    if state.lease is not None:
        return "somebody holds its lease, or died with it"
    # The rows may be old because the database was away: a replica that has it decides its occurrences.
    if state.occurrence is not None and now - to_datetime(state.occurrence) < age:
        return f"a replica has decided an occurrence of it in the last {_span(age)}"
    return None


def _delete_runs(key: str) -> None:
    """Delete all runs of a job, some at a time: there may be a million."""
    rows = for_writing(JobRun).filter(job_key=key)
    while some := list(rows.values_list("pk", flat=True)[:ROWS_PER_DELETE]):
        for_writing(JobRun).filter(pk__in=some).delete()


def _find(key: str, backend: LockBackend, registry: JobRegistry, wait: float | None) -> tuple[str, Job | None]:
    """Return what `find_job` does, and the key as the stores have it."""
    job = find_job(key, backend, registry, wait)
    return plain(key), job


def find_job(key: str, backend: LockBackend, registry: JobRegistry, wait: float | None) -> Job | None:
    """
    Return the job as it is declared here, None if it is known from the database or the store alone.

    Raises JobNotFound, naming the nearest keys, if nobody knows it.
    """
    if key in registry:
        return registry.get(key)
    known: set[str] = set()
    with suppress(Error):  # The store may know it.
        if get_config().history:
            known = within(wait, lambda: set(DeclaredJob.objects.values_list("key", flat=True)))
    if key not in known and not _store_knows(key, backend):
        raise not_found(key, known | {job.key for job in registry})
    return None


def _store_knows(key: str, backend: LockBackend) -> bool:
    if not backend.shared or not isinstance(key, str) or len(key) > LONGEST_KEY:
        return False
    [state] = backend.states([key]).answers
    if isinstance(state, BackendError):
        raise state
    return state.since is not None


def _set_pause(key: str, backend: LockBackend, paused: bool, values: dict[str, Any], wait: float | None) -> Done:
    if not backend.shared:
        _must_keep_history()
        if (reason := _update(key, values, wait)) is not None:
            raise CronductorError(reason)
        return Done(key, ordered=True)
    # The store first: it is what the replicas obey.
    (backend.pause if paused else backend.resume)(key)
    if not get_config().history:
        return Done(key, unrecorded='no history is kept (CRONDUCTOR["HISTORY"] is 0).')
    try:
        return Done(key, unrecorded=_note_pause(key, backend, paused, values, wait))
    except DatabaseFailed as error:
        return Done(key, unrecorded=str(error))


def _note_pause(key: str, backend: LockBackend, paused: bool, values: dict[str, Any], wait: float | None) -> str | None:
    """Write it to the row, and what the store has where others came between: a lost store is filled from the row."""
    reason = _update(key, values, wait)
    for _ in range(CORRECTIONS):
        found = _is_paused(key, backend)
        if reason is not None or found is None or found is paused:
            break
        paused = found
        at = as_stored(datetime.now(timezone.utc)) if paused else None
        reason = _update(key, {**NOT_PAUSED, "paused_at": at}, wait)
    return reason


def _is_paused(key: str, backend: LockBackend) -> bool | None:
    """Tell what the store has; None if it does not answer."""
    with suppress(BackendError):
        [state] = backend.states([key]).answers
        return state.paused if isinstance(state, JobState) else None
    return None


def _order(key: str, column: str, wait: float | None) -> None:
    """Leave an order for the process that has the store in its memory."""
    _must_keep_history()
    now = datetime.now(timezone.utc)
    try:
        rows = DeclaredJob.objects
        seen = within(wait, lambda: rows.filter(key=key).values_list("last_seen", flat=True).first())
    except Error as error:
        raise DatabaseFailed(error) from error
    if seen is None or now - from_stored(seen) > NOT_SEEN:
        since = "yet" if seen is None else f"since {from_stored(seen):%Y-%m-%d %H:%M:%S} UTC"
        raise Refused(f"No runcron with {key} has been seen {since}: start it first.")
    if (reason := _update(key, {column: as_stored(now)}, wait)) is not None:
        raise CronductorError(reason)


def _must_keep_history() -> None:
    if not get_config().history:
        raise Refused(
            "The locks are in the memory of the process that runs the jobs, and without a history (CRONDUCTOR["
            '"HISTORY"] is 0) there is no way to tell it anything: keep a history, or use a shared lock backend.'
        )


def _update(key: str, values: dict[str, Any], wait: float | None) -> str | None:
    """Write to the job's row; return in plain words why there is none."""
    using = router.db_for_write(DeclaredJob)

    def update() -> int:
        with transaction.atomic(using=using):
            count: int = DeclaredJob.objects.using(using).filter(key=key).update(**values)
            return count

    try:
        found = within(wait, update)
    except Error as error:
        raise DatabaseFailed(error) from error
    return (
        None if found else f"No runcron that keeps a history has declared {key} yet, so the database has no row of it."
    )


def _note(text: str, key: str, *words: object, **fields: object) -> None:
    logger.warning(text, key, *words, extra={"job": key, **fields})
