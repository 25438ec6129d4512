"""Tell logs and signals of occurrences that did not run, of dead runs and of lost leases."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django_cronductor.backends.base import MANUAL, ClaimResult, DeadRun
from django_cronductor.instants import to_datetime
from django_cronductor.jobs import Job
from django_cronductor.logs import get_logger
from django_cronductor.records import DeadRecord, History, OpenRun, SkipRecord
from django_cronductor.runner import RunContext, send
from django_cronductor.schedules import Schedule

logger = get_logger(__name__)

MOST_COUNTED = 1000
"""Occurrences counted in one report; it is shown as "1000+" then."""


def count_occurrences(schedule: Schedule, after: int, until: int) -> tuple[int, int | None]:
    """Count the occurrences in (after, until], up to 1,000, and return the newest."""
    count, newest = 0, schedule.latest_until_ms(until)
    instant = newest
    while instant is not None and instant > after and count < MOST_COUNTED:
        count += 1
        instant = schedule.latest_until_ms(instant - 1)
    return count, newest if count else None


def _in_all(count: int) -> str:
    if count == 1:
        return ""
    return f" ({MOST_COUNTED}+ in all)" if count >= MOST_COUNTED else f" ({count} in all)"


class Reports:
    """
    What one replica tells of what it was told by the store: it alone is to tell it.

    `tell` calls what it is given soon, in a thread where receivers of signals may wait.
    """

    def __init__(
        self, instance: str, tell: Callable[[Callable[[], object]], object], history: History | None = None
    ) -> None:
        self._instance = instance
        self._tell = tell
        self._history = history

    def answer(self, job: Job, schedule: Schedule, occurrence: int, answer: ClaimResult) -> int:
        """Report what the answer to a claim says beside its verdict; return how many occurrences were passed over."""
        if answer.dead is not None:
            self.abandoned(job, answer.dead, recovering=answer.verdict == "recovered")
        passed = 0
        if answer.previous is not None:
            passed, newest = count_occurrences(schedule, answer.previous, occurrence - 1)
            if answer.verdict == "missed":
                self.missed(job, occurrence, min(MOST_COUNTED, passed + 1))
            elif newest is not None:
                self.missed(job, newest, passed, "passed over for a newer one")
        if answer.verdict == "paused":
            self.skipped(job, occurrence, "paused", None, 1)
        elif answer.verdict in ("taken", "held", "lost"):
            fields = self._fields(job.key, occurrence, outcome=answer.verdict)
            logger.debug("%s for %s: %s.", job.key, to_datetime(occurrence), answer.verdict, extra=fields)
        return passed

    def missed(self, job: Job, occurrence: int, count: int, why: str = "too late to start") -> None:
        """Report occurrences that could not start within their grace, the newest and how many."""
        fields = self._fields(job.key, occurrence, outcome="missed", count=count)
        logger.warning("%s missed %s%s: %s.", job.key, to_datetime(occurrence), _in_all(count), why, extra=fields)
        self._record(SkipRecord(job.key, occurrence, count, "missed", self._instance))
        self._send("job_missed", job, fields, key=job.key, scheduled_at=to_datetime(occurrence), count=count)

    def skipped(self, job: Job, occurrence: int, reason: str, holder: str | None, count: int) -> None:
        """Report occurrences that were not run for a reason, the newest and how many."""
        fields = self._fields(job.key, occurrence, outcome=reason, count=count, holder=holder)
        why = "its last run was still going" if reason == "held" else reason
        logger.info("%s skipped %s%s: %s.", job.key, to_datetime(occurrence), _in_all(count), why, extra=fields)
        self._record(SkipRecord(job.key, occurrence, count, reason, holder or self._instance))
        at = to_datetime(occurrence)
        details = {"key": job.key, "scheduled_at": at, "reason": reason, "holder": holder, "count": count}
        self._send("job_skipped", job, fields, **details)

    def abandoned(self, job: Job, dead: DeadRun, *, recovering: bool) -> None:
        """Report a run whose holder died, as its lease shows."""
        occurrence = None if dead.run == MANUAL else int(dead.run)
        record = DeadRecord(job.key, occurrence, dead.attempt, dead.holder, dead.fence)
        why = "its lease ended without a release"
        self._tell_abandoned(record, job, f"{why}. It is run again here" if recovering else why)
        if self._history is not None:
            self._history.abandoned(record)

    def orphaned(self, job: Job | None, run: OpenRun) -> None:
        """Report a run whose row is all that is left of it; `job` None: it is declared no longer."""
        record = DeadRecord(run.key, run.slot, run.attempt, run.holder, run.fencing_token)
        self._tell_abandoned(record, job, "it has no lease, and its holder has gone")

    def _tell_abandoned(self, dead: DeadRecord, job: Job | None, why: str) -> None:
        fields = self._fields(
            dead.key, dead.slot, outcome="abandoned", holder=dead.holder, fencing_token=dead.fencing_token
        )
        at = None if dead.slot is None else to_datetime(dead.slot)
        text = "%s: the run of %s by %s was abandoned: %s."
        logger.error(text, dead.key, at or "a request", dead.holder, why, extra=fields)
        self._send("run_abandoned", job, fields, key=dead.key, scheduled_at=at, holder=dead.holder)

    def lost(self, job: Job, context: RunContext) -> None:
        """Report that a run here has lost its lease."""
        token = context.fencing_token
        fields: dict[str, object] = {
            "job": job.key,
            "scheduled_at": context.scheduled_at,
            "instance": self._instance,
            "fencing_token": token,
        }
        logger.error("%s has lost its lease (fencing token %d): another may run it now.", job.key, token, extra=fields)
        self._send("lease_lost", job, fields, context=context)

    def _record(self, skip: SkipRecord) -> None:
        if self._history is not None:
            self._history.skipped(skip)

    def _send(self, name: str, job: Job | None, fields: dict[str, object], **details: Any) -> None:
        self._tell(partial(send, name, job, fields, **details))

    def _fields(self, key: str, occurrence: int | None, **more: object) -> dict[str, object]:
        at = None if occurrence is None else to_datetime(occurrence)
        return {"job": key, "scheduled_at": at, "instance": self._instance, **more}
