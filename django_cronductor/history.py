"""The history of runs in the database: one writer, one connection, in batches; nothing else waits for it."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured
from django.db import DataError, Error, IntegrityError, connections, reset_queries, router, transaction
from django.db.models import F, Max, Model, Q, QuerySet

from django_cronductor.backends.base import Seeds
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.instants import as_stored, from_stored, to_datetime
from django_cronductor.logs import get_logger
from django_cronductor.masking import describe, mask, storable
from django_cronductor.models import LEFT_OUT, SKIPPED, DeclaredJob, JobRun, for_writing
from django_cronductor.records import DeadRecord, JobRecord, OpenRun, RunRecord, SkipRecord

logger = get_logger(__name__)

T = TypeVar("T")
Texts = dict[str, str]
Answer = Callable[[bool], object]

ROWS_PER_QUERY = 200
ROWS_PER_PASS = 200
"""Records that nobody waits for, written before those are looked for again that somebody does."""
GATHER_REST = 0.25
"""Seconds in which what nobody waits for gathers, while runs are started: then it takes little of their time."""
MOST_OPEN = 1_000
"""Runs without an end that are looked at together."""
SEEN_EVERY = 60.0
"""Seconds after which the jobs of a replica are noted as seen again."""
CHECK_WAIT = 3.0
"""Seconds that the start waits for the database to say which tables it has."""
CLOSE_WAIT = 1.0
"""Seconds that the end waits for the thread, which may hang with its database."""
IDLE = 2.0
"""Seconds without work after which the connection may go: a new one for every run would make all of them late."""
RETRY_BATCH = 1.0
"""Seconds before a batch that the database did not take is written again."""
MOST_WAITING = 20_000
"""Records that wait for a database that does not answer; what comes then is left out."""
MOST_TRACEBACKS = 1_000
"""Records that may wait before the next come without their tracebacks, which are long."""


@dataclass
class _Batch:
    """What is to be written, in the order in which it is written."""

    questions: list[tuple[list[tuple[str, str]], Callable[[list[Seeds]], object]]] = field(default_factory=list)
    begun: list[tuple[RunRecord, Answer]] = field(default_factory=list)
    jobs: dict[str, JobRecord] = field(default_factory=dict)
    seen: dict[str, JobRecord] = field(default_factory=dict)
    dead: list[DeadRecord] = field(default_factory=list)
    ended: dict[str, tuple[RunRecord, Texts]] = field(default_factory=dict)
    skipped: list[SkipRecord] = field(default_factory=list)
    lookers: list[Callable[[list[OpenRun]], object]] = field(default_factory=list)
    given_up: list[tuple[OpenRun, Callable[[], object]]] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.questions or self.jobs or self.seen or self.lookers or self.given_up or len(self))

    def __len__(self) -> int:
        return len(self.begun) + len(self.dead) + len(self.ended) + len(self.skipped)

    @property
    def is_awaited(self) -> bool:
        """Tell whether somebody waits for a part of it."""
        return bool(self.questions or self.begun)

    def clear(self) -> None:
        """Forget all of it; the runs may start."""
        self.let_start()
        lookers = self.lookers
        self.__dict__.update(vars(_Batch()))
        for tell in lookers:
            tell([])

    def let_start(self) -> None:
        """Let nobody wait: runs start without their rows, which are written when the database takes them."""
        asked, self.questions = self.questions, []
        for wanted, tell in asked:
            tell([Seeds()] * len(wanted))
        waiting, self.begun = self.begun, [(run, _nobody) for run, _ in self.begun]
        for _, answer in waiting:
            answer(True)

    def before(self, later: _Batch) -> _Batch:
        """Return this and what came later as one."""
        return _Batch(
            self.questions + later.questions,
            self.begun + later.begun,
            self.jobs | later.jobs,
            self.seen | later.seen,
            self.dead + later.dead,
            self.ended | later.ended,
            self.skipped + later.skipped,
            self.lookers + later.lookers,
            self.given_up + later.given_up,
        )


class DatabaseHistory:
    """
    Writes runs to the database, in a thread of its own, or with `inline=True` in the caller's.

    A database that fails is tried again, and reported once per outage: what is to be written waits for it, and no run
    does. `keep` runs are kept per job, and as many rows of occurrences that were not run.
    """

    def __init__(self, keep: int, *, inline: bool = False) -> None:
        self._keep = keep
        self._inline = inline
        self._batch = _Batch()
        self._jobs: dict[str, JobRecord] = {}
        self._grown: dict[str, int] = {}
        """Rows written of each job since it was pruned."""
        self._over: dict[str, None] = {}
        """Jobs to prune."""
        self._changed = threading.Condition(threading.RLock())
        self._writing = False
        self._flushing = 0
        """How many wait until all is written."""
        self._rest_at = 0.0
        """When, on the monotonic clock, what nobody waits for may be written."""
        self._closed = False
        self._failing = False
        self._left_out = 0
        self._seen_at = 0.0
        self._thread: threading.Thread | None = None

    def check(self) -> None:
        """Raise ConfigurationError if the tables are missing; a database that does not answer is waited for later."""
        answer: SimpleQueue[list[str] | Exception] = SimpleQueue()

        def look() -> None:
            try:
                answer.put(_what_is_missing())
            except Exception as error:  # noqa: BLE001 - Raised again below, by who waits for it.
                answer.put(error)

        try:
            self._call(look)
            found = answer.get(timeout=CHECK_WAIT)
        except Empty:
            found = Error(f"it has not answered for {CHECK_WAIT:g} s")
        if isinstance(found, Error):
            self._failed(found)
        elif isinstance(found, ImproperlyConfigured):
            raise ConfigurationError(f'{found} CRONDUCTOR["HISTORY"] can be 0: no history is kept then.') from found
        elif isinstance(found, Exception):
            raise found
        elif found:
            raise ConfigurationError(
                f"The database has no {' and no '.join(found)}: run migrate first, or set "
                'CRONDUCTOR["HISTORY"] to 0 to keep no history.'
            )

    def seeds(self, keys: Sequence[str], fingerprints: Sequence[str], timeout: float) -> list[Seeds]:
        """Return what is known of each job; nothing, where the database does not tell within `timeout` seconds."""
        answer: SimpleQueue[list[Seeds]] = SimpleQueue()
        wanted = list(zip(keys, fingerprints, strict=True))

        def ask(batch: _Batch) -> None:
            batch.questions.append((wanted, answer.put))
            if self._failing:
                batch.let_start()

        self._add(ask)
        try:
            return answer.get(timeout=0 if self._inline else timeout)
        except Empty:
            logger.warning("The database did not tell within %g s what it knows of the jobs.", timeout)
            self._failed("it does not answer")
            return [Seeds()] * len(wanted)

    def declared(self, jobs: Iterable[JobRecord]) -> None:
        """Note the jobs that this replica has declared."""
        found = {job.key: job for job in jobs}
        self._jobs |= found
        self._add(lambda batch: batch.jobs.update(found))

    def dropped(self, keys: Iterable[str]) -> None:
        """Note jobs that this replica has no longer."""
        for key in keys:
            self._jobs.pop(key, None)

    def begun(self, run: RunRecord, answer: Answer) -> None:
        """Note a run that is about to start, and answer whether it may: at once, while the database fails."""

        def add(batch: _Batch) -> None:
            batch.begun.append((run, answer))
            if self._failing:
                batch.let_start()

        if not self._add(add):
            answer(True)

    def overdue(self) -> None:
        """Note that a run has started without its row, for the database did not take it in time."""
        self._failed("it does not answer")

    def ended(self, run: RunRecord) -> None:
        """Note how a run ended."""
        texts = {} if run.error is None else describe(run.error)
        if len(self._batch) >= MOST_TRACEBACKS:
            texts.pop("traceback", None)
        # Without the error itself: it holds all that its frames hold.
        self._add(lambda batch: batch.ended.update({run.id: (replace(run, error=None), texts)}))

    def skipped(self, skip: SkipRecord) -> None:
        """Note occurrences that were not run."""
        self._add(lambda batch: batch.skipped.append(skip))

    def abandoned(self, dead: DeadRecord) -> None:
        """Note a run whose holder died."""
        self._add(lambda batch: batch.dead.append(dead))

    def open_runs(self, answer: Callable[[list[OpenRun]], object]) -> None:
        """Answer which runs have no end yet, the oldest first and not all of many, when the database tells."""
        if not self._add(lambda batch: batch.lookers.append(answer)):
            answer([])

    def give_up(self, run: OpenRun, answer: Callable[[], object]) -> None:
        """Note that a run was abandoned, and answer if this is the first that is known of its end."""
        self._add(lambda batch: batch.given_up.append((run, answer)))

    def flush(self, timeout: float) -> bool:
        """Wait until all is written; tell whether it came to that within `timeout` seconds."""
        if self._inline:
            self._work()
        with self._changed:
            self._flushing += 1
            self._changed.notify_all()
            try:
                return self._changed.wait_for(lambda: not self._batch and not self._writing, timeout)
            finally:
                self._flushing -= 1

    def close(self) -> None:
        """Write no more, and let the thread end, for which it is waited unless the database hangs."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(CLOSE_WAIT)

    # The writer.

    def _add(self, add: Callable[[_Batch], object]) -> bool:
        """Let something wait to be written; tell whether there was room for it."""
        with self._changed:
            if len(self._batch) >= MOST_WAITING:
                self._leave_out()
                return False
            add(self._batch)
            if not self._inline and self._thread is None:
                self._thread = self._call(self._run)
            self._changed.notify_all()
        if self._inline:
            self._work()
        return True

    def _leave_out(self) -> None:
        self._left_out += 1
        if self._left_out == 1:
            logger.error("The history is %d records behind: what comes is left out until they are fewer.", MOST_WAITING)

    def _call(self, work: Callable[[], object]) -> threading.Thread | None:
        """Do it here, or in a thread that leaves no connection behind."""
        if self._inline:
            work()
            return None

        def guarded() -> None:
            try:
                work()
            finally:
                connections.close_all()

        thread = threading.Thread(target=guarded, name="cronductor-history", daemon=True)
        thread.start()
        return thread

    def _run(self) -> None:
        while self._wait():
            self._note_seen()
            reset_queries()
            if not self._write_batch():
                with self._changed:
                    self._changed.wait_for(lambda: self._closed, RETRY_BATCH)
                    if self._closed:
                        return

    def _wait(self) -> bool:
        """Wait for work; tell whether there may be some. While none comes, no connection is kept that need not be."""
        with self._changed:
            if not self._changed.wait_for(self._is_wanted, IDLE):
                drop_stale_connections()
                self._changed.wait_for(self._is_wanted, SEEN_EVERY)
            self._changed.wait_for(self._is_urgent, max(0.0, self._rest_at - time.monotonic()))
            return bool(self._batch) or not self._closed

    def _is_wanted(self) -> bool:
        return self._has_work() or self._closed

    def _is_urgent(self) -> bool:
        return self._batch.is_awaited or self._rest_is_due()

    def _rest_is_due(self) -> bool:
        return self._inline or self._closed or self._flushing > 0 or time.monotonic() >= self._rest_at

    def _has_work(self) -> bool:
        return bool(self._batch or self._over)

    def _work(self) -> None:
        while self._has_work() and self._write_batch():
            pass

    def _write_batch(self) -> bool:
        """Write of what has come; tell whether the database took it. What it did not take waits, in its order."""
        with self._changed:
            batch, self._batch = self._batch, _Batch()
            self._writing = True
        try:
            taken = self._try_to_write(batch)
        finally:
            with self._changed:
                self._batch = batch.before(self._batch)
                if self._failing:
                    self._batch.let_start()
                self._writing = False
                self._changed.notify_all()
        return taken

    def _try_to_write(self, batch: _Batch) -> bool:
        if not (batch or self._over):
            return True
        try:
            try:
                self._write(batch)
            except Error:
                drop_stale_connections()
                if self._failing:
                    raise
                # A connection that was cut while it was idle, or replicas that waited for each other's rows: no outage.
                self._write(batch)
        except Error as error:
            drop_stale_connections()
            self._failed(error)
            return False
        except Exception:  # Of a router of the project's, say; and one of ours must not hold up what comes after it.
            logger.exception("A part of the history could not be written and is left out.")
            batch.clear()
        else:
            self._answered()
        return True

    def _write(self, batch: _Batch) -> None:
        """Write of a batch what somebody waits for and some of the rest, taking out of it what is written."""
        busy = batch.is_awaited
        self._answer_questions(batch)
        self._write_begun(batch)
        if not self._rest_is_due():
            return
        self._write_jobs(batch)
        self._write_dead(batch)
        self._write_ended(batch)
        self._write_skipped(batch)
        self._look_for_open_runs(batch)
        self._write_given_up(batch)
        if self._over:
            self._prune(next(iter(self._over)))
        if busy or not (batch or self._over):
            self._rest_at = time.monotonic() + GATHER_REST

    def _answer_questions(self, batch: _Batch) -> None:
        while batch.questions:
            wanted, answer = batch.questions[0]
            jobs: dict[str, DeclaredJob] = {}
            runs: dict[str, tuple[int | None, int | None]] = {}
            for part in _parts([key for key, _ in wanted]):
                known = for_writing(DeclaredJob).filter(key__in=part)
                jobs |= {job.key: job for job in known}
                newest = _for_writing().filter(job_key__in=part).order_by().values_list("job_key")
                runs |= {key: (slot, fence) for key, slot, fence in newest.annotate(Max("slot"), Max("fencing_token"))}
            del batch.questions[0]
            answer([_seeds_of(jobs.get(key), runs.get(key, (None, None)), fingerprint) for key, fingerprint in wanted])

    def _write_begun(self, batch: _Batch) -> None:
        while batch.begun:
            part = batch.begun[:ROWS_PER_QUERY]
            # Always in one order: replicas that wait for each other's rows would do so for ever.
            runs = sorted((run for run, _ in part), key=lambda run: (run.key, run.slot or 0))
            refused = {run.id for run in _store(runs, lambda some, plain: _insert([_run_row(run) for run in some]))}
            ours = set(_for_writing().filter(run_id__in=[run.id for run in runs]).values_list("run_id", flat=True))
            del batch.begun[: len(part)]
            for run, answer in part:
                answer(run.id in ours | refused)

    def _write_jobs(self, batch: _Batch) -> None:
        now = as_stored(datetime.now(timezone.utc))
        for part in _parts([batch.jobs[key] for key in sorted(batch.jobs)]):
            _store(part, lambda some, plain: _upsert([_job_row(job, now) for job in some]), DeclaredJob)
        batch.jobs.clear()
        for part in _parts([batch.seen[key] for key in sorted(batch.seen)]):
            rows = for_writing(DeclaredJob).filter(key__in=[job.key for job in part])
            known = {key: told for key, *told in rows.values_list("key", "fingerprint", "since")}
            rows.update(last_seen=now)
            # Deleted by hand, or written by a replica of another version.
            stale = [job for job in part if known.get(job.key) != [job.fingerprint, job.since]]
            if stale:
                _store(stale, lambda some, plain: _upsert([_job_row(job, now) for job in some]), DeclaredJob)
        batch.seen.clear()

    def _write_dead(self, batch: _Batch) -> None:
        for dead in batch.dead[:ROWS_PER_PASS]:
            _store([dead], lambda some, plain: _give_up(some[0]))
            del batch.dead[0]

    def _write_ended(self, batch: _Batch) -> None:
        part = list(batch.ended.values())[:ROWS_PER_PASS]
        if part:
            _store(part, _write_ends)
        for run, _ in part:
            del batch.ended[run.id]
            self._note_growth(run.key)

    def _write_skipped(self, batch: _Batch) -> None:
        for skip in batch.skipped[:ROWS_PER_PASS]:
            _store([skip], lambda some, plain: _note_skipped(some[0]))
            del batch.skipped[0]
            self._note_growth(skip.key)

    def _look_for_open_runs(self, batch: _Batch) -> None:
        while batch.lookers:
            rows = _for_writing().filter(outcome=JobRun.Outcome.RUNNING).order_by("id")[:MOST_OPEN]
            found = [_open_run(row) for row in rows]
            batch.lookers.pop()(found)

    def _write_given_up(self, batch: _Batch) -> None:
        now = as_stored(datetime.now(timezone.utc))
        while batch.given_up:
            run, answer = batch.given_up[0]
            row = _for_writing().filter(run_id=run.id, outcome=JobRun.Outcome.RUNNING)
            if row.update(outcome=JobRun.Outcome.ABANDONED, finished_at=now):
                answer()
            del batch.given_up[0]

    def _note_growth(self, key: str) -> None:
        """Prune a job from time to time, and at first: the process before this one may have ended before it did."""
        self._grown[key] = grown = self._grown.get(key, self._keep) + 1
        if grown > self._keep // 5:
            self._over[key] = None
            self._grown[key] = 0

    def _prune(self, key: str) -> None:
        """Delete some of what is over of a job's oldest rows, never one of a run that goes on."""
        del self._over[key]  # First: whatever comes of it, the next rows of the job bring it here again.
        rows = _for_writing().filter(job_key=key)
        newest = rows.filter(slot__isnull=False).order_by("-slot").values_list("pk", flat=True).first()
        finished = rows.exclude(outcome=JobRun.Outcome.RUNNING).order_by("-id")
        not_run = Q(attempt=SKIPPED) | Q(outcome__in=LEFT_OUT)
        for some in (finished.exclude(not_run), finished.filter(not_run)):
            over = list(some.values_list("pk", flat=True)[self._keep : self._keep + ROWS_PER_QUERY])
            # The newest slot stays: it is what a store that lost its data is seeded with.
            if over:
                _for_writing().filter(pk__in=[pk for pk in over if pk != newest]).delete()
            if len(over) == ROWS_PER_QUERY:
                self._over[key] = None  # There may be more; the starts that have come meanwhile go first.
                return

    def _note_seen(self) -> None:
        """Have the jobs of this replica written as seen, once in a while."""
        now = time.monotonic()
        if now - self._seen_at >= SEEN_EVERY:
            self._seen_at = now
            with self._changed:
                self._batch.seen = dict(self._jobs)

    def _failed(self, reason: object) -> None:
        with self._changed:
            first, self._failing = not self._failing, True
            self._batch.let_start()
        if first:
            logger.error("The database does not take the history of runs, which go on all the same: %s", mask(reason))

    def _answered(self) -> None:
        with self._changed:
            again, self._failing = self._failing, False
            left_out, self._left_out = self._left_out, 0
        if again:
            without = f" ({left_out} records were left out)" if left_out else ""
            logger.warning("The database takes the history of runs again%s.", without)


