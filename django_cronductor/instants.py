"""Instants as the database has them."""

from __future__ import annotations

from datetime import datetime, timezone

from django.conf import settings
from django.utils import timezone as django_timezone


def as_stored(instant: datetime) -> datetime:
    """Return an aware instant as the database has it: naive, in the default zone, where USE_TZ is off."""
    return instant if settings.USE_TZ else django_timezone.make_naive(instant, django_timezone.get_default_timezone())


def from_stored(stored: datetime) -> datetime:
    """Return what the database has as an aware datetime in UTC; the first one, where a naive time came twice."""
    if stored.tzinfo is None:
        stored = stored.replace(tzinfo=django_timezone.get_default_timezone())
    return stored.astimezone(timezone.utc)
