"""Slow jobs that three replicas share."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, Rows
from benchmarks.contenders.work import SLOW

TITLE = "200 jobs of 200 ms due at one instant, 3 replicas of 8 workers"
REPLICAS, JOBS, WORKERS = 3, 200, 8


def measure(bench: Bench) -> Rows:
    """Measure how long all takes against the ideal, and how evenly it is shared."""
    rows = Rows("replicas")
    ideal = -(-JOBS // (REPLICAS * WORKERS)) * SLOW
    for _ in range(bench.repeats):
        bench.redis.flushall()
        due = int(time.time()) + 10
        arguments = ("slow", "--jobs", JOBS, "--due", due, "--patience", 4)
        found = [bench.result(process) for process in [bench.start("ours", *arguments) for _ in range(REPLICAS)]]
        assert sum(one["started"] for one in found) == JOBS, found
        took = max(one["last"] for one in found) + SLOW
        rows.add("all done", "ours", "against the ideal", "times", took / ideal)
        rows.add("runs of a replica", "ours", "fewest", "", min(one["started"] for one in found))
        rows.add("runs of a replica", "ours", "most", "", max(one["started"] for one in found))
    return rows