def open_history(keep: int, *, inline: bool) -> DatabaseHistory | None:
    """Return a history whose tables are there, None if none is to be kept. Raises ConfigurationError as its `check`."""
    if not keep:
        return None
    history = DatabaseHistory(keep, inline=inline)
    history.check()
    return history


def in_transaction() -> bool:
    """Tell whether the caller is in a transaction of the history's database, as in a test."""
    return bool(connections[router.db_for_write(JobRun)].in_atomic_block)


# --- Writing


def _store(
    items: Sequence[T], write: Callable[[Sequence[T], bool], object], model: type[Model] = JobRun
) -> Sequence[T]:
    """
    Write items together; where the database cannot store one of them, one by one. Return those that it cannot store.

    `write(items, plain)`: with `plain` in a form that any database can store.
    """
    try:
        _write_together(items, write, model, plain=False)
    except Exception as error:
        if not _is_about_the_data(error):
            raise
    else:
        return []
    if len(items) > 1:
        return [refused for item in items for refused in _store([item], write, model)]
    try:
        _write_together(items, write, model, plain=True)
    except Exception as error:
        if not _is_about_the_data(error):
            raise
        logger.exception("The database cannot store a record of the history, which is left out: %s", items[0])
        return items
    return []


def _write_together(
    items: Sequence[T], write: Callable[[Sequence[T], bool], object], model: type[Model], *, plain: bool
) -> None:
    with transaction.atomic(using=router.db_for_write(model)):
        write(items, plain)


