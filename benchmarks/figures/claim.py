"""One claim and its release, beside the least that a lock in Redis can cost, and redis-py's own Lock."""

from __future__ import annotations

from benchmarks.bench import Bench, Rows

TITLE = "One claim and release"


def measure(bench: Bench) -> Rows:
    """Measure them in turn in one process."""
    rows = Rows("claim", base="bare redis-py, set and evalsha")
    for _ in range(bench.repeats):
        for contender, found in bench.run("primitive", 300 if bench.quick else 3000).items():
            note = "no occurrence, no overlap, no fence" if contender.startswith("redis-py") else ""
            rows.add("one after the other", contender, "median", "µs", found["whole"], note)
            rows.add("one after the other", contender, "of which in the server", "µs", found["server"], note)
    return rows
