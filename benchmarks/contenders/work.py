"""
The work that every contender does, and what is measured of it, in that contender's own process.

* `lateness`: one job every second beside `--jobs` others that are not due; how late each of its runs began.
* `burst`: `--jobs` jobs due at one instant; how long after it each began.
* `slow`: as `burst`, each run taking 200 ms.
* `idle`: `--jobs` jobs that are not due; CPU, memory and the time from the start of the process until all was ready.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import threading
import time
from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

SLOW = 0.2
"""Seconds that a run of `slow` takes."""


class Work:
    """
    One task: what the contender needs to know of it, and the recording of what its jobs do.

    A contender declares its jobs by `jobs` and `due`, each of which calls `run`, and calls `ready` as soon as its
    scheduler is about to wait for the first of them.
    """

    def __init__(
        self, task: str, jobs: int, seconds: float, due: float | None, patience: float, whole_minutes: bool
    ) -> None:
        self.task, self.jobs, self.seconds, self._patience = task, jobs, seconds, patience
        self.due = datetime.fromtimestamp(due, timezone.utc) if due else self._choose_instant(whole_minutes)
        self.starts: list[float] = []
        self.ready_after = 0.0
        self.by_interval = False
        """Whether its job of every second is due a second after it ran, at no instant that is known."""
        self.longest_pass = 0.0
        """Seconds: what a contender notes of its loop, if anything."""
        self._ready_cpu = 0.0
        self._ended = threading.Event()

    @property
    def has_burst(self) -> bool:
        """Tell whether the jobs are due at `due`, all of them, rather than in many months."""
        return self.task in ("burst", "slow")

    def _choose_instant(self, whole_minutes: bool) -> datetime:
        """Return an instant that leaves time to declare all of the jobs."""
        earliest = datetime.now(timezone.utc) + timedelta(seconds=4 + self.jobs / 1000)
        if whole_minutes:
            return earliest.replace(second=0, microsecond=0) + timedelta(minutes=1)
        return earliest.replace(microsecond=0) + timedelta(seconds=1)

    def seldom(self, number: int) -> tuple[int, int, int, int]:
        """Return minute, hour, day and month, half a year away, of one of the jobs that are not to be due."""
        return number % 60, number // 60 % 24, number // 1440 % 28 + 1, (self.due.month + 5) % 12 + 1

    def run(self) -> None:
        """Be the handler of every job of a burst, of the job of every second, or of the others."""
        self.starts.append(time.time())
        if self.task == "slow":
            time.sleep(SLOW)
        if self.has_burst and len(self.starts) == self.jobs:
            self._ended.set()

    def ready(self) -> None:
        """Note that all jobs are declared and the scheduler is about to wait; watch from here on."""
        self.ready_after = time.time() - _process_started()
        self._ready_cpu = time.process_time()
        threading.Thread(target=self._watch, daemon=True).start()

    def _watch(self) -> None:
        """Wait until the task is over, print the result and end the process: nothing else is to be measured."""
        if self.has_burst:
            self._ended.wait(max(0.0, self.due.timestamp() - time.time()) + self._patience)
            seen = -1
            while not self._ended.wait(self._patience) and seen < len(self.starts):
                seen = len(self.starts)
        else:
            self._ended.wait(self.seconds)
        print(json.dumps(self._result()), flush=True)
        os._exit(0)

    def _result(self) -> dict[str, Any]:
        if self.has_burst:
            due = self.due.timestamp()
            starts = sorted(self.starts)
            return {
                "cpu": (time.process_time() - self._ready_cpu) / max(1, len(starts)),
                "pass": self.longest_pass,
                "started": len(starts),
                "first": (starts[0] - due) if starts else None,
                "last": (starts[-1] - due) if starts else None,
            }
        if self.task == "lateness":
            starts = self.starts[2:]  # The first ones may come while others are still being declared.
            if self.by_interval:
                return {"lateness": [max(0.0, after - before - 1.0) for before, after in pairwise(starts)]}
            seconds = [int(start) for start in starts]
            missing = seconds[-1] - seconds[0] + 1 - len(set(seconds)) if seconds else 0
            return {"lateness": [start % 1.0 for start in starts], "missing": missing}
        return {
            "cpu": (time.process_time() - self._ready_cpu) / self.seconds,
            "memory": resident(),
            "ready": self.ready_after,
        }


def read_work(whole_minutes: bool = False) -> Work:
    """Read the task from the command line; `whole_minutes` for contenders that know no seconds."""
    parser = argparse.ArgumentParser()
    parser.add_argument("task", choices=["lateness", "burst", "slow", "idle"])
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="how long to watch what is no burst")
    parser.add_argument("--due", type=float, help="the instant of a burst, in seconds since the epoch")
    parser.add_argument(
        "--patience", type=float, default=10.0, help="seconds without a start after which the missing are lost"
    )
    options = parser.parse_args()
    return Work(options.task, options.jobs, options.seconds, options.due, options.patience, whole_minutes)


def _process_started() -> float:
    """Return when this process began, in seconds since the epoch."""
    with open("/proc/self/stat") as stat:
        ticks = int(stat.read().rpartition(")")[2].split()[19])
    with open("/proc/uptime") as uptime:
        booted = time.time() - float(uptime.read().split()[0])
    return booted + ticks / os.sysconf("SC_CLK_TCK")


def resident() -> int:
    """Return the bytes of memory that this process has."""
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()


def nothing() -> None:
    """Be a job of which only the enqueueing is measured."""
