"""How long schedules take, beside croniter and cronsim."""

from __future__ import annotations

from benchmarks.bench import Bench, Rows

TITLE = "The next occurrence of a schedule"


def measure(bench: Bench) -> Rows:
    """Measure them in one process, which finds cronsim in the environment that was made for it."""
    rows = Rows("schedules")
    env = {"PYTHONPATH": bench.environments.packages("cronsim")}
    for _ in range(bench.repeats):
        found = bench.run("walks", *(["--quick"] if bench.quick else []), env=env)
        for case, contenders in found["next"].items():
            for contender, microseconds in contenders.items():
                rows.add(case, contender, "next", "µs", microseconds)
        for case, microseconds in found["declared"].items():
            rows.add(case, "ours", "each", "µs", microseconds)
    return rows
