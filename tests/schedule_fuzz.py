"""
Hold schedules against their oracle on random cases: `python -m tests.schedule_fuzz --cases 100000 [--seed N]`.

Prints every deviation and a summary; exits 1 if there was one.
"""

from __future__ import annotations

import argparse
import itertools
import random
import time
import zoneinfo
from collections import Counter
from datetime import datetime, timezone
from functools import cache
from typing import NamedTuple

from django_cronductor.exceptions import ConfigurationError
from django_cronductor.schedules import Schedule
from tests.schedule_oracle import DAY, HOUR, MONTHS, WEEKDAYS, Expression, simulate, wall_at

# Gaps and folds of an hour, of half an hour, of two and more; at midnight, before it; days that never were; changes of
# the standard offset; summer time that is counted backwards, or pauses for Ramadan.
ZONES = [
    "UTC",
    "Europe/Berlin",
    "Europe/London",
    "Europe/Dublin",
    "Europe/Lisbon",
    "America/New_York",
    "America/St_Johns",
    "America/Sao_Paulo",
    "America/Santiago",
    "America/Havana",
    "America/Caracas",
    "America/Asuncion",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Amman",
    "Asia/Beirut",
    "Asia/Gaza",
    "Asia/Kathmandu",
    "Asia/Pyongyang",
    "Asia/Tehran",
    "Australia/Lord_Howe",
    "Australia/Sydney",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
    "Antarctica/Troll",
    "Antarctica/Casey",
    "Antarctica/Vostok",
    "Africa/Monrovia",
]
FROM, TO = -1_900_000_000, 4_200_000_000  # 1909 to 2103


class Case(NamedTuple):
    expression: str
    zone: str
    start: int  # UTC seconds
    near: bool  # whether the clock changes close by


@cache
def every_zone() -> list[str]:
    return sorted(zoneinfo.available_timezones() - {"localtime", "Factory"})


@cache
def changes(name: str) -> list[int]:
    """Return when the zone's offset changes, in UTC seconds."""
    zone = zoneinfo.ZoneInfo(name)
    step = 3 * DAY  # no zone has ever changed twice in four days
    offsets = [offset_at(zone, instant) for instant in range(FROM, TO, step)]
    found = []
    for place, (one, other) in enumerate(itertools.pairwise(offsets)):
        if one != other:
            before, after = FROM + place * step, FROM + (place + 1) * step
            while after - before > 1:
                middle = (before + after) // 2
                before, after = (middle, after) if offset_at(zone, middle) == one else (before, middle)
            found.append(after)
    return found


def offset_at(zone: zoneinfo.ZoneInfo, instant: int) -> float:
    return (wall_at(instant, zone) - datetime(1970, 1, 1)).total_seconds() - instant


