"""What a replica knows of each job's next step: when it is due, what was asked, what was answered."""

from __future__ import annotations

import heapq
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from django_cronductor.backends.base import Claim, Seeds, new_token
from django_cronductor.clock import Clock
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.jobs import Job
from django_cronductor.schedules import Schedule
from django_cronductor.store import StoreClock


@dataclass(eq=False, slots=True)
class Entry:
    """
    One job in the loop.

    Instants are milliseconds on the store's clock, moments (`look_at` and its like) seconds on the monotonic clock;
    `ttl` and `grace` are milliseconds.
    """

    job: Job
    schedule: Schedule
    ttl: int
    grace: int
    number: int
    """What tells it from others in a heap."""
    generation: int
    """That of the job whose start it has followed."""
    since: int = 0
    """The instant of its declaration in the store; 0: not declared yet."""
    floor: int = 0
    """The instant since which it is started here: what was due before that is not made up."""
    asked: int = 0
    """What is not newer is not asked about: it was answered, or is not made up."""
    known: int = 0
    """The newest occurrence that was ever answered; 0: none yet."""
    question: Claim | None = None
    """What was asked and not answered: it is asked again, with the same token, before anything newer."""
    request: str | None = None
    """The token of a `take_request` that was not answered."""
    due_at: int | None = None
    """The instant for which it is in the heap of what is due."""
    look_at: float | None = None
    """When to ask about `known` again: the lease that stood in its way ends then."""
    look_planned: float | None = None
    """The moment for which that is in the heap of what is later."""
    again_at: float | None = None
    """When to try again what could not be asked or was too early."""
    in_progress: int = 0
    """How many runs of the job are in progress here."""
    failing: bool = False
    """Whether the store could not work on this job alone, the last time."""
    gone: bool = False
    """Whether the replica has the job no longer; the heaps may still have it."""

    @property
    def fingerprint(self) -> str:
        """Return what tells this declaration from another; a job that is enabled again starts anew."""
        return self.schedule.fingerprint if self.job.enabled else f"disabled {self.schedule.fingerprint}"

    @property
    def seeds(self) -> Seeds:
        """Return what this replica knows of the job, for a store that lost it."""
        if not self.since:
            return Seeds()
        return Seeds(occurrence=self.known or None, since=self.since)

    def answered(self, occurrence: int) -> None:
        """Note that an occurrence was decided, here or elsewhere."""
        self.question, self.look_at = None, None
        self.known = max(self.known, occurrence)
        self.asked = max(self.asked, occurrence)

    def start_over(self) -> None:
        """Forget what was answered: the newest occurrence due is asked about, decided or not."""
        self.asked = max(self.since, self.floor)


