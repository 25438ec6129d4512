"""`cron run`: a job, here and now, in the foreground and under its lease."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import OperationalError, connection
from django.test import override_settings

from django_cronductor import overview
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Declaration, LockBackend
from django_cronductor.history import DatabaseHistory
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.commands import cron
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.runner import RunContext
from tests.history_records import job, run
from tests.test_cron_actions import KEY, LOCAL, TTL, Called
from tests.test_runcron_process import DEADLINE, Project

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _settings(prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
        yield


@pytest.fixture
def in_memory(_settings: None, prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}):
        yield


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> JobRegistry:
    registry = JobRegistry()
    monkeypatch.setattr(cron, "registry", registry)
    return registry


@pytest.fixture
def backend() -> Iterator[LockBackend]:
    backend = create_backend()
    yield backend
    backend.close()


class Work:
    """A handler that notes its runs, and does `body`."""

    def __init__(self, body: Any = None) -> None:
        self.body = body
        self.contexts: list[RunContext] = []

    def __call__(self, context: RunContext) -> None:
        self.contexts.append(context)
        if self.body is not None:
            self.body(context)


def declare(registry: JobRegistry, body: Any = None, **options: Any) -> Work:
    work = Work(body)
    registry.schedule("0 0 1 1 *", work, key=KEY, takes_context=True, **options)
    return work


def leave(context: RunContext) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    context.check()


class TestOutcomes:
    def test_a_success_is_said_and_is_in_the_history(self, registry: JobRegistry) -> None:
        work = declare(registry)
        called = Called("run", KEY)
        assert (called.code, called.out) == (0, "shop.sync: succeeded.\n")
        assert [(context.trigger, context.scheduled_at) for context in work.contexts] == [("manual", None)]
        row = JobRun.objects.get()
        assert (row.job_key, row.trigger, row.outcome, row.slot) == (KEY, "manual", "succeeded", None)
        assert DeclaredJob.objects.get().key == KEY

    def test_a_failure_has_code_1(self, registry: JobRegistry) -> None:
        def fail(context: RunContext) -> None:
            raise ValueError("broken")

        declare(registry, fail)
        called = Called("run", KEY)
        assert (called.code, called.out, called.error) == (1, "", "shop.sync did not succeed: failed.")
        assert JobRun.objects.get().error_message == "broken"

    def test_json_has_the_outcome(self, registry: JobRegistry) -> None:
        declare(registry, leave)
        called = Called("run", KEY, "--json")
        assert called.code == 1
        said = called.json
        assert said.pop("duration") >= 0
        assert said.pop("fencing_token") == JobRun.objects.get().fencing_token
        assert said.pop("instance") == JobRun.objects.get().holder
        assert said.pop("error").startswith("Stopping: ")
        assert said == {"key": KEY, "outcome": "interrupted"}

    def test_json_has_the_error_without_passwords(self, registry: JobRegistry) -> None:
        def fail(context: RunContext) -> None:
            raise ValueError("redis://user:hunter2@host")

        declare(registry, fail)
        said = Called("run", KEY, "--json").json
        assert said["error"].startswith("ValueError: redis://")
        assert "hunter2" not in said["error"]

    def test_what_the_job_prints_is_not_among_the_json(
        self, registry: JobRegistry, capsys: pytest.CaptureFixture[str]
    ) -> None:
        declare(registry, lambda context: print("42 users"))
        call_command("cron", "run", KEY, "--json")
        written = capsys.readouterr()
        assert json.loads(written.out)["outcome"] == "succeeded"
        assert "42 users" in written.err

    def test_a_condition_that_is_not_met_is_no_failure(self, registry: JobRegistry) -> None:
        work = declare(registry, when=lambda context: False)
        called = Called("run", KEY)
        assert (called.code, called.out) == (0, "shop.sync: its condition is not met, so it was not run.\n")
        assert work.contexts == []

    def test_a_paused_or_disabled_job_is_run(self, registry: JobRegistry, backend: LockBackend) -> None:
        declare(registry, enabled=False)
        backend.pause(KEY)
        assert Called("run", KEY).code == 0

    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_a_signal_tells_it_to_stop_and_the_handlers_of_before_come_back(
        self, registry: JobRegistry, number: signal.Signals
    ) -> None:
        def stop(context: RunContext) -> None:
            os.kill(os.getpid(), number)
            context.check()

        before = signal.getsignal(number)
        declare(registry, stop)
        assert Called("run", KEY).error == "shop.sync did not succeed: interrupted."
        assert signal.getsignal(number) is before

    def test_in_another_thread_no_signal_is_touched(self, registry: JobRegistry, prefix: str) -> None:
        codes = []
        declare(registry)
        with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "HISTORY": 0}):
            thread = threading.Thread(target=lambda: codes.append(Called("run", KEY).code))
            thread.start()
            thread.join(DEADLINE)
        assert codes == [0]


class TestHolders:
    def test_who_holds_it_is_named_with_code_3(self, registry: JobRegistry, backend: LockBackend) -> None:
        work = declare(registry)
        backend.declare([Declaration(KEY, "v1", TTL)])
        backend.take_request(KEY, "token", TTL, "host:1:a", unasked=True)
        called = Called("run", KEY)
        assert called.code == 3
        assert called.error.startswith("shop.sync is running: host:1:a holds it, and its lease has ")
        assert work.contexts == []
        assert not JobRun.objects.exists()

    @pytest.mark.usefixtures("in_memory")
    def test_for_the_single_instance_store_the_history_is_asked(self, registry: JobRegistry) -> None:
        work = declare(registry)
        history = DatabaseHistory(keep=5, inline=True)
        history.declared([job()])
        history.begun(run(), lambda ours: None)
        called = Called("run", KEY)
        assert (called.code, called.error) == (3, "shop.sync is running on host:1:a, as the history has it.")
        assert work.contexts == []

    @pytest.mark.usefixtures("in_memory")
    def test_for_the_single_instance_store_it_is_said_what_cannot_be_known(self, registry: JobRegistry) -> None:
        declare(registry)
        called = Called("run", KEY)
        assert called.code == 0
        assert "a runcron that is going cannot know of this run" in called.err


class TestRequests:
    def test_the_replicas_are_asked_instead(self, registry: JobRegistry, backend: LockBackend) -> None:
        work = declare(registry)
        backend.declare([Declaration(KEY, "v1", TTL)])
        backend.heartbeat("host:1:a")
        called = Called("run", KEY, "--request")
        assert (called.code, called.out) == (0, "shop.sync: the replicas are asked to run it within a minute.\n")
        assert backend.heartbeat("host:1:a").requests == {KEY}
        assert work.contexts == []

    def test_where_there_is_none_that_is_said(self, registry: JobRegistry) -> None:
        declare(registry)
        called = Called("run", KEY, "--request")
        assert (called.code, called.error) == (1, "No replica is alive that could run it: start runcron.")

    @pytest.mark.usefixtures("in_memory")
    def test_for_the_single_instance_store_it_is_ordered(self, registry: JobRegistry) -> None:
        declare(registry)
        DatabaseHistory(keep=5, inline=True).declared([job()])
        assert Called("run", KEY, "--request").out == "shop.sync: runcron is asked to run it.\n"


class TestTrouble:
    def test_an_unknown_job_names_the_nearest(self, registry: JobRegistry) -> None:
        declare(registry)
        called = Called("run", "shop.snyc")
        assert (called.code, called.error) == (2, "No job 'shop.snyc' is declared; did you mean shop.sync?")

    def test_a_job_that_is_declared_no_longer_cannot_be_run(self, registry: JobRegistry) -> None:
        DatabaseHistory(keep=5, inline=True).declared([job()])
        assert Called("run", KEY).code == 2

    def test_without_the_store_nothing_runs(self, registry: JobRegistry) -> None:
        work = declare(registry)
        caches = {
            "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            "locks": {
                "BACKEND": "django.core.cache.backends.redis.RedisCache",
                "LOCATION": "redis://:sesame-open@127.0.0.1:1/0",
            },
        }
        with override_settings(CACHES=caches):
            called = Called("run", KEY)
        assert called.code == 4
        assert "sesame" not in called.error
        assert work.contexts == []

    def test_without_the_database_it_runs_all_the_same(
        self, registry: JobRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: Any) -> Any:
            raise OperationalError("it is down")

        work = declare(registry)
        monkeypatch.setattr(DatabaseHistory, "_write", fail)
        monkeypatch.setattr(overview, "_rows", fail)
        assert Called("run", KEY).code == 0
        assert len(work.contexts) == 1

    def test_tables_that_are_missing_are_named(self, registry: JobRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        work = declare(registry)
        monkeypatch.setattr(connection.introspection, "table_names", lambda cursor: [])
        called = Called("run", KEY)
        assert called.code == 2
        assert "run migrate first" in called.error
        assert work.contexts == []


# As a process.


class Cron(Project):
    """A project with a history, whose command is `cron`, and `runcron` too."""

    def with_history(self) -> None:
        name = str(self.directory / "db.sqlite3")
        self.configure(HISTORY=10, more=f"\nDATABASES['default']['NAME'] = {name!r}\n")
        command = [sys.executable, "-m", "django", "migrate", "-v0"]
        subprocess.run(command, env=self.environment, check=True, timeout=DEADLINE)

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "django", *arguments]

    @property
    def buffered(self) -> dict[str, str]:
        """Return an environment in which what is printed is written at the end."""
        return {name: value for name, value in self.environment.items() if name != "PYTHONUNBUFFERED"}

    def redirected(self, place: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run it with its output where a shell sends it."""
        return subprocess.run(
            ["sh", "-c", f'exec "$@" {place}', "sh", *self.command(*arguments)],
            env=self.buffered,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )


