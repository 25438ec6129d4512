"""What the command `cron` shows of jobs and does to them: `list`, `status`, `pause`, `resume`, `release`, `prune`."""

from __future__ import annotations

import builtins
import json
import re
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from io import StringIO
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection, transaction
from django.test import override_settings

from django_cronductor import overview
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Declaration, Lease, LockBackend, Release
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.history import DatabaseHistory
from django_cronductor.instants import as_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.actions import acting, asking, output
from django_cronductor.management.actions.ages import age
from django_cronductor.management.commands import cron
from django_cronductor.models import DeclaredJob, JobRun
from tests.history_records import job, run, skip

pytestmark = pytest.mark.django_db

LOCAL = "django_cronductor.backends.local.LocalBackend"
KEY = "shop.sync"
TTL = 30_000


@pytest.fixture(autouse=True)
def _settings(prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
        yield


@pytest.fixture
def in_memory(_settings: None, prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}):
        yield


@pytest.fixture
def without_history(_settings: None, prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "HISTORY": 0}):
        yield


@pytest.fixture
def without_store(_settings: None, prefix: str) -> Iterator[None]:
    url = "redis://:sesame-open@127.0.0.1:1/0"
    caches = {
        "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
        "locks": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url},
    }
    with override_settings(CACHES=caches):
        yield


@pytest.fixture
def without_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any) -> Any:
        raise OperationalError("it is down: postgres://user:sesame-open@host")

    monkeypatch.setattr(overview, "_rows", fail)


@pytest.fixture
def without_answers() -> Iterator[None]:
    """Let the database answer nothing."""

    def fail(*args: Any) -> Any:
        raise OperationalError("it is down")

    with connection.execute_wrapper(fail):
        yield


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> JobRegistry:
    """Give the command jobs of its own."""
    registry = JobRegistry()
    registry.schedule("30 2 * * *", print, key=KEY, timezone="Europe/Berlin")
    monkeypatch.setattr(cron, "registry", registry)
    return registry


@pytest.fixture
def backend() -> Iterator[LockBackend]:
    """Return the store, which knows the job, and in which a replica lives."""
    backend = create_backend()
    backend.declare([Declaration(KEY, "v1", TTL)])
    backend.heartbeat("host:1:a")
    yield backend
    backend.close()


@pytest.fixture
def history() -> DatabaseHistory:
    history = DatabaseHistory(keep=5, inline=True)
    history.declared([job()])
    return history


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Callable[[str | None], None]:
    """Return how to answer a question; None: nobody is there."""

    def set_answer(text: str | None) -> None:
        def answer(prompt: str = "") -> str:
            if text is None:
                raise EOFError
            return text

        monkeypatch.setattr(builtins, "input", answer)

    set_answer(None)
    return set_answer


class Called:
    """What the command wrote, and how it ended."""

    def __init__(self, *arguments: str) -> None:
        out, err = StringIO(), StringIO()
        self.code, self.error = 0, ""
        try:
            call_command("cron", *arguments, stdout=out, stderr=err, no_color=True)
        except CommandError as error:
            self.code, self.error = error.returncode, str(error)
        self.out, self.err = out.getvalue(), err.getvalue()

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def take(backend: LockBackend, key: str = KEY, ttl: int = TTL) -> Lease:
    answer = backend.take_request(key, "token", ttl, "host:1:a", unasked=True)
    return Lease(key, "token", answer.fence, ttl, "host:1:a", "manual")


def succeeded(history: DatabaseHistory, seconds_ago: float, number: int = 0, outcome: str = "succeeded") -> None:
    """Write a run that ended so long ago."""
    started = datetime.now(timezone.utc) - timedelta(seconds=seconds_ago + 1)
    record = run(number, started_at=started)
    history.begun(record, lambda ours: None)
    record.outcome, record.duration = outcome, 1.0
    history.ended(record)


def state(backend: LockBackend, key: str = KEY) -> Any:
    return backend.states([key]).answers[0]


