"""The history of runs in the database: one writer, one connection, in batches; nothing else waits for it."""

from __future__ import annotations

import logging
import re
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from django.conf import settings
from django.db import Error, close_old_connections, connections, router, transaction
from django.db.models import F, Max, QuerySet
from django.utils import timezone as django_timezone

from django_cronductor.backends.base import Seeds
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.records import DeadRecord, JobRecord, RunRecord, SkipRecord

logger = logging.getLogger(__name__)

T = TypeVar("T")

SKIPPED = -1
"""The attempt of rows of occurrences that were not run."""

LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 20_000
ROWS_PER_QUERY = 200
SEEN_EVERY = 60.0
"""Seconds after which the jobs of a replica are noted as seen again."""
RETRY = 1.0
"""Seconds before a batch that the database did not take is written again."""
MOST_WAITING = 20_000
"""Records that wait for a database that does not answer; what is older goes."""


@dataclass
class _Batch:
    """What is to be written, in the order in which it is written."""

    questions: list[tuple[list[tuple[str, str]], Callable[[list[Seeds]], object]]] = field(default_factory=list)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    begun: list[tuple[RunRecord, Callable[[bool], object]]] = field(default_factory=list)
    dead: list[DeadRecord] = field(default_factory=list)
    ended: dict[str, RunRecord] = field(default_factory=dict)
    skipped: list[SkipRecord] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.questions or self.jobs or self.begun or self.dead or self.ended or self.skipped)

    def __len__(self) -> int:
        return len(self.begun) + len(self.dead) + len(self.ended) + len(self.skipped)

    def before(self, later: _Batch) -> _Batch:
        """Return this and what came later as one."""
        return _Batch(
            self.questions + later.questions,
            self.jobs | later.jobs,
            self.begun + later.begun,
            self.dead + later.dead,
            self.ended | later.ended,
            self.skipped + later.skipped,
        )


