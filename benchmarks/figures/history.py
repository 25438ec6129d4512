"""The same burst with every run in a database."""

from __future__ import annotations

from benchmarks.bench import Bench, Rows
from tests.databases.servers import PostgreSQL

TITLE = "1,000 jobs due at one instant, each run recorded in a database"


def measure(bench: Bench) -> Rows:
    """Measure it on SQLite and on PostgreSQL."""
    rows = Rows("history")
    jobs = 100 if bench.quick else 1000
    with PostgreSQL() as server:
        for round_ in range(bench.repeats):
            sqlite = {"BENCHMARK_SQLITE": str(bench.scratch / f"history-{round_}.sqlite3")}
            postgresql = {"BENCHMARK_POSTGRESQL": str(server.port)}
            for case, env in (("none", {}), ("SQLite", sqlite), ("PostgreSQL", postgresql)):
                if env:
                    bench.run("ours", "migrate", env=env)
                found = bench.run("ours", "burst", "--jobs", jobs, env=env)
                assert found["started"] == jobs, found
                rows.add(f"{jobs:,} jobs, history: {case}", "ours", "last start", "ms", found["last"] * 1000)
                rows.add(f"{jobs:,} jobs, history: {case}", "ours", "longest pass", "ms", found["pass"] * 1000)
    return rows
