"""What the store is asked: commands for each occurrence and replica, and for each second without work."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, Rows

TITLE = "Redis commands, by INFO commandstats"
OTHERS = ("info", "config|resetstat", "flushall", "client|setinfo", "hello", "select", "ping")
"""What is not counted: our own looking, and what a connection begins with."""
INSIDE = ("hmget", "hset", "time", "zadd", "zscore", "zremrangebyscore", "zrange", "srem")
"""What the scripts do within the server."""


def measure(bench: Bench) -> Rows:
    """Measure a burst of 1,000 jobs with one and with three replicas, and replicas without work."""
    rows = Rows("store")
    jobs = 100 if bench.quick else 1000
    for replicas in (1, 3):
        for _ in range(bench.repeats):
            due = int(time.time()) + 10
            bench.redis.flushall()
            arguments = ("burst", "--jobs", jobs, "--due", due, "--patience", 4)
            started = [bench.start("ours", *arguments) for _ in range(replicas)]
            time.sleep(max(0.0, due - 1 - time.time()))
            bench.redis.config_resetstat()
            for process in started:
                bench.result(process)
            # Beside the heartbeats of the seconds that it took, one each.
            asked = _calls(bench)
            case = f"{jobs:,} jobs due, {replicas} replica{'s' if replicas > 1 else ''}"
            rows.add(case, "ours", "calls per occurrence and replica", "", asked / jobs / replicas)
    seconds = 3 if bench.quick else 10
    for _ in range(bench.repeats):
        bench.redis.flushall()
        process = bench.start("ours", "idle", "--jobs", 100, "--seconds", seconds + 4)
        while not bench.redis.exists("{cronductor}:instances"):
            time.sleep(0.05)
        time.sleep(2)
        bench.redis.config_resetstat()
        time.sleep(seconds)
        rows.add("nothing due", "ours", "calls per second and replica", "", _calls(bench) / seconds)
        bench.result(process)
    return rows


def _calls(bench: Bench) -> int:
    """Return how many commands clients have sent since the counters were reset."""
    found = bench.redis.info("commandstats")
    names = {name.removeprefix("cmdstat_"): each["calls"] for name, each in found.items()}
    return sum(calls for name, calls in names.items() if name not in OTHERS + INSIDE)