def _is_about_the_data(error: Exception) -> bool:
    # 1366: MySQL has no such character in the column's character set, and calls that an OperationalError.
    return isinstance(error, (DataError, IntegrityError, ValueError, TypeError, OverflowError)) or (
        isinstance(error, Error) and error.args[:1] == (1366,)
    )


def _insert(rows: list[JobRun]) -> None:
    """Insert rows, but those whose like is there."""
    JobRun.objects.bulk_create(rows, ignore_conflicts=True)


def _upsert(rows: list[DeclaredJob]) -> None:
    features = connections[router.db_for_write(DeclaredJob)].features
    unique = ["key"] if features.supports_update_conflicts_with_target else None
    fields = ["app_label", "expression", "timezone", "fingerprint", "enabled", "since", "last_seen"]
    DeclaredJob.objects.bulk_create(rows, update_conflicts=True, unique_fields=unique, update_fields=fields)


def _write_ends(ends: Sequence[tuple[RunRecord, Texts]], plain: bool) -> None:
    values = {run.id: _end_of(run, texts, plain) for run, texts in ends}
    if len(values) > 1 and _update_together(values):
        return
    strangers = [run for run, _ in ends if not _for_writing().filter(run_id=run.id).update(**values[run.id])]
    # Runs that went on although another's row has their slot, or that have none: they get one of no slot.
    _insert([_run_row(run, slot=None, **values[run.id]) for run in strangers])


