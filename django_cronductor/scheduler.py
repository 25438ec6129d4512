"""The loop of one replica: claiming what is due, running what it wins, waiting, draining."""

from __future__ import annotations

import contextlib
import heapq
from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Literal

from django.utils.timezone import get_default_timezone_name

from django_cronductor.agenda import Agenda, Entry
from django_cronductor.arguments import check_arguments
from django_cronductor.backends.base import (
    MANUAL,
    Claim,
    ClaimResult,
    Heartbeat,
    Lease,
    LockBackend,
    ReleaseResult,
    new_instance,
    new_token,
    rest_of,
)
from django_cronductor.clock import Clock, SystemClock
from django_cronductor.exceptions import (
    BackendError,
    BackendRefused,
    LeaseLost,
    NotAcquired,
    Stopping,
)
from django_cronductor.instants import to_datetime
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.leases import HeldLease, LeaseKeeper, deadline_of
from django_cronductor.logs import get_logger
from django_cronductor.orphans import Orphans
from django_cronductor.records import History, OpenRun, RunRecord
from django_cronductor.reports import Reports, count_occurrences
from django_cronductor.roster import Roster
from django_cronductor.runner import (
    ErrorContext,
    ErrorReports,
    Phase,
    Run,
    RunContext,
    Runner,
    Trigger,
    call_with_defaults,
)
from django_cronductor.store import StoreClock
from django_cronductor.trouble import Trouble
from django_cronductor.workers import WorkerPool

logger = get_logger(__name__)

CLAIMS_PER_CALL = 250
"""The most, as in one script of Redis: nothing is started of what was won before the answer to all of them comes."""
BATCHES_IN_VAIN = 3
"""Batches in a row that win nothing: from then on others are taken to be working on the same burst."""
SURELY_LATE = 1000
"""Milliseconds past its grace after which an occurrence cannot be won, however little we know the store's clock."""
LONGEST_WAIT = 1.0
"""Seconds: clock steps, suspends and changes in the registry are seen within it."""
EARLY = 0.003
"""Seconds before an instant at which the claim connection is touched: a cold call is most of a run's lateness."""
ROW_WAIT = 1.0
"""Seconds that a run waits for its row in the history; then it starts without."""
SEEDS_WAIT_AT_START = 5.0
"""Seconds that the start waits for what the history knows of the jobs."""
MOST_RESTS = 5
"""Times that a job's rest is waited out: one that begins again and again is a store that does not keep its data."""
MOST_NAMED = 20
"""Jobs named in one warning."""
LAST_WORDS = 3.0
"""Seconds that a drain waits for the answers to its last releases, and for receivers of its last signals."""


