"""A job's state, lock holder, times and outcome, as lists and its page show them."""

from __future__ import annotations

from datetime import datetime
from functools import lru_cache
from zoneinfo import ZoneInfo

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.timezone import get_current_timezone
from django.utils.translation import gettext, pgettext
from django.utils.translation import gettext_lazy as _

from django_cronductor.admin import words
from django_cronductor.instants import from_stored, to_datetime
from django_cronductor.models import JobRun
from django_cronductor.overview import Holder, JobView
from django_cronductor.schedules import Schedule

STATUS = {
    "running": _("running"),
    "dead": _("holder died"),
    "paused": _("paused"),
    "disabled": _("disabled"),
    "gone": _("no longer declared"),
    "idle": _("idle"),
}
"""Every status in the user's language."""
NOTHING = "-"


def lines(*parts: object) -> SafeString:
    """Return what is not empty, each in a line of its own."""
    return format_html_join("", '<span class="cronductor-line">{}</span>', ((part,) for part in parts if part))


def labelled(label: object, cell: object) -> SafeString:
    """Return a cell of a list with what it is, which is shown where the list has no room for a row of headings."""
    return format_html('<span class="cronductor-label">{}</span>{}', label, cell)


def quiet(text: object) -> SafeString:
    """Return a text in a smaller and quieter form."""
    return format_html('<span class="small quiet">{}</span>', text)


def schedule(view: JobView) -> SafeString:
    """Return when it is due: in words, and as it was declared."""
    if view.schedule is None:
        if view.row is None:
            return lines(NOTHING)
        return lines(format_html("<code>{}</code>", view.row.expression), quiet(view.row.timezone))
    told = _described(view.schedule, view.schedule.expression)
    declared = format_html("<code>{}</code> {}", view.schedule.expression, zone_of(view))
    return lines(told if told != view.schedule.expression else "", quiet(declared))


@lru_cache(maxsize=4096)
def _described(schedule: Schedule, expression: str) -> str:
    """Return a schedule in words, which takes a while to find: schedules are equal if they mean the same."""
    return schedule.describe()


def zone_of(view: JobView) -> str:
    """Return the name of the job's zone."""
    return view.schedule.timezone if view.schedule else view.row.timezone if view.row else ""


def both_zones(instant: datetime, zone: str, now: datetime | None = None) -> SafeString:
    """Return an instant in a job's zone, and in the user's where that shows another time; with `now`, in short."""
    theirs, ours = (
        words.moment(instant, name) if now is None else words.short_moment(instant, now, name)
        for name in (ZoneInfo(zone), None)
    )
    same = instant.astimezone(ZoneInfo(zone)).utcoffset() == instant.astimezone(get_current_timezone()).utcoffset()
    return lines(theirs) if same else lines(theirs, quiet(ours))


def next_run(view: JobView) -> SafeString:
    """Return when it runs next, or would."""
    if view.next_run is None or view.schedule is None:
        return lines(NOTHING)
    stopped = view.paused or view.status == "disabled"
    when = words.ago(view.next_run, view.now)
    return lines(
        gettext("would be due %s") % when if stopped else when,
        both_zones(view.next_run, view.schedule.timezone, view.now),
    )


def state(view: JobView) -> SafeString:
    """Return what it does, since when, and why not."""
    holder = view.holder
    status = view.status
    shown = format_html('<span class="cronductor-state {}">{}</span>', status, STATUS[status])
    return lines(
        shown,
        _since(holder, view.now) if holder and status in ("running", "dead") else "",
        _paused(view, with_word=status != "paused") if view.paused else "",
        gettext("a run is requested") if is_requested(view) else "",
        quiet(gettext("from the history")) if not view.live and status in ("running", "dead") else "",
        format_html('<span class="cronductor-warning">{}</span>', view.state_error) if view.state_error else "",
    )


def is_requested(view: JobView) -> bool:
    """Tell whether somebody asked for a run that has not begun."""
    return bool(view.requested_at or (view.state and view.state.requested))


def _since(holder: Holder, now: datetime) -> str:
    if holder.since is None:
        return ""
    return pgettext("running", "for %s") % words.length(max(0.0, (now - holder.since).total_seconds()))


def _paused(view: JobView, *, with_word: bool) -> SafeString:
    row = view.row
    since = ""
    if row is not None and row.paused_at is not None:
        since = words.ago(from_stored(row.paused_at), view.now)
    by = pgettext("paused", "by %s") % row.paused_by if row is not None and row.paused_by else ""
    word = gettext("paused") if with_word else ""
    note = row.pause_note if row is not None else ""
    said = " ".join(part for part in (word, since, by) if part)
    return lines(said, quiet(words.shortened(note, 100)) if note else "")


def lock_holder(view: JobView) -> SafeString:
    """Return who holds the lease, or held it last."""
    holder = view.holder
    if holder is None:
        return lines(NOTHING)
    name = format_html('<span class="cronductor-name">{}</span>', words.shortened(holder.instance))
    source = "" if view.live else quiet(gettext("from the history"))
    return lines(name, quiet(_lease(holder, view.now)), source)


def _lease(holder: Holder, now: datetime) -> str:
    if holder.ended is not None:
        ended = words.ago(holder.ended, now)
        return f"{ended}, {words.outcome_label(holder.outcome)}" if holder.outcome else ended
    parts = (
        [pgettext("lease", "since %s") % f"{holder.since.astimezone(get_current_timezone()):%H:%M:%S}"]
        if holder.since
        else []
    )
    if holder.left is not None:
        parts.append(
            pgettext("lease", "%s left") % words.length(holder.left) if holder.live else gettext("lease has ended")
        )
    if holder.fencing_token is not None:
        parts.append(gettext("token %d") % holder.fencing_token)
    return " · ".join(parts)


def last_run(view: JobView) -> SafeString:
    """Return how the newest run in the history ended."""
    run = view.last_run
    if run is None:
        return quiet(gettext("no run yet"))
    took = [words.length(run.duration)] if run.duration is not None else []
    return lines(
        words.outcome(run.outcome),
        quiet(" · ".join([*took, words.ago(_instant_of(run), view.now)])),
    )


def _instant_of(run: JobRun) -> datetime:
    at = run.finished_at or run.started_at or run.scheduled_at
    return to_datetime(0) if at is None else from_stored(at)