def _update_together(values: dict[str, dict[str, Any]]) -> bool:
    """
    Update the rows of runs by one statement; tell whether each has one.

    Django has none that takes other values for each row and is faster than one update after the other.
    """
    connection = connections[router.db_for_write(JobRun)]
    quote = connection.ops.quote_name
    names = list(dict.fromkeys(name for row in values.values() for name in row))
    fields: list[Any] = [JobRun._meta.get_field(name) for name in names]
    changes = ", ".join(f"{quote(field.column)} = %s" for field in fields)
    rows = [
        [field.get_db_prep_save(row.get(field.name, ""), connection) for field in fields] + [run_id]
        for run_id, row in values.items()
    ]
    with connection.cursor() as cursor:
        # The names are those of the model's own columns; the values are parameters.
        cursor.executemany(f"UPDATE {quote(JobRun._meta.db_table)} SET {changes} WHERE run_id = %s", rows)  # noqa: S608
        return bool(cursor.rowcount == len(rows))


def _give_up(dead: DeadRecord) -> None:
    rows = _for_writing().filter(job_key=dead.key, slot=dead.slot, attempt=dead.attempt)
    if dead.slot is None:
        rows = _for_writing().filter(job_key=dead.key, slot=None, fencing_token=dead.fencing_token)
    now = as_stored(datetime.now(timezone.utc))
    unfinished = rows.filter(outcome=JobRun.Outcome.RUNNING)
    if not unfinished.update(outcome=JobRun.Outcome.ABANDONED, finished_at=now) and not rows.exists():
        _insert([_dead_row(dead, now)])


