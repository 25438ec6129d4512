"""Instants, lengths of time and outcomes as the admin's pages show them."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import timezone as django_timezone
from django.utils.formats import date_format, number_format
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext, ngettext, pgettext
from django.utils.translation import gettext_lazy as _

from django_cronductor.admin.pictures import Kind
from django_cronductor.instants import from_stored
from django_cronductor.models import JobRun
from django_cronductor.records import SUCCESSES

RUNNING = str(JobRun.Outcome.RUNNING)
NOT_RUN = (
    str(JobRun.Outcome.HELD),
    str(JobRun.Outcome.MISSED),
    str(JobRun.Outcome.PAUSED),
    str(JobRun.Outcome.CONDITION),
)
BY_FORCE = "released by force"
"""What the lock store has of a lease that was taken away."""
LONGEST_NAME = 60


def kind_of(outcome: str) -> Kind:
    """Return which of four kinds an outcome is."""
    if outcome == RUNNING:
        return "running"
    return "good" if outcome in SUCCESSES else "skipped" if outcome in NOT_RUN else "bad"


def outcome_label(outcome: str) -> str:
    """Return an outcome in the user's language."""
    try:
        return str(JobRun.Outcome(outcome).label)
    except ValueError:  # Of a newer version of this package, say.
        return gettext("released by force") if outcome == BY_FORCE else outcome


def length(seconds: float) -> str:
    """Return a length of time in two units at most, such as 40 ms, 2.5 s, 3 min 20 s or 2 d 4 h."""
    if seconds < 0.0995:
        return gettext("%s ms") % number_format(round(max(0.0, seconds) * 1000))
    if seconds < 59.95:
        places = 0 if seconds >= 9.95 or seconds == round(seconds) else 1
        return gettext("%s s") % number_format(round(seconds, places), places)
    minutes, second = divmod(round(seconds), 60)
    if minutes < 60:
        return _joined(gettext("%s min") % minutes, gettext("%s s") % second if second else "")
    hours, minute = divmod(minutes, 60)
    if hours < 24:
        return _joined(gettext("%s h") % hours, gettext("%s min") % minute if minute else "")
    days, hour = divmod(hours, 24)
    return _joined(ngettext("%s day", "%s days", days) % number_format(days), gettext("%s h") % hour if hour else "")


def ago(instant: datetime, now: datetime) -> str:
    """Return how long ago an instant was, or how long it is until it."""
    seconds = (now - from_stored(instant)).total_seconds()
    if seconds >= 0:
        return pgettext("instant", "%s ago") % length(round(seconds) if seconds >= 1 else seconds)
    return pgettext("instant", "in %s") % length(round(-seconds) if seconds <= -1 else -seconds)


def moment(instant: datetime, zone: ZoneInfo | None = None) -> SafeString:
    """Return an instant with its weekday, date and time, in a zone or in the one of the user."""
    local = from_stored(instant).astimezone(zone or django_timezone.get_current_timezone())
    return format_html(
        '<time class="cronductor-moment" datetime="{}">{} {}</time>',
        from_stored(instant).isoformat(),
        date_format(local, "D"),
        f"{local:%Y-%m-%d %H:%M:%S} {local.tzname()}",
    )


def short_moment(instant: datetime, now: datetime, zone: ZoneInfo | None = None) -> SafeString:
    """Return an instant with what of its date and time tells it from now."""
    zone_shown = zone or django_timezone.get_current_timezone()
    local = from_stored(instant).astimezone(zone_shown)
    day = "" if local.date() == now.astimezone(zone_shown).date() else date_format(local, "D j M ")
    clock = f"{local:%H:%M:%S}" if local.second else f"{local:%H:%M}"
    return format_html(
        '<time class="cronductor-moment" datetime="{}">{}{} {}</time>',
        from_stored(instant).isoformat(),
        day,
        clock,
        local.tzname(),
    )


def outcome(value: str) -> SafeString:
    """Return an outcome with the mark and the colour of its kind."""
    kind = kind_of(value)
    mark = {"good": "✓", "bad": "✗", "running": "▸", "skipped": "○"}[kind]
    return format_html(
        '<span class="cronductor-outcome {}"><span aria-hidden="true">{}</span> {}</span>',
        kind,
        mark,
        outcome_label(value),
    )


TRIGGERS = {
    "schedule": _("schedule"),
    "catch-up": _("catch-up"),
    "recover": _("recover"),
    "manual": _("manual"),
}


def trigger(value: str) -> str:
    """Return why a run was started, in the user's language."""
    return str(TRIGGERS.get(value, value))


def times(count: int) -> str:
    """Return for how many occurrences a row stands, if it is more than one."""
    return ngettext("(%d occurrence)", "(%d occurrences)", count) % count if count > 1 else ""


def shortened(text: str, longest: int = LONGEST_NAME) -> str:
    """Return a text that fits into a table."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def zone_name() -> str:
    """Return the name of the zone in which the admin shows instants."""
    return django_timezone.get_current_timezone_name()


def url(site: str, name: str, *arguments: str | int) -> str:
    """Return the address of a page of this app in the admin of that name."""
    quoted = [quote(argument) for argument in arguments]
    return reverse(f"admin:django_cronductor_{name}", args=quoted, current_app=site)


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)
