"""The errors that django_cronductor raises."""

from __future__ import annotations

import re

LONGEST_SHOWN = 100
_WORD = re.compile(r"\S+")
_USER_IN_URL = re.compile(r"://[^/:]*:")


def without_url_passwords(text: str, hidden: str) -> str:
    """Return a text with the passwords in its URLs replaced, also those with a slash, which belongs in no URL."""
    return _WORD.sub(lambda word: _without_password(word[0], hidden), text) if "://" in text else text


def _without_password(word: str, hidden: str) -> str:
    user, end = _USER_IN_URL.search(word), word.rfind("@")
    return f"{word[: user.end()]}{hidden}{word[end:]}" if user and user.end() <= end else word


def shown(value: object) -> str:
    """Return how an error names a value that a user gave: short, without a password, whatever its repr does."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - What is wrong with the value is to be said, not what is wrong with its repr.
        text = f"an object of {type(value).__name__}"
    text = without_url_passwords(text, "***")
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 3]}..."


class CronductorError(Exception):
    """Base of every error of this package."""


class ConfigurationError(CronductorError, ValueError):
    """A declaration or a setting is wrong: expression, key, TTL, zone, handler, duplicate, setting."""


class JobNotFound(CronductorError, LookupError):
    """No job of that key is declared."""


class NotAcquired(CronductorError):
    """Another holder has the lock."""


class BackendError(CronductorError):
    """
    The lock store failed, so nothing was won; the driver's error is the cause.

    `unanswered`: its reply did not come, so that what was asked may have been done.
    """

    unanswered = False


class BackendRefused(BackendError):
    """The lock store answered and refuses us (password, permission, no scripts): waiting will not help."""


class LeaseLost(CronductorError):
    """The lease of this run or lock has ended or was taken over: stop writing."""


class Stopping(CronductorError):
    """This run was asked to stop: the process is shutting down, or the run's timeout has passed."""