def _note_skipped(skip: SkipRecord) -> None:
    at = as_stored(to_datetime(skip.slot))
    newest = _for_writing().filter(job_key=skip.key).order_by("-id").first()
    if newest is None or newest.attempt != SKIPPED or newest.outcome != skip.reason:
        _insert([_skip_row(skip, at)])
        return
    # A job that is held or paused for long fills one row, not all of them.
    rows = _for_writing().filter(pk=newest.pk).exclude(slot__gte=skip.slot)
    holder = storable(skip.holder, 300)
    rows.update(count=F("count") + skip.count, slot=skip.slot, scheduled_at=at, finished_at=at, holder=holder)


def _nobody(may_start: bool) -> None:
    """Hear an answer that nobody waits for."""


def _what_is_missing() -> list[str]:
    """Return which tables are missing, or which columns: the code may be newer than the tables."""
    connection = connections[router.db_for_write(JobRun)]
    missing = []
    with connection.cursor() as cursor:
        tables = connection.introspection.table_names(cursor)
        for model in (DeclaredJob, JobRun):
            table = model._meta.db_table
            if table not in tables:
                missing.append(f"table {table}")
                continue
            there = {column.name for column in connection.introspection.get_table_description(cursor, table)}
            wanted = [field.column for field in model._meta.concrete_fields]
            missing += [f"column {table}.{column}" for column in wanted if column not in there]
    return missing


