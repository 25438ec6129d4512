"""The names of jobs and of plain locks."""

from __future__ import annotations

from django_cronductor.exceptions import ConfigurationError, shown

LONGEST_KEY = 200


def check_key(key: object, name: str) -> None:
    """Raise ConfigurationError unless `key` is 1 to 200 printable characters without braces; `name` is what it is."""
    if not isinstance(key, str):
        raise ConfigurationError(f"{name} must be a string, not {shown(key)}.")
    if not 1 <= len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"{name} must have 1 to {LONGEST_KEY} characters, not {len(key)}.")
    if not key.isprintable() or "{" in key or "}" in key or key != key.strip():
        raise ConfigurationError(
            f"{name} {shown(key)} must consist of printable characters, without braces and without blanks at its ends."
        )
