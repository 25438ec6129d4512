"""Instants: as the lock store has them, and as the database does."""

from __future__ import annotations

from datetime import datetime, timezone

from django.conf import settings
from django.utils import timezone as django_timezone


def to_datetime(epoch_ms: int) -> datetime:
    """Return an instant in milliseconds since the epoch as an aware datetime in UTC."""
    return datetime.fromtimestamp(epoch_ms / 1000, timezone.utc)


def as_stored(instant: datetime) -> datetime:
    """Return an aware instant as the database has it: naive, in the default zone, where USE_TZ is off."""
    return instant if settings.USE_TZ else django_timezone.make_naive(instant, django_timezone.get_default_timezone())


def from_stored(stored: datetime, near: datetime | None = None) -> datetime:
    """
    Return what the database has as an aware datetime in UTC.

    Of a naive time that comes twice, the one that is nearer to `near`; else the second if it has passed: what has just
    been written is not an hour old then.
    """
    if stored.tzinfo is not None:
        return stored.astimezone(timezone.utc)
    zone = django_timezone.get_default_timezone()
    first, second = (stored.replace(tzinfo=zone, fold=fold).astimezone(timezone.utc) for fold in (0, 1))
    if near is not None:
        return min(first, second, key=lambda one: abs(one - near))
    return second if second <= datetime.now(timezone.utc) else first
