"""The command, called from Python."""

from __future__ import annotations

import io
import logging
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.conf import settings
from django.core.management import CommandError, call_command
from django.test import override_settings

import django_cronductor
from django_cronductor.backends.base import MANUAL
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.commands import runcron
from django_cronductor.management.process import show_logs_somewhere

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db

DEADLINE = 20.0
LOCAL = "django_cronductor.backends.local.LocalBackend"


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> JobRegistry:
    """Return the registry that the command runs in this test."""
    registry = JobRegistry()
    monkeypatch.setattr(runcron, "registry", registry)
    return registry


@pytest.fixture
def on_redis(prefix: str) -> Iterator[str]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "HISTORY": 0}):
        yield prefix


@pytest.fixture
def in_memory(prefix: str) -> Iterator[str]:
    with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix, "HISTORY": 0}):
        yield prefix


class Called:
    """What the command wrote."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        stdout, stderr = io.StringIO(), io.StringIO()
        try:
            call_command("runcron", *arguments, stdout=stdout, stderr=stderr, **options)
        finally:
            self.out, self.err = stdout.getvalue(), stderr.getvalue()


def stop_here() -> None:
    """Do as an operator would: the command has its handler on the signal."""
    os.kill(os.getpid(), signal.SIGTERM)


class StoppingJob:
    """A job that stops the command at its first run."""

    def __init__(self) -> None:
        self.runs = 0

    def __call__(self) -> None:
        self.runs += 1
        stop_here()


@pytest.fixture
def stopping(registry: JobRegistry) -> StoppingJob:
    job = StoppingJob()
    registry.schedule("* * * * * *", job, key="shop.stopping")
    return job


# What it says.


def test_the_banner_names_version_instance_store_and_the_next_jobs(
    registry: JobRegistry, stopping: StoppingJob, on_redis: str
) -> None:
    registry.schedule("0 5 * * *", lambda: None, key="shop.nightly", timezone="Asia/Karachi")
    registry.schedule("0 0 * * *", lambda: None, key="shop.off", enabled=False)
    said = Called()
    assert stopping.runs == 1
    lines = said.out.splitlines()
    assert re.fullmatch(
        rf"django-cronductor {re.escape(django_cronductor.__version__)}, instance \S+:{os.getpid()}:\w+", lines[0]
    )
    assert re.fullmatch(r"Locks: Redis at 127\.0\.0\.1:\d+, database 0 \(cache 'locks'\)", lines[1])
    assert lines[2] == "Jobs: 3, 1 of them disabled"
    assert re.fullmatch(
        r"  next: shop\.stopping at \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\* \* \* \* \* \* in UTC\)", lines[3]
    )
    assert re.fullmatch(
        r"  next: shop\.nightly at \d{4}-\d\d-\d\d 00:00:00 UTC \(0 5 \* \* \* in Asia/Karachi\)", lines[4]
    )
    assert len(lines) == 5
    assert said.err == ""


def test_the_banner_of_the_single_instance_backend(
    stopping: StoppingJob, in_memory: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert "Locks: memory of this process (single instance" in Called().out
    assert stopping.runs == 1
    assert any("every other process would run each job" in record.getMessage() for record in caplog.records)


def test_a_store_that_forgets_when_it_is_full_is_warned_of(
    stopping: StoppingJob, on_redis: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(RedisBackend, "eviction_policy", lambda self: "allkeys-lru")
    Called()
    (text,) = [record.getMessage() for record in caplog.records if "evicts keys" in record.getMessage()]
    assert "maxmemory-policy allkeys-lru" in text
    assert "noeviction" in text


def test_no_jobs_is_a_warning_that_names_the_apps_searched(registry: JobRegistry, on_redis: str) -> None:
    said = Called(once=True)
    assert "Jobs: 0\n" in said.out
    assert "There are no jobs to run: no module named 'cron' in admin, auth," in said.err
    assert "django_cronductor" in said.err


def test_options_that_leave_no_job_are_named(registry: JobRegistry, on_redis: str) -> None:
    registry.schedule("* * * * *", print, key="shop.sync")
    assert (
        "There are no jobs to run: --only and --exclude leave none of 1."
        in Called(once=True, exclude=["shop.sync"]).err
    )


def test_no_jobs_without_autodiscovery_says_so(registry: JobRegistry, on_redis: str) -> None:
    with override_settings(CRONDUCTOR={**settings.CRONDUCTOR, "AUTODISCOVER": None}):
        assert "There are no jobs to run: AUTODISCOVER is off." in Called(once=True).err


# Options.


@pytest.mark.parametrize("option", ["only", "exclude"])
def test_an_unknown_key_is_an_error_that_names_the_nearest(
    registry: JobRegistry, stopping: StoppingJob, on_redis: str, option: str
) -> None:
    with pytest.raises(CommandError, match=r"No job 'shop\.stoping' is declared; did you mean shop\.stopping\?"):
        Called(**{option: ["shop.stoping"]})


def test_only_and_exclude_choose_jobs(registry: JobRegistry, stopping: StoppingJob, on_redis: str) -> None:
    runs: list[str] = []
    registry.schedule("* * * * * *", lambda: runs.append("other"), key="shop.other")
    assert "Jobs: 1\n" in Called(only=["shop.stopping"]).out
    assert "Jobs: 1\n" in Called(exclude=["shop.other"]).out
    assert (stopping.runs, runs) == (2, [])


def test_a_wrong_setting_is_a_command_error(registry: JobRegistry, stopping: StoppingJob) -> None:
    with (
        override_settings(CRONDUCTOR={"CACHE": "locks", "DEFAULT_TTL": -1}),
        pytest.raises(CommandError, match="DEFAULT_TTL"),
    ):
        Called()


def test_a_job_that_does_not_go_with_the_settings_is_a_command_error(registry: JobRegistry, on_redis: str) -> None:
    registry.schedule("* * * * *", lambda: None, key="brief", grace=10)
    with pytest.raises(CommandError, match="Job brief"):
        Called()


def test_without_debug_and_a_backend_it_refuses(registry: JobRegistry, stopping: StoppingJob) -> None:
    with (
        override_settings(CRONDUCTOR={"CACHE": "default"}, DEBUG=False),
        pytest.raises(CommandError, match=r'The cache .default. is not in Redis.*CRONDUCTOR\["BACKEND"\]'),
    ):
        Called()


# --once.


def test_once_runs_nothing_at_the_first_start(registry: JobRegistry, on_redis: str) -> None:
    runs: list[str] = []
    registry.schedule("* * * * *", lambda: runs.append("run"), key="job")
    assert "There was nothing to run." in Called(once=True).out
    assert runs == []


def test_once_runs_what_is_due_since_and_exits(registry: JobRegistry, on_redis: str) -> None:
    contexts: list[Any] = []
    registry.schedule("* * * * * *", contexts.append, key="job", takes_context=True)
    backend = RedisBackend(cache="locks", prefix=on_redis)
    Called(once=True)
    since = backend.states(["job"]).answers[0].since  # type: ignore[union-attr]
    assert since is not None
    while backend.time() // 1000 == since // 1000:
        pass  # At most a second: the next occurrence must have come.
    assert "nothing" not in Called(once=True).out
    (context,) = contexts
    assert context.trigger == "catch-up"
    state = backend.states(["job"]).answers[0]
    assert state.occurrence == context.scheduled_at.timestamp() * 1000  # type: ignore[union-attr]
    assert state.lease is None  # type: ignore[union-attr]
    assert backend.instances() == {}
    backend.close()


def test_once_makes_requested_runs_too(registry: JobRegistry, on_redis: str) -> None:
    contexts: list[Any] = []
    registry.schedule("0 0 1 1 *", contexts.append, key="job", takes_context=True)
    backend = RedisBackend(cache="locks", prefix=on_redis)
    Called(once=True)
    assert backend.request_run("job")
    Called(once=True)
    assert [context.trigger for context in contexts] == [MANUAL]
    backend.close()


def test_once_runs_handlers_in_the_callers_thread(registry: JobRegistry, on_redis: str) -> None:
    threads: list[threading.Thread] = []
    registry.schedule("* * * * * *", lambda: threads.append(threading.current_thread()), key="job")
    while not threads:
        Called(once=True)
    assert threads == [threading.current_thread()]


def test_once_is_refused_on_the_single_instance_backend(
    registry: JobRegistry, stopping: StoppingJob, in_memory: str
) -> None:
    with pytest.raises(CommandError, match="--once needs to know what ran before"):
        Called(once=True)


def test_once_does_not_go_with_reload(registry: JobRegistry, on_redis: str) -> None:
    with pytest.raises(CommandError, match="--once ends by itself: leave out --reload"):
        Called(once=True, reload=True)


def test_once_fails_when_the_store_cannot_be_reached(registry: JobRegistry, prefix: str) -> None:
    nowhere = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
    with (
        override_settings(
            CACHES={**settings.CACHES, "nowhere": nowhere}, CRONDUCTOR={"CACHE": "nowhere", "HISTORY": 0}
        ),
        pytest.raises(CommandError, match=r"Redis at 127\.0\.0\.1:1"),
    ):
        Called(once=True)


def test_once_inside_a_test_case_leaves_the_database_connection_usable(registry: JobRegistry, on_redis: str) -> None:
    from django.contrib.auth.models import User

    counts: list[int] = []
    User.objects.create_user("someone")
    registry.schedule("* * * * * *", lambda: counts.append(User.objects.count()), key="job")
    while not counts:
        Called(once=True)
    assert counts == [1]
    assert User.objects.get().username == "someone"


# Signals, logs, the heartbeat file.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_and_the_handlers_from_before_are_back_after_it(
    registry: JobRegistry, on_redis: str, number: signal.Signals
) -> None:
    def before(number: int, frame: object) -> None:
        raise AssertionError("not while the command runs")

    registry.schedule("* * * * * *", lambda: os.kill(os.getpid(), number), key="job")
    old = signal.signal(number, before)
    try:
        Called()
        assert signal.getsignal(number) is before
    finally:
        signal.signal(number, old)


def test_it_runs_in_a_thread_too_where_no_handler_can_be_set(
    registry: JobRegistry, on_redis: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(signal.SIGTERM)
    ran = threading.Event()
    registry.schedule("* * * * * *", ran.set, key="job")
    command = runcron.Command(stdout=io.StringIO(), stderr=io.StringIO())
    thread = threading.Thread(target=call_command, args=(command,))
    thread.start()
    assert ran.wait(DEADLINE)
    assert signal.getsignal(signal.SIGTERM) is before
    assert command.scheduler is not None
    command.scheduler.stop()
    thread.join(DEADLINE)
    assert not thread.is_alive()


def test_the_connections_are_closed_at_the_end(stopping: StoppingJob, on_redis: str, redis_client: Any) -> None:
    before = len(redis_client.client_list())
    Called()
    deadline = time.monotonic() + 20
    while len(redis_client.client_list()) > before:
        assert time.monotonic() < deadline  # The server hears of the end of a connection a moment after it.


def test_logs_are_shown_where_nothing_else_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("django_cronductor")
    monkeypatch.setattr(logger, "propagate", False)
    monkeypatch.setattr(logger, "handlers", [])
    level = logger.level
    try:
        show_logs_somewhere()
        show_logs_somewhere()
        assert len(logger.handlers) == 1
        assert logger.isEnabledFor(logging.INFO)
    finally:
        logger.setLevel(level)


def test_logs_are_left_alone_where_the_project_shows_them(monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logging.getLogger("django_cronductor")
    monkeypatch.setattr(logger, "handlers", [logging.NullHandler()])
    before = logger.level
    show_logs_somewhere()
    assert len(logger.handlers) == 1
    assert logger.level == before


def test_the_heartbeat_file_is_made_at_once_and_touched_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "alive"
    moments = iter([100.0, 100.1, 100.6])
    # Of this module alone: threads of earlier tests may look at the clock.
    monkeypatch.setattr(runcron, "time", SimpleNamespace(monotonic=lambda: next(moments)))
    heartbeat = runcron.HeartbeatFile(path)
    assert path.exists()
    touched = []
    for _ in range(3):
        os.utime(path, (1, 1))
        heartbeat()
        touched.append(path.stat().st_mtime > 1)
    assert touched == [True, False, True]


def test_a_heartbeat_file_that_cannot_be_written_is_a_command_error(
    stopping: StoppingJob, on_redis: str, tmp_path: Path
) -> None:
    with pytest.raises(CommandError, match=r"--heartbeat-file: .*nowhere"):
        Called(heartbeat_file=tmp_path / "nowhere" / "alive")


def test_a_heartbeat_file_that_can_no_longer_be_touched_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    directory = tmp_path / "gone"
    directory.mkdir()
    heartbeat = runcron.HeartbeatFile(directory / "alive")
    (directory / "alive").unlink()
    directory.rmdir()
    for _ in range(3):
        heartbeat()
        heartbeat._touched = 0.0  # Half a second goes by.
    assert caplog.text.count("cannot be touched") == 1
    directory.mkdir()
    heartbeat()
    assert (directory / "alive").exists()


def test_the_command_touches_the_file(stopping: StoppingJob, on_redis: str, tmp_path: Path) -> None:
    path = tmp_path / "alive"
    Called(heartbeat_file=path)
    assert path.exists()
