"""What fails in the lock store, as one replica tells it: once per outage and once at its end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial

from django_cronductor.agenda import Entry
from django_cronductor.clock import Clock
from django_cronductor.exceptions import BackendError
from django_cronductor.instants import to_datetime
from django_cronductor.logs import get_logger
from django_cronductor.runner import ErrorReports, Phase

logger = get_logger(__name__)

FIRST_RETRY, LAST_RETRY = 0.1, 1.0
"""Seconds between claims while the store does not answer."""


class Outage:
    """
    Tells the first failure of an outage from those that follow.

    A phase is a kind of call; an outage ends when none fails that failed in it. Another kind that is answered meanwhile
    does not end it: renewals may fail while heartbeats succeed.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: set[str] = set()
        self._failures: dict[str, int] = {}
        self._since = 0.0

    def failed(self, phase: str) -> bool:
        """Note a failure of a call; tell whether an outage begins with it."""
        begins = not self._failing
        if begins:
            self._since = self._clock.monotonic()
            self._failures.clear()
        self._failing.add(phase)
        self._failures[phase] = self._failures.get(phase, 0) + 1
        return begins

    def is_first(self, phase: str) -> bool:
        """Tell whether the last failure of that phase is the first one in this outage."""
        return self._failures.get(phase) == 1

    def is_failing(self, phase: str) -> bool:
        """Tell whether the last call of that phase failed. Any thread may ask."""
        return phase in self._failing

    @property
    def lasts(self) -> bool:
        """Tell whether there is an outage now. Any thread may ask."""
        return bool(self._failing)

    def answered(self, phase: str) -> float | None:
        """Note an answer, or that there is nothing left to ask; return how long the outage lasted if it ends so."""
        if phase not in self._failing:
            return None
        self._failing.discard(phase)
        return None if self._failing else self._clock.monotonic() - self._since


class Trouble:
    """
    Tells log and ON_ERROR what failed, and says when the store may be asked again.

    `tell` calls what it is given soon, where user code may wait. A failure of one job alone is no outage: it is told
    when it begins.
    """

    def __init__(
        self, clock: Clock, errors: ErrorReports, tell: Callable[[Callable[[], object]], object], instance: str
    ) -> None:
        self.retry_at = 0.0
        """Nothing is claimed before that, on the monotonic clock."""
        self._clock = clock
        self._errors = errors
        self._tell = tell
        self._instance = instance
        self._outage = Outage(clock)
        self._retry = FIRST_RETRY

    @property
    def lasts(self) -> bool:
        """Tell whether the store fails, as far as it was asked. Any thread may ask."""
        return self._outage.lasts

    def is_failing(self, phase: str) -> bool:
        """Tell whether the last call of that phase failed."""
        return self._outage.is_failing(phase)

    def failed(self, phase: str, error: BackendError) -> None:
        """Note a failure of the store."""
        if self._outage.failed(phase):
            text = "The lock store failed, and nothing starts until it is back: %s"
            logger.error(text, error, extra={"instance": self._instance})

    def claims_failed(self, error: BackendError, entry: Entry) -> None:
        """Note that it could not be asked about several jobs, one of which is named."""
        self.back_off()
        self.run_failed("acquire", error, entry, _asked_instant(entry))

    def run_failed(self, phase: Phase, error: BackendError, entry: Entry, scheduled_at: datetime | None) -> None:
        """Note a failure that several runs or jobs met, one of which is named."""
        self.failed(phase, error)
        if self._outage.is_first(phase):
            self.report(error, phase, entry, scheduled_at)

    def job_failed(self, phase: Phase, error: BackendError, entry: Entry, scheduled_at: datetime | None) -> None:
        """Note that it could not work on one job alone."""
        if not entry.failing:
            entry.failing = True
            extra = {"job": entry.job.key, "scheduled_at": scheduled_at, "instance": self._instance}
            logger.error("%s: the lock store failed on this job alone: %s", entry.job.key, error, extra=extra)
            self.report(error, phase, entry, scheduled_at)

    def question_failed(self, error: BackendError, entry: Entry) -> None:
        """Note that it could not be asked about one job alone."""
        self.job_failed("acquire", error, entry, _asked_instant(entry))

    def answered(self, phase: str) -> bool:
        """Note an answer; tell whether an outage has ended with it."""
        if phase in ("acquire", "connect"):
            self._retry, self.retry_at = FIRST_RETRY, 0.0
        lasted = self._outage.answered(phase)
        if lasted is not None:
            logger.warning("The lock store is back after %.1f s.", lasted, extra={"instance": self._instance})
        return lasted is not None

    def back_off(self) -> float:
        """Let some time pass before the next claims; return how many seconds."""
        wait, self._retry = self._retry, min(LAST_RETRY, self._retry * 2)
        self.retry_at = self._clock.monotonic() + wait
        return wait

    def report(self, error: Exception, phase: Phase, entry: Entry, scheduled_at: datetime | None) -> None:
        """Hand an error to ON_ERROR."""
        self._tell(partial(self._errors.report, error, phase, entry.job, scheduled_at))


def _asked_instant(entry: Entry) -> datetime | None:
    """Return which occurrence of a job was asked about and not answered."""
    return None if entry.question is None else to_datetime(entry.question.occurrence)
