"""Lengths of time as they are typed: 90, 90s, 15m, 26h, 1d12h."""

from __future__ import annotations

import re
from argparse import ArgumentTypeError
from datetime import timedelta

UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
PARTS = re.compile(r"(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9})s)?|(\d{1,9})", re.ASCII)
LONGEST = timedelta(days=36_500)


def age(text: str) -> timedelta:
    """Return a length of time above 0."""
    found = PARTS.fullmatch(text)
    values = found.groups() if found else ()
    seconds = sum(int(value) * UNITS[unit] for value, unit in zip(values, "dhmss", strict=False) if value)
    if not seconds or seconds > LONGEST.total_seconds():
        raise ArgumentTypeError(f"{text!r} is not a length of time such as 90s, 15m, 26h or 1d12h.")
    return timedelta(seconds=seconds)
