"""Durations as users give them: seconds or a timedelta."""

from __future__ import annotations

import math
from datetime import timedelta

from django_cronductor.exceptions import ConfigurationError, shown

Duration = int | float | timedelta

LONGEST = timedelta(days=366)


def milliseconds(value: object, name: str, *, zero: bool = False) -> int:
    """
    Return a duration given in seconds or as a timedelta as whole milliseconds.

    `name` is what the user called it ("ttl of job shop.sync"). Raises ConfigurationError unless it lies between one
    millisecond (or, with `zero`, nothing at all) and 366 days.
    """
    longest = LONGEST.total_seconds()
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        # Within bounds that float and round can handle; "not a number" stays what it is in this order.
        seconds = float(max(min(value, 2 * longest), -2 * longest))
    else:
        raise ConfigurationError(f"{name} must be a number of seconds or a timedelta, not {shown(value)}.")
    if math.isnan(seconds) or seconds > longest:
        raise ConfigurationError(f"{name} must be at most {LONGEST.days} days, not {shown(value)}.")
    result = round(seconds * 1000)
    if result < 0 or (result == 0 and not (zero and seconds == 0)):
        least = "zero or more" if zero else "at least 0.001"
        raise ConfigurationError(f"{name} must be {least} seconds, not {shown(value)}.")
    return result
