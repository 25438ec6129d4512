"""The pages of the admin, with 1,000 jobs and 1,000,000 runs."""

from __future__ import annotations

from benchmarks.bench import Bench, Rows

TITLE = "Pages of the admin, SQLite, 1,000 jobs"


def measure(bench: Bench) -> Rows:
    """Measure them in one process."""
    rows = Rows("admin")
    runs = 10_000 if bench.quick else 1_000_000
    env = {"BENCHMARK_SQLITE": str(bench.scratch / "admin.sqlite3")}
    for page, found in bench.run("admin_pages", "--rows", runs, "--repeats", bench.repeats, env=env).items():
        for seconds in found["took"]:
            rows.add(f"{page}, {runs:,} runs", "ours", "time", "ms", seconds * 1000)
        rows.add(f"{page}, {runs:,} runs", "ours", "queries", "", found["queries"])
    return rows