class DatabaseHistory:
    """
    Writes runs to the database, in a thread of its own, or with `inline=True` in the caller's.

    A database that fails is tried again, and reported once per outage: what is to be written waits for it. `keep` runs
    are kept per job, and as many rows of occurrences that were not run.
    """

    def __init__(self, keep: int, *, inline: bool = False) -> None:
        self._keep = keep
        self._inline = inline
        self._batch = _Batch()
        self._jobs: dict[str, JobRecord] = {}
        self._grown: dict[str, int] = {}
        self._changed = threading.Condition()
        self._writing = False
        self._closed = False
        self._failing = False
        self._seen_at = 0.0
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise ConfigurationError if the tables are missing; a database that does not answer is waited for later."""
        connection = connections[router.db_for_write(JobRun)]
        try:
            with connection.cursor() as cursor:
                tables = connection.introspection.table_names(cursor)
        except Error as error:
            self._failed(error)
            return
        missing = [model._meta.db_table for model in (DeclaredJob, JobRun) if model._meta.db_table not in tables]
        if missing:
            raise ConfigurationError(
                f"The database has no table {' and no table '.join(missing)}: run migrate first, or set "
                'CRONDUCTOR["HISTORY"] to 0 to keep no history.'
            )

    def seeds(self, keys: Sequence[str], fingerprints: Sequence[str], timeout: float) -> list[Seeds]:
        """Return what is known of each job; nothing, where the database does not tell within `timeout` seconds."""
        answer: SimpleQueue[list[Seeds]] = SimpleQueue()
        wanted = list(zip(keys, fingerprints, strict=True))
        self._add(lambda batch: batch.questions.append((wanted, answer.put)))
        try:
            return answer.get(timeout=timeout)
        except Empty:
            logger.warning("The database did not tell within %g s what it knows of the jobs.", timeout)
            return [Seeds()] * len(wanted)

    def declared(self, jobs: Iterable[JobRecord]) -> None:
        """Note the jobs that this replica has declared."""
        found = {job.key: job for job in jobs}
        self._jobs |= found
        self._add(lambda batch: batch.jobs.update(found))

    def begun(self, run: RunRecord, answer: Callable[[bool], object]) -> None:
        """Note a run that is about to start, and answer whether it may."""
        self._add(lambda batch: batch.begun.append((run, answer)))

    def ended(self, run: RunRecord) -> None:
        """Note how a run ended."""
        self._add(lambda batch: batch.ended.update({run.id: run}))

    def skipped(self, skip: SkipRecord) -> None:
        """Note occurrences that were not run."""
        self._add(lambda batch: batch.skipped.append(skip))

    def abandoned(self, dead: DeadRecord) -> None:
        """Note a run whose holder died."""
        self._add(lambda batch: batch.dead.append(dead))

    def flush(self, timeout: float) -> bool:
        """Wait until all is written; tell whether it came to that within `timeout` seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._batch and not self._writing, timeout)

    def close(self) -> None:
        """Write no more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # The writer.

    def _add(self, add: Callable[[_Batch], object]) -> None:
        with self._changed:
            if len(self._batch) >= MOST_WAITING:
                logger.error("The history has fallen %d records behind: dropping the next.", MOST_WAITING)
                return
            add(self._batch)
            if not self._inline and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="cronductor-history", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        if self._inline:
            self._write_batch()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._batch or self._closed, SEEN_EVERY)
                if self._closed and not self._batch:
                    return
            self._note_seen()
            if not self._write_batch():
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY)
                    if self._closed:
                        return
            close_old_connections()

    def _write_batch(self) -> bool:
        """Write what has come; tell whether the database took it. What it did not take waits, in its order."""
        with self._changed:
            batch, self._batch = self._batch, _Batch()
            self._writing = True
        try:
            self._write(batch)
        except Error as error:
            self._failed(error)
        except Exception:  # A record of ours that cannot be written must not hold up all others for ever.
            logger.exception("A part of the history could not be written and is left out.")
            batch = _Batch()
        else:
            self._answered()
        with self._changed:
            self._batch = batch.before(self._batch)
            self._writing = False
            self._changed.notify_all()
        return not batch

    def _write(self, batch: _Batch) -> None:
        """Write a batch, taking out of it what is written."""
        self._answer_questions(batch)
        self._write_jobs(batch)
        self._write_begun(batch)
        self._write_dead(batch)
        self._write_ended(batch)
        self._write_skipped(batch)
        for key in [key for key, grown in self._grown.items() if grown > self._keep // 5]:
            self._prune(key)
            del self._grown[key]

    def _answer_questions(self, batch: _Batch) -> None:
        while batch.questions:
            wanted, answer = batch.questions[0]
            jobs: dict[str, DeclaredJob] = {}
            runs: dict[str, tuple[int | None, int | None]] = {}
            for part in _parts([key for key, _ in wanted]):
                jobs |= {job.key: job for job in DeclaredJob.objects.filter(key__in=part)}
                newest = _for_writing().filter(job_key__in=part).order_by().values_list("job_key")
                runs |= {key: (slot, fence) for key, slot, fence in newest.annotate(Max("slot"), Max("fencing_token"))}
            del batch.questions[0]
            answer([_seeds_of(jobs.get(key), runs.get(key, (None, None)), fingerprint) for key, fingerprint in wanted])

    def _write_jobs(self, batch: _Batch) -> None:
        now = _stored(datetime.now(timezone.utc))
        rows = [
            DeclaredJob(
                key=job.key,
                app_label=job.app_label,
                expression=job.expression,
                timezone=job.timezone,
                fingerprint=job.fingerprint,
                enabled=job.enabled,
                since=job.since,
                last_seen=now,
            )
            for job in batch.jobs.values()
        ]
        fields = ["app_label", "expression", "timezone", "fingerprint", "enabled", "since", "last_seen"]
        features = connections[router.db_for_write(DeclaredJob)].features
        unique = ["key"] if features.supports_update_conflicts_with_target else None
        for part in _parts(rows):
            DeclaredJob.objects.bulk_create(part, update_conflicts=True, unique_fields=unique, update_fields=fields)
        batch.jobs.clear()

    def _write_begun(self, batch: _Batch) -> None:
        while batch.begun:
            part = batch.begun[:ROWS_PER_QUERY]
            ids = [run.id for run, _ in part]
            JobRun.objects.bulk_create([_run_row(run) for run, _ in part], ignore_conflicts=True)
            taken = set(_for_writing().filter(run_id__in=ids).values_list("run_id", flat=True))
            del batch.begun[: len(part)]
            for run, answer in part:
                answer(run.id in taken)

    def _write_dead(self, batch: _Batch) -> None:
        while batch.dead:
            dead = batch.dead[0]
            rows = _for_writing().filter(job_key=dead.key, slot=dead.slot, attempt=dead.attempt)
            if dead.slot is None:
                rows = _for_writing().filter(job_key=dead.key, slot=None, fencing_token=dead.fencing_token)
            now = _stored(datetime.now(timezone.utc))
            unfinished = rows.filter(outcome=JobRun.Outcome.RUNNING)
            if not unfinished.update(outcome=JobRun.Outcome.ABANDONED, finished_at=now) and not rows.exists():
                JobRun.objects.bulk_create([_dead_row(dead, now)], ignore_conflicts=True)
            del batch.dead[0]

    def _write_ended(self, batch: _Batch) -> None:
        while batch.ended:
            part = list(batch.ended.values())[:ROWS_PER_QUERY]
            with transaction.atomic(using=router.db_for_write(JobRun)):
                strangers = [run for run in part if not _for_writing().filter(run_id=run.id).update(**_end_of(run))]
                # Runs that went on although another's row has their slot, or that have none: they get one of no slot.
                rows = [_run_row(run, slot=None, **_end_of(run)) for run in strangers]
                JobRun.objects.bulk_create(rows, ignore_conflicts=True)
            for run in part:
                del batch.ended[run.id]
                self._grown[run.key] = self._grown.get(run.key, 0) + 1

    def _write_skipped(self, batch: _Batch) -> None:
        while batch.skipped:
            skip = batch.skipped[0]
            at = _stored(_instant(skip.slot))
            newest = _for_writing().filter(job_key=skip.key).order_by("-id").first()
            if newest is not None and newest.attempt == SKIPPED and newest.outcome == skip.reason:
                # A job that is held or paused for long fills one row, not all of them.
                changes = {"slot": skip.slot, "scheduled_at": at, "finished_at": at, "holder": skip.holder}
                rows = _for_writing().filter(pk=newest.pk).exclude(slot__gte=skip.slot)
                rows.update(count=F("count") + skip.count, **changes)
            else:
                JobRun.objects.bulk_create([_skip_row(skip, at)], ignore_conflicts=True)
                self._grown[skip.key] = self._grown.get(skip.key, 0) + 1
            del batch.skipped[0]

    def _prune(self, key: str) -> None:
        """Delete what is over of a job's oldest rows, never one of a run that goes on."""
        finished = _for_writing().filter(job_key=key).exclude(outcome=JobRun.Outcome.RUNNING).order_by("-id")
        for rows in (finished.exclude(attempt=SKIPPED), finished.filter(attempt=SKIPPED)):
            while over := list(rows.values_list("pk", flat=True)[self._keep : self._keep + ROWS_PER_QUERY]):
                _for_writing().filter(pk__in=over).delete()

    def _note_seen(self) -> None:
        """Have the jobs of this replica written as seen, once in a while."""
        now = time.monotonic()
        if now - self._seen_at >= SEEN_EVERY:
            self._seen_at = now
            with self._changed:
                self._batch.jobs = self._jobs | self._batch.jobs

    def _failed(self, error: Exception) -> None:
        if not self._failing:
            self._failing = True
            logger.error("The database does not take the history of runs, which go on all the same: %s", mask(error))

    def _answered(self) -> None:
        if self._failing:
            self._failing = False
            logger.warning("The database takes the history of runs again.")


