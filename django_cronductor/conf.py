"""The CRONDUCTOR setting: read when it is asked for, checked as a whole, read again when a test overrides it."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_cronductor.durations import milliseconds
from django_cronductor.exceptions import ConfigurationError, shown
from django_cronductor.handlers import check_on_error
from django_cronductor.keys import plain

OnError = Callable[..., object]

MOST_WORKERS = 1000
MOST_HISTORY = 1_000_000
LONGEST_PREFIX = 100


@dataclass(frozen=True)
class Config:
    """The settings of this process. `*_ms` are milliseconds, `shutdown_timeout` is seconds."""

    cache: str = "default"
    backend: str | None = None
    prefix: str = "cronductor"
    default_ttl_ms: int = 30_000
    default_grace_ms: int = 300_000
    timezone: str = "UTC"
    max_workers: int = 8
    shutdown_timeout: float = 25.0
    on_error: str | OnError | None = None
    history: int = 100
    autodiscover: str | None = "cron"

    def resolve_on_error(self) -> OnError | None:
        """Return the function that ON_ERROR is or names. Raises ConfigurationError if it cannot be imported."""
        if not isinstance(self.on_error, str):
            return self.on_error
        function: OnError = import_named(self.on_error, _called("ON_ERROR"))
        name = f"{_called('ON_ERROR')} names {self.on_error!r}, which"
        if not callable(function):
            raise ConfigurationError(f"{name} cannot be called.")
        check_on_error(function, name)
        return function


@dataclass(frozen=True)
class Problem:
    """Something wrong in the settings. `code` is the id of the system check that reports it."""

    code: str
    message: str
    hint: str


@dataclass(frozen=True)
class Setting:
    """
    One key of CRONDUCTOR: the Config field it fills, and what reports a wrong value.

    `read` takes the value and what to call it, and returns what the field holds or raises ConfigurationError.
    """

    field: str
    read: Callable[[object, str], Any]
    hint: str
    code: str = "cronductor.E003"


def get_config() -> Config:
    """Return the settings. Raises ConfigurationError that lists everything wrong with them."""
    return _checked_config()


def lenient_config() -> Config:
    """Return the settings with the default in place of what is wrong: for checks, which report it."""
    return _read()[0]


def problems() -> list[Problem]:
    """Return everything wrong with the settings, as the system checks report it."""
    config, found = _read()
    try:
        config.resolve_on_error()
    except ConfigurationError as error:
        found.append(Problem(SETTINGS["ON_ERROR"].code, str(error), SETTINGS["ON_ERROR"].hint))
    return found


def scheduler_options(config: Config) -> dict[str, Any]:
    """Return the settings that are the scheduler's, as its keyword arguments."""
    return {
        "default_ttl_ms": config.default_ttl_ms,
        "default_grace_ms": config.default_grace_ms,
        "timezone": config.timezone,
        "max_workers": config.max_workers,
        "shutdown_timeout": config.shutdown_timeout,
        "on_error": config.resolve_on_error(),
    }


def import_named(path: str, name: str) -> Any:
    """Import what a setting, called `name`, names. Raises ConfigurationError if that fails in any way."""
    try:
        return import_string(path)
    # Whatever that module raises, the setting that names it is where to look.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ConfigurationError(f"{name} names {path!r}, which cannot be imported ({reason}).") from error


@functools.lru_cache(maxsize=1)
def _checked_config() -> Config:
    config, found = _read()
    if found:
        raise ConfigurationError("\n".join(f"{problem.message} {problem.hint}" for problem in found))
    return config


def _forget(*, setting: str, **kwargs: object) -> None:
    """Read the settings again after a test has overridden them."""
    if setting in ("CRONDUCTOR", "CACHES", "TIME_ZONE", "USE_TZ"):
        _checked_config.cache_clear()


def _read() -> tuple[Config, list[Problem]]:
    """Return the settings, with the default in place of what is wrong, and what is wrong."""
    given, found = _given()
    found += [_unknown(key) for key in given if key not in SETTINGS]
    fields = {}
    # These two depend on other settings, so that they can be wrong without being given.
    for key, value in ({"CACHE": "default", "TIMEZONE": None} | given).items():
        if setting := SETTINGS.get(key):
            try:
                fields[setting.field] = setting.read(value, _called(key))
            except ConfigurationError as error:
                found.append(Problem(setting.code, str(error), setting.hint))
    config = Config(**fields)
    readable = not any(problem.code == "cronductor.E003" for problem in found)
    if readable and "default_grace_ms" in fields and config.default_grace_ms < config.default_ttl_ms:
        found.append(_grace_below_ttl(config))
    return config, found


def _given() -> tuple[dict[Any, object], list[Problem]]:
    given = getattr(settings, "CRONDUCTOR", {})
    if isinstance(given, Mapping):
        return dict(given), []
    hint = "Every key of it is optional; leave the setting out to have all the defaults."
    return {}, [Problem("cronductor.E001", f"CRONDUCTOR must be a dict, not {shown(given)}.", hint)]


