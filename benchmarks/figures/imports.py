"""What the package costs a web worker that imports it."""

from __future__ import annotations

from benchmarks.bench import Bench, Rows

TITLE = "Import in a web worker, over Django and redis-py"


def measure(bench: Bench) -> Rows:
    """Measure it with no job declared, and with one."""
    rows = Rows("imports")
    for _ in range(bench.repeats * 3):
        for case, arguments in (("no job declared", ()), ("one job declared", ("--job",))):
            found = bench.run("imports", *arguments)
            rows.add(case, "ours", "time", "ms", found["ms"], f"croniter {'' if found['croniter'] else 'not '}imported")
    return rows