# --- Rows


def _run_row(run: RunRecord, **changes: Any) -> JobRun:
    values: dict[str, Any] = {
        "run_id": run.id,
        "job_key": run.key,
        "slot": run.slot,
        "attempt": run.attempt,
        "trigger": run.trigger,
        "scheduled_at": None if run.slot is None else _stored(_instant(run.slot)),
        "started_at": _stored(run.started_at),
        "lateness": run.lateness,
        "holder": run.holder,
        "fencing_token": run.fencing_token,
    }
    return JobRun(**values | changes)


def _end_of(run: RunRecord) -> dict[str, Any]:
    values: dict[str, Any] = {
        "outcome": run.outcome,
        "started_at": _stored(run.started_at),
        "lateness": run.lateness,
        "finished_at": _stored(run.started_at + timedelta(seconds=run.duration)),
        "duration": run.duration,
    }
    if run.error is not None:
        values |= {
            "error_type": type(run.error).__qualname__[:200],
            "error_message": mask(run.error)[:LONGEST_MESSAGE],
            "traceback": mask("".join(traceback.format_exception(run.error)))[-LONGEST_TRACEBACK:],
        }
    return values


def _dead_row(dead: DeadRecord, now: datetime) -> JobRun:
    return JobRun(
        run_id=uuid.uuid4().hex,
        job_key=dead.key,
        slot=dead.slot,
        attempt=dead.attempt,
        outcome=str(JobRun.Outcome.ABANDONED),
        scheduled_at=None if dead.slot is None else _stored(_instant(dead.slot)),
        finished_at=now,
        holder=dead.holder,
        fencing_token=dead.fencing_token,
    )


