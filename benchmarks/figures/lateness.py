"""How late a job of every second begins, beside others that are not due."""

from __future__ import annotations

import statistics

from benchmarks.bench import Bench, Rows

TITLE = "Lateness of a job of every second"
CONTENDERS = ["ours", "APScheduler", "django-crontask", "celery, RedBeat", "rq cron"]
"""huey knows no seconds."""
BY_INTERVAL = {
    "celery, RedBeat": "enqueues only; a second after the last, not at an instant",
    "rq cron": "enqueues only, without a lock; a second after the last, not at an instant",
}


def measure(bench: Bench) -> Rows:
    """Measure it beside 10, 1,000 and 10,000 other jobs."""
    rows = Rows("lateness")
    seconds = 5 if bench.quick else 15
    for jobs in (10,) if bench.quick else (10, 1000, 10_000):
        for contender in bench.rounds(CONTENDERS):
            bench.attempt(contender, lambda: _measure(bench, rows, contender, jobs, seconds))  # noqa: B023
    return rows


def _measure(bench: Bench, rows: Rows, contender: str, jobs: int, seconds: int) -> None:
    late = bench.run(contender, "lateness", "--jobs", jobs, "--seconds", seconds)["lateness"]
    case = f"{jobs:,} other jobs"
    rows.add(case, contender, "median", "ms", statistics.median(late) * 1000, BY_INTERVAL.get(contender, ""))
    rows.add(case, contender, "worst", "ms", max(late) * 1000, BY_INTERVAL.get(contender, ""))
