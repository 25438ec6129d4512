"""The names of jobs and of plain locks, and text that is nothing but text."""

from __future__ import annotations

from django_cronductor.exceptions import ConfigurationError, shown

LONGEST_KEY = 200


def plain(text: str) -> str:
    """Return the characters of a string alone: the member of an enum is one, and yet writes itself otherwise."""
    return str.__str__(text)


def check_key(key: object, name: str) -> str:
    """
    Return a key, which is 1 to 200 printable characters without braces; `name` is what it is.

    Raises ConfigurationError for any other.
    """
    if not isinstance(key, str):
        raise ConfigurationError(f"{name} must be a string, not {shown(key)}.")
    key = plain(key)
    if not 1 <= len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"{name} must have 1 to {LONGEST_KEY} characters, not {len(key)}.")
    if not key.isprintable() or "{" in key or "}" in key or key != key.strip():
        raise ConfigurationError(
            f"{name} {shown(key)} must consist of printable characters, without braces and without blanks at its ends."
        )
    return key