def _skip_row(skip: SkipRecord, at: datetime) -> JobRun:
    return JobRun(
        run_id=uuid.uuid4().hex,
        job_key=skip.key,
        slot=skip.slot,
        attempt=SKIPPED,
        outcome=skip.reason,
        scheduled_at=at,
        finished_at=at,
        count=skip.count,
        holder=skip.holder,
    )


def _seeds_of(job: DeclaredJob | None, newest: tuple[int | None, int | None], fingerprint: str) -> Seeds:
    slot, fence = newest
    paused = None if job is None else job.paused_at is not None
    since = job.since if job is not None and job.fingerprint == fingerprint else None
    return Seeds(occurrence=slot, fence=fence, paused=paused, since=since)


def _for_writing() -> QuerySet[JobRun]:
    """Return the runs as the database that is written to has them: a reader may lag behind."""
    rows: QuerySet[JobRun] = JobRun.objects.using(router.db_for_write(JobRun))
    return rows


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + ROWS_PER_QUERY] for start in range(0, len(items), ROWS_PER_QUERY))


def _instant(epoch_ms: int) -> datetime:
    return datetime.fromtimestamp(epoch_ms / 1000, timezone.utc)


def _stored(instant: datetime) -> datetime:
    """Return an aware instant as the database has it: naive, in the default zone, where USE_TZ is off."""
    return instant if settings.USE_TZ else django_timezone.make_naive(instant, django_timezone.get_default_timezone())


# --- Secrets

_IN_URL = re.compile(r"(://[^/\s:@]*:)[^/\s]*(@)")
_NAMED = re.compile(
    r"""(?ix) ( (?: passw(?:or)?d | secret | token | api_?key | signature | authorization ) [\w-]{0,40}
        ["']? \s{0,9} [=:] \s{0,9} (?: (?: bearer | basic ) \s{1,9} )? ["']? ) [^\s"'&,;)}\]]+"""
)
HIDDEN = "********"


def mask(text: object) -> str:
    """Return a text with what looks like a secret, and the passwords of the settings, replaced."""
    masked = str(text)
    for secret in _secrets_of_settings():
        masked = masked.replace(secret, HIDDEN)
    return _NAMED.sub(rf"\1{HIDDEN}", _IN_URL.sub(rf"\1{HIDDEN}\2", masked))


def _secrets_of_settings() -> set[str]:
    found = {settings.SECRET_KEY, *(options.get("PASSWORD") for options in settings.DATABASES.values())}
    # Shorter ones are words that stand in any text.
    return {secret for secret in found if isinstance(secret, str) and len(secret) > 5}
