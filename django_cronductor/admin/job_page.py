"""What the page of one job shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from django.db.models import Q
from django.utils.html import format_html
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from django_cronductor.admin import cells, words
from django_cronductor.admin.day import MOST_ROWS, Day
from django_cronductor.admin.pictures import timeline
from django_cronductor.conf import Config, get_config
from django_cronductor.handlers import innermost, qualname_of
from django_cronductor.instants import from_stored, to_datetime
from django_cronductor.jobs import Job
from django_cronductor.models import JobRun
from django_cronductor.overview import JobView, Overview

OCCURRENCES = 10
RUNS = 30
NOT_TEXTS = ("traceback", "error_message")


@dataclass(frozen=True)
class Named:
    """A job as Django's templates take an object: with a `pk`, which is the job's key."""

    pk: str

    def __str__(self) -> str:
        return self.pk


def context(view: JobView, overview: Overview) -> dict[str, Any]:
    """Return what the page of a job shows but its runs."""
    return {
        "state": cells.state(view),
        "holder": cells.lock_holder(view),
        "last_run": cells.last_run(view),
        "next_run": cells.next_run(view),
        "settings": list(_settings(view)),
        "occurrences": list(_occurrences(view)),
        "zone": words.zone_name(),
        "day": _day(view) if _is_told(overview) else None,
    }


def runs(view: JobView, overview: Overview, outcome: str, url: Callable[..., str]) -> dict[str, Any]:
    """
    Return the newest runs of a job, of one outcome if there is such, and the ways to more of them.

    `url` finds the address of a page of the admin by its name and arguments.
    """
    outcome = outcome if outcome in JobRun.Outcome.values else ""
    return {
        "runs": _runs(view.key, outcome, url) if _is_told(overview) else [],
        "filters": _filters(outcome),
        "all_runs": url("jobrun_changelist") + "?" + urlencode({"job": view.key}),
    }


def _is_told(overview: Overview) -> bool:
    """Tell whether there is a history that can be read."""
    return overview.history and overview.database_error is None


def _settings(view: JobView) -> Sequence[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = [(_("Schedule"), cells.schedule(view))]
    if view.schedule is not None and view.schedule.warnings:
        found.append((_("Note"), " ".join(view.schedule.warnings)))
    if view.job is not None:
        found += _declared(view.job, get_config())
    if view.row is not None:
        seen = from_stored(view.row.last_seen)
        found.append((_("App"), view.row.app_label or cells.NOTHING))
        found.append((_("First seen"), words.moment(from_stored(view.row.first_seen))))
        found.append((_("Last seen"), f"{words.ago(seen, view.now)}"))
    return found


def _declared(job: Job, config: Config) -> list[tuple[Any, Any]]:
    ttl, grace = job.lengths(config.default_ttl_ms, config.default_grace_ms)
    default = gettext("%s (default)")
    handler = innermost(job.handler)
    return [
        (_("Handler"), format_html("<code>{}.{}</code>", getattr(handler, "__module__", ""), qualname_of(handler))),
        (_("Declared at"), format_html("<code>{}</code>", job.declared_at)),
        (_("Enabled"), _yes_or_no(job.enabled)),
        (_("Lease (ttl)"), _length(ttl) if job.ttl_ms else default % _length(ttl)),
        (_("Grace"), _length(grace) if job.grace_ms else default % _length(grace)),
        (_("Timeout"), _length(job.timeout_ms) if job.timeout_ms else gettext("none")),
        (_("Run again after a crash (recover)"), _yes_or_no(job.recover)),
        (_("Condition (when)"), qualname_of(innermost(job.when)) if job.when else gettext("none")),
    ]


def _length(milliseconds: int) -> str:
    return words.length(milliseconds / 1000)


def _yes_or_no(value: bool) -> str:
    return gettext("yes") if value else gettext("no")


def _occurrences(view: JobView) -> Sequence[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    schedule = view.schedule
    at: datetime | None = view.now
    while schedule is not None and len(found) < OCCURRENCES:
        at = None if at is None else schedule.next_after(at)
        if at is None:
            break
        found.append(
            {
                "in": words.ago(at, view.now),
                "when": cells.both_zones(at, schedule.timezone),
                "change": schedule.clock_change(at),
            }
        )
    return found


def _day(view: JobView) -> dict[str, Any]:
    rows = list(JobRun.objects.filter(job_key=view.key).defer(*NOT_TEXTS).order_by("-id")[:MOST_ROWS])
    schedule = view.schedule if view.job is not None and view.job.enabled else None
    since = to_datetime(view.row.since) if view.row else None
    day = Day(rows, view.now, schedule, known_since=_first_seen(view, rows), scheduled_since=since)
    return {
        "picture": timeline(day.picture()),
        "summary": day.summary(),
        "known_since": words.moment(day.known_since) if day.is_cut else None,
    }


def _first_seen(view: JobView, rows: Sequence[JobRun]) -> datetime | None:
    """Return when the history of the job began, unless its beginning was pruned."""
    keep = get_config().history
    skipped = sum(words.kind_of(row.outcome) == "skipped" for row in rows)
    pruned = len(rows) == MOST_ROWS or skipped >= keep or len(rows) - skipped >= keep
    return None if pruned or view.row is None else from_stored(view.row.first_seen)


def _runs(key: str, outcome: str, url: Callable[..., str]) -> Sequence[dict[str, Any]]:
    wanted = Q(job_key=key, outcome=outcome) if outcome else Q(job_key=key)
    rows = JobRun.objects.filter(wanted).defer("traceback").order_by("-id")[:RUNS]
    return [
        {
            "url": url("jobrun_change", row.pk),
            "row": row,
            "at": words.moment(at) if (at := row.scheduled_at or row.started_at) else cells.NOTHING,
            "trigger": words.trigger(row.trigger),
            "outcome": words.outcome(row.outcome),
            "times": words.times(row.count),
            "duration": cells.NOTHING if row.duration is None else words.length(row.duration),
            "lateness": cells.NOTHING if row.lateness is None else words.length(row.lateness),
            "replica": words.shortened(row.holder),
            "error": words.shortened(f"{row.error_type}: {row.error_message}") if row.error_type else "",
        }
        for row in rows
    ]


def _filters(chosen: str) -> Sequence[dict[str, Any]]:
    choices = [("", gettext("All")), *((value, words.outcome_label(value)) for value in JobRun.Outcome.values)]
    return [
        {"label": label, "query": "?" + urlencode({"outcome": value} if value else {}), "selected": value == chosen}
        for value, label in choices
    ]
