"""The last day of a job: who ran it when, what did not run, and of what there is no record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext, ngettext

from django_cronductor.admin import words
from django_cronductor.admin.pictures import Lane, Span, Timeline
from django_cronductor.admin.recent import tally
from django_cronductor.instants import from_stored, to_datetime
from django_cronductor.models import JobRun
from django_cronductor.schedules import Schedule

DAY = timedelta(days=1)
SHORTEST = timedelta(minutes=10)
MOST_ROWS = 500
"""Runs that are drawn; of a job that runs more often, the day is shown as far as they reach."""
MOST_LANES = 12
MOST_EXPECTED = 3_000
SETTLED = timedelta(seconds=60)
"""An occurrence that is younger may not have come to the history yet."""
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 180)
"""Minutes from one label of the axis to the next."""
MOST_TICKS = 8


@dataclass(frozen=True)
class _Run:
    """A run or what was not run, as an instant or a length of time."""

    row: JobRun
    start: datetime
    end: datetime

    @property
    def ran(self) -> bool:
        """Tell whether the handler was called, or was about to be."""
        return words.kind_of(self.row.outcome) != "skipped"


class Day:
    """
    The day before `now`, from the rows of a job's history, or as much of it as they reach back.

    `rows`: newest first, at most MOST_ROWS. `known_since`: from when on the history is complete, if it reaches back
    further than its oldest row. `schedule`: what is expected since `scheduled_since`; None: nothing, as of a job that
    is disabled.
    """

    def __init__(
        self,
        rows: Sequence[JobRun],
        now: datetime,
        schedule: Schedule | None = None,
        *,
        known_since: datetime | None = None,
        scheduled_since: datetime | None = None,
    ) -> None:
        self._now = now
        self._schedule = schedule
        self._scheduled_since = scheduled_since
        everything = [found for row in rows if (found := _placed(row, now)) is not None]
        complete = min([run.start for run in everything] + [known_since or now])
        self._start = max(now - DAY, min(complete, now - SHORTEST))
        self._known = max(self._start, complete)
        self._runs = sorted((run for run in everything if run.end >= self._start), key=lambda run: run.start)
        self._gaps = list(self._missing())
        self._overlaps = list(self._doubled())

    def picture(self) -> Timeline:
        """Return all of it as a picture."""
        across = [self._span(start, end, "overlap", _overlap_title(start, end)) for start, end in self._overlaps]
        if self._known > self._start:
            title = gettext("The history does not reach back before %s") % self._clock(self._known)
            across.append(self._span(self._start, self._known, "unknown", title))
        title = gettext("What ran from %(start)s to %(end)s (%(zone)s)") % {
            "start": self._clock(self._start),
            "end": self._clock(self._now),
            "zone": words.zone_name(),
        }
        return Timeline(title, self.summary(), list(self._ticks()), [*self._lanes(), self._not_run()], across)

    def summary(self) -> str:
        """Return in words what the picture shows."""
        rows = [(run.row.outcome, run.row.duration, run.row.count) for run in self._runs]
        if not rows and not self._gaps:
            return gettext("No runs in the last 24 hours.")
        replicas = len({run.row.holder for run in self._runs if run.ran})
        parts = [f"{number} {words.outcome_label(outcome)}" for outcome, number in tally(rows)]
        parts.append(ngettext("on %d replica", "on %d replicas", replicas) % replicas)
        lost = sum(count for _start, _end, count in self._gaps)
        if lost:
            parts.append(ngettext("%d occurrence without a record", "%d occurrences without a record", lost) % lost)
        over = len(self._overlaps)
        parts.append(ngettext("%d overlap", "%d overlaps", over) % over if over else gettext("no overlaps"))
        return ", ".join(parts) + "."

    @property
    def is_cut(self) -> bool:
        """Tell whether the history does not reach back a day."""
        return self._known > self._now - DAY

    @property
    def known_since(self) -> datetime:
        """Return from when on all of the day is known."""
        return self._known

    # Lanes.

    def _lanes(self) -> Iterator[Lane]:
        by_holder: dict[str, list[_Run]] = {}
        for run in self._runs:
            if run.ran:
                by_holder.setdefault(run.row.holder or gettext("unknown replica"), []).append(run)
        # The newest replicas have lanes of their own: each restart makes a new one.
        newest = sorted(by_holder, key=lambda name: by_holder[name][-1].start, reverse=True)
        if len(newest) > MOST_LANES:
            others = newest[MOST_LANES - 1 :]
            name = ngettext("%d other replica", "%d other replicas", len(others)) % len(others)
            by_holder[name] = [run for other in others for run in by_holder.pop(other)]
            newest = [*newest[: MOST_LANES - 1], name]
        for name in newest:
            yield Lane(name, [self._run_span(run) for run in by_holder[name]])

    def _not_run(self) -> Lane:
        spans = [self._run_span(run) for run in self._runs if not run.ran]
        spans += (self._span(start, end, "gap", self._gap_title(start, end, count)) for start, end, count in self._gaps)
        return Lane(gettext("not run"), spans)

    def _run_span(self, run: _Run) -> Span:
        row = run.row
        title = f"{self._clock(run.start)} {words.outcome_label(row.outcome)} {words.times(row.count)}".strip()
        if row.duration is not None:
            title += f", {words.length(row.duration)}"
        return self._span(run.start, run.end, words.kind_of(row.outcome), title)

    def _span(self, start: datetime, end: datetime, kind: object, title: str) -> Span:
        return Span(self._place(start), self._place(end), kind, title)  # type: ignore[arg-type]

    def _place(self, instant: datetime) -> float:
        return min(1.0, max(0.0, (instant - self._start) / (self._now - self._start)))

    def _ticks(self) -> Iterator[tuple[float, str]]:
        """Yield round times of the user's clock."""
        minutes = (self._now - self._start) / timedelta(minutes=1)
        step = next((step for step in STEPS if minutes / step <= MOST_TICKS), STEPS[-1])
        at = self._start.astimezone(timezone.utc).replace(minute=0, second=0, microsecond=0)
        while at <= self._now:
            local = at.astimezone(get_current_timezone())
            if at >= self._start and (local.hour * 60 + local.minute) % step == 0:
                yield self._place(at), f"{local:%H:%M}"
            at += timedelta(minutes=min(step, 15))  # No zone's hours begin elsewhere than at a quarter.

    # What is wrong.

    def _doubled(self) -> Iterator[tuple[datetime, datetime]]:
        """Yield when two runs of the job went on at once."""
        latest: datetime | None = None
        for run in self._runs:
            if not run.ran:
                continue
            if latest is not None and run.start < latest:
                yield run.start, min(latest, run.end)
            latest = run.end if latest is None else max(latest, run.end)

    def _missing(self) -> Iterator[tuple[datetime, datetime, int]]:
        """Yield stretches of occurrences that nothing is known of: first, last, how many."""
        slots = {run.row.slot for run in self._runs}
        accounted = list(self._accounted())
        stretch: list[datetime] = []
        for instant in self._expected():
            if int(instant.timestamp() * 1000) in slots:
                if stretch:
                    yield stretch[0], stretch[-1], len(stretch)
                stretch = []
            elif not any(start <= instant <= end for start, end in accounted):
                stretch.append(instant)
        if stretch:
            yield stretch[0], stretch[-1], len(stretch)

    def _expected(self) -> Iterator[datetime]:
        if self._schedule is None:
            return
        at: datetime | None = max(self._known, self._scheduled_since or self._known)
        for _ in range(MOST_EXPECTED):
            at = None if at is None else self._schedule.next_after(at)
            if at is None or at > self._now - SETTLED:
                return
            yield at

    def _accounted(self) -> Iterator[tuple[datetime, datetime]]:
        """Yield when occurrences need no row: during a run, which reports them when it ends; or they share a row."""
        for run in self._runs:
            if run.row.outcome == words.RUNNING:
                yield run.start, run.end
            elif run.row.count > 1 and not run.ran:
                yield self._first_of(run), run.end

    def _first_of(self, run: _Run) -> datetime:
        """Return the first of the occurrences that share a row, which has the newest."""
        at: datetime | None = run.start
        for _ in range(min(run.row.count, MOST_EXPECTED) - 1):
            if at is None or at < self._start or self._schedule is None:
                break
            at = self._schedule.latest_until(at - timedelta(seconds=1))
        return at or run.start

    # Words.

    def _clock(self, instant: datetime) -> str:
        return f"{instant.astimezone(get_current_timezone()):%H:%M:%S}"

    def _gap_title(self, start: datetime, end: datetime, count: int) -> str:
        text = ngettext("No record of %d occurrence", "No records of %d occurrences", count) % count
        return f"{text}: {self._clock(start)} - {self._clock(end)}" if count > 1 else f"{text}: {self._clock(start)}"


def _overlap_title(start: datetime, end: datetime) -> str:
    return gettext("Two runs at once for %s") % words.length((end - start).total_seconds())


def _placed(row: JobRun, now: datetime) -> _Run | None:
    """Return a row with when it began and ended; None if nothing of that is known."""
    start = row.started_at or row.scheduled_at or row.finished_at
    if start is None:
        return None
    begun = from_stored(start, None if row.slot is None else to_datetime(row.slot))
    if words.kind_of(row.outcome) == "skipped":
        return _Run(row, begun, begun)
    if row.outcome == words.RUNNING:
        return _Run(row, begun, max(begun, now))
    if row.finished_at is None:
        return _Run(row, begun, begun)
    ended = from_stored(row.finished_at, begun + timedelta(seconds=row.duration or 0))
    return _Run(row, begun, max(begun, ended))
