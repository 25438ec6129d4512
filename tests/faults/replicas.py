"""Replicas as real processes, and the journal of what happens in them."""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from django_cronductor.backends.redis import RedisBackend

ROOT = Path(__file__).resolve().parent.parent.parent
LIBRARY = "faketime/libfaketime.so.1"
LIBRARY_PLACES = ("/usr/lib", "/usr/local/lib", "/lib", "/opt/homebrew/lib")
SECOND = 1000
"""Milliseconds: occurrences are given in them."""
PATIENCE = 30.0
"""Seconds to wait for what is bound to come: generous, for the machine may be busy with other things."""


def find_faketime() -> str:
    """Return the path of libfaketime. Without it nothing is known about clocks that differ: in CI that is a failure."""
    for place in LIBRARY_PLACES:
        for path in sorted(Path(place).glob(LIBRARY)) + sorted(Path(place).glob(f"*/{LIBRARY}")):
            return str(path)
    reason = (
        "libfaketime, by which this test moves the clocks of processes, is not installed: `apt-get install faketime`."
    )
    if os.environ.get("CI"):
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def offset(seconds: float) -> dict[str, str]:
    """Return the environment of a process whose wall clock is off by so many seconds."""
    if not seconds:
        return {}
    return {
        "LD_PRELOAD": find_faketime(),
        "FAKETIME": f"{seconds:+g}",
        # The monotonic clock stays as it is: waits and leases go by it, and the journal's entries can be compared.
        "DONT_FAKE_MONOTONIC": "1",
        # By default it takes the interpreter's own waits for ones on the wall clock: threads stall for half a second.
        "FAKETIME_FORCE_MONOTONIC_FIX": "0",
    }


@dataclass
class Entry:
    """One line of the journal. `occurrence` is in milliseconds since the epoch, `at` on the monotonic clock."""

    event: str
    job: str
    occurrence: int
    replica: str
    at: float
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def token(self) -> int:
        """Return the fencing token of the run."""
        token: int = self.details["token"]
        return token

    @property
    def lateness(self) -> float:
        """Return the seconds from the occurrence to this entry, by this process's clock, which is the store's too."""
        return self.at + time.time() - time.monotonic() - self.occurrence / SECOND

    @property
    def covers(self) -> range:
        """Return the occurrences that this report counts, of a job that is due every second."""
        return range(self.occurrence - (self.details["count"] - 1) * SECOND, self.occurrence + 1, SECOND)


