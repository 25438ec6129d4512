"""When the last of many jobs that are due at one instant begins."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.bench import CONTENDERS, Bench, MeasurementFailed, Rows

TITLE = "Many jobs due at one instant: the last start"
VARIANTS = {"ours, log at WARNING": {"BENCHMARK_LOG_LEVEL": "WARNING"}}
"""What else is measured of ours, and how it is asked for."""
if find_spec("hiredis"):
    VARIANTS["ours, log at WARNING, hiredis"] = {"BENCHMARK_LOG_LEVEL": "WARNING", "BENCHMARK_HIREDIS": "1"}


def measure(bench: Bench) -> Rows:
    """Measure it for 1,000 and for 10,000 jobs, without history."""
    rows = Rows("burst")
    for jobs in (100,) if bench.quick else (1000, 10_000):
        for name in bench.rounds([*CONTENDERS, *VARIANTS]):
            bench.attempt(name, lambda: _measure(bench, rows, name, jobs))  # noqa: B023
    return rows


def _measure(bench: Bench, rows: Rows, name: str, jobs: int) -> None:
    ours = name in VARIANTS or name == "ours"
    found = bench.run("ours" if ours else name, "burst", "--jobs", jobs, env=VARIANTS.get(name))
    case, lost = f"{jobs:,} jobs due", jobs - found["started"]
    if lost and (ours or lost == jobs):
        raise MeasurementFailed(f"{name} started {found['started']} of {jobs} jobs")
    if lost:  # How long the others took compares with nothing.
        rows.add(case, name, "not started", "jobs", lost)
        return
    rows.add(case, name, "last start", "ms", found["last"] * 1000)
    rows.add(case, name, "CPU per run", "µs", found["cpu"] * 1e6)
