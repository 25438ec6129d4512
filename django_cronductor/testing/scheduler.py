"""A scheduler whose time a test moves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import Any

from django_cronductor.backends.base import Heartbeat, Seeds
from django_cronductor.backends.local import LocalBackend
from django_cronductor.conf import get_config, scheduler_options
from django_cronductor.instants import to_datetime
from django_cronductor.jobs import JobRegistry, registry
from django_cronductor.records import DeadRecord, JobRecord, RunRecord, SkipRecord
from django_cronductor.scheduler import Scheduler
from django_cronductor.testing.clock import START, ManualClock, to_instant
from django_cronductor.testing.runs import INSTANCE, surroundings


@dataclass(frozen=True)
class Event:
    """
    What happened to an occurrence: a run's outcome, or why there was none (held, missed, paused, condition).

    `scheduled_at` is an aware datetime in UTC, None for a run outside the schedule. `count` is of how many
    occurrences this tells, `scheduled_at` being the newest. `trigger` is empty where nothing ran.
    """

    key: str
    scheduled_at: datetime | None
    outcome: str
    trigger: str = ""
    error: BaseException | None = None
    count: int = 1


class ManualScheduler:
    """
    Runs the jobs of these keys, or all jobs, in the test's own thread whenever the test lets time pass.

    It has a lock store of its own in memory, and no threads. Its time begins at `start`: what is due later than that is
    run. Instants are aware datetimes, or text in ISO 8601. Handlers take none of its time: no run overlaps another, and
    no `timeout` passes. `on_move` is called with every instant at which its time stops, before what is due there is
    run: for a library that sets the time that handlers see. `announce` is that of `run_job`.
    """

    def __init__(
        self,
        *keys: str,
        start: datetime | str = START,
        registry: JobRegistry = registry,
        announce: bool = True,
        on_move: Callable[[datetime], object] | None = None,
    ) -> None:
        self.events: list[Event] = []
        """What has happened, in this order."""
        self.clock = ManualClock(start)
        self.backend = _Backend(clock=self.clock)
        """Its lock store: `pause(key)`, `resume(key)` and `states([key])` may be of use to a test."""
        self._announce = announce
        self._on_move = on_move
        options = scheduler_options(get_config())
        if not announce:
            options["on_error"] = None
        self._scheduler = Scheduler(
            registry,
            self.backend,
            only=keys,
            instance=INSTANCE,
            clock=self.clock,
            inline=True,
            history=_Recorder(self.events.append),
            **options,
        )
        self._stop_at(to_instant(start))

    @property
    def now(self) -> datetime:
        """Return its time, in UTC."""
        return datetime.fromtimestamp(self.clock.time(), timezone.utc)

    def move_to(self, instant: datetime | str) -> list[Event]:
        """Let time pass until an instant, running all that is due on the way; return what happened."""
        end, before = to_instant(instant), len(self.events)
        self._refuse_past(end)
        while (upcoming := self._scheduler.upcoming(1)) and upcoming[0][0] <= end:
            self._step(upcoming[0][0])
        self._step(end)
        return self.events[before:]

    def advance(self, duration: timedelta | float) -> list[Event]:
        """Let a timedelta, or seconds, pass, running all that is due on the way; return what happened."""
        length = duration if isinstance(duration, timedelta) else timedelta(seconds=duration)
        return self.move_to(self.now + length)

    def skip_to(self, instant: datetime | str) -> list[Event]:
        """Let time pass as while no replica runs, then run what is due late; return what happened."""
        before = len(self.events)
        end = to_instant(instant)
        self._refuse_past(end)
        self._step(end)
        return self.events[before:]

    def events_of(self, key: str) -> list[Event]:
        """Return what has happened to one job."""
        return [event for event in self.events if event.key == key]

    def _refuse_past(self, instant: datetime) -> None:
        if instant < self.now:
            raise ValueError(f"It is {self.now.isoformat()} already: time does not go back to {instant.isoformat()}.")

    def _step(self, instant: datetime) -> None:
        self.clock.advance((instant - self.now).total_seconds())
        self._stop_at(instant)

    def _stop_at(self, instant: datetime) -> None:
        if self._on_move is not None:
            self._on_move(instant)
        with surroundings(self._announce):
            self._scheduler.tick()


class _Backend(LocalBackend):
    """A lock store that forgets no instance, however far the clock is moved at once."""

    def heartbeat(self, instance: str) -> Heartbeat:
        """Say that the instance lives."""
        return replace(super().heartbeat(instance), known=True)


class _Recorder:
    """A history that passes on what happens to occurrences, as events."""

    def __init__(self, note: Callable[[Event], object]) -> None:
        self._note = note

    def seeds(self, keys: Sequence[str], fingerprints: Sequence[str], timeout: float) -> list[Seeds]:
        return [Seeds()] * len(keys)

    def begun(self, run: RunRecord, answer: Callable[[bool], object]) -> None:
        answer(True)

    def ended(self, run: RunRecord) -> None:
        at = None if run.slot is None else to_datetime(run.slot)
        self._note(Event(run.key, at, run.outcome, run.trigger, run.error))

    def skipped(self, skip: SkipRecord) -> None:
        self._note(Event(skip.key, to_datetime(skip.slot), skip.reason, count=skip.count))

    def declared(self, jobs: Iterable[JobRecord]) -> None:
        pass

    def dropped(self, keys: Iterable[str]) -> None:
        pass

    def overdue(self) -> None:
        pass

    def abandoned(self, dead: DeadRecord) -> None:
        pass

    def open_runs(self, answer: Callable[[list[Any]], object]) -> None:
        answer([])

    def give_up(self, run: object, answer: Callable[[], object]) -> None:
        pass

    def flush(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        pass