def drop_stale_connections() -> None:
    """Do as Django does after a request, but leave a connection in a transaction: that of a test."""
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:
            connection.close_if_unusable_or_obsolete()


# --- Rows


def _open_run(row: JobRun) -> OpenRun:
    began = None if row.started_at is None else from_stored(row.started_at)
    return OpenRun(row.run_id, row.job_key, row.slot, row.attempt, row.holder, row.fencing_token or 0, began)


def _job_row(job: JobRecord, now: datetime) -> DeclaredJob:
    return DeclaredJob(
        key=job.key,
        app_label=storable(job.app_label, 200),
        expression=storable(job.expression, 1000),
        timezone=storable(job.timezone, 100),
        fingerprint=storable(job.fingerprint, 100),
        enabled=job.enabled,
        since=job.since,
        last_seen=now,
    )


def _run_row(run: RunRecord, **changes: Any) -> JobRun:
    values: dict[str, Any] = {
        "run_id": run.id,
        "job_key": run.key,
        "slot": run.slot,
        "attempt": run.attempt,
        "trigger": run.trigger,
        "scheduled_at": None if run.slot is None else as_stored(to_datetime(run.slot)),
        "started_at": as_stored(run.started_at),
        "lateness": run.lateness,
        "holder": storable(run.holder, 300),
        "fencing_token": run.fencing_token,
    }
    return JobRun(**values | changes)