class TestList:
    def test_a_job_that_is_gone_is_shown_as_paused_too(self, backend: LockBackend, history: DatabaseHistory) -> None:
        history.declared([job("shop.old")])
        backend.declare([Declaration("shop.old", "v1", TTL)])
        Called("pause", "shop.old", "--note", "broken")
        [line] = Called("list", "shop.old").lines[1:]
        assert "no longer declared; paused since " in line
        assert ": broken" in line

    def test_each_job_has_a_line(self, registry: JobRegistry, backend: LockBackend, history: DatabaseHistory) -> None:
        succeeded(history, 120)
        registry.schedule("* * * * *", print, key="off", enabled=False)
        history.declared([job("a.gone", timezone="Asia/Tokyo")])
        head, gone, off, line = Called("list").lines
        assert head.split("  ")[0] == "JOB"
        assert gone.split("  ")[0] == "a.gone"
        assert "* * * * * (Asia/Tokyo)" in gone
        assert "no longer declared" in gone
        assert " -  " in off
        assert "disabled" in off
        assert line.startswith("shop.sync  30 2 * * * (Europe/Berlin)  ")
        assert "02:30:00 +0" in line
        assert ":30:00 UTC" in line
        assert line.endswith("idle                succeeded 2 min ago")

    def test_columns_are_under_their_heads(self, registry: JobRegistry) -> None:
        registry.schedule("* * * * *", print, key="shop.每分钟")
        head, _, wide = Called("list").lines
        assert output._width(wide[: wide.index("* * * * *")]) == head.index("SCHEDULE")

    def test_on_a_terminal_that_is_too_narrow_they_are_below_each_other(self, monkeypatch: pytest.MonkeyPatch) -> None:
        terminal = StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", "80")
        call_command("cron", "list", stdout=terminal, no_color=True)
        lines = terminal.getvalue().splitlines()
        assert lines[:2] == ["shop.sync", "  SCHEDULE  30 2 * * * (Europe/Berlin)"]
        assert [line[:10].strip() for line in lines[2:]] == ["NEXT RUN", "IN UTC", "STATE"]
        assert max(map(len, lines)) <= 80
        terminal.truncate(0)
        monkeypatch.setenv("COLUMNS", "160")
        call_command("cron", "list", stdout=terminal, no_color=True)
        assert "JOB        SCHEDULE" in terminal.getvalue()

    def test_a_hostile_key_is_quoted_and_tells_the_terminal_nothing(
        self, registry: JobRegistry, history: DatabaseHistory
    ) -> None:
        registry.schedule("* * * * *", print, key="a $(reboot); 'b'")
        history.declared([job("esc\x1b[31m\u202enl\n")])
        out = Called("list").out
        assert "'a $(reboot); '\"'\"'b'\"'\"''" in out
        assert "'esc\\x1b[31m\\u202enl\\n'" in out
        assert "\x1b" not in out

    def test_only_those_asked_for_are_listed(self, registry: JobRegistry) -> None:
        registry.schedule("* * * * *", print, key="other")
        assert len(Called("list", "other").lines) == 2

    def test_an_unknown_one_names_the_nearest(self, history: DatabaseHistory) -> None:
        history.declared([job("shop.gone")])
        called = Called("list", "shop.goen", KEY)
        assert (called.code, called.out) == (2, "")
        assert called.error == "No job 'shop.goen' is declared; did you mean shop.gone or shop.sync?"

    def test_who_runs_it_is_shown(self, backend: LockBackend) -> None:
        take(backend)
        backend.pause(KEY)
        line = Called("list").lines[1]
        assert "running since 20" in line
        assert "UTC on host:1:a; paused" in line

    def test_a_dead_holder_is_shown(self, backend: LockBackend) -> None:
        take(backend, ttl=1)
        end = backend.time() + 3
        while backend.time() < end:
            pass
        assert "dead: the lease of host:1:a has ended, held since 20" in Called("list").lines[1]

    def test_a_pause_is_shown_with_who_and_why(self, backend: LockBackend, history: DatabaseHistory) -> None:
        Called("pause", KEY, "--note", "broken\nsince \x1b[31mMonday")
        line = Called("list").lines[1]
        assert f"by {asking.operator()}: broken\\nsince \\x1b[31mMonday" in line
        assert line.count("paused since 20") == 1

    def test_the_last_run_is_as_the_store_has_it_where_the_history_is_behind(
        self, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        succeeded(history, 60)
        backend.release([Release(take(backend), "failed")])
        assert "failed 0." in Called("list").lines[1]

    def test_of_a_job_that_runs_the_run_before_is_shown(self, backend: LockBackend, history: DatabaseHistory) -> None:
        backend.release([Release(take(backend), "failed")])
        backend.take_request(KEY, "another", TTL, "host:1:a", unasked=True)
        history.begun(run(), lambda ours: None)
        line = Called("list").lines[1]
        assert "running since 20" in line
        assert "failed 0." in line

    def test_json_has_it_all(self, backend: LockBackend, history: DatabaseHistory) -> None:
        lease = take(backend)
        succeeded(history, 60)
        found = Called("list", "--json").json
        [one] = found["jobs"]
        assert list(found["replicas"]) == ["host:1:a"]
        assert (found["shared"], found["history"], found["store_error"], found["database_error"]) == (
            True,
            True,
            None,
            None,
        )
        assert (one["key"], one["status"], one["declared"], one["enabled"], one["paused"]) == (
            KEY,
            "running",
            True,
            True,
            False,
        )
        assert (one["schedule"], one["timezone"], one["live"]) == ("30 2 * * *", "Europe/Berlin", True)
        assert one["holder"]["instance"] == "host:1:a"
        assert one["holder"]["fencing_token"] == lease.fence
        assert 0 < one["holder"]["lease_left"] <= TTL / 1000
        assert one["last_run"]["outcome"] == "succeeded"
        assert datetime.fromisoformat(one["last_success"]).utcoffset() == timedelta(0)
        assert datetime.fromisoformat(one["next_run"]).minute == 30

    def test_without_any_job_that_is_said(self, registry: JobRegistry) -> None:
        registry.get(KEY).destroy()
        called = Called("list")
        assert (called.code, called.out) == (0, "")
        assert "No job is declared." in called.err

    @pytest.mark.usefixtures("in_memory")
    def test_for_the_single_instance_store_it_is_said_that_the_history_tells(self) -> None:
        err = Called("list").err
        assert "The locks are in the memory of the process that runs the jobs, so who runs what is shown as" in err

    @pytest.mark.usefixtures("without_store", "without_database")
    def test_without_store_and_database_the_code_is_shown_and_what_is_missing_said(self) -> None:
        called = Called("list")
        assert called.lines[1].startswith("shop.sync")
        assert "The lock store cannot be asked, and who runs what cannot be shown: " in called.err
        assert "Runs and notes cannot be shown. The database cannot be read: it is down" in called.err
        assert "sesame" not in called.err + called.out

    @pytest.mark.usefixtures("without_store")
    def test_without_the_store_it_is_said_that_the_history_tells(self) -> None:
        assert (
            "The lock store cannot be asked, and who runs what is shown as the history has it: " in Called("list").err
        )

    def test_where_a_table_is_missing_migrate_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(DeclaredJob._meta, "db_table", "not_there")
        with transaction.atomic():
            assert Called("list").err.rstrip().endswith("(Has migrate been run?)")
            transaction.set_rollback(True)

    @pytest.mark.usefixtures("without_history")
    def test_without_a_history_that_is_said(self) -> None:
        assert "no history is kept" in Called("list").err

    @override_settings(CRONDUCTOR={"MAX_WORKERS": 0})
    def test_a_wrong_setting_is_named(self) -> None:
        with pytest.raises(CommandError, match="MAX_WORKERS"):
            call_command("cron", "list", stdout=StringIO(), skip_checks=True)


class TestStatus:
    def test_all_is_well_where_a_replica_lives(self, backend: LockBackend, history: DatabaseHistory) -> None:
        succeeded(history, 60)
        called = Called("status", "--max-age", "1h")
        assert (called.code, called.error, called.err) == (0, "", "")
        assert called.lines[0].startswith("Locks: Redis at ")
        assert called.lines[1].startswith("Alive: host:1:a, heard of ")
        assert called.lines[3].split()[:2] == [KEY, "idle"]
        assert called.lines[3].endswith("1 min ago")

    def test_a_replica_that_is_not_heard_of_is_not_called_alive(
        self, backend: LockBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(overview, "SILENT", timedelta(seconds=-1))
        called = Called("status")
        assert called.code == 1
        assert called.lines[1].startswith("Silent: host:1:a, heard of ")
        assert re.fullmatch(
            r"No replica is alive \(the last was heard of [\d.]+ s ago\): start runcron\.", called.error
        )

    def test_one_that_is_heard_of_beside_a_silent_one_is_enough(
        self, backend: RedisBackend, redis_client: redis.Redis
    ) -> None:
        redis_client.zadd(backend._instances, {"host:2:b": backend.time() - 20_000})
        called = Called("status")
        assert called.code == 0
        assert called.lines[1].startswith("Alive: host:1:a, heard of ")
        assert called.lines[2].startswith("Silent: host:2:b, heard of 20 s ago")

    def test_without_a_replica_it_fails(self, backend: LockBackend) -> None:
        backend.retire("host:1:a")
        called = Called("status")
        assert (called.code, called.error) == (1, "No replica is alive: start runcron.")

    def test_a_dead_holder_fails_it(self, backend: LockBackend) -> None:
        take(backend, ttl=1)
        end = backend.time() + 3
        while backend.time() < end:
            pass
        called = Called("status")
        assert called.code == 1
        assert "shop.sync: the lease of host:1:a has ended" in called.error

    def test_a_job_whose_last_success_is_too_old_fails_it(self, backend: LockBackend, history: DatabaseHistory) -> None:
        succeeded(history, 7200)
        succeeded(history, 60, 1, "failed")
        called = Called("status", "--max-age", "90m")
        assert called.code == 1
        assert called.error == "shop.sync last succeeded 2 h 0 min ago, more than 1 h 30 min."
        assert Called("status", "--max-age", "3h").code == 0

    def test_a_job_that_never_succeeded_is_as_old_as_its_first_declaration(
        self, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        history.skipped(skip())
        assert Called("status", "--max-age", "1h").code == 0
        DeclaredJob.objects.update(first_seen=as_stored(datetime.now(timezone.utc) - timedelta(days=2)))
        called = Called("status", "--max-age", "1h")
        assert (called.code, called.error) == (
            1,
            "shop.sync never succeeded, and was declared 2 d 0 h ago, more than 1 h 0 min.",
        )

    def test_a_job_that_no_runcron_has_declared_never_succeeded(self, backend: LockBackend) -> None:
        called = Called("status", "--max-age", "1h")
        assert called.error == "shop.sync has never succeeded: no runcron has declared it yet."

    def test_a_paused_job_fails_it_and_says_why(self, backend: LockBackend, history: DatabaseHistory) -> None:
        succeeded(history, 7200)
        Called("pause", KEY, "--note", "broken")
        called = Called("status", "--max-age", "1h")
        assert called.code == 1
        assert ": broken)." in called.error

    def test_a_job_that_is_disabled_or_gone_does_not_fail_it(
        self, registry: JobRegistry, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        registry.get(KEY).destroy()
        registry.schedule("* * * * *", print, key="off", enabled=False)
        assert Called("status", "--max-age", "1s").code == 0

    def test_each_job_can_have_its_own_age(
        self, registry: JobRegistry, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        registry.schedule("* * * * *", print, key="a=b")
        succeeded(history, 7200)
        assert Called("status", "--max-age", "shop.sync=3h").code == 0
        assert Called("status", "--max-age", "shop.sync=3h", "--max-age", "1h").error.startswith("a=b has never")
        assert Called("status", "--max-age", "1d", "--max-age", "shop.sync=1h", KEY).error.startswith("shop.sync last")
        assert Called("status", "--max-age", "a=b=1h").error.startswith("a=b has never")

    def test_only_those_asked_for_are_looked_at(
        self, registry: JobRegistry, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        registry.schedule("* * * * *", print, key="other")
        succeeded(history, 60)
        called = Called("status", KEY, "--max-age", "1h")
        assert called.code == 0
        assert "other" not in called.out

    @pytest.mark.parametrize("arguments", [("shop.snyc",), ("--max-age", "shop.snyc=1h")])
    def test_an_unknown_job_is_named(self, arguments: tuple[str, ...]) -> None:
        called = Called("status", *arguments)
        assert called.code == 2
        assert called.error == "No job 'shop.snyc' is declared; did you mean shop.sync?"

    def test_json_says_what_is_wrong_and_fails_too(self, backend: LockBackend) -> None:
        backend.retire("host:1:a")
        called = Called("status", "--json")
        assert called.code == 1
        assert (called.json["healthy"], called.json["problems"]) == (False, ["No replica is alive: start runcron."])
        backend.heartbeat("host:1:a")
        assert Called("status", "--json").json["healthy"]

    @pytest.mark.usefixtures("without_database")
    def test_without_the_database_replicas_are_told_and_ages_are_not(self, backend: LockBackend) -> None:
        called = Called("status")
        assert called.code == 0
        assert "Alive: host:1:a" in called.out
        assert "The database cannot be read" in called.err
        called = Called("status", "--max-age", "1h")
        assert called.code == 4
        assert called.error.startswith("Ages cannot be told: The database cannot be read: it is down")
        assert "sesame" not in called.error + called.err

    @pytest.mark.usefixtures("without_store")
    def test_without_the_store_it_cannot_be_told(self, history: DatabaseHistory) -> None:
        succeeded(history, 60)
        called = Called("status", "--max-age", "1h")
        assert called.code == 4
        assert called.error.startswith("Whether a replica is alive cannot be told: ")
        assert "1 min ago" in called.out
        assert "sesame" not in called.error + called.err + called.out

    @pytest.mark.usefixtures("without_store")
    def test_what_is_surely_wrong_goes_before_what_cannot_be_told(self, history: DatabaseHistory) -> None:
        succeeded(history, 7200)
        called = Called("status", "--max-age", "1h")
        assert called.code == 1
        assert [line.split(" ")[0] for line in called.error.splitlines()] == [KEY, "Whether"]

    @pytest.mark.usefixtures("without_store", "without_database")
    def test_without_both_it_cannot_be_told(self) -> None:
        called = Called("status", "--max-age", "1h", "--json")
        assert called.code == 4
        assert called.json["problems"] == []
        assert len(called.json["unknown"]) == 2

    @pytest.mark.usefixtures("without_history")
    def test_without_a_history_ages_cannot_be_told(self, backend: LockBackend) -> None:
        assert Called("status").code == 0
        called = Called("status", "--max-age", "1h")
        assert (called.code, called.error[:24]) == (4, "Ages cannot be told: no ")

    @pytest.mark.usefixtures("in_memory")
    def test_a_single_instance_is_alive_if_the_database_has_seen_it_lately(self, history: DatabaseHistory) -> None:
        called = Called("status")
        assert called.code == 0
        assert called.lines[1].startswith("A runcron was seen ")
        DeclaredJob.objects.update(last_seen=as_stored(datetime.now(timezone.utc) - timedelta(minutes=5)))
        called = Called("status")
        assert (called.code, called.error) == (1, "No runcron has been seen for 5 min: start it.")
        DeclaredJob.objects.all().delete()
        assert Called("status").error == "No runcron has been seen yet: start it."

    @pytest.mark.usefixtures("in_memory", "without_database")
    def test_whether_a_single_instance_is_alive_cannot_be_told_without_the_database(self) -> None:
        called = Called("status")
        assert called.code == 4
        assert "cannot be told: its locks are in its own memory" in called.error

    @pytest.mark.parametrize(
        "text", ["", "0", "x", "1x", "-1", "=1h", "1h2d", "1d12", "1h30", "٣h", "99999999999d", "99999d", "1.5h"]
    )
    def test_what_is_no_age_is_refused(self, text: str) -> None:
        with pytest.raises(CommandError, match="argument --max-age: "):
            call_command("cron", "status", f"--max-age={text}")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("26h", 93_600), ("1d12h", 129_600), ("1h1m1s", 3661)]
)
def test_an_age_is_read(text: str, seconds: int) -> None:
    assert age(text) == timedelta(seconds=seconds)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0.0 s"),
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (59, "59 s"),
        (3599, "59 min"),
        (86399, "23 h 59 min"),
        (90000, "1 d 1 h"),
    ],
)
def test_a_length_of_time_is_shown_in_two_units(seconds: float, text: str) -> None:
    assert output.length(seconds) == text


class TestPauseAndResume:
    def test_a_job_is_paused_and_resumed(self, backend: LockBackend, history: DatabaseHistory) -> None:
        called = Called("pause", KEY, "--note", "broken")
        assert (called.code, called.out, called.err) == (0, "shop.sync: paused; a run in progress goes on.\n", "")
        assert state(backend).paused
        row = DeclaredJob.objects.get()
        assert (row.paused_by, row.pause_note) == (asking.operator(), "broken")
        called = Called("resume", KEY)
        assert called.out == "shop.sync: resumed; what was due meanwhile is not made up.\n"
        assert not state(backend).paused

    def test_a_second_pause_without_a_note_leaves_the_first_with_its_note(
        self, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        Called("pause", KEY, "--note", "it mails twice")
        again = Called("pause", KEY)
        assert (again.code, again.err) == (0, "")
        assert again.out.startswith("shop.sync is already paused since ")
        assert again.out.endswith(" on the command line: it mails twice.\n")
        Called("pause", KEY, "--note", "it mails thrice")
        assert DeclaredJob.objects.get().pause_note == "it mails thrice"

    def test_what_was_not_paused_is_said_to_be_so(self, backend: LockBackend, history: DatabaseHistory) -> None:
        assert Called("resume", KEY).out == "shop.sync: it was not paused.\n"

    def test_what_is_not_noted_is_said(self, backend: LockBackend) -> None:
        called = Called("pause", KEY)
        assert called.code == 0
        assert called.err.startswith("Who did it, and why, is not noted in the database: ")

    def test_json_says_what_happened(self, backend: LockBackend, history: DatabaseHistory) -> None:
        told = {"action": "pause", "key": KEY, "ordered": False, "unrecorded": None, "released": None}
        paused = {"changed": True, "told": "shop.sync: paused; a run in progress goes on."}
        assert Called("pause", KEY, "--json").json == told | paused
        again = Called("pause", KEY, "--json").json
        assert (again["changed"], again["told"][:28]) == (False, "shop.sync is already paused ")
        assert Called("resume", KEY, "--json").json["changed"]
        resumed = Called("resume", KEY, "--json").json
        assert (resumed["action"], resumed["changed"], resumed["told"]) == (
            "resume",
            False,
            "shop.sync: it was not paused.",
        )
        assert not Called("release", KEY, "--noinput", "--json").json["changed"]

    def test_the_next_run_of_a_paused_job_is_none(self, backend: LockBackend, history: DatabaseHistory) -> None:
        assert Called("list", "--json").json["jobs"][0]["next_run"] is not None
        Called("pause", KEY, "--note", "broken")
        assert Called("list", "--json").json["jobs"][0]["next_run"] is None
        take(backend)
        assert Called("list", "--json").json["jobs"][0]["next_run"] is None
        assert re.search(r" -  +-  +running since .* on host:1:a; paused since .*: broken  ", Called("list").lines[1])

    @pytest.mark.parametrize("row", [False, True])
    def test_a_job_that_no_replica_has_declared_is_shown_as_paused_and_resumed(self, row: bool) -> None:
        if row:
            DatabaseHistory(keep=5, inline=True).declared([job()])
        assert Called("pause", KEY).out == "shop.sync: paused; a run in progress goes on.\n"
        again = Called("pause", KEY, "--json").json
        assert (again["changed"], again["told"][:27]) == (False, "shop.sync is already paused")
        [listed] = Called("list", "--json").json["jobs"]
        assert (listed["status"], listed["paused"], listed["next_run"]) == ("paused", True, None)
        assert re.search(r" -  +-  +paused", Called("list").lines[1])
        assert "No occurrence of it runs: paused" in Called("next", KEY).out
        assert re.search(r"^shop\.sync +paused", Called("status").out, re.MULTILINE)
        resumed = Called("resume", KEY, "--json").json
        assert resumed["changed"]
        assert resumed["told"] == "shop.sync: resumed; what was due meanwhile is not made up."
        assert Called("list", "--json").json["jobs"][0]["status"] == "idle"
        assert Called("resume", KEY).out == "shop.sync: it was not paused.\n"

    def test_a_pause_is_shown_and_lifted_where_the_store_has_lost_it(
        self, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        Called("pause", KEY, "--note", "broken")
        backend.forget(KEY)
        again = Called("pause", KEY)
        assert again.out.startswith("shop.sync is already paused since ")
        assert again.out.endswith(": broken.\n")
        assert Called("list", "--json").json["jobs"][0]["status"] == "paused"
        assert Called("resume", KEY, "--json").json["changed"]
        assert Called("list", "--json").json["jobs"][0]["status"] == "idle"

    @pytest.mark.usefixtures("in_memory")
    def test_for_the_single_instance_store_it_is_ordered(self, history: DatabaseHistory) -> None:
        assert Called("pause", KEY).out.startswith(
            "shop.sync: it is to be paused: runcron, which has the locks in its "
        )
        assert Called("pause", KEY).out.startswith("shop.sync is already paused since ")
        assert Called("list", "--json").json["jobs"][0]["status"] == "paused"
        assert Called("resume", KEY).out.startswith("shop.sync: it is to be resumed: runcron, ")
        assert Called("resume", KEY).out == "shop.sync: it was not paused.\n"

    @pytest.mark.parametrize("action", [("pause", KEY), ("release", KEY, "--no-input"), ("prune",)])
    @pytest.mark.usefixtures("in_memory", "without_answers")
    def test_a_database_that_cannot_be_asked_has_code_4(self, action: tuple[str, ...]) -> None:
        called = Called(*action)
        assert (called.code, called.out) == (4, "")
        assert called.error.startswith("The database failed: it is down")

    @pytest.mark.parametrize("action", ["pause", "resume", "release"])
    def test_an_unknown_job_is_named(self, action: str) -> None:
        called = Called(action, "shop.snyc")
        assert called.code == 2
        assert called.error == "No job 'shop.snyc' is declared; did you mean shop.sync?"

    @pytest.mark.parametrize("action", ["pause", "resume", "release", "prune"])
    @pytest.mark.usefixtures("without_store")
    def test_without_the_store_it_fails(self, action: str) -> None:
        DatabaseHistory(keep=5, inline=True).declared([job("old")])
        called = Called(action, *([] if action == "prune" else [KEY]), *(["--no-input"] if action == "release" else []))
        assert called.code == 4
        assert called.error.startswith("The lock store cannot be used. Redis at 127.0.0.1:1, ")
        assert "sesame" not in called.error

    @override_settings(CRONDUCTOR={"BACKEND": "no.such.Backend"})
    def test_a_backend_that_cannot_be_made_is_named(self) -> None:
        called = Called("pause", KEY)
        assert called.code == 2
        assert "no.such.Backend" in called.error

    def test_who_has_no_name_is_the_command_line(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def nobody() -> str:
            raise KeyError("getpwuid(): uid not found: 1000")

        monkeypatch.setattr(asking.getpass, "getuser", nobody)
        assert asking.operator() == "the command line"


class TestRelease:
    def test_who_works_is_asked_about_first(self, backend: LockBackend, answer: Callable[[str | None], None]) -> None:
        take(backend)
        called = Called("release", KEY)
        assert (called.code, called.error, called.out) == (1, "Nothing was released.", "")
        assert called.err.startswith(
            "shop.sync: It is held by host:1:a. Whoever runs it is told that the lease is lost"
        )
        assert state(backend).lease is not None
        answer("Y")
        assert Called("release", KEY).out == "shop.sync: the lease of host:1:a is released, and its run abandoned.\n"
        assert state(backend).lease is None
        assert JobRun.objects.get().outcome == "abandoned"

    def test_a_yes_to_one_lease_is_none_to_the_next(
        self, backend: LockBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        lease = take(backend)

        def answer(prompt: str = "") -> str:
            backend.release([Release(lease, "succeeded")])
            backend.take_request(KEY, "another", TTL, "host:2:b", unasked=True)
            return "yes"

        monkeypatch.setattr(builtins, "input", answer)
        called = Called("release", KEY)
        assert (called.code, called.out) == (1, "")
        assert called.error == "Its lease has changed since you were asked: nothing was released. Look again."
        assert state(backend).lease.holder == "host:2:b"

    @pytest.mark.parametrize("option", ["--no-input", "--noinput"])
    def test_nobody_is_asked_where_that_is_not_wanted(self, backend: LockBackend, option: str) -> None:
        lease = take(backend)
        called = Called("release", KEY, option, "--json")
        assert called.json["released"] == {"holder": "host:1:a", "scheduled_at": None, "fencing_token": lease.fence}

    def test_where_nobody_holds_it_that_is_said(
        self, backend: LockBackend, answer: Callable[[str | None], None]
    ) -> None:
        backend.release([Release(take(backend), "succeeded")])
        assert Called("release", KEY).out == "shop.sync: nobody holds its lease.\n"

    @pytest.mark.usefixtures("in_memory")
    def test_for_the_single_instance_store_it_is_ordered(
        self, history: DatabaseHistory, answer: Callable[[str | None], None]
    ) -> None:
        history.begun(run(), lambda ours: None)
        assert Called("release", KEY).error == "Nothing was released."
        answer("yes")
        assert Called("release", KEY).out.startswith("shop.sync: the release is ordered: runcron, ")
        assert DeclaredJob.objects.get().release_requested_at is not None


class TestPrune:
    @pytest.fixture
    def old(self, backend: LockBackend) -> None:
        history = DatabaseHistory(keep=5, inline=True)
        history.declared([job("old one")])
        history.begun(run(0, key="old one"), lambda ours: None)
        DeclaredJob.objects.update(last_seen=as_stored(datetime.now(timezone.utc) - timedelta(days=2)))

    @pytest.mark.usefixtures("old")
    def test_what_is_gone_is_deleted_after_a_question(self, answer: Callable[[str | None], None]) -> None:
        called = Called("prune")
        assert (called.code, called.error) == (1, "Nothing was deleted.")
        assert called.lines[1].startswith("'old one'  ")
        assert called.lines[1].endswith("  1     is deleted with its runs")
        assert DeclaredJob.objects.exists()
        answer("y")
        assert Called("prune").lines[-1] == "Deleted: 'old one'."
        assert not DeclaredJob.objects.exists()
        assert not JobRun.objects.exists()

    @pytest.mark.usefixtures("old")
    def test_a_dry_run_asks_nothing_and_deletes_nothing(self, answer: Callable[[str | None], None]) -> None:
        called = Called("prune", "--dry-run")
        assert called.code == 0
        assert len(called.lines) == 2
        assert DeclaredJob.objects.exists()

    @pytest.mark.usefixtures("old")
    def test_what_is_to_be_deleted_is_shown_before_it_is_asked_though_json_is_wanted(
        self, answer: Callable[[str | None], None]
    ) -> None:
        answer(None)
        called = Called("prune", "--json")
        assert (called.code, called.out, called.error) == (1, "", "Nothing was deleted.")
        assert called.err.startswith("To be deleted with their runs: 'old one'.")

    @pytest.mark.usefixtures("old")
    def test_json_says_what_was_deleted(self) -> None:
        found = Called("prune", "--no-input", "--json").json
        assert [(one["key"], one["runs"], one["kept"]) for one in found["gone"]] == [("old one", 1, None)]
        assert found["deleted"] == ["old one"]

    @pytest.mark.usefixtures("old")
    def test_what_was_seen_not_long_enough_ago_is_kept(self, answer: Callable[[str | None], None]) -> None:
        called = Called("prune", "--older-than", "3d")
        assert called.code == 0
        assert called.lines[1].endswith("kept: a replica has declared it in the last 3 days")
        assert DeclaredJob.objects.exists()

    def test_where_nothing_is_gone_that_is_said(self, backend: LockBackend, history: DatabaseHistory) -> None:
        assert Called("prune").out == "Every job in the database is declared.\n"


def test_a_question_that_nobody_answers_is_answered_no(
    answer: Callable[[str | None], None], capsys: pytest.CaptureFixture[str]
) -> None:
    command = cron.Command()
    for text, agreed in ((None, False), ("", False), ("n", False), ("yes ", True), ("Y", True)):
        answer(text)
        assert acting.agreed(command) is agreed
