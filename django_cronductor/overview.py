"""What is known of all jobs: from the code, the database, and live from the lock store."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Literal, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import Error, connections, router
from django.db.models import OuterRef, QuerySet, Subquery

from django_cronductor.backends import create_backend
from django_cronductor.backends.base import SILENCE, JobState, LockBackend
from django_cronductor.conf import Config, get_config
from django_cronductor.exceptions import BackendError, ConfigurationError
from django_cronductor.instants import from_stored, to_datetime
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.jobs import registry as default_registry
from django_cronductor.masking import mask
from django_cronductor.models import LEFT_OUT, SKIPPED, DeclaredJob, JobRun
from django_cronductor.schedules import Schedule
from django_cronductor.waiting import NoAnswer, within

T = TypeVar("T")
Status = Literal["running", "dead", "gone", "disabled", "paused", "idle"]

ROWS_PER_QUERY = 10_000
"""Where the database has no limit of its own."""
SILENT = timedelta(milliseconds=SILENCE)


@dataclass(frozen=True)
class Holder:
    """
    Who holds a job's lease, or held it last.

    `left` is what the lease has left, in seconds, 0 where it has ended: its holder died. None: nobody holds it, or it
    is not known. `ended` and `outcome` are those of the last one; None and "" where it goes on. `fencing_token` None:
    not known.
    """

    instance: str
    since: datetime | None
    left: float | None
    fencing_token: int | None
    live: bool
    outcome: str = ""
    ended: datetime | None = None


@dataclass(frozen=True)
class JobView:
    """
    A job as an operator sees it.

    `job` and `schedule` are those of this process's code; None: it is no longer declared here. `row` is the
    database's; None: no runcron with a history has declared it. `state` is the lock store's; None: it could not be
    asked, or it is in the memory of another process. `last_run` is the newest run that has begun, not an occurrence
    that was skipped; `last_success` the newest that succeeded or was enqueued; `running` the newest that has no end in
    the history. `next_run` is in UTC; that of a disabled or paused job is when it would be. `now` is the overview's.
    """

    key: str
    now: datetime
    job: Job | None = None
    schedule: Schedule | None = None
    row: DeclaredJob | None = None
    state: JobState | None = None
    state_error: str | None = None
    last_run: JobRun | None = None
    last_success: JobRun | None = None
    running: JobRun | None = None
    next_run: datetime | None = None

    @property
    def status(self) -> Status:
        """Return the one word that matters most; `dead`: its holder died, and nobody was told of it yet."""
        holder = self.holder
        if holder is not None and holder.ended is None:
            return "running" if holder.live else "dead"
        if self.job is None:
            return "gone"
        if not self.job.enabled:
            return "disabled"
        return "paused" if self.paused else "idle"

    @property
    def live(self) -> bool:
        """Tell whether the lock store says so, and not the history."""
        return self.state is not None

    @property
    def paused(self) -> bool:
        """Tell whether no occurrence of it runs: as the store has it, and the row until it is declared there."""
        if self.state is not None and (self.state.paused or self.state.since is not None):
            return self.state.paused
        return self.row is not None and self.row.paused_at is not None

    @property
    def requested_at(self) -> datetime | None:
        """Return when a run was asked for that nobody has taken yet."""
        if self.state is not None:
            return None if self.state.requested is None else to_datetime(self.state.requested)
        at = None if self.row is None else self.row.run_requested_at
        return None if at is None else from_stored(at)

    @property
    def holder(self) -> Holder | None:
        """Return who holds the lease, or held it last: as the store has it, or else the history."""
        return _holder_of(self.running or self.last_run) if self.state is None else _holder_in(self.state, self.now)


@dataclass(frozen=True)
class Overview:
    """
    All jobs, by key, and what they depend on.

    `backend` is the lock store in words, without a secret; empty if it cannot be made. `shared` False: the store is in
    the memory of the process that runs the jobs, so that states come from the history. `history` False: none is kept.
    `store_error` and `database_error` say in plain words what could not be asked. `now` is the store's time if it
    answered, else this machine's. `instances` are the replicas heard of in the last minute with their last heartbeats;
    None: it cannot be told.
    """

    jobs: list[JobView]
    backend: str
    shared: bool
    history: bool
    now: datetime
    store_error: str | None = None
    database_error: str | None = None
    instances: dict[str, datetime] | None = None

    def is_silent(self, instance: str) -> bool:
        """Tell whether a replica was not heard of for so long that it is dead, or hangs."""
        return self.instances is not None and self.now - self.instances[instance] > SILENT


def get_overview(
    keys: Collection[str] | None = None,
    *,
    backend: LockBackend | None = None,
    registry: JobRegistry = default_registry,
    database_wait: float | None = None,
) -> Overview:
    """
    Return what is known of the jobs of these keys, or of all: those declared here, and those in the database.

    A few queries, and a call of the store for each thousand jobs. `database_wait`: seconds to wait for a database
    that may hang, which is asked in a thread then. Raises ConfigurationError if a setting is wrong.
    """
    config = get_config()
    declared = {job.key: job for job in registry if keys is None or job.key in keys}
    records = _records(keys, config, database_wait)
    found = sorted(declared.keys() | records.rows.keys())
    store = _ask_backend(found, backend, config)
    views = [_view(key, declared.get(key), records, store, config.timezone) for key in found]
    return Overview(
        views,
        backend=store.backend,
        shared=store.shared,
        history=config.history > 0,
        now=store.now,
        store_error=store.error,
        database_error=records.error,
        instances=store.instances,
    )


def _view(key: str, job: Job | None, records: _Records, store: _Store, timezone: str) -> JobView:
    row = records.rows.get(key)

    def run(name: str) -> JobRun | None:
        """Return the run whose id the job's row has been given under that name."""
        return records.runs.get(getattr(row, name, None) or 0)

    schedule = None if job is None else job.schedule(timezone)
    state = store.states.get(key)
    successes = [found for found in (run("last_success_id"), run("last_enqueued_id")) if found is not None]
    return JobView(
        key,
        store.now,
        job=job,
        schedule=schedule,
        row=row,
        state=None if isinstance(state, BackendError) else state,
        state_error=str(state) if isinstance(state, BackendError) else None,
        last_run=run("last_run_id"),
        last_success=max(successes, key=lambda found: found.pk, default=None),
        running=run("running_id"),
        next_run=None if schedule is None else schedule.next_after(store.now),
    )


