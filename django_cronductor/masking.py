"""Text of errors as it may be kept: without what looks like a secret, of bounded length, and storable everywhere."""

from __future__ import annotations

import contextlib
import re
import traceback
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from django_cronductor.exceptions import without_url_passwords

LONGEST_MESSAGE = 1_000
LONGEST_TRACEBACK = 20_000
MOST_MASKED = 200_000
"""Characters that are searched for secrets: of a text of many megabytes the rest is cut off before."""
HIDDEN = "********"

_IS = r"""\\{0,3}["']? \s{0,9} [=:]{1,2}>? \s{0,9}"""
_SECRET = re.compile(
    # A header has a value of several words, so all of its line.
    rf"""(?ix) (?P<name> (?P<header> (?: authorization | cookie ) {_IS} )
        | (?: passw(?:or)?d | passphrase | pwd | secret | token | (?: api | private | access )[_-]?key
            | session[_-]?(?: id | key ) | signature | authorization ) [\w-]{{0,40}} {_IS}
            (?: (?: bearer | basic | digest | token ) \s{{1,9}} )? )
    (?: (?P<open> [bruf]{{0,2}} (?P<quote> "{{3}} | '{{3}} | ["'] ) ) (?: \\. | (?! (?P=quote) ) [^\\\n] )+
        | (?P<escaped> \\{{1,3}} (?P<inner> ["'] ) ) (?: (?! \\{{0,3}} (?P=inner) ) [^\n] )+
        | (?! \\{{0,3}} ["'] ) (?(header) \S [^\n]* | [^\s"'&,;)}}\]]+ ) )"""
)
_REPLACED = rf"\g<name>\g<open>\g<escaped>{HIDDEN}"


def mask(text: object) -> str:
    """Return a text with what looks like a secret, and the passwords of the settings, replaced."""
    masked = str(text)
    for secret in _secrets_of_settings():
        masked = masked.replace(secret, HIDDEN)
    return _SECRET.sub(_REPLACED, without_url_passwords(masked, HIDDEN))


def describe(error: BaseException) -> dict[str, str]:
    """Return type, message and traceback of an error, under the names of the history's columns. Never raises."""
    message = _said(lambda: str(error))[:MOST_MASKED]
    trace = _said(lambda: "".join(traceback.format_exception(error)))[-MOST_MASKED:]
    return {
        "error_type": storable(type(error).__qualname__, 200),
        "error_message": storable(mask(message), LONGEST_MESSAGE),
        # The end of it names the error.
        "traceback": storable(mask(trace))[-LONGEST_TRACEBACK:],
    }


def storable(text: str, longest: int | None = None) -> str:
    """Return a text of which every database takes every character, cut to a length."""
    # PostgreSQL takes no NUL, and nothing can encode half of a surrogate pair.
    shown = text[:longest].replace("\x00", "\\x00")
    return shown.encode("utf-8", "backslashreplace").decode()[:longest]


def _said(say: Callable[[], str]) -> str:
    """Return what an error says of itself, which is code of others."""
    try:
        return say()
    except BaseException as problem:  # noqa: BLE001 - Whatever it raises, its run has ended and is to be written.
        return f"(The error cannot be shown: that raised {type(problem).__qualname__}.)"


def _secrets_of_settings() -> list[str]:
    """Return what is secret in the settings, the longest first: one may be a part of another."""
    found: set[object] = {options.get("PASSWORD") for options in settings.DATABASES.values()}
    with contextlib.suppress(ImproperlyConfigured):  # A project may do without it.
        found |= {settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS}
    found |= {secret for options in settings.CACHES.values() for secret in _passwords(options.get("OPTIONS"))}
    # Shorter ones are words that stand in any text.
    return sorted((one for one in found if isinstance(one, str) and len(one) > 5), key=len, reverse=True)


def _passwords(options: Any) -> Iterable[object]:
    if isinstance(options, Mapping):
        yield from (value for name, value in options.items() if str(name).lower() == "password")
