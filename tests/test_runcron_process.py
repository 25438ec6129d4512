"""The command as a process: what it prints, its exit codes, signals."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from tests.redis_server import RedisServer

pytestmark = pytest.mark.faults

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 60.0

SETTINGS = """
import os
SECRET_KEY = "for tests only"
DEBUG = {debug!r}
USE_TZ = True
INSTALLED_APPS = ["django_cronductor", "shop"]
DATABASES = {{"default": {{"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}}}
CACHES = {{
    "default": {{"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}},
    "locks": {{"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": {url!r}}},
}}
CRONDUCTOR = {cronductor!r}
"""

TICKING = """
from django_cronductor import cron

@cron("* * * * * *", takes_context=True)
def tick(context):
    print("tick", context.scheduled_at, flush=True)
"""

IDLE = """
from django_cronductor import cron

@cron("0 0 1 1 *")
def rare():
    pass
"""

LINGERING = """
import threading
from django_cronductor import cron

@cron("* * * * * *", takes_context=True, key="shop.linger")
def linger(context):
    print("working", flush=True)
    while not context.stopping:
        threading.Event().wait(0.01)
    print("put away", flush=True)
"""

STUBBORN = """
import threading
from django_cronductor import cron

@cron("* * * * * *", key="shop.stubborn")
def stubborn():
    print("working", flush=True)
    threading.Event().wait(600)
"""

HUNG = """
import asyncio
from django_cronductor import cron

@cron("* * * * * *")
async def hung():
    print("working", flush=True)
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            pass
"""


class Process:
    """A running `runcron` and the lines that it writes."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.lines: list[str] = []
        self._heard = threading.Condition()
        self._ended = False
        # A session of its own, so that a signal can be sent to all of it, as a terminal does.
        self.popen = subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.popen.stdout is not None
        for line in self.popen.stdout:
            with self._heard:
                self.lines.append(line.rstrip())
                self._heard.notify_all()
        with self._heard:
            self._ended = True
            self._heard.notify_all()

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    def wait_for(self, text: str, count: int = 1) -> None:
        """Wait until so many lines have the text; fail if it ends before."""
        self.wait_until(lambda: sum(text in line for line in self.lines) >= count)

    def wait_until(self, condition: Callable[[], bool]) -> None:
        with self._heard:
            self._heard.wait_for(lambda: condition() or self._ended, DEADLINE)
            assert condition(), self.text

    def wait_for_after(self, change: Callable[[], object], text: str) -> None:
        """Make a change, again and again, until a line has the text: the reloader may not be watching yet."""
        for _ in range(int(DEADLINE / 10)):
            change()
            with self._heard:
                if self._heard.wait_for(lambda: text in self.text or self._ended, 10):
                    break
        assert text in self.text, self.text

    def send(self, number: int) -> None:
        self.popen.send_signal(number)

    def send_all(self, number: int) -> None:
        os.killpg(self.popen.pid, number)

    def code(self) -> int:
        """Wait for the end, and until all that was written is read; return the exit code."""
        code = self.popen.wait(DEADLINE)
        self._reader.join(DEADLINE)
        assert not self._reader.is_alive(), "somebody has its output open yet"
        return code

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.send(number)
        return self.code()

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self.send_all(signal.SIGKILL)
        self.popen.wait()
        self._reader.join()
        assert self.popen.stdout is not None
        self.popen.stdout.close()


class Project:
    """A small project in a directory of its own."""

    def __init__(self, directory: Path, url: str, prefix: str) -> None:
        self.directory = directory
        self.url = url
        self.prefix = prefix
        self.processes: list[Process] = []
        (directory / "shop").mkdir()
        (directory / "shop" / "__init__.py").touch()
        self.configure()

    def configure(self, *, debug: bool = False, more: str = "", **cronductor: object) -> None:
        setting = {"CACHE": "locks", "PREFIX": self.prefix, "HISTORY": 0, **cronductor}
        text = SETTINGS.format(debug=debug, url=self.url, cronductor=setting) + more
        (self.directory / "site_settings.py").write_text(text)

    def in_memory(self) -> None:
        self.configure(CACHE="default", debug=True)

    def declare(self, text: str) -> None:
        (self.directory / "shop" / "cron.py").write_text(text)

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "DJANGO_SETTINGS_MODULE": "site_settings",
            "PYTHONPATH": f"{self.directory}:{ROOT}",
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONWARNINGS": "error",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "django", "runcron", *arguments]

    def start(self, *arguments: str) -> Process:
        process = Process(self.command(*arguments), self.environment)
        self.processes.append(process)
        return process

    def run(self, *arguments: str) -> tuple[int, str]:
        """Run it to its end; return the exit code and what it wrote."""
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
        return done.returncode, done.stdout + done.stderr


@pytest.fixture
def project(tmp_path: Path, redis_url: str, prefix: str) -> Iterator[Project]:
    project = Project(tmp_path, redis_url, prefix)
    yield project
    for process in project.processes:
        process.close()


# What it says, and that it runs.


@pytest.mark.parametrize("place", ["redis", "memory"])
def test_it_says_what_it_found_runs_jobs_and_ends_with_0_on_sigterm(project: Project, place: str) -> None:
    project.declare(TICKING)
    if place == "memory":
        project.in_memory()
    process = project.start()
    process.wait_for("tick 2", 2)
    assert process.stop() == 0
    banner = process.lines[: process.text[: process.text.index("  next:")].count("\n") + 1]
    assert any(re.match(r"django-cronductor \S+, instance \S+:\d+:\w+$", line) for line in banner)
    expected = "Locks: Redis at 127.0.0.1" if place == "redis" else "Locks: memory of this process"
    assert any(line.startswith(expected) for line in banner)
    assert "Jobs: 1" in banner
    ticks = [line for line in process.lines if line.startswith("tick 2")]
    assert len(set(ticks)) == len(ticks)
    assert "Traceback" not in process.text


def test_its_log_is_shown_where_the_project_says_nothing_of_logging(project: Project) -> None:
    project.declare(TICKING)
    process = project.start()
    for end in (r"started\.", "succeeded after"):
        shown = re.compile(r"INFO shop\.tick for \d{4}-\d\d-\d\d \d\d:\d\d:\d\d\+00:00 " + end)
        process.wait_until(lambda shown=shown: any(map(shown.search, process.lines)))  # type: ignore[misc]
    assert process.stop() == 0


def test_its_log_goes_where_the_project_sends_it_and_nowhere_else(project: Project) -> None:
    project.declare(TICKING)
    project.configure(
        more="""
LOGGING = {
    "version": 1,
    "formatters": {"ours": {"format": "OURS %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "ours"}},
    "root": {"handlers": ["console"], "level": "INFO"},
}
"""
    )
    process = project.start()
    process.wait_until(lambda: any(re.match(r"OURS shop\.tick for .* started\.$", line) for line in process.lines))
    assert process.stop() == 0
    assert all(line.startswith("OURS ") for line in process.lines if "shop.tick for " in line)


@pytest.mark.parametrize("place", [">&-", ">/dev/full"])
def test_it_runs_jobs_though_it_cannot_print(project: Project, place: str) -> None:
    project.declare(TICKING)
    process = Process(["sh", "-c", f'exec "$@" {place}', "sh", *project.command()], project.environment)
    project.processes.append(process)
    process.wait_for("succeeded after", 2)
    assert process.stop() == 0
    assert "Traceback" not in process.text
    assert ("cannot be printed" in process.text) is (place == ">/dev/full")


def test_it_runs_jobs_though_it_can_neither_print_nor_log(project: Project) -> None:
    project.declare(TICKING)
    heartbeat = project.directory / "alive"
    command = ["sh", "-c", 'exec "$@" >/dev/full 2>&1', "sh", *project.command("--heartbeat-file", str(heartbeat))]
    with subprocess.Popen(command, env=project.environment) as process:
        deadline = time.monotonic() + DEADLINE
        while not (heartbeat.exists() and heartbeat.stat().st_mtime > time.time() - 1):
            assert process.poll() is None
            assert time.monotonic() < deadline
        process.terminate()
        assert process.wait(DEADLINE) == 0


def test_what_is_said_at_once_is_not_written_to_a_file_that_took_the_place_of_stderr(tmp_path: Path) -> None:
    script = f"""
import os
from django_cronductor.management.process import say_at_once
assert os.open({str(tmp_path / "file")!r}, os.O_WRONLY | os.O_CREAT) == 2
say_at_once("Stopping")
"""
    command = ["sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", script]
    assert subprocess.run(command, cwd=ROOT, check=False, timeout=DEADLINE).returncode == 0
    assert (tmp_path / "file").read_bytes() == b""


def test_no_jobs_is_a_warning_and_it_waits(project: Project) -> None:
    process = project.start()
    process.wait_for("There are no jobs to run: no module named 'cron' in django_cronductor, shop declares any.")
    assert process.stop() == 0


def test_the_environment_of_the_process_is_what_jobs_see(project: Project) -> None:
    project.declare(TICKING.replace("context.scheduled_at", "__import__('os').environ['PYTHONUNBUFFERED']"))
    process = project.start()
    process.wait_for("tick 1")
    assert process.stop() == 0


# What it refuses.


def test_it_refuses_to_start_without_debug_and_a_backend(project: Project) -> None:
    project.declare(TICKING)
    project.configure(CACHE="default")
    code, text = project.run()
    assert code == 1
    assert "The cache 'default' is not in Redis" in text
    assert "Traceback" not in text


def test_a_broken_module_of_jobs_ends_it_with_its_traceback_and_the_name_of_its_app(project: Project) -> None:
    project.declare("import nosuch_module\n")
    code, text = project.run()
    assert code == 1
    assert "ModuleNotFoundError: No module named 'nosuch_module'" in text
    assert "shop" in text
    assert "Traceback" in text


def test_a_bad_declaration_ends_it_with_the_place(project: Project) -> None:
    project.declare('from django_cronductor import cron\n\n@cron("0 0 30 2 *")\ndef never():\n    pass\n')
    code, text = project.run()
    assert code == 1
    assert re.match(r"Job shop\.never, declared at .*shop/cron\.py:3: The schedule '0 0 30 2 \*' cannot be used", text)
    assert "Traceback" not in text


def test_other_commands_show_the_way_to_a_bad_declaration(project: Project) -> None:
    project.declare('from django_cronductor import cron\n\n@cron("0 0 30 2 *")\ndef never():\n    pass\n')
    for command, shown in (["check"], False), (["migrate", "--plan"], True):
        done = subprocess.run(
            [sys.executable, "-m", "django", *command],
            env=project.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=DEADLINE,
        )
        assert done.returncode == 1
        assert "shop/cron.py:3: The schedule" in done.stderr
        assert ("Traceback" in done.stderr) is shown


def test_an_unknown_key_ends_it_with_the_nearest(project: Project) -> None:
    project.declare(TICKING)
    for option in ("--only", "--exclude"):
        code, text = project.run(option, "shop.tock")
        assert code == 1
        assert "did you mean shop.tick?" in text


def test_a_wrong_password_ends_it_without_showing_any(project: Project) -> None:
    project.declare(TICKING)
    with RedisServer({"requirepass": "rightsecret"}) as server:
        project.url = server.url.replace("rightsecret", "wrongsecret")
        project.configure()
        code, text = project.run()
    assert code == 1
    assert "invalid username-password" in text or "WRONGPASS" in text
    assert "secret" not in text


def test_a_password_that_is_missing_ends_it_and_is_said_to_be(project: Project) -> None:
    project.declare(TICKING)
    with RedisServer({"requirepass": "rightsecret"}) as server:
        project.url = server.url.replace(":rightsecret@", "")
        project.configure()
        code, text = project.run()
    assert code == 1
    assert "the server wants a password, and the cache has none" in text
    assert "secret" not in text


def test_a_user_without_scripts_ends_it_naming_what_is_missing(project: Project) -> None:
    project.declare(TICKING)
    with RedisServer() as server:
        client = redis.Redis.from_url(server.url)
        client.execute_command("ACL", "SETUSER", "limited", "on", ">pw", "~*", "+@all", "-@scripting")
        client.close()
        project.url = server.url.replace("redis://", "redis://limited:pw@")
        project.configure()
        code, text = project.run()
    assert code == 1
    assert re.search(r"no permissions to run the '?eval", text, re.IGNORECASE)


def test_a_heartbeat_file_that_cannot_be_written_ends_it(project: Project) -> None:
    project.declare(TICKING)
    code, text = project.run("--heartbeat-file", str(project.directory / "nowhere" / "alive"))
    assert code == 1
    assert "--heartbeat-file" in text


# --once.


def test_once_runs_nothing_at_first_then_what_is_due_and_ends_with_0(project: Project) -> None:
    project.declare(TICKING)
    code, text = project.run("--once")
    assert (code, "tick 2" in text) == (0, False)
    for _ in range(10):  # A start takes about a second; an occurrence must have come since the last one.
        code, text = project.run("--once")
        assert code == 0
        if "tick 2" in text:
            break
    assert sum(line.startswith("tick 2") for line in text.splitlines()) == 1


def test_once_is_refused_in_memory(project: Project) -> None:
    project.declare(TICKING)
    project.in_memory()
    code, text = project.run("--once")
    assert code == 1
    assert "--once needs to know what ran before" in text


# The store is away.


def test_a_store_that_cannot_be_reached_at_start_is_waited_for_and_then_served(project: Project) -> None:
    project.declare(TICKING)
    heartbeat = project.directory / "alive"
    with RedisServer() as server:
        project.url = server.url
        project.configure()
        server.kill()
        process = project.start("--heartbeat-file", str(heartbeat))
        process.wait_for("The lock store failed")
        wait_for_touch(heartbeat, process)
        server.start()
        process.wait_for("The lock store is back after")
        process.wait_for("tick 2")
        server.kill()
        process.wait_for("The lock store failed", 2)
        wait_for_touch(heartbeat, process)
        assert process.stop() == 0


def test_a_signal_while_the_store_is_waited_for_ends_it_with_0(project: Project) -> None:
    project.declare(TICKING)
    project.url = "redis://127.0.0.1:1/0"
    project.configure()
    process = project.start()
    process.wait_for("The lock store failed")
    assert process.stop() == 0


def wait_for_touch(path: Path, process: Process) -> None:
    """Wait until the loop touches the file."""
    os.utime(path, (1, 1))
    end = time.monotonic() + DEADLINE
    while path.stat().st_mtime == 1:
        assert time.monotonic() < end
        assert process.popen.poll() is None, process.text


# Signals.


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("place", ["redis", "memory"])
def test_a_signal_while_nothing_runs_ends_it_soon_with_0(project: Project, number: signal.Signals, place: str) -> None:
    project.declare(IDLE)
    if place == "memory":
        project.in_memory()
    process = project.start()
    process.wait_for("Jobs: 1")
    before = time.monotonic()
    assert process.stop(number) == 0
    assert time.monotonic() - before < 5
    assert "Traceback" not in process.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_a_run_finish_and_gives_its_lease_back(
    project: Project, redis_client: redis.Redis, number: signal.Signals
) -> None:
    project.declare(LINGERING)
    process = project.start()
    process.wait_for("working")
    assert redis_client.hget(f"{{{project.prefix}}}:job:shop.linger", "token")
    assert process.stop(number) == 0
    assert process.lines.count("working") == 1
    assert "put away" in process.lines
    assert not redis_client.hget(f"{{{project.prefix}}}:job:shop.linger", "token")


def test_a_run_that_does_not_finish_in_time_is_cut_off_with_1_and_its_lease_is_left(
    project: Project, redis_client: redis.Redis
) -> None:
    project.declare(STUBBORN)
    project.configure(SHUTDOWN_TIMEOUT=0.5)
    process = project.start()
    process.wait_for("working")
    assert process.stop() == 1
    assert "Some jobs were still running when SHUTDOWN_TIMEOUT was over." in process.text
    assert re.search(r"WARNING shop\.stubborn for .* interrupted after", process.text)
    assert redis_client.hget(f"{{{project.prefix}}}:job:shop.stubborn", "token")


def test_a_second_signal_ends_it_at_once_with_1(project: Project) -> None:
    project.declare(STUBBORN)
    process = project.start()
    process.wait_for("working")
    process.send(signal.SIGTERM)
    before = time.monotonic()
    # Two signals on the way at once are one: it is sent until it has come.
    while process.popen.poll() is None:
        process.send(signal.SIGTERM)
        assert time.monotonic() - before < 10, "SHUTDOWN_TIMEOUT is 25 s"
    assert process.code() == 1


def test_an_async_handler_that_will_not_end_does_not_hold_the_exit(project: Project) -> None:
    project.declare(HUNG)
    project.configure(SHUTDOWN_TIMEOUT=0.5)
    process = project.start()
    process.wait_for("working")
    before = time.monotonic()
    assert process.stop() == 1
    assert time.monotonic() - before < 10


def test_a_signal_while_apps_are_loaded_ends_it(project: Project) -> None:
    project.declare("import threading\nprint('importing', flush=True)\nthreading.Event().wait(600)\n")
    process = project.start()
    process.wait_for("importing")
    assert process.stop() in (0, -signal.SIGTERM)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_starts_ends_it_with_0(project: Project, number: signal.Signals) -> None:
    go = project.directory / "go"
    project.declare(
        IDLE
        + f"""
import pathlib
from django.core import checks

@checks.register
def slow(app_configs, **options):
    print("checking", flush=True)
    while not pathlib.Path({str(go)!r}).exists():
        pass
    return []
"""
    )
    process = project.start()
    process.wait_for("checking")
    process.send(number)
    go.touch()
    assert process.code() == 0
    assert "Traceback" not in process.text


# As the first process of a container, which has no defaults for signals.


@pytest.fixture
def container() -> list[str]:
    """Return what makes a command the first process of a PID namespace of its own."""
    command = ["unshare", "--pid", "--fork", "--kill-child"] + (["--user", "--map-root-user"] if os.getuid() else [])
    try:
        subprocess.run([*command, "true"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"This machine lets nobody make a PID namespace: {error}")
    return command


class FirstProcess(Process):
    """A `runcron` with the process id 1; signals come from outside, as those of a container's runtime do."""

    def send(self, number: int) -> None:
        (child,) = Path(f"/proc/{self.popen.pid}/task/{self.popen.pid}/children").read_text().split()
        os.kill(int(child), number)


def start_first(project: Project, container: list[str]) -> FirstProcess:
    process = FirstProcess(container + project.command(), project.environment)
    project.processes.append(process)
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_as_the_first_process_it_ends_within_a_second_of_a_signal_while_nothing_runs(
    project: Project, container: list[str], redis_client: redis.Redis, number: signal.Signals
) -> None:
    project.declare(IDLE)
    process = start_first(project, container)
    instances = f"{{{project.prefix}}}:instances"
    end = time.monotonic() + DEADLINE
    while not redis_client.exists(instances):
        assert time.monotonic() < end
        assert process.popen.poll() is None, process.text
    before = time.monotonic()
    assert process.stop(number) == 0
    assert time.monotonic() - before < 2, "a second, and another for a busy machine"
    assert re.search(r"instance \S+:1:\w+", process.text)
    assert "Stopped." in process.text
    assert not redis_client.exists(instances)


def test_as_the_first_process_it_lets_a_run_finish_and_a_second_signal_ends_it_at_once(
    project: Project, container: list[str], redis_client: redis.Redis
) -> None:
    project.declare(LINGERING)
    process = start_first(project, container)
    process.wait_for("working")
    assert process.stop() == 0
    assert "put away" in process.lines
    assert not redis_client.hget(f"{{{project.prefix}}}:job:shop.linger", "token")

    project.declare(STUBBORN)
    process = start_first(project, container)
    process.wait_for("working")
    process.send(signal.SIGTERM)
    process.wait_for("Stopping: waiting up to 25 s for a run: shop.stubborn.")
    process.send(signal.SIGTERM)
    assert process.code() == 1


def test_as_the_first_process_it_is_ended_by_a_signal_while_apps_are_loaded(
    project: Project, container: list[str]
) -> None:
    project.declare("import threading\nprint('importing', flush=True)\nthreading.Event().wait(600)\n")
    process = start_first(project, container)
    process.wait_for("importing")
    assert process.stop() == 128 + signal.SIGTERM


# --reload.


def test_reload_runs_one_loop_in_its_child_and_starts_it_again_when_code_changes(project: Project) -> None:
    project.declare(TICKING)
    process = project.start("--reload")
    process.wait_for("tick 2", 2)
    project.declare(TICKING.replace('"tick"', '"tock"'))
    process.wait_for("tock 2")
    assert process.stop() == 0
    loops = re.findall(r"^django-cronductor \S+, instance [^:]+:(\d+):", process.text, re.MULTILINE)
    assert len(loops) >= 2
    assert len(set(loops)) == len(loops), "one loop in each process"
    assert str(process.popen.pid) not in loops, "none in the one that watches"
    ticks = [line for line in process.lines if line.startswith(("tick 2", "tock 2"))]
    assert len({tick.partition(" ")[2] for tick in ticks}) == len(ticks)


def test_reload_waits_for_a_broken_file_to_be_mended(project: Project) -> None:
    project.declare(TICKING)
    process = project.start("--reload")
    process.wait_for("tick 2")
    project.declare(TICKING + "def broken(:\n")
    process.wait_for("SyntaxError")
    process.wait_for("It is started again when a file changes.")
    project.declare(TICKING.replace('"tick"', '"tock"'))
    process.wait_for("tock 2")
    assert process.stop() == 0


def test_reload_lets_a_run_finish_and_gives_its_lease_back(project: Project, redis_client: redis.Redis) -> None:
    project.declare(LINGERING)
    process = project.start("--reload")
    process.wait_for("working")
    project.declare(IDLE)
    process.wait_for("put away")
    process.wait_for("Jobs: 1", 2)
    assert not redis_client.hget(f"{{{project.prefix}}}:job:shop.linger", "token")
    assert process.stop() == 0


def test_reload_does_not_wait_for_a_run_that_will_not_end(project: Project) -> None:
    project.declare(STUBBORN)
    project.configure(SHUTDOWN_TIMEOUT=0.5)
    process = project.start("--reload")
    process.wait_for("working")
    project.declare(IDLE)
    process.wait_for("Jobs: 1", 2)
    assert process.stop() == 0


def test_reload_names_a_wrong_setting_without_a_traceback_and_waits(project: Project) -> None:
    project.declare(TICKING)
    project.configure(CACHE="default")
    process = project.start("--reload")
    process.wait_for("The cache 'default' is not in Redis")
    process.wait_for_after(project.configure, "tick 2")
    assert process.stop() == 0
    assert "Traceback" not in process.text


def test_reload_ends_on_ctrl_c(project: Project) -> None:
    project.declare(TICKING)
    process = project.start("--reload")
    process.wait_for("tick 2")
    process.send_all(signal.SIGINT)  # A terminal sends it to the reloader and its child.
    assert process.code() in (0, 130, -signal.SIGINT)
    assert "KeyboardInterrupt" not in process.text


# The exit that waits for nobody.


@pytest.mark.parametrize("trouble", ["a lock that is held", "an error"])
def test_an_exit_at_once_is_held_by_no_handler_of_the_log(trouble: str) -> None:
    script = f"""
import logging, sys, threading
import django
django.setup()
from django_cronductor.management.process import exit_at_once

class Handler(logging.Handler):
    def flush(self):
        raise RuntimeError("reentrant call")

def hold():
    handler.acquire()
    held.set()
    threading.Event().wait()

handler, held = Handler(), threading.Event()
sys.stdout.write("put away")
if {trouble!r} != "an error":
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
exit_at_once(3)
"""
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    command = [sys.executable, "-c", script]
    result = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE)
    assert (result.returncode, result.stderr) == (3, "")
    assert result.stdout == "put away"
