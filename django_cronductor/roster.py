"""Which jobs a replica has: it follows the registry, and makes them known to the store and the history."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from django_cronductor.agenda import Agenda, Entry
from django_cronductor.backends.base import Declaration, LockBackend, Seeds
from django_cronductor.clock import Clock
from django_cronductor.exceptions import BackendError, BackendRefused, ConfigurationError
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.logs import get_logger
from django_cronductor.records import History, JobRecord
from django_cronductor.trouble import Trouble

logger = get_logger(__name__)

SEEDS_WAIT_IN_LOOP = 1.0
"""Seconds that the loop waits for what the history knows of jobs that are declared while it runs."""
DECLARED_AT_ONCE = 250
"""Jobs in one call, as in one script of Redis: what many thousands need is memory that the process never gives back."""
RETRY_JOB = 1.0
"""Seconds before a job is tried again on which alone the store failed."""


class Roster:
    """The jobs of a replica: those of a registry, or `only` some of them, or all but those that it is to `exclude`."""

    def __init__(
        self,
        registry: JobRegistry,
        backend: LockBackend,
        history: History | None,
        agenda: Agenda,
        trouble: Trouble,
        clock: Clock,
        *,
        only: Collection[str],
        exclude: Collection[str],
        default_ttl: int,
        instance: str,
    ) -> None:
        self.undeclared: list[Entry] = []
        """Those that the store does not know, or may not."""
        self._registry = registry
        self._backend = backend
        self._history = history
        self._agenda = agenda
        self._trouble = trouble
        self._clock = clock
        self._only = frozenset(registry.get(key).key for key in only)
        self._exclude = frozenset(registry.get(key).key for key in exclude)
        self._default_ttl = default_ttl
        self._instance = instance
        self._version: int | None = None
        self._refused: set[Job] = set()

    def sync(self) -> None:
        """Follow the registry: jobs that came, went, were stopped or started."""
        if self._registry.version == self._version:
            return
        starting, self._version = self._version is None, self._registry.version
        wanted = [job for job in self._registry if self._is_wanted(job) and (starting or self._fits(job))]
        before = set(self._agenda.entries)
        self.undeclared += self._agenda.follow(wanted)
        if self._history is not None:
            self._history.dropped(before - self._agenda.entries.keys())
        shortest = min((entry.ttl for entry in self._agenda.entries.values()), default=self._default_ttl)
        self._backend.timeout = min(self._backend.timeout, shortest / 3000)

    def declare_again(self) -> bool:
        """Declare those that the store may not know; tell whether it was asked and has answered."""
        entries, self.undeclared = [entry for entry in self.undeclared if not entry.gone], []
        if not entries:
            return False
        if self._clock.monotonic() < self._trouble.retry_at:
            self.undeclared = entries
            return False
        try:
            self.declare(entries, SEEDS_WAIT_IN_LOOP)
        except BackendError as error:
            self.undeclared = entries
            self._trouble.claims_failed(error, entries[0])
            return False
        return True

    def declare(self, entries: Sequence[Entry], seeds_wait: float) -> None:
        """Make jobs known to the store, waiting so many seconds for what the history knows. Raises BackendError."""
        known = self._seeds(entries, seeds_wait)
        answers: list[int | BackendError] = []
        for start in range(0, len(entries), DECLARED_AT_ONCE):
            part = slice(start, start + DECLARED_AT_ONCE)
            answers += self._backend.declare(
                [
                    Declaration(entry.job.key, entry.fingerprint, entry.ttl, seeds)
                    for entry, seeds in zip(entries[part], known[part], strict=True)
                ]
            ).answers
        refused = [answer for answer in answers if isinstance(answer, BackendRefused)]
        if refused and len(refused) == len(entries):
            raise refused[0]
        for entry, since in zip(entries, answers, strict=True):
            if isinstance(since, BackendError):
                self.failed(since, entry)
                continue
            first, entry.since = not entry.since, since
            if first:
                entry.start_over()
            self._agenda.ready[entry] = None
        if self._history is not None:
            self._history.declared(_records(entries))

    def failed(self, error: BackendError, entry: Entry) -> None:
        """Note that the store could not work on one job alone, which is tried again."""
        self._agenda.again_in(entry, RETRY_JOB)
        self._trouble.question_failed(error, entry)

    def _is_wanted(self, job: Job) -> bool:
        return job.key not in self._exclude and (not self._only or job.key in self._only)

    def _fits(self, job: Job) -> bool:
        """Tell whether a job that was declared while the loop runs can be taken in; one that cannot must not end it."""
        if job in self._refused:
            return False
        try:
            self._agenda.lengths(job)
        except ConfigurationError as error:
            self._refused.add(job)
            logger.error("Not run here: %s", error, extra={"job": job.key, "instance": self._instance})
            return False
        return True

    def _seeds(self, entries: Sequence[Entry], wait: float) -> list[Seeds]:
        """Return what the history and this replica know of the jobs, for a store that has lost its data."""
        own = [entry.seeds for entry in entries]
        if self._history is None or not entries:
            return own
        known = self._history.seeds(
            [entry.job.key for entry in entries], [entry.fingerprint for entry in entries], wait
        )
        return [mine.joined(theirs) for mine, theirs in zip(own, known, strict=True)]


def _records(entries: Iterable[Entry]) -> list[JobRecord]:
    return [
        JobRecord(
            key=entry.job.key,
            app_label=entry.job.app_label or "",
            expression=entry.schedule.expression,
            timezone=entry.schedule.timezone,
            fingerprint=entry.fingerprint,
            enabled=entry.job.enabled,
            since=entry.since,
        )
        for entry in entries
        if entry.since
    ]