def _holder_in(state: JobState, now: datetime) -> Holder | None:
    lease, last = state.lease, state.last
    if lease is not None:
        since = None if state.started is None else to_datetime(state.started)
        left = None if state.expires is None else max(0.0, state.expires / 1000 - now.timestamp())
        return Holder(lease.holder, since, left, lease.fence, left is None or left > 0)
    if last is None:
        return None
    started, ended = to_datetime(last.started), to_datetime(last.ended)
    return Holder(last.holder, started, None, last.fence, False, last.outcome, ended)


def _holder_of(run: JobRun | None) -> Holder | None:
    if run is None:
        return None
    since = None if run.started_at is None else from_stored(run.started_at)
    if run.outcome == str(JobRun.Outcome.RUNNING):
        return Holder(run.holder, since, None, run.fencing_token, True)
    ended = since if run.finished_at is None else from_stored(run.finished_at)
    return Holder(run.holder, since, None, run.fencing_token, False, run.outcome, ended)


# --- The database


@dataclass(frozen=True)
class _Records:
    rows: dict[str, DeclaredJob] = field(default_factory=dict)
    runs: dict[int, JobRun] = field(default_factory=dict)
    error: str | None = None


def _records(keys: Collection[str] | None, config: Config, wait: float | None) -> _Records:
    if not config.history:
        return _Records()
    try:
        return within(wait, lambda: _read_database(keys))
    except NoAnswer as error:
        return _Records(error=f"The database cannot be read: {error}.")


def _read_database(keys: Collection[str] | None) -> _Records:
    try:
        rows = {row.key: row for row in _rows(keys)}
        return _Records(rows, _runs_of(rows.values()))
    except (Error, ImproperlyConfigured) as error:
        return _Records(error=mask(f"The database cannot be read: {error}"))


def _rows(keys: Collection[str] | None) -> QuerySet[DeclaredJob]:
    """Return the jobs, each with the ids of its runs that matter: one step in an index for each."""
    begun = _newest().filter(attempt__gt=SKIPPED).exclude(outcome__in=LEFT_OUT)
    rows: QuerySet[DeclaredJob] = DeclaredJob.objects.annotate(
        last_run_id=_first(begun),
        last_success_id=_first(_newest().filter(outcome=JobRun.Outcome.SUCCEEDED)),
        last_enqueued_id=_first(_newest().filter(outcome=JobRun.Outcome.ENQUEUED)),
        running_id=_first(_newest().filter(outcome=JobRun.Outcome.RUNNING)),
    )
    return rows if keys is None else rows.filter(key__in=keys)


def _newest() -> QuerySet[JobRun]:
    rows: QuerySet[JobRun] = JobRun.objects.filter(job_key=OuterRef("key")).order_by("-id")
    return rows


def _first(rows: QuerySet[JobRun]) -> Subquery:
    return Subquery(rows.values("pk")[:1])


def _runs_of(rows: Iterable[DeclaredJob]) -> dict[int, JobRun]:
    names = ("last_run_id", "last_success_id", "last_enqueued_id", "running_id")
    wanted = sorted({getattr(row, name) for row in rows for name in names} - {None})
    most = connections[router.db_for_read(JobRun)].features.max_query_params or ROWS_PER_QUERY
    runs: dict[int, JobRun] = {}
    for start in range(0, len(wanted), most):
        # Tracebacks are long, and nobody looks at a thousand of them.
        part = JobRun.objects.filter(pk__in=wanted[start : start + most]).defer("traceback")
        runs |= {run.pk: run for run in part}
    return runs


# --- The lock store


@dataclass(frozen=True)
class _Store:
    now: datetime
    backend: str = ""
    shared: bool = True
    states: dict[str, JobState | BackendError] = field(default_factory=dict)
    instances: dict[str, datetime] | None = None
    error: str | None = None


def _ask_backend(keys: Sequence[str], backend: LockBackend | None, config: Config) -> _Store:
    machine = datetime.now(timezone.utc)
    if backend is not None:
        return _ask(keys, backend, machine)
    try:
        backend = create_backend(config)
    except ConfigurationError as error:
        return _Store(machine, error=str(error))
    try:
        return _ask(keys, backend, machine)
    finally:
        backend.close()


def _ask(keys: Sequence[str], backend: LockBackend, machine: datetime) -> _Store:
    words = ""
    try:
        words = backend.describe()
        if not backend.shared:  # It is the memory of this process, and the jobs run in another.
            return _Store(machine, words, shared=False)
        reply, seen = backend.survey(keys)
        states = dict(zip(keys, reply.answers, strict=True))
        instances = {name: to_datetime(at) for name, at in seen.items()}
        return _Store(to_datetime(reply.now), words, True, states, instances)
    except (BackendError, ConfigurationError) as error:
        return _Store(machine, words, backend.shared, error=str(error))