class Journal:
    """What all replicas of a test have written down so far, in the order of writing."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def entries(self, event: str, job: str | None = None, *, by: str | None = None) -> list[Entry]:
        """Return the entries of one kind, all or those of one job, or of one replica."""
        return [
            entry
            for entry in self._read()
            if entry.event == event and job in (None, entry.job) and by in (None, entry.replica)
        ]

    def starts(self, job: str | None = None, *, by: str | None = None) -> list[Entry]:
        """Return the runs that began."""
        return self.entries("started", job, by=by)

    def _read(self) -> Iterator[Entry]:
        if not self.path.exists():
            return
        *lines, _ = self.path.read_text().split("\n")  # After the last newline may be what is being written now.
        for line in lines:
            values = json.loads(line)
            known = {name: values.pop(name) for name in ("event", "job", "occurrence", "replica", "at")}
            yield Entry(**known, details=values)


class Replica:
    """One `runcron` process."""

    def __init__(self, name: str, directory: Path, environment: dict[str, str], options: list[str]) -> None:
        self.name = name
        self.heartbeat_file = directory / f"{name}.alive"
        self._log = directory / f"{name}.log"
        self._ended = False
        command = [sys.executable, "-m", "django", "runcron", "--heartbeat-file", str(self.heartbeat_file), *options]
        with self._log.open("wb") as log:
            # A session of its own: Ctrl-C in the terminal is for the tests. The pipe tells it when they are gone.
            self.process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **environment, "FAULTS_REPLICA": name},
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        """Return what the process has printed and logged."""
        return self._log.read_text(errors="replace")

    @property
    def instance(self) -> str | None:
        """Return the name under which it holds leases, once it has said so."""
        found = re.search(r"instance (\S+)", self.log)
        return found and found[1]

    @property
    def last_alive(self) -> float:
        """Return when it last touched its heartbeat file, as a wall clock reading."""
        return self.heartbeat_file.stat().st_mtime

    @property
    def has_died(self) -> bool:
        """Tell whether it has ended without being asked to."""
        return not self._ended and self.process.poll() is not None

    def is_to_end(self) -> None:
        """Note that its end is no failure of the test."""
        self._ended = True

    def stop(self) -> None:
        """Send SIGSTOP: all its threads stand still, as in a machine that is suspended."""
        self._signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Send SIGCONT."""
        self._signal(signal.SIGCONT)

    def terminate(self) -> None:
        """Send SIGTERM, which asks it to finish what it runs."""
        self._ended = True
        self._signal(signal.SIGTERM)

    def kill(self) -> float:
        """Send SIGKILL and wait until it is gone; return when it was sent."""
        self._ended = True
        moment = time.monotonic()
        self._signal(signal.SIGKILL)
        self.wait()
        return moment

    def wait(self) -> int:
        """Wait for its end and return its exit code."""
        code = self.process.wait(PATIENCE)
        assert self.process.stdin is not None
        self.process.stdin.close()
        # What libfaketime leaves behind when its process is killed would be in the way of the next of that number.
        for left in (f"faketime_shm_{self.process.pid}", f"sem.faketime_sem_{self.process.pid}"):
            with contextlib.suppress(FileNotFoundError):
                Path("/dev/shm", left).unlink()
        return code

    def _signal(self, number: int) -> None:
        self.process.send_signal(number)  # Does nothing to a process that was waited for.