def random_case(rng: random.Random, zones: list[str] | None = None) -> Case:
    name = rng.choice(zones or (ZONES if rng.random() < 0.7 else every_zone()))
    zone = zoneinfo.ZoneInfo(name)
    with_seconds = rng.random() < 0.15
    near = bool(changes(name)) and rng.random() < 0.8
    if near:
        change = rng.choice(changes(name))
        reach = rng.choice([0, 1, 59, 60, HOUR, 3 * HOUR] if with_seconds else [0, 1, 60, HOUR, 4 * HOUR, 2 * DAY])
        start = change + rng.randint(-reach, reach // 2)
        hint = wall_at(change + rng.choice([-1800, -1, 0, 1800, HOUR]), zone)
    else:
        start = rng.randint(FROM, TO)
        hint = wall_at(start + rng.randint(0, HOUR if with_seconds else 3 * DAY), zone)
    return Case(random_expression(rng, hint, with_seconds), name, start, near)


def random_expression(rng: random.Random, hint: datetime, with_seconds: bool) -> str:
    """Return an expression, often one that is due close to a wall time."""
    if rng.random() < 0.04:
        return rng.choice(["@hourly", "@daily", "@midnight", " @Weekly", "@monthly ", "@YEARLY", "@annually"])
    dense = 0.6 if with_seconds else 0.25
    fields = [
        random_field(rng, 0, 59, hint.minute, dense),
        random_field(rng, 0, 23, hint.hour, max(dense, 0.3)),
        random_date(rng, hint) if rng.random() < 0.2 else random_field(rng, 1, 31, hint.day, 0.7),
        random_field(rng, 1, 12, hint.month, 0.75, MONTHS),
        random_weekday(rng, hint) if rng.random() < 0.12 else random_field(rng, 0, 7, hint.isoweekday(), 0.7, WEEKDAYS),
    ]
    if with_seconds:
        fields.insert(0, random_field(rng, 0, 59, hint.second, 0.3))
    return rng.choice([" ", " ", " ", "  ", "\t"]).join(fields)


def random_field(
    rng: random.Random, low: int, high: int, hint: int, star: float, names: list[str] | None = None
) -> str:
    if rng.random() < star:
        return rng.choice(["*", "*", "*", f"*/{rng.randint(1, high)}", f"*/{rng.randint(1, 5)}"])
    terms = [random_term(rng, low, high, hint, names) for _ in range(rng.choice([1, 1, 1, 2, 3]))]
    return ",".join(terms)


def random_term(rng: random.Random, low: int, high: int, hint: int, names: list[str] | None) -> str:
    def value() -> str:
        number = hint if rng.random() < 0.5 else rng.randint(low, high)
        if names and rng.random() < 0.3:
            name = names[(number - low) % len(names)]
            return rng.choice([name, name.upper(), name.title()])
        return rng.choice([str(number), str(number), f"{number:02}"])

    step = rng.randint(1, rng.choice([3, high]))
    one, other = value(), value()
    return rng.choice([one, one, one, f"{one}-{other}", f"{one}-{other}/{step}", f"{one}/{step}", f"*/{step}"])


def random_date(rng: random.Random, hint: datetime) -> str:
    day = rng.choice([hint.day, rng.randint(1, 31)])
    terms = rng.choices(["L", "l", f"L-{rng.randint(0, 30)}", "LW", f"{day}W", f"{day}w", "?", str(day)], k=2)
    return terms[0] if "?" in terms or rng.random() < 0.7 else ",".join(terms)


def random_weekday(rng: random.Random, hint: datetime) -> str:
    day = rng.choice([hint.isoweekday(), rng.randint(0, 7)])
    name = WEEKDAYS[day % 7]
    nth = rng.randint(1, 5)
    terms = rng.choices([f"{day}L", f"{name}l", f"L{day}", f"{day}#{nth}", f"{name}#{nth}", "?", name.upper()], k=2)
    return terms[0] if "?" in terms or rng.random() < 0.7 else ",".join(terms)


def deviation(case: Case, rng: random.Random, ticks: int = 3000) -> str | None:
    """Return in what way a schedule deviates from its oracle, or None."""
    oracle = Expression(case.expression)
    try:
        schedule = Schedule(case.expression, case.zone)
    except ConfigurationError as error:
        return None if "never runs" in str(error) and oracle.never() else f"refused: {error}"
    zone = zoneinfo.ZoneInfo(case.zone)
    expected, until = simulate(oracle, zone, case.start, ticks)
    walked = walk(schedule, case.start - 1, until)
    if walked != expected:
        wrong = sorted(set(walked) ^ set(expected))[0]
        return f"{'extra' if wrong in walked else 'lost'}: {wall_at(wrong, zone)} ({wrong})"
    for instant in [*rng.sample(expected, min(3, len(expected))), *(rng.randint(case.start, until - 1) for _ in "123")]:
        wrong_turn = turn(schedule, instant, expected)
        if wrong_turn:
            return wrong_turn
    found = schedule.next_after_ms(until * 1000 - 1000)
    if found is None:
        return "no next occurrence"
    first = simulate(oracle, zone, found // 1000 - 60, 70)[0]
    return None if found // 1000 in first else f"extra, far: {wall_at(found // 1000, zone)} ({found})"


def walk(schedule: Schedule, instant: int, until: int) -> list[int]:
    """Return all occurrences later than `instant` and before `until`."""
    walked = []
    found = schedule.next_after_ms(instant * 1000)
    while found is not None and found < until * 1000:
        walked.append(found // 1000)
        following = schedule.next_after_ms(found)
        assert following is None or following > found, "not strictly later"
        found = following
    return walked


def turn(schedule: Schedule, instant: int, expected: list[int]) -> str | None:
    """Ask a fresh schedule, which remembers nothing, and one that does, around an instant within the simulated time."""
    fresh = Schedule(schedule.expression, schedule.timezone)
    last = max((n for n in expected if n <= instant), default=None)
    following = min((n for n in expected if n > instant), default=None)
    for asked in (fresh, schedule):
        found = asked.latest_until_ms(instant * 1000 + 999)
        if found != (last * 1000 if last is not None else found) or (
            found is not None and found > instant * 1000 + 999
        ):
            return f"latest_until({instant}) is {found}, not {last}"
        found = asked.next_after_ms(instant * 1000)
        if following is not None and found != following * 1000:
            return f"next_after({instant}) is {found}, not {following}"
        if last is None and expected and asked.latest_until_ms(expected[0] * 1000 - 1) in {n * 1000 for n in expected}:
            return f"latest_until before {expected[0]} is not before it"
    return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.strip().splitlines()[0] if __doc__ else None)
    parser.add_argument("--cases", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    started = time.monotonic()
    counts: Counter[str] = Counter()
    for number in range(options.cases):
        case = random_case(rng)
        wrong = deviation(case, rng)
        oracle = Expression(case.expression)
        counts["near a change of the clock" if case.near else "elsewhere"] += 1
        counts["elapsed time" if oracle.wildcard else "fixed time"] += 1
        if wrong:
            counts["DEVIATIONS"] += 1
            moment = datetime.fromtimestamp(case.start, timezone.utc).isoformat()
            print(f"case {number}: {case.expression!r} {case.zone} from {moment} ({case.start}): {wrong}", flush=True)
    print(f"{options.cases} cases, seed {options.seed}, {time.monotonic() - started:.0f} s: {dict(counts)}")
    return 1 if counts["DEVIATIONS"] else 0


if __name__ == "__main__":
    raise SystemExit(main())
