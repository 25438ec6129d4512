"""How late a job of every second begins, beside others that are not due."""

from __future__ import annotations

import statistics

from benchmarks.bench import Bench, MeasurementFailed, Rows

TITLE = "Lateness of a job of every second"
CONTENDERS = ["ours", "APScheduler", "django-crontask", "celery, RedBeat", "rq cron"]
"""huey knows no seconds."""
BY_INTERVAL = {"celery, RedBeat", "rq cron"}
"""Who does it a second after the last time, at no instant: of them the deviation from that second is taken."""
SECONDS = {"ours": 40}
"""How long to watch; more of ours, so that a hundredth of its starts is at least one."""


def measure(bench: Bench) -> Rows:
    """Measure it beside 10, 1,000 and 10,000 other jobs."""
    rows = Rows("lateness")
    for jobs in (10,) if bench.quick else (10, 1000, 10_000):
        case, late = f"{jobs:,} other jobs", dict[str, list[float]]()
        for contender in bench.rounds(CONTENDERS):
            seconds = 5 if bench.quick else SECONDS.get(contender, 15)
            bench.attempt(contender, lambda: _measure(bench, rows, contender, case, jobs, seconds, late))  # noqa: B023
        for contender, starts in late.items():
            slowest = sorted(starts)[-1 - len(starts) // 100]
            what = _what("99 % of all within", contender)
            rows.add(case, contender, what, "ms", slowest * 1000, f"of {len(starts)} starts")
    return rows


def _measure(
    bench: Bench, rows: Rows, contender: str, case: str, jobs: int, seconds: int, all_starts: dict[str, list[float]]
) -> None:
    found = bench.run(contender, "lateness", "--jobs", jobs, "--seconds", seconds)
    late: list[float] = found["lateness"]
    if not late or (found.get("missing") and contender == "ours"):
        raise MeasurementFailed(f"{contender} did not start its job every second: {found}")
    note = f"{found['missing']} seconds without a start" if found.get("missing") else ""
    rows.add(case, contender, _what("median", contender), "ms", statistics.median(late) * 1000, note)
    rows.add(case, contender, _what("worst", contender), "ms", max(late) * 1000, note)
    all_starts.setdefault(contender, []).extend(late)


def _what(name: str, contender: str) -> str:
    return f"{name}, off the interval" if contender in BY_INTERVAL else name