def _unknown(key: object) -> Problem:
    nearest = difflib.get_close_matches(key[:100].upper(), SETTINGS, n=1) if isinstance(key, str) else []
    hint = f"Did you mean {nearest[0]!r}?" if nearest else f"The keys are {', '.join(SETTINGS)}."
    return Problem("cronductor.E002", f"CRONDUCTOR has no key {shown(key)}.", hint)


def _grace_below_ttl(config: Config) -> Problem:
    message = (
        f"{_called('DEFAULT_GRACE')} ({config.default_grace_ms / 1000:g} s) must not be shorter than DEFAULT_TTL "
        f"({config.default_ttl_ms / 1000:g} s): the occurrence after a crash could never start."
    )
    return Problem("cronductor.E004", message, "Make the grace longer or the ttl shorter.")


def _called(key: str) -> str:
    return f'CRONDUCTOR["{key}"]'


def _duration(value: object, name: str) -> int:
    return milliseconds(value, name)


def _seconds(value: object, name: str) -> float:
    return milliseconds(value, name, zero=True) / 1000


def _count(least: int, most: int | None = None) -> Callable[[object, str], int]:
    wanted = f"a whole number, {least} or more" if most is None else f"a whole number from {least} to {most}"

    def read(value: object, name: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least or value > (most or value):
            raise ConfigurationError(f"{name} must be {wanted}, not {shown(value)}.")
        return value

    return read


def _prefix(value: object, name: str) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= LONGEST_PREFIX
        or not value.isprintable()
        or set(value) & set("{} ")
    ):
        raise ConfigurationError(
            f"{name} must be 1 to {LONGEST_PREFIX} printable characters without braces or blanks, not {shown(value)}."
        )
    return plain(value)


def _cache(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise ConfigurationError(f"{name} must be an alias of CACHES, not {shown(value)}.")
    if value not in settings.CACHES:
        raise ConfigurationError(f"{name} is {shown(value)}, but CACHES has no such alias.")
    return plain(value)


def _zone(value: object, name: str) -> str:
    if value is None:
        value, name = settings.TIME_ZONE or "UTC", "TIME_ZONE"
    try:
        # "localtime" is a file that some systems have: the machine's own zone, another one on each.
        return ZoneInfo(plain(value) if isinstance(value, str) and value != "localtime" else "").key
    # A directory of the zone database, an absolute path, a NUL: ZoneInfo has an error of its own for each.
    except (LookupError, OSError, ValueError) as error:
        raise ConfigurationError(f"{name} is {shown(value)}, which is not the name of a known time zone.") from error


def _path(value: object, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and "." in value and _is_dotted(value):
        return plain(value)
    raise ConfigurationError(f"{name} must be a dotted path or None, not {shown(value)}.")


def _on_error(value: object, name: str) -> str | OnError | None:
    if callable(value):
        check_on_error(value, name)
        return value
    return _path(value, name)


def _module(value: object, name: str) -> str | None:
    if value is None:
        return None
    if isinstance(value, str) and _is_dotted(value) and not value.endswith(".py"):
        return plain(value)
    raise ConfigurationError(f'{name} must be the name of a module, such as "cron", or None, not {shown(value)}.')


def _is_dotted(value: str) -> bool:
    return all(part.isidentifier() for part in value.split("."))


_DURATION = "Give seconds or a timedelta."

SETTINGS = {
    "CACHE": Setting("cache", _cache, "Name the alias of CACHES whose Redis holds the locks.", "cronductor.E006"),
    "BACKEND": Setting("backend", _path, "Give the dotted path of a lock backend's class.", "cronductor.E007"),
    "PREFIX": Setting("prefix", _prefix, "It stands in the name of every key in Redis."),
    "DEFAULT_TTL": Setting("default_ttl_ms", _duration, _DURATION),
    "DEFAULT_GRACE": Setting("default_grace_ms", _duration, _DURATION),
    "TIMEZONE": Setting(
        "timezone",
        _zone,
        "Give a name such as 'Europe/Berlin'; where no zone is found, install tzdata.",
        "cronductor.E005",
    ),
    "MAX_WORKERS": Setting("max_workers", _count(1, MOST_WORKERS), "It is how many jobs a replica runs at once."),
    "SHUTDOWN_TIMEOUT": Setting("shutdown_timeout", _seconds, _DURATION),
    "ON_ERROR": Setting(
        "on_error", _on_error, "Give a function on_error(error, context), or its path.", "cronductor.E008"
    ),
    "HISTORY": Setting(
        "history", _count(0, MOST_HISTORY), "It is how many runs of each job the database keeps; 0 keeps none."
    ),
    "AUTODISCOVER": Setting("autodiscover", _module, "Give the name of the module to look for in each app, or None."),
}

setting_changed.connect(_forget)