PRINTING = """
@cron("0 0 1 1 *")
def prints():
    print("42 users")
"""

WORK = """
import threading
from django_cronductor import cron

@cron("0 0 1 1 *", ttl=2, takes_context=True)
def linger(context):
    print("working", flush=True)
    while not context.stopping:
        threading.Event().wait(0.01)
    print("put away", flush=True)
    context.check()

@cron("0 0 1 1 *")
def stubborn():
    print("working", flush=True)
    while True:
        threading.Event().wait(600)

@cron("0 0 1 1 *")
def fails():
    raise ValueError("no such customer")

@cron("* * * * * *")
def ticks():
    pass
"""


@pytest.fixture
def project(tmp_path: Path, redis_url: str, prefix: str) -> Iterator[Cron]:
    project = Cron(tmp_path, redis_url, prefix)
    project.declare(WORK)
    yield project
    for process in project.processes:
        process.close()


@pytest.mark.faults
class TestProcess:
    def test_its_log_and_a_traceback_are_shown_and_the_code_is_1(self, project: Cron) -> None:
        code, text = project.run("cron", "run", "shop.fails")
        assert code == 1
        assert "ValueError: no such customer" in text
        assert text.rstrip().endswith("CommandError: shop.fails did not succeed: failed.")

    def test_what_was_done_is_said_once(self, project: Cron) -> None:
        assert project.run("cron", "pause", "shop.ticks")[1].count("paused") == 1

    def test_who_has_read_enough_ends_it_without_a_traceback(self, project: Cron) -> None:
        command = project.command("cron", "list")
        with subprocess.Popen(
            command, env=project.environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
        assert "Traceback" not in said
        assert "BrokenPipe" not in said
        assert process.returncode == 1

    @pytest.mark.parametrize("place", [">&-", ">/dev/full", "2>&- >&-", ">/dev/full 2>&1"])
    def test_what_was_done_is_done_though_nothing_can_be_printed(self, project: Cron, place: str) -> None:
        project.declare(WORK + PRINTING)
        for arguments, code in (
            (("run", "shop.prints"), 0),
            (("run", "shop.ticks", "--json"), 0),
            (("run", "shop.fails"), 1),
            (("pause", "shop.prints"), 0),
        ):
            done = project.redirected(place, "cron", *arguments)
            assert done.returncode == code, (arguments, done.stderr)
            assert "AttributeError" not in done.stderr
            assert "OSError" not in done.stderr

    def test_what_was_done_is_done_though_nobody_reads_of_it(self, project: Cron) -> None:
        project.declare(WORK + PRINTING)
        command = project.command("cron", "run", "shop.prints")
        with subprocess.Popen(
            command, env=project.buffered, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            process.stdout.close()
            said = process.stderr.read()
        assert process.returncode == 0, said
        assert "Traceback" not in said

    def test_a_list_that_cannot_be_printed_is_an_error(self, project: Cron) -> None:
        done = project.redirected(">/dev/full", "cron", "list")
        assert done.returncode == 1
        assert "Traceback" not in done.stderr
        assert "What was to be said cannot be printed: " in done.stderr
        assert project.redirected(">&-", "cron", "list").returncode == 0

    def test_a_terminal_without_the_characters_shows_them_as_escapes(self, project: Cron) -> None:
        project.declare(WORK.replace("def ticks", "def gr\u00fc\u00dfe"))
        command = project.command("cron", "list")
        done = subprocess.run(
            command,
            env=project.environment | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
        assert done.returncode == 0, done.stderr
        assert "shop.gr\\xfc\\xdfe" in done.stdout

    def test_a_signal_tells_it_to_stop_and_its_lease_is_given_back(
        self, project: Cron, redis_client: redis.Redis
    ) -> None:
        process = project.start("cron", "run", "shop.linger")
        process.wait_for("working")
        assert redis_client.hget(f"{{{project.prefix}}}:job:shop.linger", "token")
        code, text = project.run("cron", "run", "shop.linger")
        assert code == 3
        assert "shop.linger is running: " in text
        assert process.stop() == 1
        assert "put away" in process.text
        assert "CommandError: shop.linger did not succeed: interrupted." in process.text
        assert not redis_client.hget(f"{{{project.prefix}}}:job:shop.linger", "token")

    def test_a_second_signal_ends_it_at_once(self, project: Cron) -> None:
        process = project.start("cron", "run", "shop.stubborn")
        process.wait_for("working")
        process.send(signal.SIGINT)
        process.send(signal.SIGINT)
        end = time.monotonic() + DEADLINE
        while process.popen.poll() is None:  # Two signals may have become one.
            assert time.monotonic() < end
            process.send(signal.SIGINT)
            threading.Event().wait(0.05)
        assert process.code() == 1

    def test_a_killed_one_is_reported_by_the_next(self, project: Cron) -> None:
        process = project.start("cron", "run", "shop.linger")
        process.wait_for("working")
        process.send(signal.SIGKILL)
        process.code()
        end = time.monotonic() + DEADLINE
        while '"status": "dead"' not in project.run("cron", "list", "--json", "shop.linger")[1]:
            assert time.monotonic() < end
        later = project.start("cron", "run", "shop.linger")
        later.wait_for("working")
        later.stop()
        assert "shop.linger: the run of a request by " in later.text
        assert "was abandoned" in later.text

    def test_the_codes_of_status_are_those_of_the_replicas(self, project: Cron) -> None:
        project.with_history()
        assert project.run("cron", "status")[0] == 1
        runcron = project.start("runcron")
        runcron.wait_for("shop.ticks for", 4)
        code, text = project.run("cron", "status", "--max-age", "shop.ticks=30s")
        assert code == 0, text
        assert project.run("cron", "status", "--max-age", "30s", "shop.fails")[0] == 0
        assert runcron.stop() == 0
        code, text = project.run("cron", "status")
        assert code == 1
        assert "No replica is alive" in text
        assert project.run("cron", "status", "shop.tick")[0] == 2
        assert project.run("cron", "status", "--max-age", "soon")[0] == 2

    def test_a_running_replica_takes_what_is_requested(self, project: Cron) -> None:
        runcron = project.start("runcron")
        runcron.wait_for("shop.ticks for")
        assert project.run("cron", "run", "--request", "shop.linger")[0] == 0
        runcron.wait_for("working")
        code, text = project.run("cron", "release", "shop.linger", "--no-input")
        assert code == 0
        assert "is released, and its run abandoned" in text
        runcron.wait_for("shop.linger has lost its lease")


DOCS = Path(__file__).resolve().parent.parent / "docs"


def probes() -> list[str]:
    """Return the shell commands of the documentation that look at the heartbeat file."""
    lines = [line for page in ("operations.rst", "running.rst") for line in (DOCS / page).read_text().splitlines()]
    found = [
        line[line.index("test -") :].rstrip("'}]") for line in lines if "test -" in line and "/tmp/runcron" in line
    ]
    return sorted(set(found))


def test_there_are_probes_in_the_documentation() -> None:
    assert any("find" in probe for probe in probes())
    assert len(probes()) >= 2


@pytest.mark.faults
@pytest.mark.parametrize("probe", probes())
def test_a_probe_of_the_documentation_tells_a_living_loop_from_a_dead_one(
    probe: str, project: Cron, tmp_path: Path
) -> None:
    shell, file = shutil.which("sh"), tmp_path / "alive"
    assert shell is not None
    command = [shell, "-c", probe.replace("/tmp/runcron", str(file))]
    assert subprocess.run(command, check=False).returncode != 0
    runcron = project.start("runcron", "--heartbeat-file", str(file))
    runcron.wait_for("shop.ticks for")
    assert subprocess.run(command, check=False).returncode == 0
    runcron.send(signal.SIGSTOP)
    minutes_ago = time.time() - 90
    os.utime(file, (minutes_ago, minutes_ago))
    lives = subprocess.run(command, check=False).returncode == 0
    runcron.send(signal.SIGCONT)
    assert lives is ("find" not in probe)
    assert runcron.stop() == 0


def test_the_command_needs_an_action() -> None:
    with pytest.raises(CommandError, match="ACTION"):
        cron.Command().create_parser("manage.py", "cron").parse_args([])