def _end_of(run: RunRecord, texts: Texts, plain: bool) -> dict[str, Any]:
    if plain:
        texts = {name: text.encode("ascii", "backslashreplace").decode() for name, text in texts.items()}
    return {
        "outcome": run.outcome,
        "started_at": as_stored(run.started_at),
        "lateness": run.lateness,
        "finished_at": as_stored(run.started_at + timedelta(seconds=run.duration)),
        "duration": run.duration,
        "task_result_id": storable(run.task_result_id, 500),
        **texts,
    }


def _dead_row(dead: DeadRecord, now: datetime) -> JobRun:
    return JobRun(
        run_id=uuid.uuid4().hex,
        job_key=dead.key,
        slot=dead.slot,
        attempt=dead.attempt,
        outcome=str(JobRun.Outcome.ABANDONED),
        scheduled_at=None if dead.slot is None else as_stored(to_datetime(dead.slot)),
        finished_at=now,
        holder=storable(dead.holder, 300),
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
        holder=storable(skip.holder, 300),
    )


def _seeds_of(job: DeclaredJob | None, newest: tuple[int | None, int | None], fingerprint: str) -> Seeds:
    slot, fence = newest
    paused = None if job is None else job.paused_at is not None
    since = job.since if job is not None and job.fingerprint == fingerprint else None
    return Seeds(occurrence=slot, fence=fence, paused=paused, since=since)


def _for_writing() -> QuerySet[JobRun]:
    return for_writing(JobRun)


def _parts(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[start : start + ROWS_PER_QUERY] for start in range(0, len(items), ROWS_PER_QUERY))
