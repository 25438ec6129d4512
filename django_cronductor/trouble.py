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
from django_cronductor.store import Outage

logger = get_logger(__name__)

FIRST_RETRY, LAST_RETRY = 0.1, 1.0
"""Seconds between claims while the store does not answer."""


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
