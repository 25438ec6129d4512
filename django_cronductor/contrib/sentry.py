"""
Sentry: errors of jobs with the job's key, and a cron monitor for each job. Needs the extra `sentry`.

    sentry_sdk.init(dsn=..., integrations=[CronductorIntegration()])

It can be imported in a settings module: nothing here reads the settings before a job runs.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import datetime
from hashlib import sha256
from typing import TYPE_CHECKING

import sentry_sdk
from sentry_sdk.crons import capture_checkin
from sentry_sdk.integrations import Integration
from sentry_sdk.scope import add_global_event_processor

from django_cronductor import signals
from django_cronductor.conf import get_config
from django_cronductor.jobs import Job
from django_cronductor.records import SUCCESSES
from django_cronductor.runner import RunContext

if TYPE_CHECKING:
    from sentry_sdk._types import Event, Hint, MonitorConfig

JOB_TAG, OCCURRENCE_TAG = "cronductor.job", "cronductor.scheduled_at"
LONGEST_SLUG = 50
MOST_MINUTES = 28 * 24 * 60
"""Sentry takes no margin and no runtime that is longer."""
FLUSH_WAIT = 1.0
"""Seconds that a run which was cut short waits for its telling: the process may end at once after it."""
CHECK_INS = uuid.UUID("a49df7ba-4f8f-4dd4-9a5b-6d1ff45e41c4")
"""The namespace of the ids of our check-ins."""


class CronductorIntegration(Integration):
    """
    Checks in at a monitor for each run, and captures what jobs raise.

    `monitored` tells of a job whether it has a monitor; by default all have that Sentry can express. The thresholds are
    those of Sentry's monitors: after how many failures in a row an issue is opened, and after how many successes it is
    resolved.
    """

    identifier = "cronductor"

    def __init__(
        self,
        *,
        monitored: Callable[[Job], bool] = lambda job: True,
        failure_issue_threshold: int | None = None,
        recovery_threshold: int | None = None,
    ) -> None:
        self.monitored = monitored
        self.thresholds: MonitorConfig = {}
        if failure_issue_threshold is not None:
            self.thresholds["failure_issue_threshold"] = failure_issue_threshold
        if recovery_threshold is not None:
            self.thresholds["recovery_threshold"] = recovery_threshold

    @staticmethod
    def setup_once() -> None:
        """Listen to what happens to jobs; while a client without this integration is active, do nothing."""
        signals.job_started.connect(_started)
        signals.job_finished.connect(_finished)
        signals.job_skipped.connect(_skipped)
        signals.run_abandoned.connect(_abandoned)
        add_global_event_processor(_add_tags)

    def check_in(self, job: Job, check_in_id: str | None, status: str, duration: float | None = None) -> None:
        """Tell the job's monitor, if it has one, and how it is to be set up."""
        config = monitor_config(job)
        if config is not None and self.monitored(job):
            config.update(self.thresholds)
            capture_checkin(slug_of(job.key), check_in_id, status, duration, config)


def slug_of(key: str) -> str:
    """Return what the monitor of a job is called in Sentry: its key, but for characters that Sentry does not take."""
    slug = key.replace(".", "-")
    if re.fullmatch(rf"(?!\d+$)[a-z0-9_][a-z0-9_-]{{,{LONGEST_SLUG - 1}}}", slug):
        return slug
    readable = re.sub(r"[^a-z0-9_-]+", "-", slug.lower())[: LONGEST_SLUG - 9].strip("-") or "job"
    return f"{readable}-{sha256(key.encode()).hexdigest()[:8]}"


def monitor_config(job: Job) -> MonitorConfig | None:
    """Return how the job's monitor is to be set up; None if Sentry cannot say when the job is due."""
    defaults = get_config()
    schedule = job.schedule(defaults.timezone)
    if schedule.crontab is None:
        return None
    _, grace = job.lengths(defaults.default_ttl_ms, defaults.default_grace_ms)
    return {
        "schedule": {"type": "crontab", "value": schedule.crontab},
        "timezone": schedule.timezone,
        "checkin_margin": min(MOST_MINUTES, _minutes(grace) + 1),
        # Without one Sentry takes 30 minutes; who has no timeout may take longer, and dead runs are reported by us.
        "max_runtime": MOST_MINUTES if job.timeout_ms is None else min(MOST_MINUTES, _minutes(job.timeout_ms)),
    }


def _minutes(milliseconds: int) -> int:
    return -(-milliseconds // 60_000)


def _check_in_id(key: str, instance: str, scheduled_at: datetime | None, fencing_token: int | None = None) -> str:
    """Return the id that a run's check-ins share, also where another replica tells of its end."""
    return uuid.uuid5(CHECK_INS, f"{instance} {key} {scheduled_at or fencing_token}").hex


def _id_of(context: RunContext) -> str:
    return _check_in_id(context.key, context.instance, context.scheduled_at, context.fencing_token)


def _active() -> CronductorIntegration | None:
    return sentry_sdk.get_client().get_integration(CronductorIntegration)


def _tags_of(context: RunContext) -> dict[str, str]:
    tags = {JOB_TAG: context.key}
    return tags if context.scheduled_at is None else tags | {OCCURRENCE_TAG: context.scheduled_at.isoformat()}


def _started(sender: Job, context: RunContext, **details: object) -> None:
    if (integration := _active()) is None:
        return
    # A worker's thread, and so its scope, serves one run after the other.
    scope = sentry_sdk.get_isolation_scope()
    scope.clear_breadcrumbs()
    scope.remove_tag(OCCURRENCE_TAG)
    for name, value in _tags_of(context).items():
        scope.set_tag(name, value)
    integration.check_in(sender, _id_of(context), "in_progress")


def _finished(
    sender: Job, context: RunContext, outcome: str, duration: float, error: BaseException | None, **details: object
) -> None:
    if (integration := _active()) is None:
        return
    if outcome == "failed" and error is not None:
        # The log has it already, and where Sentry listens there it drops this second one.
        sentry_sdk.capture_exception(error, tags=_tags_of(context))
    integration.check_in(sender, _id_of(context), "ok" if outcome in SUCCESSES else "error", duration)
    for name in (JOB_TAG, OCCURRENCE_TAG):
        sentry_sdk.get_isolation_scope().remove_tag(name)
    if outcome == "interrupted":
        sentry_sdk.flush(FLUSH_WAIT)


def _skipped(sender: Job, reason: str, **details: object) -> None:
    if reason == "condition" and (integration := _active()) is not None:
        integration.check_in(sender, None, "ok")  # It was looked after, and there was nothing to do.


def _abandoned(sender: Job | None, key: str, scheduled_at: datetime | None, holder: str, **details: object) -> None:
    if sender is not None and scheduled_at is not None and (integration := _active()) is not None:
        integration.check_in(sender, _check_in_id(key, holder, scheduled_at), "error")


def _add_tags(event: Event, hint: Hint) -> Event | None:
    """Name the job in what Sentry takes from our log."""
    record = (hint or {}).get("log_record")
    if record is not None and record.name.startswith("django_cronductor.") and _active() is not None:
        tags = {JOB_TAG: getattr(record, "job", None), OCCURRENCE_TAG: getattr(record, "scheduled_at", None)}
        event.setdefault("tags", {}).update({name: _text(value) for name, value in tags.items() if value is not None})
    return event


def _text(value: object) -> str:
    return value.isoformat() if isinstance(value, datetime) else str(value)
