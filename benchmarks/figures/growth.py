"""How costs grow: with the jobs of one replica, and with the replicas of one store."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bench import Bench, Row, Rows
from benchmarks.plot import Line, plot

TITLE = "Growth with jobs and with replicas"
JOBS = (10, 100, 1000, 10_000, 100_000)
REPLICAS = (1, 3, 10, 25, 50)
MIB = 1024 * 1024


def measure(bench: Bench) -> Rows:
    """Measure lateness, CPU and memory beside 10 to 100,000 jobs that are not due, and with 1 to 50 replicas."""
    rows = Rows("growth")
    for _ in range(bench.repeats):
        for jobs in JOBS[:2] if bench.quick else JOBS:
            _with_jobs(bench, rows, jobs)
        for replicas in REPLICAS[:2] if bench.quick else REPLICAS:
            _with_replicas(bench, rows, replicas)
    return rows


def _with_jobs(bench: Bench, rows: Rows, jobs: int) -> None:
    seconds = 3 if bench.quick else 15
    late = bench.run("ours", "lateness", "--jobs", jobs, "--seconds", seconds)["lateness"]
    idle = bench.run("ours", "idle", "--jobs", jobs, "--seconds", seconds)
    rows.add(f"{jobs:,} jobs", "ours", "lateness", "ms", statistics.median(late) * 1000)
    rows.add(f"{jobs:,} jobs", "ours", "idle CPU", "% of a core", idle["cpu"] * 100)
    rows.add(f"{jobs:,} jobs", "ours", "memory of the process", "MiB", idle["memory"] / MIB)
    rows.add(f"{jobs:,} jobs", "ours", "start to ready", "s", idle["ready"])


def _with_replicas(bench: Bench, rows: Rows, replicas: int) -> None:
    seconds = 5 if bench.quick else 15
    bench.redis.flushall()
    starting = 3 + replicas  # Processes that start keep each other, and those that run, from working.
    arguments = ("lateness", "--jobs", 20, "--seconds", seconds + starting)
    started = [bench.start("ours", *arguments) for _ in range(replicas)]
    while bench.redis.zcard("{cronductor}:instances") < replicas:
        time.sleep(0.1)
    time.sleep(2)
    before, since = _server_cpu(bench), time.monotonic()
    time.sleep(seconds)
    spent = (_server_cpu(bench) - before) / (time.monotonic() - since)
    late = [one for process in started for one in bench.result(process)["lateness"]]
    case = f"{replicas} replica{'s' if replicas > 1 else ''}"
    rows.add(case, "ours", "lateness", "ms", statistics.median(late) * 1000)
    rows.add(case, "ours", "CPU of the store", "% of a core", spent * 100)


def _server_cpu(bench: Bench) -> float:
    used = bench.redis.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])


def draw(rows: Sequence[Row], directory: Path) -> None:
    """Write a picture of each measurement over the number of jobs, and of replicas."""
    for unit in ("jobs", "replicas"):
        found = [row for row in rows if row.case.rstrip("s").endswith(unit.rstrip("s"))]
        for what in dict.fromkeys(row.what for row in found):
            same = [row for row in found if row.what == what]
            points = [(float(row.case.split()[0].replace(",", "")), row.median) for row in same]
            name = f"growth-{unit}-{what.replace(' ', '-').lower()}.svg"
            title = f"{what}, {same[0].unit}, over the number of {unit}"
            (directory / name).write_text(plot(title, [Line("", points)]), encoding="utf-8")
