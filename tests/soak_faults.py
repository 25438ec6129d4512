"""What the soak does to replicas and to the store, at random, from a seed."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import os
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random

import redis

from tests.faults.proxy import Proxy, runs
from tests.faults.replicas import ROOT, Replica, offset
from tests.redis_server import RedisServer

SKEWS = (0.0, 0.0, 0.3, -0.4, 5.0, -7.0, 3600.0, -86400.0)
"""Seconds by which the clock of a replica may be off."""
STORE_OPTIONS = {"appendonly": "yes", "appendfsync": "no"}  # What was answered survives the process.
REFUSALS = [("maxmemory", "1", "0"), ("min-replicas-to-write", "1", "0")]
"""Settings by which the store writes nothing, and by which it does."""
ALL_AT_WORK_WITHIN = 60.0
END_WITHIN = 60.0


@dataclass
class Fault:
    """Something that was done to the system; moments are on the monotonic clock."""

    kind: str
    at: float
    until: float
    target: str = ""
    loses_data: bool = False


class Soak:
    """Replicas on one store and one database, and the troubles that are made for them."""

    def __init__(self, directory: Path, seed: int, replicas: int, history: int, *, skew: bool) -> None:
        self.journal = directory / "journal"
        self.faults: list[Fault] = []
        self.retired: list[Replica] = []
        self.died: dict[str, float] = {}
        """When replicas were killed, by name."""
        self.bad_ends: list[str] = []
        self._directory = directory
        self._seed = seed
        self._random = Random(seed)
        self._skew = skew
        self._numbers = itertools.count(1)
        self._order = itertools.count()
        self._count = replicas
        self._database = directory / "soak.sqlite3"
        self._store = RedisServer(STORE_OPTIONS)
        self._line: Proxy
        """The way of every second replica to the store."""
        self._living: list[Replica] = []
        self._busy: set[str] = set()
        self._store_busy = False
        self._database_busy = False
        self._leaving: dict[str, float] = {}
        self._plans: list[tuple[float, int, Callable[[], object]]] = []
        self._history = history
        self._environment: dict[str, str] = {}
        self._kinds: dict[str, tuple[int, Callable[[], object]]] = {
            "kill a replica": (4, self._kill_replica),
            "restart a replica": (3, self._restart_replica),
            "stop a replica for a while": (4, self._stop_replica),
            "stop the store for a while": (2, self._stop_store),
            "cut all connections": (2, self._cut_connections),
            "flush the store": (1, self._flush_store),
            "kill the store, data kept": (1, lambda: self._restart_store(keep=True)),
            "kill the store, data lost": (1, lambda: self._restart_store(keep=False)),
            "pause a job": (1, self._pause_job),
            "cut the line": (1, self._cut_line),
            "lose replies": (1, self._lose_replies),
            "slow the line": (1, self._slow_line),
            "lock the database": (1 if history else 0, self._lock_database),
            "kill a replica that drains": (1, self._kill_draining_replica),
            "let the store refuse": (1, self._refuse),
            "have the store forget its scripts": (1, self._forget_scripts),
        }

    def run(self, seconds: float, until_calm: Callable[[float], bool]) -> None:
        """Make trouble for so long; then wait until `until_calm(since)` holds, and end everything in good order."""
        with self._store, Proxy(self._store.port) as self._line:
            self._make_trouble(seconds, until_calm)

    def _make_trouble(self, seconds: float, until_calm: Callable[[float], bool]) -> None:
        self._environment = {
            "DJANGO_SETTINGS_MODULE": "tests.soak_settings",
            "SOAK_REDIS_URL": self._store.url,
            "SOAK_DATABASE": str(self._database),
            "SOAK_HISTORY": str(self._history),
            "FAULTS_JOURNAL": str(self.journal),
        }
        try:
            self._migrate()
            for _ in range(self._count):
                self._start_replica()
            self._trouble(time.monotonic() + seconds)
            self._calm(until_calm)
            self._end()
        finally:
            for replica in [*self._living, *self.retired]:
                if replica.process.poll() is None:
                    replica.kill()

    def _migrate(self) -> None:
        environment = {**os.environ, **self._environment, "FAULTS_REPLICA": "driver"}
        command = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
        # It would end with its standard input.
        with subprocess.Popen(command, cwd=ROOT, env=environment, stdin=subprocess.PIPE) as process:
            if process.wait(ALL_AT_WORK_WITHIN):
                raise RuntimeError("The database could not be made.")

    def _trouble(self, end: float) -> None:
        names, weights = list(self._kinds), [weight for weight, _ in self._kinds.values()]
        following = time.monotonic() + 5.0
        while (now := time.monotonic()) < end:
            self._act(now)
            if now >= following:
                # Drawn whether it can be done or not: the draws then depend on the seed alone.
                kind = self._random.choices(names, weights)[0]
                self._kinds[kind][1]()
                following = now + self._random.uniform(1.0, 4.0)
            time.sleep(0.02)

    def _act(self, now: float) -> None:
        """Do what was planned for now, and see to it that nobody has ended who was not asked to."""
        while self._plans and self._plans[0][0] <= now:
            heapq.heappop(self._plans)[2]()
        for replica in list(self._living):
            if replica.has_died:
                self.bad_ends.append(f"{replica.name} ended by itself, with exit code {replica.process.returncode}")
                self._remove(replica)
                self._start_replica()
        for name, since in list(self._leaving.items()):
            replica = next(one for one in self.retired if one.name == name)
            code = replica.process.poll()
            if code is None and now - since > END_WITHIN:
                self.bad_ends.append(f"{name} did not end within {END_WITHIN:g} s of SIGTERM")
                replica.kill()
            elif code is not None and code != 0:
                self.bad_ends.append(f"{name} ended with exit code {code} after SIGTERM")
            if replica.process.poll() is not None:
                replica.wait()
                del self._leaving[name]

    def _calm(self, until_calm: Callable[[float], bool]) -> None:
        while self._plans:
            self._act(time.monotonic())
            time.sleep(0.02)
        since = time.monotonic()
        self.faults.append(Fault("calm", since, since))
        while not until_calm(since):
            self._act(time.monotonic())
            if time.monotonic() > since + ALL_AT_WORK_WITHIN:
                self.bad_ends.append(f"not every job ran within {ALL_AT_WORK_WITHIN:g} s after the last fault")
                return
            time.sleep(0.5)

    def _end(self) -> None:
        for replica in list(self._living):
            self._terminate(replica)
        while self._leaving:
            self._act(time.monotonic())
            time.sleep(0.05)

    # Replicas.

    def _start_replica(self) -> None:
        number = next(self._numbers)
        name = f"replica-{number}"
        skew = Random(f"{self._seed} {number}").choice(SKEWS) if self._skew else 0.0
        environment = {**self._environment, **offset(skew)}
        if number % 2 == 0:
            environment["SOAK_REDIS_URL"] = self._line.url
        self._living.append(Replica(name, self._directory, environment, []))

    def _remove(self, replica: Replica) -> None:
        self._living.remove(replica)
        self.retired.append(replica)

    def _terminate(self, replica: Replica) -> None:
        self._remove(replica)
        self._leaving[replica.name] = time.monotonic()
        replica.terminate()

    def _choose(self) -> Replica | None:
        """Choose one that is at work and has no trouble yet."""
        pick = self._random.random()
        idle = [one for one in self._living if one.name not in self._busy and one.instance is not None]
        return idle[int(pick * len(idle))] if len(idle) > 1 else None

    def _note(self, kind: str, seconds: float = 0.0, target: str = "", *, loses_data: bool = False) -> Fault:
        now = time.monotonic()
        self.faults.append(Fault(kind, now, now + seconds, target, loses_data))
        return self.faults[-1]

    def _plan(self, seconds: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._plans, (time.monotonic() + seconds, next(self._order), action))

    def _kill_replica(self) -> None:
        wait = self._random.uniform(0.0, 3.0)
        if replica := self._choose():
            self._note("kill", target=replica.name)
            self.died[replica.name] = replica.kill()
            self._remove(replica)
            self._plan(wait, self._start_replica)

    def _restart_replica(self) -> None:
        if replica := self._choose():
            self._note("restart", target=replica.name)
            self._terminate(replica)
            self._start_replica()

    def _kill_draining_replica(self) -> None:
        wait = self._random.uniform(0.05, 1.0)
        if replica := self._choose():
            self._note("kill in a drain", wait, replica.name)
            self._busy.add(replica.name)
            replica.terminate()
            self._plan(wait, lambda: self._end_drain(replica))

    def _end_drain(self, replica: Replica) -> None:
        ended = replica.process.poll() is not None
        moment = replica.kill()
        if not ended:
            self.died[replica.name] = moment
        self._remove(replica)
        self._start_replica()

    def _stop_replica(self) -> None:
        wait = self._random.uniform(0.5, 8.0)
        if replica := self._choose():
            self._note("stop", wait, replica.name)
            self._busy.add(replica.name)
            replica.stop()
            self._plan(wait, lambda: self._go_on(replica))

    def _go_on(self, replica: Replica) -> None:
        replica.go_on()
        self._busy.discard(replica.name)

    # The store and the database: one trouble at a time.

    def _stop_store(self) -> None:
        wait = self._random.uniform(0.5, 5.0)
        if self._take_store():
            self._note("store stopped", wait)
            self._store.pause()
            self._plan(wait, self._resume_store)

    def _resume_store(self) -> None:
        self._store.resume()
        self._store_busy = False

    def _cut_connections(self) -> None:
        if not self._store_busy:
            self._note("connections cut")
            self._ask_store("CLIENT", "KILL", "TYPE", "normal")

    def _cut_line(self) -> None:
        self._note("line cut")
        self._line.cut(reset=self._random.random() < 0.5)

    def _lose_replies(self) -> None:
        wait, script = self._random.uniform(0.2, 2.0), self._random.choice(["claim", "release", "renew"])
        self._note("replies lost", wait, script)
        self._line.loses = runs(script)
        self._plan(wait, lambda: setattr(self._line, "loses", lambda request: False))

    def _slow_line(self) -> None:
        wait, delay = self._random.uniform(1.0, 4.0), self._random.choice([0.1, 0.3, 1.5])
        self._note("line slowed", wait, f"by {delay:g} s")
        self._line.delay = delay
        self._plan(wait, lambda: setattr(self._line, "delay", 0.0))

    def _flush_store(self) -> None:
        if not self._store_busy:
            fault = self._note("flush", loses_data=True)
            self._ask_store("FLUSHDB")
            fault.until = time.monotonic()

    def _forget_scripts(self) -> None:
        self._note("scripts forgotten")
        self._ask_store("SCRIPT", "FLUSH")

    def _refuse(self) -> None:
        wait, (name, no, yes) = self._random.uniform(0.5, 4.0), self._random.choice(REFUSALS)
        if self._take_store():
            self._note("store refuses", wait, name)
            self._ask_store("CONFIG", "SET", name, no)
            self._plan(wait, lambda: self._end_refusal(name, yes))

    def _end_refusal(self, name: str, yes: str) -> None:
        self._ask_store("CONFIG", "SET", name, yes)
        self._store_busy = False

    def _restart_store(self, *, keep: bool) -> None:
        wait = self._random.uniform(0.0, 3.0)
        if self._take_store():
            fault = self._note("store killed" if keep else "store emptied", wait, loses_data=not keep)
            self._store.kill()
            if not keep:
                for left in self._store.directory.glob("appendonly*"):
                    shutil.rmtree(left) if left.is_dir() else left.unlink()
            self._plan(wait, lambda: self._start_store(fault))

    def _start_store(self, fault: Fault) -> None:
        self._store.start()
        fault.until = time.monotonic()
        self._store_busy = False

    def _take_store(self) -> bool:
        free, self._store_busy = not self._store_busy, True
        return free

    def _pause_job(self) -> None:
        wait, key = self._random.uniform(1.0, 5.0), self._random.choice(["tick", "long", "careful"])
        if not self._store_busy:
            self._note("job paused", wait, key)
            self._set_pause(key, "1")
            self._plan(wait, lambda: self._end_pause(key))

    def _end_pause(self, key: str) -> None:
        if self._store_busy:
            self._plan(0.5, lambda: self._end_pause(key))
        else:
            self._set_pause(key, "")

    def _set_pause(self, key: str, value: str) -> None:
        self._ask_store("HSET", f"{{cronductor}}:job:{key}", "paused", value)

    def _ask_store(self, *words: str) -> None:
        with contextlib.suppress(redis.RedisError), redis.Redis.from_url(self._store.url, socket_timeout=5) as client:
            client.execute_command(*words)

    def _lock_database(self) -> None:
        wait = self._random.uniform(0.5, 4.0)
        if self._database_busy:
            return
        connection = sqlite3.connect(self._database, isolation_level=None, timeout=5)
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error:
            connection.close()
            return
        self._database_busy = True
        self._note("database locked", wait)
        self._plan(wait, lambda: self._unlock_database(connection))

    def _unlock_database(self, connection: sqlite3.Connection) -> None:
        connection.execute("ROLLBACK")
        connection.close()
        self._database_busy = False
