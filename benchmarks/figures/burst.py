"""When the last of many jobs that are due at one instant begins."""

from __future__ import annotations

from importlib.util import find_spec

from benchmarks.bench import CONTENDERS, OTHER_WORK, Bench, Rows

TITLE = "Many jobs due at one instant: the last start"
VARIANTS = {"log at WARNING": {"BENCHMARK_LOG_LEVEL": "WARNING"}}
"""What else is measured of ours, and how it is asked for."""
if find_spec("hiredis"):
    VARIANTS["log at WARNING, hiredis"] = {"BENCHMARK_LOG_LEVEL": "WARNING", "BENCHMARK_HIREDIS": "1"}


def measure(bench: Bench) -> Rows:
    """Measure it for 1,000 and for 10,000 jobs, without history."""
    rows = Rows("burst")
    for jobs in (100,) if bench.quick else (1000, 10_000):
        for contender in bench.rounds(list(CONTENDERS)):
            bench.attempt(contender, lambda: _measure(bench, rows, contender, jobs))  # noqa: B023
        if not bench.quick:
            for note, env in VARIANTS.items():
                for _ in range(bench.repeats):
                    _measure(bench, rows, "ours", jobs, note, env)
    return rows


def _measure(
    bench: Bench, rows: Rows, contender: str, jobs: int, note: str = "", env: dict[str, str] | None = None
) -> None:
    found = bench.run(contender, "burst", "--jobs", jobs, env=env)
    case, name = f"{jobs:,} jobs due", f"{contender}, {note}" if note else contender
    lost = jobs - found["started"]
    note = f"{lost} not started" if lost else OTHER_WORK.get(contender, "")
    rows.add(case, name, "last start", "ms", (found["last"] or 0.0) * 1000, note)
    rows.add(case, name, "CPU per run", "us", found["cpu"] * 1e6, note)