class Replicas:
    """The replicas of one test on one store."""

    def __init__(self, directory: Path, url: str, backend: RedisBackend) -> None:
        self.journal = Journal(directory / "journal")
        self.hold = directory / "hold"
        self.all: list[Replica] = []
        self._directory = directory
        self._backend = backend
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "tests.faults.project.settings",
            "FAULTS_REDIS_URL": url,
            "FAULTS_JOURNAL": str(self.journal.path),
            "FAULTS_HOLD": str(self.hold),
        }

    def start(self, *jobs: str, clocks: tuple[float, ...] = (0.0,)) -> list[Replica]:
        """Start one for each clock (seconds by which it is off) with these jobs, and wait until all are at work."""
        fresh = [self._start(jobs, offset(seconds)) for seconds in clocks]
        self.wait("every replica to be at work", lambda: self.at_work(fresh))
        return fresh

    def due_in(self, seconds: int) -> int:
        """Let jobs of one occurrence, in those that are started from now on, be due then; return the instant."""
        due = math.ceil(time.time()) + seconds
        self._environment["FAULTS_DUE"] = f"{datetime.fromtimestamp(due, tz=timezone.utc):%S %M %H %d %m} *"
        return due * SECOND

    def keep_history(self) -> Path:
        """Let those that are started from now on keep a history; return the file of its SQLite database."""
        database = self._directory / "history.sqlite3"
        self._environment["FAULTS_DATABASE"] = str(database)
        environment = {**os.environ, **self._environment, "FAULTS_REPLICA": "migrate"}
        command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        # It would end with its standard input.
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE) as process:
            assert process.wait(PATIENCE) == 0
        return database

    def start_doomed(self, *jobs: str, dies: str = "in a run") -> Replica:
        """Start one that is bound to die, at the given moment (see FatalBackend) or by one of its jobs."""
        doomed = self._start(jobs, {"FAULTS_DIES": dies})
        doomed.is_to_end()
        return doomed

    def _start(self, jobs: tuple[str, ...], environment: dict[str, str]) -> Replica:
        name = f"replica-{len(self.all) + 1}"
        fresh = Replica(name, self._directory, {**self._environment, **environment}, ["--only", *jobs])
        self.all.append(fresh)
        return fresh

    def named(self, name: str) -> Replica:
        """Return the one that an entry of the journal is by."""
        return next(replica for replica in self.all if replica.name == name)

    def others(self, one: Replica) -> list[Replica]:
        """Return all but one."""
        return [replica for replica in self.all if replica is not one]

    def wait(self, what: str, condition: Callable[[], object], within: float = PATIENCE) -> None:
        """Wait until it holds; fail if it does not within so many seconds, or if a replica ends meanwhile."""
        deadline = time.monotonic() + within
        while not condition():
            for replica in self.all:
                assert not replica.has_died, f"{replica.name} ended by itself while waiting for {what}"
            assert time.monotonic() < deadline, f"waited {within:g} s in vain for {what}"
            time.sleep(0.02)

    def wait_for_start(self, job: str, *, after: float = 0.0, within: float = PATIENCE) -> Entry:
        """Wait for the first run of a job that began after a moment of the monotonic clock, and return it."""
        found: list[Entry] = []

        def started() -> bool:
            found[:] = [entry for entry in self.journal.starts(job) if entry.at > after]
            return bool(found)

        self.wait(f"a run of {job}", started, within)
        return found[0]

    def wait_for_starts(self, job: str, count: int, *, after: float = 0.0, within: float = PATIENCE) -> None:
        """Wait until so many runs of a job have begun after a moment of the monotonic clock."""
        what = f"{count} runs of {job}"
        self.wait(what, lambda: sum(entry.at > after for entry in self.journal.starts(job)) >= count, within)

    def finish(self) -> None:
        """Let long jobs end, send SIGTERM to all that live, and see that each ends in good order."""
        self.hold.unlink(missing_ok=True)
        living = [replica for replica in self.all if replica.process.poll() is None]
        for replica in living:
            replica.terminate()
        assert {replica.name: replica.wait() for replica in living} == dict.fromkeys(
            (replica.name for replica in living), 0
        )

    def end(self) -> None:
        """Kill what is left, and print what each has logged: it is seen where a test failed."""
        for replica in self.all:
            if replica.process.poll() is None:
                replica.kill()
            replica.wait()
            print(f"--- {replica.name}\n{replica.log}")

    def at_work(self, replicas: list[Replica]) -> bool:
        """Tell whether all of them have made their jobs known."""
        names = {replica.instance for replica in replicas}
        return None not in names and names <= self._backend.instances().keys()


def assert_none_twice(starts: list[Entry]) -> None:
    """Hold that no occurrence of a job began more than once."""
    counts = Counter((entry.job, entry.occurrence) for entry in starts)
    assert {occurrence: count for occurrence, count in counts.items() if count > 1} == {}


def assert_each_once(starts: list[Entry]) -> None:
    """Hold that of a job that is due every second no occurrence ran twice and none is missing in between."""
    assert_none_twice(starts)
    ran = {entry.occurrence for entry in starts}
    assert sorted(set(range(min(ran), max(ran), SECOND)) - ran) == []


def assert_each_once_or_told(journal: Journal, job: str) -> None:
    """Hold that no occurrence ran twice, and that each one that did not run was reported exactly once."""
    assert_none_twice(journal.starts(job))
    starts = {entry.occurrence for entry in journal.starts(job)}
    reports = Counter(
        occurrence
        for event in ("missed", "skipped")
        for entry in journal.entries(event, job)
        for occurrence in entry.covers
    )
    # A claim that was decided while its reply was lost can die before its replica hears of it.
    reports.update(entry.occurrence for entry in journal.entries("abandoned", job) if entry.occurrence not in starts)
    between = set(range(min(starts), max(starts), SECOND)) - starts
    assert dict(reports) == dict.fromkeys(between, 1)


def assert_tokens_rise(starts: list[Entry]) -> None:
    """Hold that each run's fencing token is above that of the run before it."""
    tokens = [entry.token for entry in starts]
    assert tokens == sorted(set(tokens))
