"""What the store is asked: commands for each occurrence and replica, and for each second without work."""

from __future__ import annotations

import time

from benchmarks.bench import Bench, Rows

TITLE = "Redis commands, by INFO commandstats"
OURS = ("info", "config|resetstat", "flushall")
"""Of the benchmark itself."""
CONNECTING = ("client|setinfo", "hello", "select")
"""What a connection begins with."""


def measure(bench: Bench) -> Rows:
    """Measure a burst of 1,000 jobs with one and with three replicas, and replicas without work."""
    rows = Rows("store")
    jobs = 100 if bench.quick else 1000
    for replicas in (1, 3):
        for _ in range(bench.repeats):
            due = int(time.time()) + 10
            bench.redis.flushall()
            arguments = ("burst", "--jobs", jobs, "--due", due, "--patience", 4)
            started = [bench.start("ours", *arguments) for _ in range(replicas)]
            time.sleep(max(0.0, due - 1 - time.time()))
            bench.redis.config_resetstat()
            for process in started:
                bench.result(process)
            asked, inside = _calls(bench)
            case = f"{jobs:,} jobs due, {replicas} replica{'s' if replicas > 1 else ''}"
            note = "heartbeats of these seconds included"
            rows.add(case, "ours", "calls per occurrence and replica", "", asked / jobs / replicas, note)
            rows.add(case, "ours", "commands within scripts, per occurrence and replica", "", inside / jobs / replicas)
    seconds = 3 if bench.quick else 10
    for _ in range(bench.repeats):
        bench.redis.flushall()
        process = bench.start("ours", "idle", "--jobs", 100, "--seconds", seconds + 4)
        while not bench.redis.exists("{cronductor}:instances"):
            time.sleep(0.05)
        time.sleep(2)
        bench.redis.config_resetstat()
        time.sleep(seconds)
        rows.add("nothing due", "ours", "calls per second and replica", "", _calls(bench)[0] / seconds)
        bench.result(process)
    return rows


def _calls(bench: Bench) -> tuple[int, int]:
    """Return how many commands clients have sent since the counters were reset, and how many scripts have called."""
    found = {name.removeprefix("cmdstat_"): each for name, each in bench.redis.info("commandstats").items()}
    everything = {name: each["calls"] for name, each in found.items() if name not in OURS + CONNECTING}
    scripts = sum(everything.get(name, 0) for name in ("eval", "evalsha"))
    ran = scripts - sum(found.get(name, {}).get("failed_calls", 0) for name in ("eval", "evalsha"))
    # Each script that runs asks for the time, once; what else asks is a client.
    asked = scripts + everything.get("ping", 0) + everything.get("time", 0) - ran
    return asked, sum(everything.values()) - asked