class Agenda:
    """
    The jobs of a replica in the order in which something is to be asked about them.

    O(log n) per step. `default_ttl` and `default_grace` are milliseconds. Used by one thread.
    """

    def __init__(
        self, clock: Clock, store_clock: StoreClock, timezone: str, default_ttl: int, default_grace: int
    ) -> None:
        self.entries: dict[str, Entry] = {}
        self.ready: dict[Entry, None] = {}
        """Those about whom something is to be asked now, in this order."""
        self._clock = clock
        self._store_clock = store_clock
        self._timezone = timezone
        self._ttl = default_ttl
        self._grace = default_grace
        self._numbers = 0
        self._destroyed: set[str] = set()
        """Keys of jobs that were here before."""
        self._due: list[tuple[int, int, Entry]] = []
        """A heap of the instants at which jobs are due. What has changed since it was put there is passed over."""
        self._later: list[tuple[float, int, Entry]] = []
        """A heap, too, of the moments of looks and retries."""

    def follow(self, jobs: Iterable[Job]) -> list[Entry]:
        """Have exactly these jobs; return the entries that are new, to be declared to the store."""
        wanted = {job.key: job for job in jobs}
        for key in self.entries.keys() - wanted.keys():
            self.entries.pop(key).gone = True
            self._destroyed.add(key)
        fresh = []
        for key, job in wanted.items():
            entry = self.entries.get(key)
            if entry is None or entry.job is not job:
                fresh.append(self._take_in(job, entry))
            elif entry.generation != job.generation:
                entry.generation = job.generation
                entry.question = None
                entry.floor = self._store_clock.now()
                entry.asked = max(entry.asked, entry.floor)
                self.plan(entry)
        return fresh

    def _take_in(self, job: Job, old: Entry | None) -> Entry:
        """Make the entry of a job; `old` is that of the declaration which it replaces."""
        self.entries[job.key] = new = self._new(job)
        if old is not None:
            old.gone = True
        if old is not None and old.generation == job.generation:
            new.floor, new.known, new.question = old.floor, old.known, old.question
        elif old is not None or job.key in self._destroyed:
            new.floor = self._store_clock.now()  # What was due while it was stopped, or not there, is not made up.
        return new

    def lengths(self, job: Job) -> tuple[int, int]:
        """Return the ttl and the grace of a job. Raises ConfigurationError if they do not go together."""
        ttl, grace = job.lengths(self._ttl, self._grace)
        if grace < ttl:
            raise ConfigurationError(
                f"Job {job.key} ({job.declared_at}): its grace ({grace / 1000:g} s) is shorter than its ttl "
                f"({ttl / 1000:g} s), so that the occurrence after a crash could never start. Make the grace longer."
            )
        return ttl, grace

    def _new(self, job: Job) -> Entry:
        ttl, grace = self.lengths(job)
        self._numbers += 1
        return Entry(job, job.schedule(self._timezone), ttl, grace, self._numbers, job.generation)

    def start_over(self) -> None:
        """Ask about the newest occurrence of every job, decided or not: it may show a dead run."""
        for entry in self.entries.values():
            entry.start_over()
            self.ready[entry] = None

    def gather(self) -> None:
        """Move what is due, or to be looked at, to `ready`."""
        now, moment = self._store_clock.now(), self._clock.monotonic()
        fresh: list[Entry] = []
        while self._due and self._due[0][0] <= now:
            instant, _, entry = heapq.heappop(self._due)
            if entry.due_at == instant:
                entry.due_at = None
                fresh.append(entry)
        while self._later and self._later[0][0] <= moment:
            planned, _, entry = heapq.heappop(self._later)
            if planned == entry.look_planned:
                entry.look_planned = None
            if planned in (entry.look_at, entry.again_at):
                fresh.append(entry)
        # Each replica in another order: they then share a burst instead of asking for the same jobs.
        random.shuffle(fresh)
        self.ready.update(dict.fromkeys(entry for entry in fresh if not entry.gone))

    def occurrence(self, entry: Entry) -> int | None:
        """Return the occurrence of a job that is to be asked about now; None if none is."""
        if entry.gone or not entry.job.active or not entry.since:
            return None
        if entry.question is not None:
            return entry.question.occurrence
        newest = entry.schedule.latest_until_ms(self._store_clock.now())
        if newest is not None and newest > entry.asked:
            return newest
        looks = entry.look_at is not None and entry.look_at <= self._clock.monotonic()
        return entry.known or None if looks else None

    def question(self, entry: Entry) -> Claim | None:
        """Return what is to be asked about a job now; None if nothing is."""
        occurrence = self.occurrence(entry)
        if occurrence is None:
            return None
        if entry.question is not None:
            return entry.question
        return Claim(entry.job.key, occurrence, new_token(), entry.ttl, entry.grace, entry.job.recover)

    def plan(self, entry: Entry) -> None:
        """Put the job where it is found when it is due next, or to be looked at."""
        if entry.gone or not entry.job.active or not entry.since:
            return
        # What never had an answer leaves nothing to ask again: a look would find that, at once and for ever.
        if entry.known and entry.look_at is not None and entry.look_at != entry.look_planned:
            entry.look_planned = entry.look_at
            self._plan_later(entry.look_at, entry)
        # Not from now on: what became due while an older one was in doubt is due now.
        instant = entry.schedule.next_after_ms(entry.asked)
        if instant is not None and instant != entry.due_at:
            entry.due_at = instant
            heapq.heappush(self._due, (instant, entry.number, entry))
            if self._is_stale(self._due):
                self._due = [item for item in self._due if item[0] == item[2].due_at and not item[2].gone]
                heapq.heapify(self._due)

    def look_in(self, entry: Entry, left: int) -> None:
        """Ask about the job again in `left` milliseconds, or earlier if that is planned."""
        moment = self._clock.monotonic() + left / 1000
        entry.look_at = moment if entry.look_at is None else min(entry.look_at, moment)
        self.plan(entry)

    def again_in(self, entry: Entry, seconds: float) -> None:
        """Try again in so many seconds what could not be asked."""
        entry.again_at = self._clock.monotonic() + seconds
        self._plan_later(entry.again_at, entry)

    def _plan_later(self, moment: float, entry: Entry) -> None:
        heapq.heappush(self._later, (moment, entry.number, entry))
        if self._is_stale(self._later):
            current = (item for item in self._later if item[0] in (item[2].look_at, item[2].again_at))
            self._later = [item for item in current if not item[2].gone]
            heapq.heapify(self._later)

    def _is_stale(self, heap: Sequence[object]) -> bool:
        """Tell whether most of a heap must be what was planned and has changed since."""
        return len(heap) > 2 * len(self.entries) + 100

    @property
    def next_instant(self) -> int | None:
        """Return when, on the store's clock, the next job is due."""
        return self._due[0][0] if self._due else None

    @property
    def next_moment(self) -> float | None:
        """Return when, on the monotonic clock, the next look or retry is due."""
        return self._later[0][0] if self._later else None