class Scheduler:
    """
    Runs the jobs of a registry, each occurrence only where it wins it in the backend.

    `run` blocks until `stop`; it may run in any thread. With `inline=True` handlers run in the caller's thread, one
    after the other, and `tick` makes one whole pass: for tests, and for one pass and no more. `timezone` None is
    Django's default zone. `only` and `exclude` are keys of jobs; `on_pass` is called at every pass of the loop.
    `history` is told of every run, and is what a store that lost its data is seeded from.
    """

    def __init__(
        self,
        registry: JobRegistry,
        backend: LockBackend,
        *,
        default_ttl_ms: int = 30_000,
        default_grace_ms: int = 300_000,
        timezone: str | None = None,
        max_workers: int = 8,
        shutdown_timeout: float = 25.0,
        on_error: Callable[[BaseException, ErrorContext], object] | None = None,
        only: Collection[str] = (),
        exclude: Collection[str] = (),
        instance: str | None = None,
        clock: Clock | None = None,
        inline: bool = False,
        on_pass: Callable[[], object] | None = None,
        history: History | None = None,
    ) -> None:
        check_arguments(
            registry=registry,
            backend=backend,
            default_ttl_ms=default_ttl_ms,
            default_grace_ms=default_grace_ms,
            timezone=timezone,
            max_workers=max_workers,
            shutdown_timeout=shutdown_timeout,
            on_error=on_error,
            only=only,
            exclude=exclude,
            instance=instance,
            on_pass=on_pass,
        )
        self.registry = registry
        self.backend = backend
        self.instance = instance or new_instance()
        self.begun = 0
        """How many runs have begun here."""
        self._mine = {"instance": self.instance}
        self._shutdown_timeout = shutdown_timeout
        self._inline = inline
        self._on_pass = on_pass

        self._clock = clock or SystemClock()
        self._store_clock = StoreClock(self._clock)
        self._agenda = Agenda(
            self._clock, self._store_clock, timezone or get_default_timezone_name(), default_ttl_ms, default_grace_ms
        )
        errors = ErrorReports(on_error)
        self._trouble = Trouble(self._clock, errors, self._tell, self.instance)
        self._history = history
        self._roster = Roster(
            registry,
            backend,
            history,
            self._agenda,
            self._trouble,
            self._clock,
            only=only,
            exclude=exclude,
            default_ttl=default_ttl_ms,
            instance=self.instance,
        )
        self._reports = Reports(self.instance, self._tell, history)
        self._keeper = LeaseKeeper(backend, self._clock, self, self.instance)
        self._runner = Runner(self._clock, self._keeper.release, errors, history)
        self._workers = WorkerPool(max_workers, "cronductor-worker", self._clock, self._wake)
        self._reporter = WorkerPool(1, "cronductor-reports", self._clock)

        # A SimpleQueue, for its put may be called in a signal handler, whatever this thread is doing.
        self._inbox: SimpleQueue[Callable[[], object]] = SimpleQueue()
        post, report = self._inbox.put, self._report_orphan
        self._orphans = None if history is None else Orphans(backend, history, self._clock, post, report)
        self._runs: dict[str, tuple[Entry, Run]] = {}
        self._timed: dict[str, Run] = {}
        """Those of the runs that have a timeout."""
        self._unwritten: dict[str, float] = {}
        """Runs that wait for their row in the history, by token, and until when."""
        self._requests: set[str] = set()
        self._upkeep_failing: set[Phase] = set()
        """As the keeper's thread has it: what it tells the loop may wait in the inbox."""
        self._connected = False
        self._stopping = False
        self._gathering = True
        """Whether what becomes due is taken up."""
        self._beaten = False
        """Whether a heartbeat was answered: from then on the store knows this instance, or has lost its data."""
        self._up_since = 0
        """What was due before this instant, at the start or in an outage, is a catch-up."""
        self._touched: int | None = None
        """The instant before which the claim connection was touched last."""
        self._called_at = 0.0
        """When the store answered last, on the monotonic clock, as are the two below."""
        self._scan_at: float | None = None
        """Before that a queue is not looked through while no worker is free; None: there was none."""
        self._full_since: float | None = None
        """Since when jobs wait for a worker."""
        self._full_told = False
        self._ahead_told = False
        self._roster.sync()

    # What others call.

    @property
    def jobs(self) -> list[Job]:
        """Return the jobs that this scheduler runs, by key."""
        return [self._agenda.entries[key].job for key in sorted(self._agenda.entries)]

    @property
    def store_failing(self) -> bool:
        """Tell whether the lock store fails, as far as it was asked. Any thread may ask."""
        return self._trouble.lasts

    def upcoming(self, count: int) -> list[tuple[datetime, Job]]:
        """Return the next occurrences by this machine's clock, the nearest first, one of each active job."""
        now = int(self._clock.time() * 1000)
        nearest = (
            (instant, entry.job)
            for entry in self._agenda.entries.values()
            if entry.job.active and (instant := entry.schedule.next_after_ms(now)) is not None
        )
        found = heapq.nsmallest(count, nearest, key=lambda pair: (pair[0], pair[1].key))
        return [(to_datetime(instant), job) for instant, job in found]

    def run(self) -> int:
        """Run until `stop`, then drain. Return 0, or 1 if runs had to be cut off. Raises BackendRefused at start."""
        return self._serve(self._run_on)

    def run_once(self) -> int:
        """Run what is due now and return, as `run` does. Raises BackendError if the store cannot be asked."""
        return self._serve(self._run_due)

    def run_now(self, key: str) -> str:
        """
        Run a job here and now, under its lease, and return the outcome; with `inline=True` alone.

        The instance is not listed among those that are alive. Raises JobNotFound, NotAcquired if another has the lease,
        BackendError if the store cannot be asked, and Stopping if `stop` came before it had the lease.
        """
        self._keeper.stay_unlisted()
        entry, outcomes = self._agenda.entries[self.registry.get(key).key], list[str]()
        self._serve(lambda: outcomes.append(self._run_now(entry)))
        return outcomes[0]

    def stop(self) -> None:
        """Claim no more, finish what runs, and let `run` return. A signal handler may call it."""
        self._stopping = True
        if self._inline:  # The thread that would tell the runs is at work in one of them.
            self._tell_to_stop()
        self._wake()

    def tick(self) -> float:
        """Make one pass; return the seconds until the next one is due. Raises BackendError if it is the first."""
        if not self._connected:
            self._connect()
        if self._on_pass is not None:
            self._on_pass()
        self._hear_keeper()
        self._roster.sync()
        if self._roster.declare_again():
            self._answered("acquire")
        if self._gathering:
            self._agenda.gather()
        self._claim_ready()
        self._take_requests()
        self._watch_runs()
        if self._orphans is not None:
            self._orphans.tick()
        self._touch()
        self._hear_keeper()
        return self._seconds_to_wait()

    # Starting, waiting, stopping.

    def _serve(self, serve: Callable[[], object]) -> int:
        try:
            try:
                serve()
            except (BackendError, NotAcquired):
                if self._connected:
                    self._drain()  # What has run is given back and told, as far as that is possible.
                raise
            return self._drain()
        finally:
            self._keeper.stop()
            self._workers.close()
            self._reporter.close()

    def _run_on(self) -> None:
        while not self._stopping and not self._try_to_connect():
            if self._on_pass is not None:
                self._on_pass()
        if self._connected:
            self._keeper.start()
            self._warn()
        while not self._stopping:
            self._read_inbox(self.tick())

    def _warn(self) -> None:
        with contextlib.suppress(BackendError):  # What comes next will tell.
            for warning in self.backend.warnings():
                logger.warning("%s %s", warning.msg, warning.hint, extra={"instance": self.instance})

    def _try_to_connect(self) -> bool:
        try:
            self._connect()
        except BackendRefused:
            raise
        except BackendError as error:
            self._trouble.failed("connect", error)
            self._read_inbox(self._trouble.back_off())
        return self._connected

    def _run_due(self) -> None:
        self._connect()
        self._keeper.start()
        while not self._stopping:
            wait = self.tick()
            if self._trouble.is_failing("acquire"):
                raise BackendError("The lock store failed while it was asked what is to be run.")
            # What becomes due while these run is left to the next time: this one might never end.
            self._gathering = bool(self._roster.undeclared)
            if not self._agenda.ready and not self._roster.undeclared and not self._unwritten:
                return
            self._read_inbox(wait)

    def _run_now(self, entry: Entry) -> str:
        sent = self._clock.monotonic()
        self._learn(self.backend.time(), sent, self._clock.monotonic())
        self._connected = True
        token, answer, sent = self._take_lease(entry)
        if answer.dead is not None:
            self._reports.abandoned(entry.job, answer.dead, recovering=False)
        self._keeper.start()
        run = self._dispatch(entry, token, answer, MANUAL, sent, "manual")
        if run is None:
            raise BackendError(f"The lock store answered too late: {entry.job.key} was not started.")
        while run.outcome is None:  # It waits for its row in the history.
            self._read_inbox(self._seconds_to_wait())
            self._watch_runs()
        return run.outcome

    def _take_lease(self, entry: Entry) -> tuple[str, ClaimResult, float]:
        """Take the lease of a job, waiting out its rest after a loss of the store's data."""
        key = entry.job.key
        for _ in range(2 * MOST_RESTS):
            if self._stopping:
                raise Stopping(f"{key} was not started: the process is shutting down.")
            token, sent = new_token(), self._clock.monotonic()
            try:
                answer = self.backend.take_request(key, token, entry.ttl, self.instance, unasked=True)
            except BackendRefused:
                raise
            except BackendError:  # Its reply may be what was lost: the same question again.
                answer = self.backend.take_request(key, token, entry.ttl, self.instance, unasked=True)
            if answer.verdict == "won":
                return token, answer, sent
            if answer.verdict == "undeclared":  # Only then: the replicas may have another schedule, and are to keep it.
                self._roster.declare([entry], SEEDS_WAIT_AT_START)
                continue
            if answer.holder is not None:
                left = f"its lease has {answer.left / 1000:.1f} s left"
                raise NotAcquired(f"{key} is running: {answer.holder} holds it, and {left} unless it is renewed.")
            self._read_inbox(answer.left / 1000)
        raise BackendError(f"The lock store keeps losing its data: {key} was not started.")

    def _connect(self) -> None:
        """Learn the store's time and make every job known, before anything is asked."""
        sent = self._clock.monotonic()
        heartbeat = self.backend.heartbeat(self.instance)
        self._heard(heartbeat, sent, self._clock.monotonic())
        self._roster.declare(list(self._agenda.entries.values()), SEEDS_WAIT_AT_START)
        self._roster.undeclared = []
        self._connected = True
        self._up_since = self._store_clock.now()
        self._answered("connect")

    def _drain(self) -> int:
        """Finish what runs, flush what is to be told; return 0 if everything was finished, else 1."""
        end = self._clock.monotonic() + self._shutdown_timeout
        self._tell_to_stop()
        if going_on := self._going_on():
            runs = "a run" if len(going_on) == 1 else f"{len(going_on)} runs"
            text = "Stopping: waiting up to %g s for %s: %s."
            logger.info(text, self._shutdown_timeout, runs, _named(going_on), extra=self._mine)
        while self._going_on() and self._clock.monotonic() < end:
            self._read_inbox(min(LONGEST_WAIT, max(0.0, end - self._clock.monotonic())))
            self._watch_runs()
            if self._on_pass is not None:
                self._on_pass()
        cut_off = self._going_on()
        for run in cut_off:
            run.interrupted = True  # At once: one that still waits for a worker is not to start now.
            self._runner.interrupt(run, self._tell)
            self._keeper.withdraw(run.held)  # Its thread may still work: the lease is left to lapse.
        end = self._clock.monotonic() + LAST_WORDS
        # Until the loop has heard the answers: what was held is told here.
        while any(run.held.ended for _, run in self._runs.values()) and self._clock.monotonic() < end:
            self._read_inbox(0.1)
        if not cut_off:
            self._workers.wait_idle(LAST_WORDS)
        self._read_inbox(0.0)
        self._reporter.wait_idle(LAST_WORDS)
        if self._history is not None and not self._flush(self._history):
            logger.error("The end has come before all of the history was written.", extra=self._mine)
        self._reporter.wait_idle(LAST_WORDS)
        self._keeper.stop()  # First: a heartbeat after it would put the instance on the list again.
        if self._connected:
            with contextlib.suppress(BackendError):
                self.backend.retire(self.instance)
        if self._stopping and not cut_off:
            logger.info("Stopped.", extra=self._mine)
        return 1 if cut_off else 0

    def _flush(self, history: History) -> bool:
        """Have all of the history written; tell whether it was. What it tells meanwhile of runs without end is told."""
        end = self._clock.monotonic() + LAST_WORDS
        for _ in range(2):  # Which runs those are, and then that they are given up.
            flushed = history.flush(max(0.0, end - self._clock.monotonic()))
            self._read_inbox(0.0)
        return flushed

    def _tell_to_stop(self) -> None:
        for _, run in list(self._runs.values()):
            run.context.tell_to_stop("the process is shutting down")

    def _going_on(self) -> list[Run]:
        return [run for _, run in self._runs.values() if not run.held.ended]

    def _wake(self) -> None:
        self._inbox.put(_nothing)

    def _read_inbox(self, wait: float) -> None:
        """Wait for a message, no longer than `wait` seconds, and act upon all that have come."""
        while True:
            try:
                act = self._inbox.get(timeout=wait) if wait > 0 else self._inbox.get_nowait()
            except Empty:
                return
            wait = 0.0
            act()

    def _hear_keeper(self) -> None:
        if not self._keeper.running:
            self._keeper.tick()
        self._read_inbox(0.0)

    def _seconds_to_wait(self) -> float:
        """Return the seconds until there is something to do; what comes by the inbox ends the wait."""
        moment = self._clock.monotonic()
        waits = [LONGEST_WAIT]
        if self._agenda.ready or self._roster.undeclared or self._requests:
            waits.append(self._trouble.retry_at - moment if self._trouble.retry_at > moment else LONGEST_WAIT)
        if self._roster.undeclared and self._trouble.retry_at <= moment:
            return 0.0
        if (instant := self._agenda.next_instant) is not None:
            waits.append(self._store_clock.until(instant) - (0.0 if self._touched == instant else EARLY))
        if (planned := self._agenda.next_moment) is not None:
            waits.append(planned - moment)
        waits += [until - moment for until in self._unwritten.values()]
        waits += [expires - moment for run in self._timed.values() if (expires := run.expires) is not None]
        return max(0.0, min(waits))

    def _touch(self) -> None:
        """Make a call shortly before a job is due, so that the claim itself finds everything warm."""
        instant = self._agenda.next_instant
        if instant is None or instant == self._touched or self._store_clock.until(instant) > EARLY:
            return
        self._touched = instant
        if self._clock.monotonic() - self._called_at < LONGEST_WAIT / 10 or self._trouble.is_failing("acquire"):
            return
        if self._store_clock.quickest > EARLY:  # The answer would come when the job is due already.
            return
        sent = self._clock.monotonic()
        with contextlib.suppress(BackendError):  # The claim that follows will tell.
            self._learn(self.backend.time(), sent, self._clock.monotonic())

    def _tell(self, call: Callable[[], object]) -> None:
        """Call user code (receivers, ON_ERROR) where the loop does not wait for it."""
        if self._inline:
            call()
        else:
            self._reporter.submit(partial(call_with_defaults, call))

    # Claiming.

    def _claim_ready(self) -> None:
        in_vain = 0
        while self._agenda.ready and not self._stopping and self._clock.monotonic() >= self._trouble.retry_at:
            before = len(self._runs)
            # After three batches in a row that won nothing, others are working on this burst, and nearly all of it is
            # taken: each further batch asks about twice as many. Not earlier: who has met one or two such batches by
            # chance must not win what others have workers for.
            batch = self._batch(2 ** max(0, in_vain - BATCHES_IN_VAIN + 1))
            if not batch or not self._claim(batch):
                break
            in_vain = 0 if self._inline or len(self._runs) > before else in_vain + 1
        self._notice_full()

    def _batch(self, times: int) -> dict[Entry, Claim]:
        """
        Choose whom to ask about: so many times as many as can start soon, or else those whose answer needs no worker.

        The latter are looked for in all of the queue, which may be long: no more than once a second.
        """
        room = self._look_for_room()
        moment = self._clock.monotonic()
        if room <= 0 and self._scan_at is not None and moment < self._scan_at:
            return {}
        if room <= 0 or self._scan_at is None:  # The queue is looked through now, or has just begun.
            self._scan_at = moment + LONGEST_WAIT
        most = CLAIMS_PER_CALL if room <= 0 else min(room * times, CLAIMS_PER_CALL)
        batch: dict[Entry, Claim] = {}
        for entry in list(self._agenda.ready):
            if len(batch) == most:
                break
            if room <= 0 and not self._needs_no_worker(entry):
                continue
            question = self._agenda.question(entry)
            if question is not None:
                batch[entry] = question
                continue
            del self._agenda.ready[entry]
            self._agenda.plan(entry)
            if not entry.since:
                self._roster.undeclared.append(entry)
        return batch

    def _look_for_room(self) -> int:
        """Return how many runs can start soon; the workers tell of room that comes after this."""
        return 1 if self._inline else self._workers.look_for_room() - len(self._unwritten)

    def _needs_no_worker(self, entry: Entry) -> bool:
        """Tell whether its answer cannot be a win: its own run goes on, it is too late, or it only shows the dead."""
        occurrence = self._agenda.occurrence(entry)
        if occurrence is None or entry.in_progress > 0:
            return True
        looks = occurrence <= entry.known and not entry.job.recover
        return looks or self._store_clock.now() - occurrence > entry.grace + SURELY_LATE

    def _claim(self, batch: dict[Entry, Claim]) -> bool:
        for entry, question in batch.items():
            entry.question = question
        sent = self._clock.monotonic()
        try:
            reply = self.backend.claim(list(batch.values()), self.instance)
        except BackendError as error:
            self._trouble.claims_failed(error, next(iter(batch)))
            return False
        self._learn(reply.now, sent, self._clock.monotonic())
        self._answered("acquire")
        for (entry, question), answer in zip(batch.items(), reply.answers, strict=True):
            self._agenda.ready.pop(entry, None)
            if isinstance(answer, BackendError):
                self._roster.failed(answer, entry)
            else:
                self._act_on_answer(entry, question, answer, sent, reply.now)
        return True

    def _act_on_answer(self, entry: Entry, question: Claim, answer: ClaimResult, sent: float, now: int) -> None:
        entry.failing = False
        if answer.verdict == "undeclared":
            self._roster.undeclared.append(entry)  # The same question again, once it is.
            return
        if answer.verdict == "early":
            entry.question, entry.look_at = None, None
            entry.start_over()
            self._agenda.again_in(entry, min(answer.left, rest_of(entry.ttl)) / 1000)
            return
        entry.answered(question.occurrence)
        if answer.left:
            self._agenda.look_in(entry, answer.left)
        missed = self._reports.answer(entry.job, entry.schedule, question.occurrence, answer)
        if answer.verdict == "won" and now - question.occurrence > entry.grace:
            self._abandon_late_win(entry, "its grace")  # The first answer was lost, and this one is a repetition.
        elif answer.runs:
            lateness = max(0, now - question.occurrence) / 1000
            trigger = self._trigger(question.occurrence, answer, missed)
            self._dispatch(entry, question.token, answer, question.occurrence, sent, trigger, missed, lateness)
        self._agenda.plan(entry)

    def _trigger(self, occurrence: int, answer: ClaimResult, missed: int) -> Trigger:
        if answer.verdict == "recovered":
            return "recover"
        return "catch-up" if missed or occurrence < self._up_since else "schedule"

    def _take_requests(self) -> None:
        """Take runs that were asked for, where a worker is free."""
        for key in sorted(self._requests):
            entry = self._agenda.entries.get(key)
            if entry is None or not entry.job.active:
                self._requests.discard(key)  # While it lasts, the next heartbeat names it again.
            elif not self._stopping and not entry.in_progress and self._look_for_room() > 0:
                self._take_request(entry)

    def _take_request(self, entry: Entry) -> None:
        if self._clock.monotonic() < self._trouble.retry_at:
            return
        entry.request = entry.request or new_token()
        sent = self._clock.monotonic()
        try:
            answer = self.backend.take_request(entry.job.key, entry.request, entry.ttl, self.instance)
        except BackendError as error:
            self._trouble.claims_failed(error, entry)
            return
        token, entry.request = entry.request, None
        self._requests.discard(entry.job.key)
        if answer.dead is not None:
            self._reports.abandoned(entry.job, answer.dead, recovering=False)
        if answer.verdict == "won":
            self._dispatch(entry, token, answer, MANUAL, sent, "manual")
        self._answered("acquire")

    # Running.

    def _dispatch(
        self,
        entry: Entry,
        token: str,
        answer: ClaimResult,
        run: int | Literal["manual"],
        sent: float,
        trigger: Trigger,
        missed: int = 0,
        lateness: float = 0.0,
    ) -> Run | None:
        """Start a run that was won, unless that was heard of too late."""
        key, timeout = entry.job.key, entry.job.timeout_ms
        received = self._clock.monotonic()
        if received >= deadline_of(sent, entry.ttl):
            self._abandon_late_win(entry, "its lease")
            return None
        held = self._keeper.hold(Lease(key, token, answer.fence, entry.ttl, self.instance, run, answer.attempt), sent)
        scheduled_at = None if run == MANUAL else to_datetime(run)
        context = RunContext(key, scheduled_at, trigger, self.instance, held, missed)
        new = Run(entry.job, context, held, timeout / 1000 if timeout else None, lateness, received)
        if trigger in ("schedule", "catch-up"):  # One to be recovered was in time, before its holder died.
            new.max_lateness = entry.grace / 1000 + ROW_WAIT
        if timeout:
            new.on_start = self._wake
            self._timed[token] = new
        entry.in_progress += 1
        self._runs[token] = (entry, new)
        if self._history is None:
            self._start(new)
            return new
        slot = None if run == MANUAL else run
        instance, fence, started = self.instance, answer.fence, context.started_at
        new.record = RunRecord(token, key, slot, answer.attempt, trigger, instance, fence, lateness, started)
        self._unwritten[token] = self._clock.monotonic() + ROW_WAIT
        self._history.begun(new.record, lambda ours: self._inbox.put(partial(self._row_written, token, ours)))
        if self._inline:
            self._read_inbox(0.0)
        return new

    def _row_written(self, token: str, ours: bool) -> None:
        """Start a run whose row is written; not one of whose occurrence another run has a row: the store lost data."""
        if self._unwritten.pop(token, None) is None:
            return  # It has started without.
        entry, run = self._runs[token]
        if ours:
            self._start(run)
            return
        text = "%s for %s was run before, as the database knows: it is not run again."
        extra = {"job": entry.job.key, "scheduled_at": run.context.scheduled_at, "instance": self.instance}
        logger.info(text, entry.job.key, run.context.scheduled_at, extra=extra)
        self._keeper.release(run.held, "not run again")

    def _start(self, run: Run) -> None:
        self.begun += 1
        if self._inline:
            self._runner.execute(run)
            self._hear_keeper()
        else:
            self._workers.submit(partial(self._runner.execute, run))

    def _report_orphan(self, run: OpenRun) -> None:
        self._reports.orphaned(self.registry.get(run.key) if run.key in self.registry else None, run)

    def _abandon_late_win(self, entry: Entry, ended: str) -> None:
        """Start nothing and let the lease lapse: who looks then, here or elsewhere, reports the run as abandoned."""
        text = "%s was won, but the answer came after %s had ended: not started."
        logger.warning(text, entry.job.key, ended, extra={"job": entry.job.key, "instance": self.instance})
        self._agenda.look_in(entry, entry.ttl)

    def _watch_runs(self) -> None:
        now = self._clock.monotonic()
        for token in [token for token, until in self._unwritten.items() if until <= now]:
            del self._unwritten[token]  # The database hangs or fails: that must not hold up jobs.
            if self._history is not None:
                self._history.overdue()
            self._start(self._runs[token][1])
        self._expire_runs()

    def _expire_runs(self) -> None:
        now = self._clock.monotonic()
        for run in list(self._timed.values()):
            if run.expires is not None and run.expires <= now:
                self._runner.expire(run)
                self._runner.report_timeout(run, self._tell)

    def _notice_full(self) -> None:
        """Warn once when jobs wait for a worker, and name those who have them."""
        if not self._agenda.ready:
            self._scan_at = None
        if not self._agenda.ready or self._look_for_room() > 0:
            self._full_since, self._full_told = None, False
            return
        now = self._clock.monotonic()
        self._full_since = self._full_since or now
        if now - self._full_since > LONGEST_WAIT and not self._full_told:
            self._full_told = True
            running = _named([run for run in self._going_on() if run.started])
            text = "All %d workers are busy and %d jobs wait for one. Running: %s."
            waiting = len(self._agenda.ready)
            logger.warning(text, self._workers.size, waiting, running, extra={"instance": self.instance})

    # What the keeper of leases finds out, in its thread; acted upon in the loop's.

    def lease_lost(self, held: HeldLease, left: int | None) -> None:
        """See Listener."""
        self._inbox.put(partial(self._lost, held, left))

    def lease_released(self, held: HeldLease, result: ReleaseResult) -> None:
        """See Listener."""
        self._inbox.put(partial(self._released, held, result))

    def store_failed(self, phase: Phase, error: BackendError, leases: Sequence[Lease]) -> None:
        """See Listener."""
        self._upkeep_failing.add(phase)
        self._inbox.put(partial(self._upkeep_failed, phase, error, leases))

    def lease_failed(self, phase: Phase, error: BackendError, lease: Lease) -> None:
        """See Listener."""
        self._inbox.put(partial(self._lease_failed, phase, error, lease))

    def store_answered(self, phase: Phase) -> None:
        """See Listener."""
        if phase in self._upkeep_failing:
            self._upkeep_failing.discard(phase)
            self._inbox.put(partial(self._answered, phase))
        if self._inline and self._keeper.running:
            # The loop's thread may be at work in a handler: what would be noticed there is noticed here.
            self._reporter.submit(partial(call_with_defaults, self._expire_runs))

    def heart_beaten(self, heartbeat: Heartbeat, sent: float, received: float) -> None:
        """See Listener."""
        self._inbox.put(partial(self._heard, heartbeat, sent, received))

    def _lost(self, held: HeldLease, left: int | None) -> None:
        if held.lease.token not in self._runs:
            return
        entry, run = self._runs[held.lease.token]
        if left:
            self._agenda.look_in(entry, left)
        self._notice_loss(entry, run)

    def _notice_loss(self, entry: Entry, run: Run) -> None:
        """Tell of a loss, once; also where the handler saw it first and has ended. What is lost later is no loss."""
        if not run.held.lost or run.loss_told:
            return
        run.loss_told = True
        run.cancel()
        self._reports.lost(entry.job, run.context)
        error = LeaseLost(f"The lease of {entry.job.key} (fencing token {run.held.lease.fence}) is lost.")
        self._trouble.report(error, "renew", entry, run.context.scheduled_at)

    def _released(self, held: HeldLease, result: ReleaseResult) -> None:
        entry, run = self._runs.pop(held.lease.token)
        self._timed.pop(held.lease.token, None)
        entry.in_progress -= 1
        if not self._runs:
            self._answered("renew")  # There is nothing left that could be renewed.
        self._notice_loss(entry, run)
        entry.failing = False
        if not result.ok:
            text = "%s: its lease was no longer there when it was released."
            logger.warning(text, entry.job.key, extra={"job": entry.job.key, "instance": self.instance})
            if result.left:
                self._agenda.look_in(entry, result.left)
        if result.held is not None:
            count, newest = count_occurrences(entry.schedule, *result.held)
            if newest is not None:
                self._reports.skipped(entry.job, newest, "held", self.instance, count)

    def _heard(self, heartbeat: Heartbeat, sent: float, received: float) -> None:
        self._learn(heartbeat.now, sent, received)
        self._requests |= heartbeat.requests
        if self._beaten and not heartbeat.known:
            text = "The lock store has lost its data, or has not heard of us for long: all jobs are declared again."
            logger.warning(text, extra=self._mine)
            self._roster.undeclared = list(self._agenda.entries.values())
        self._beaten = True

    def _learn(self, now: int, sent: float, received: float) -> None:
        self._called_at = received
        moved = self._store_clock.learn(now, sent, received)
        if moved < -1.0:
            logger.warning(
                "The lock store's clock went back by %.1f s: jobs rest until it has caught up.",
                -moved,
                extra=self._mine,
            )
        ahead = self._store_clock.ahead()
        if abs(ahead) > 1.0 and not self._ahead_told:
            self._ahead_told = True
            text = "This machine's clock is %.1f s %s the lock store's, by which the jobs run."
            logger.warning(text, abs(ahead), "ahead of" if ahead > 0 else "behind", extra=self._mine)

    # Failures of the store.

    def _upkeep_failed(self, phase: Phase, error: BackendError, leases: Sequence[Lease]) -> None:
        if leases and leases[0].token in self._runs:
            entry, run = self._runs[leases[0].token]
            self._trouble.run_failed(phase, error, entry, run.context.scheduled_at)
        else:
            self._trouble.failed(phase, error)

    def _lease_failed(self, phase: Phase, error: BackendError, lease: Lease) -> None:
        if lease.token in self._runs:
            entry, run = self._runs[lease.token]
            self._trouble.job_failed(phase, error, entry, run.context.scheduled_at)

    def _answered(self, phase: str) -> None:
        if phase == "acquire" and self._trouble.is_failing(phase):
            # Also where another phase fails yet: what was due before is made up.
            self._up_since = self._store_clock.now()
        if self._trouble.answered(phase):
            self._up_since = self._store_clock.now()
            self._agenda.start_over()


def _named(runs: list[Run]) -> str:
    keys = sorted({run.job.key for run in runs})
    return ", ".join(keys[:MOST_NAMED]) + (", ..." if len(keys) > MOST_NAMED else "")


def _nothing() -> None:
    """Wake the loop."""
