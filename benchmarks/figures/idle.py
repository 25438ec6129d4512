"""What a scheduler costs while nothing is due: CPU, memory, and the time until it is ready."""

from __future__ import annotations

from benchmarks.bench import CONTENDERS, Bench, Rows

TITLE = "Jobs that are not due: CPU, memory, start"
MIB = 1024 * 1024
SECONDS = {"huey": 60}
"""How long to watch; of who looks once a minute, one look."""


def measure(bench: Bench) -> Rows:
    """Measure it with 10,000 jobs."""
    rows = Rows("idle")
    jobs = 1000 if bench.quick else 10_000
    case = f"{jobs:,} jobs"
    for contender in bench.rounds(list(CONTENDERS)):
        seconds = 3 if bench.quick else SECONDS.get(contender, 20)
        bench.attempt(contender, lambda: _measure(bench, rows, contender, case, jobs, seconds))  # noqa: B023
    return rows


def _measure(bench: Bench, rows: Rows, contender: str, case: str, jobs: int, seconds: int) -> None:
    found = bench.run(contender, "idle", "--jobs", jobs, "--seconds", seconds)
    rows.add(case, contender, "CPU", "% of a core", found["cpu"] * 100)
    rows.add(case, contender, "memory of the process", "MiB", found["memory"] / MIB)
    if contender in ("ours", "django-crontask"):
        bare = bench.run("baseline")["memory"]
        rows.add(case, contender, "memory over Django, redis and croniter", "MiB", (found["memory"] - bare) / MIB)
    rows.add(case, contender, "start to ready", "s", found["ready"])
