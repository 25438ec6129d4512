"""Wrong, huge and hostile input: a clear refusal everywhere, never a raw error, a hang or a secret."""

from __future__ import annotations

import contextlib
import functools
import io
import math
import re
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_cronductor import (
    ConfigurationError,
    JobNotFound,
    JobRegistry,
    NotAcquired,
    Schedule,
    Scheduler,
    lock,
    run_exclusive,
    try_lock,
)
from django_cronductor.backends.local import LocalBackend
from django_cronductor.checks import check_deployment, check_jobs, check_settings, check_shared_database
from django_cronductor.conf import SETTINGS, get_config
from django_cronductor.exceptions import LONGEST_SHOWN, shown
from django_cronductor.testing import ManualClock

LOCAL = {"BACKEND": "django_cronductor.backends.local.LocalBackend", "HISTORY": 0}
PASSWORD = "hunter2-is-no-secret"
LONGEST_MESSAGE = 1000
"""Characters: an error is to be read, whatever was given."""


class Speechless:
    """It cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    __str__ = __repr__


class Silent(Speechless):
    """Nothing can be asked of it."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")


class SpeechlessCall(Speechless):
    def __call__(self) -> None:
        pass


class SilentNumber(int):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Defiant:
    """It raises for every attribute that it is asked for."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(f"no {name}")


def work() -> None: ...


def circle() -> None: ...


def misfiled() -> None: ...


def unreadable() -> None: ...


circle.__wrapped__ = circle  # type: ignore[attr-defined]
misfiled.__module__ = 5  # type: ignore[assignment]
unreadable.__signature__ = "none"  # type: ignore[attr-defined]

TEXTS = [
    "",
    " ",
    "a" * 1_000_000,
    "{key}",
    "a}b",
    "line\nbreak",
    "nul\0",
    "tab\t",
    "\x1b[31m",
    "\u202eleft",
    "\u200b",
    "\ud800",
    "ключ",
    "😀",
    "../../etc/passwd",
    "localtime",
    "* * * * *",
    f"redis://user:{PASSWORD}@host:6379/0",
]
NUMBERS = [0, -1, True, False, 10**5000, 1.5, math.nan, math.inf, -math.inf, SilentNumber(-5), Decimal("NaN"), 1j]
OBJECTS = [
    None,
    b"bytes",
    bytearray(b"bytes"),
    [],
    {},
    (),
    set(),
    iter([]),
    object(),
    ...,
    int,
    Silent,
    Silent(),
    SpeechlessCall(),
    Defiant(),
    MagicMock(),
    timedelta.max,
    timedelta.min,
    timedelta(0),
    datetime.max,
    timezone.utc,
    work,
    circle,
    misfiled,
    unreadable,
    lambda: None,
    lambda one, two: None,
    functools.partial(circle),
    functools.partial(work, 1),
    classmethod(work),
]
HOSTILE = [*TEXTS, *NUMBERS, *OBJECTS]


def name(value: object) -> str:
    text = value if isinstance(value, str) else shown(value)
    return re.sub(r"( at 0x| id=').*", "", ascii(text)[:30])  # The same in every process.


every_value = pytest.mark.parametrize("value", HOSTILE, ids=[f"{n}-{name(v)}" for n, v in enumerate(HOSTILE)])


def attempt(call: Callable[[], object], *refusals: type[Exception]) -> None:
    """Call it; that is fine, and so is a refusal that one can read."""
    try:
        call()
    except (ConfigurationError, *refusals) as error:
        message = str(error)
        assert message
        assert len(message) < LONGEST_MESSAGE
        assert PASSWORD not in message
        message.encode()  # A log or a terminal can show it.


class TestShown:
    def test_a_value_is_shown_as_python_writes_it(self) -> None:
        assert shown("text") == "'text'"

    def test_a_long_value_is_cut(self) -> None:
        assert len(shown("a" * 10_000)) == LONGEST_SHOWN
        assert shown("a" * 10_000).endswith("...")

    def test_a_password_in_an_address_is_hidden(self) -> None:
        assert shown(f"redis://:{PASSWORD}@host/0") == "'redis://:***@host/0'"
        assert PASSWORD not in shown([f"redis://user:{PASSWORD}@host/0"])

    @pytest.mark.parametrize("value", [Silent(), 10**5000], ids=["silent", "endless"])
    def test_a_value_whose_repr_fails_is_named_by_its_type(self, value: object) -> None:
        assert shown(value) == f"an object of {type(value).__name__}"


@every_value
class TestDeclarations:
    @pytest.mark.parametrize("option", ["key", "ttl", "grace", "timeout", "timezone"])
    def test_an_option_is_taken_or_refused(self, option: str, value: Any) -> None:
        attempt(lambda: JobRegistry().schedule("* * * * *", work, **{"key": "job", option: value}))

    @pytest.mark.parametrize("option", ["recover", "when", "enabled", "takes_context"])
    def test_a_flag_or_a_condition_is_taken_or_refused(self, option: str, value: Any) -> None:
        attempt(lambda: JobRegistry().schedule("* * * * *", work, key="job", **{option: value}))

    def test_an_expression_is_taken_or_refused(self, value: Any) -> None:
        attempt(lambda: JobRegistry().schedule(value, work, key="job"))

    def test_a_handler_is_taken_or_refused_and_a_job_can_be_shown(self, value: Any) -> None:
        def declare() -> None:
            registry = JobRegistry()
            job = registry.schedule("* * * * *", value, key="job")
            assert "job" in repr(job)
            assert job.is_async in (True, False)
            assert job.app_label is None or isinstance(job.app_label, str)
            registry.schedule("* * * * *", value, key="job")

        attempt(declare)

    def test_a_decorated_thing_is_taken_or_refused_and_left_unchanged(self, value: Any) -> None:
        def declare() -> None:
            assert JobRegistry().cron("* * * * *")(value) is value

        attempt(declare)
        attempt(lambda: JobRegistry().cron("* * * * *", key="job")(value))

    def test_what_is_no_key_of_a_job_is_not_found(self, value: Any) -> None:
        registry = JobRegistry()
        registry.schedule("* * * * *", work, key="some.job")
        assert value not in registry
        with pytest.raises(JobNotFound) as caught:
            registry.get(value)
        assert len(str(caught.value)) < LONGEST_MESSAGE
        assert PASSWORD not in str(caught.value)


@every_value
class TestSchedules:
    def test_an_expression_a_zone_and_a_key_are_taken_or_refused(self, value: Any) -> None:
        attempt(lambda: Schedule(value))
        attempt(lambda: Schedule("* * * * *", value))
        attempt(lambda: Schedule("H H * * *", "UTC", value))

    def test_an_instant_is_taken_or_refused(self, value: Any) -> None:
        schedule = Schedule("* * * * *")
        attempt(lambda: schedule.next_after(value), TypeError)
        attempt(lambda: schedule.latest_until(value), TypeError)
        attempt(lambda: schedule.clock_change(value), TypeError)


@pytest.mark.parametrize("offset", [timedelta(hours=-23, minutes=-59), timedelta(0), timedelta(hours=23, minutes=59)])
@pytest.mark.parametrize("edge", [datetime.min, datetime.max])
def test_the_edges_of_the_calendar_are_answered(edge: datetime, offset: timedelta) -> None:
    instant = edge.replace(tzinfo=timezone(offset))
    for schedule in (Schedule("0 0 29 2 *"), Schedule("30 2 * * *", "Europe/Berlin")):
        for answer in (schedule.next_after(instant), schedule.latest_until(instant)):
            assert answer is None or answer.tzinfo is timezone.utc


@every_value
class TestLocks:
    def test_a_key_and_a_ttl_are_taken_or_refused(self, value: Any) -> None:
        with override_settings(CRONDUCTOR=LOCAL):
            attempt(lambda: lock(value))
            attempt(lambda: lock("key", value))
            attempt(lambda: _release(try_lock(value)))
            attempt(lambda: run_exclusive(value, lambda: None))
            attempt(lambda: run_exclusive("key", lambda: None, ttl=value), NotAcquired)

    def test_a_decorated_thing_is_a_function_or_refused(self, value: Any) -> None:
        attempt(lambda: lock("key")(value))

    def test_what_run_exclusive_is_to_call_is_a_function_or_refused(self, value: Any) -> None:
        with override_settings(CRONDUCTOR=LOCAL):
            attempt(lambda: run_exclusive("key", value))


def _release(held: Any) -> None:
    if held is not None:
        held.release()


@every_value
class TestSettings:
    @pytest.mark.parametrize("key", SETTINGS)
    def test_a_setting_is_taken_or_reported_by_a_check_and_refused(self, key: str, value: Any) -> None:
        with override_settings(CRONDUCTOR={key: value}):
            attempt(self.check)
            attempt(lambda: get_config().resolve_on_error())

    def test_what_is_no_dict_is_reported_by_a_check_and_refused(self, value: Any) -> None:
        if isinstance(value, (Defiant, dict, MagicMock)):
            value = [value]  # Django's own settings ask it for an attribute.
        with override_settings(CRONDUCTOR=value):
            assert [message.id for message in check_settings(None)] == ["cronductor.E001"]
            attempt(self.check)
            with pytest.raises(ConfigurationError):
                get_config()

    def test_an_unknown_key_is_reported_by_a_check_and_refused(self, value: Any) -> None:
        with contextlib.suppress(TypeError), override_settings(CRONDUCTOR={value: 1}):
            assert [message.id for message in check_settings(None)] == ["cronductor.E002"]
            attempt(get_config)

    def check(self) -> None:
        checks = (check_settings, check_jobs, check_shared_database, check_deployment)
        for message in (message for check in checks for message in check(None)):
            assert len(str(message)) < LONGEST_MESSAGE
            assert PASSWORD not in str(message)


@pytest.mark.django_db
@every_value
class TestScheduler:
    @pytest.mark.parametrize(
        "argument",
        [
            "default_ttl_ms",
            "default_grace_ms",
            "timezone",
            "max_workers",
            "shutdown_timeout",
            "on_error",
            "only",
            "exclude",
            "instance",
        ],
    )
    def test_an_argument_is_taken_and_works_or_is_refused(self, argument: str, value: Any) -> None:
        def run() -> None:
            clock = ManualClock()
            registry = JobRegistry()
            registry.schedule("* * * * *", work, key="job")
            backend = LocalBackend(clock=clock)
            scheduler = Scheduler(registry, backend, clock=clock, inline=True, **{argument: value})
            scheduler.tick()
            clock.advance(60)
            scheduler.tick()

        attempt(run, JobNotFound)

    def test_what_is_no_registry_and_what_is_no_backend_is_refused(self, value: Any) -> None:
        with pytest.raises(ConfigurationError):
            Scheduler(value, LocalBackend())
        with pytest.raises(ConfigurationError):
            Scheduler(JobRegistry(), value)


COMMANDS: list[Callable[[str], list[str]]] = [
    lambda text: ["cron", text],
    lambda text: ["cron", "next", text],
    lambda text: ["cron", "next", "--expression", text],
    lambda text: ["cron", "next", "--expression", "* * * * *", "--timezone", text],
    lambda text: ["cron", "next", "--expression", "0 0 29 2 *", "-n", text],
    lambda text: ["cron", "next", "--expression", "0 0 29 2 *", "-n2", "--from", text],
    lambda text: ["runcron", text],
    lambda text: ["runcron", "--once", "--only", text],
    lambda text: ["runcron", "--once", "--exclude", text],
    lambda text: ["runcron", "--once", "--heartbeat-file", text],
]
ARGUMENTS = [
    *(text for text in TEXTS if len(text) < 1000),
    "a" * 10_000,
    "0",
    "-1",
    "1e9",
    "99999999999999999999",
    "٣",
    "NaN",
    "9999-12-31",
    "9999-12-31T23:59:59-23:59",
    "0001-01-01T00:00+23:59",
    "2026-02-30",
    "2026-01-01T25:00",
    "R * * * *",
    "0 0 31 2 *",
    "*/0 * * * *",
    "* " * 5000,
    "@reboot",
    "/",
    "/nonexistent/file",
]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("text", ARGUMENTS, ids=[f"{n}-{name(text)}" for n, text in enumerate(ARGUMENTS)])
def test_an_argument_of_a_command_is_taken_or_refused(
    command: Callable[[str], list[str]], text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    words = command(text)
    out, err = io.StringIO(), io.StringIO()
    with override_settings(CRONDUCTOR=LOCAL), contextlib.suppress(CommandError):
        call_command(*words, stdout=out, stderr=err)


@pytest.mark.parametrize("text", ["nul\0", "/", "/nonexistent/file", "a" * 10_000])
def test_a_heartbeat_file_that_cannot_be_is_refused_by_name(text: str) -> None:
    with override_settings(CRONDUCTOR=LOCAL), pytest.raises(CommandError, match=r"^--heartbeat-file: "):
        call_command("runcron", "--heartbeat-file", text, "--once")


def test_a_partial_that_fills_in_what_does_not_fit_is_refused_with_the_reason() -> None:
    with pytest.raises(ConfigurationError, match="too many positional arguments"):
        JobRegistry().schedule("* * * * *", functools.partial(work, 1), key="job")


@pytest.mark.parametrize("handler", [circle, functools.partial(circle)])
def test_a_handler_wrapped_in_itself_is_refused_by_name(handler: Any) -> None:
    with pytest.raises(ConfigurationError, match="wrapped in itself"):
        JobRegistry().cron("* * * * *")(handler)


def test_a_history_that_no_database_can_count_to_is_refused() -> None:
    with override_settings(CRONDUCTOR={"HISTORY": 10**30}), pytest.raises(ConfigurationError, match="HISTORY"):
        get_config()


def test_a_scheduler_takes_no_single_key_for_a_collection() -> None:
    registry = JobRegistry()
    registry.schedule("* * * * *", work, key="j")
    with pytest.raises(ConfigurationError, match="only of a Scheduler must be a collection of keys, not 'j'"):
        Scheduler(registry, LocalBackend(), only="j")
