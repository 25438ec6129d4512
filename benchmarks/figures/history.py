"""The same burst with every run in a database."""

from __future__ import annotations

from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

from benchmarks.bench import Bench, MeasurementFailed, Rows
from tests.databases.servers import DatabaseUnavailable, PostgreSQL

TITLE = "1,000 jobs due at one instant, each run recorded in a database"


JOBS = 1000


class DurablePostgreSQL(PostgreSQL):
    """One that has written what it says to have written: the tests' need not."""

    def _command(self, data: Path) -> list[str]:
        return [*super()._command(data), "-c", "fsync=on", "-c", "full_page_writes=on"]


def measure(bench: Bench) -> Rows:
    """Measure it on SQLite, as Django has it and with a write-ahead log, and on PostgreSQL."""
    rows = Rows("history")
    with ExitStack() as stack:
        postgresql: dict[str, str] | None = None
        try:
            import_module("psycopg")
            postgresql = {"BENCHMARK_POSTGRESQL": str(stack.enter_context(DurablePostgreSQL()).port)}
        except (DatabaseUnavailable, ModuleNotFoundError) as error:
            bench.leave_out("PostgreSQL", error)
        for round_ in range(bench.repeats):
            sqlite = {"BENCHMARK_SQLITE": str(bench.scratch / f"history-{round_}.sqlite3")}
            wal = {"BENCHMARK_SQLITE": str(bench.scratch / f"wal-{round_}.sqlite3"), "BENCHMARK_WAL": "1"}
            cases = {"none": {}, "SQLite": sqlite, "SQLite, WAL": wal, "PostgreSQL": postgresql}
            for name, env in cases.items():
                if env is not None:
                    _measure(bench, rows, name, env)
    return rows


def _measure(bench: Bench, rows: Rows, name: str, env: dict[str, str]) -> None:
    jobs = 100 if bench.quick else JOBS
    if env:
        bench.run("ours", "migrate", env=env)
    found = bench.run("ours", "burst", "--jobs", jobs, env=env)
    if found["started"] < jobs:
        raise MeasurementFailed(f"{found['started']} of {jobs} jobs were started")
    rows.add(f"{jobs:,} jobs, history: {name}", "ours", "last start", "ms", found["last"] * 1000)
    rows.add(f"{jobs:,} jobs, history: {name}", "ours", "longest pass of the loop", "ms", found["pass"] * 1000)
