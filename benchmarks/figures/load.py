"""What many replicas cost the store: the calls of one minute, sent as fast as they go."""

from __future__ import annotations

from benchmarks.bench import Bench, Rows

TITLE = "The store's CPU under simulated replicas, 1,000 jobs a minute each"


def measure(bench: Bench) -> Rows:
    """Measure it for 1, 10 and 100 replicas."""
    rows = Rows("load")
    for _ in range(bench.repeats):
        for replicas in (1, 10) if bench.quick else (1, 10, 100):
            spent = bench.run("minute", replicas)["cpu"]
            case = f"{replicas} replica{'s' if replicas > 1 else ''}"
            rows.add(case, "ours", "of a core", "%", spent / 60 * 100)
            rows.add(case, "ours", "of a core per replica", "%", spent / 60 * 100 / replicas)
    return rows
