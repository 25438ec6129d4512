"""The test project does what its README and the README of the package say."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.redis_server import RedisServer

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 60.0
TICK = re.compile(r"tick of (\S+ \S+)$")

LIST_JOBS = """
import django
django.setup()
from django_cronductor import registry
for job in registry:
    print(job.key, job.timezone, job.is_async, job.recover, job.when is not None, len(job.expression.split()))
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a copy of the test project, so that its database is this test's alone."""
    unwanted = shutil.ignore_patterns("__pycache__", "*.sqlite3*")
    return Path(shutil.copytree(ROOT / "testproject", tmp_path / "testproject", ignore=unwanted))


def environment(**extra: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", "PYTHONWARNINGS": "default", **extra}


def manage(project: Path, *arguments: str) -> str:
    command = [sys.executable, str(project / "manage.py"), *arguments]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=DEADLINE)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


HEARD = threading.Condition()
"""Notified whenever a runcron has written a line or ended."""


class Runcron:
    """A running `manage.py runcron` and the lines that it has written."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self.ended = False
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with HEARD:
                self.lines.append(line.rstrip())
                HEARD.notify_all()
        with HEARD:
            self.ended = True
            HEARD.notify_all()

    @property
    def ticks(self) -> list[str]:
        return [match[1] for line in self.lines if (match := TICK.search(line))]

    def stop(self, number: int) -> int:
        """Send a signal and return the exit code, once everything written has been read."""
        self.process.send_signal(number)
        code = self.process.wait(DEADLINE)
        self._reader.join(DEADLINE)
        return code

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()


def wait_until(condition: Callable[[], bool], *replicas: Runcron) -> None:
    """Wait until what the replicas write makes the condition true; fail if one ends before that."""
    with HEARD:
        HEARD.wait_for(lambda: condition() or any(replica.ended for replica in replicas), DEADLINE)
        written = "\n---\n".join("\n".join(replica.lines) for replica in replicas)
        assert condition(), f"Not met in {DEADLINE:g} s, or ended before:\n{written}"


def ticks_of(replicas: list[Runcron]) -> Counter[str]:
    return Counter(tick for replica in replicas for tick in replica.ticks)


@contextmanager
def runcron(project: Path, **extra: str) -> Iterator[Runcron]:
    process = subprocess.Popen(
        [sys.executable, str(project / "manage.py"), "runcron"],
        env=environment(**extra),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    running = Runcron(process)
    try:
        yield running
    finally:
        running.close()


def test_has_nothing_to_complain_about_and_no_migration_to_make(project: Path) -> None:
    assert "no issues" in manage(project, "check")
    assert "No changes detected" in manage(project, "makemigrations", "--check", "--dry-run")


def test_jobs_show_the_main_features(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIST_JOBS],
        cwd=project,
        env=environment(DJANGO_SETTINGS_MODULE="config.settings"),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE,
    )
    jobs = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    assert set(jobs) == {
        f"demo.{name}"
        for name in ("tick", "count_users", "fetch", "fail", "crunch", "every_other_minute", "good_morning")
    }
    assert jobs["demo.tick"] == ["None", "False", "False", "False", "6"]
    assert jobs["demo.fetch"][1] == "True"
    assert jobs["demo.every_other_minute"][3] == "True"
    assert jobs["demo.good_morning"] == ["Europe/Berlin", "False", "True", "False", "5"]


def test_runs_jobs_without_a_server_until_ctrl_c(project: Path) -> None:
    manage(project, "migrate")
    with runcron(project) as process:
        wait_until(lambda: bool(process.ticks), process)
        assert process.stop(signal.SIGINT) == 0


@pytest.mark.faults
def test_three_replicas_on_one_redis_share_the_ticks(project: Path) -> None:
    manage(project, "migrate")
    with RedisServer() as server, ExitStack() as stack:
        replicas = [stack.enter_context(runcron(project, CRONDUCTOR_REDIS_URL=server.url)) for _ in range(3)]
        wait_until(lambda: len(ticks_of(replicas)) >= 3, *replicas)
        assert [replica.stop(signal.SIGTERM) for replica in replicas] == [0, 0, 0]
        assert set(ticks_of(replicas).values()) == {1}
