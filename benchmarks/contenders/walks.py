"""
How long schedules take, beside croniter and cronsim, in one process.

Each walks from 2026 through its next occurrences again and again; the best of several walks counts, in microseconds for
one occurrence. croniter and cronsim are used in their fastest way: one object, asked for its next.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from datetime import datetime, timezone
from zoneinfo import ZoneInfo

from croniter import croniter
from cronsim import CronSim

from django_cronductor.schedules import Schedule

START = datetime(2026, 1, 1, tzinfo=timezone.utc)
ZONES = ("UTC", "Europe/Berlin")
EXPRESSIONS = {"* * * * *": 1000, "*/5 * * * *": 1000, "0 0 1 * *": 240, "0 0 29 2 *": 18, "15 10 * * 1-5": 500}
WALKS = 9
DECLARED = 10_000


def schedule_walk(expression: str, zone: str, count: int) -> Callable[[], object]:
    schedule = Schedule(expression, zone)

    def walk() -> None:
        instant: int | None = int(START.timestamp()) * 1000
        for _ in range(count):
            assert instant is not None
            instant = schedule.next_after_ms(instant)

    return walk


def croniter_walk(expression: str, zone: str, count: int) -> Callable[[], object]:
    start = START.astimezone(ZoneInfo(zone))
    iterator = croniter(expression, start, ret_type=float)

    def walk() -> None:
        iterator.set_current(start)
        following = iterator.get_next
        for _ in range(count):
            following()

    return walk


def cronsim_walk(expression: str, zone: str, count: int) -> Callable[[], object]:
    # For UTC it is faster with the plain constant than with a ZoneInfo.
    start = START if zone == "UTC" else START.astimezone(ZoneInfo(zone))

    def walk() -> None:
        iterator = CronSim(expression, start)
        for _ in range(count):
            next(iterator)

    return walk


def microseconds(walk: Callable[[], object], count: int) -> float:
    best = float("inf")
    for _ in range(WALKS):
        began = time.perf_counter()
        walk()
        best = min(best, time.perf_counter() - began)
    return best / count * 1e6


def distinct_expressions() -> list[str]:
    return [f"{n % 60} {n // 60 % 24} {n // 1440 + 1} * *" for n in range(DECLARED)]


def main() -> None:
    """Print the microseconds as one line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    quick = parser.parse_args().quick
    makers = {"ours": schedule_walk, "croniter": croniter_walk, "cronsim": cronsim_walk}
    walks = {
        f"{expression} in {zone}": {
            name: microseconds(make(expression, zone, count), count) for name, make in makers.items()
        }
        for zone in ZONES[: 1 if quick else None]
        for expression, count in list(EXPRESSIONS.items())[: 1 if quick else None]
    }
    declared = {}
    expressions = distinct_expressions()
    for zone in () if quick else ZONES:
        began = time.perf_counter()
        for expression in expressions:
            Schedule(expression, zone)
        took = time.perf_counter() - began
        declared[f"{DECLARED:,} different ones declared in {zone}"] = took / DECLARED * 1e6
    print(json.dumps({"next": walks, "declared": declared}))


if __name__ == "__main__":
    main()
