"""The newest runs of each job on a page, as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

from django.db.models import OuterRef, Q, Subquery
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from django_cronductor.admin import words
from django_cronductor.admin.pictures import Bar, sparkline
from django_cronductor.models import DeclaredJob, JobRun

SHOWN = 30
PART = 100
"""Jobs that are asked about at once: a query that names too many is slow, or none at all."""

Recent = tuple[str, float | None, int]
"""Outcome, duration in seconds, for how many occurrences it stands."""


def recent_runs(keys: Sequence[str]) -> dict[str, list[Recent]]:
    """Return the newest rows of each job's history, oldest first: two queries for a hundred jobs."""
    found: dict[str, list[Recent]] = {key: [] for key in keys}
    for start in range(0, len(keys), PART):
        for key, outcome, duration, count in _rows(keys[start : start + PART]):
            found[key].append((outcome, duration, count))
    return {key: rows[:SHOWN][::-1] for key, rows in found.items()}


def picture(recent: Sequence[Recent], name: str) -> SafeString:
    """Return them as a picture."""
    bars = [Bar(words.kind_of(outcome), duration) for outcome, duration, _count in recent]
    return sparkline(bars, name, describe(recent), slots=SHOWN)


def describe(recent: Sequence[Recent]) -> str:
    """Return what the picture shows, in words."""
    if not recent:
        return gettext("No runs yet")
    parts = [f"{number} {words.outcome_label(outcome)}" for outcome, number in tally(recent)]
    longest = max((duration for _outcome, duration, _count in recent if duration is not None), default=None)
    if longest is not None:
        parts.append(gettext("longest %s") % words.length(longest))
    last = words.outcome_label(recent[-1][0])
    return gettext("Last %(number)d: %(what)s; the newest %(last)s") % {
        "number": len(recent),
        "what": ", ".join(parts),
        "last": last,
    }


def tally(recent: Iterable[Recent]) -> list[tuple[str, int]]:
    """Return the outcomes with how often there are, in the order in which outcomes are listed."""
    counted: dict[str, int] = {}
    for outcome, _duration, count in recent:
        counted[outcome] = counted.get(outcome, 0) + count
    order = list(JobRun.Outcome.values)
    return sorted(counted.items(), key=lambda item: order.index(item[0]) if item[0] in order else len(order))


def _rows(keys: Sequence[str]) -> Iterable[tuple[str, str, float | None, int]]:
    """
    Yield the newest rows of each job, newest first.

    Where they begin is one walk through an index for each job; what they are, one range of it: no query looks at the
    rows before them.
    """
    newest = JobRun.objects.filter(job_key=OuterRef("key")).order_by("-id").values("id")
    jobs = DeclaredJob.objects.filter(key__in=keys).annotate(begins=Subquery(newest[SHOWN - 1 : SHOWN]))
    wanted = Q()
    for key, begins in jobs.values_list("key", "begins"):
        wanted |= Q(job_key=key) if begins is None else Q(job_key=key, id__gte=begins)
    if not wanted:
        return ()
    rows = JobRun.objects.filter(wanted).order_by("-id").values_list("job_key", "outcome", "duration", "count")
    return cast(Iterable[tuple[str, str, float | None, int]], rows)
