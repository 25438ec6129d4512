"""
An oracle for schedules: slow and simple, so that one can see that it is right.

It shares nothing with the package. It watches a clock on the wall of a zone, tick by tick, the way a cron daemon does:
crontab(5) says which wall times match, and Debian's cron(8) what to do when the clock jumps.
"""

from __future__ import annotations

import calendar
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

HOUR = 3600
DAY = 24 * HOUR
MEMORY = 30 * HOUR  # no clock has ever been set back further
CORRECTION = 3 * HOUR

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def value_of(text: str, names: list[str], base: int) -> int:
    return names.index(text) + base if text in names else int(text)


def plain_values(text: str, low: int, high: int, names: list[str]) -> set[int]:
    """Count from the first value to the last, going round past the end, and keep every step-th."""
    body, _, step = text.partition("/")
    first, dash, last = body.partition("-")
    if first == "*":
        start, stop = low, high
    else:
        start = value_of(first, names, low)
        stop = value_of(last, names, low) if dash else (high if step else start)
    if names is WEEKDAYS and start == 7 and stop < 7:
        start = 0  # both are Sunday, and a week begins with it
    counted = [start]
    while counted[-1] != stop:
        following = counted[-1] + 1
        if following > high:
            following = low + 1 if names is WEEKDAYS else low  # 7 was Sunday, 0, already
        counted.append(following)
        if names is WEEKDAYS and {following, stop} == {0, 7}:
            break
    return {value % 7 if names is WEEKDAYS else value for value in counted[:: int(step or 1)]}


@dataclass
class Expression:
    text: str
    seconds: set[int] = field(default_factory=set)
    minutes: set[int] = field(default_factory=set)
    hours: set[int] = field(default_factory=set)
    months: set[int] = field(default_factory=set)
    days: list[str] = field(default_factory=list)
    weekdays: list[str] = field(default_factory=list)
    both_days: bool = False
    wildcard: bool = False
    known: dict[date, bool] = field(default_factory=dict)
    quiet_days: dict[date, bool] = field(default_factory=dict)

    def __post_init__(self) -> None:
        words = self.text.lower().split()
        words = NICKNAMES.get(words[0], self.text.lower()).split()
        if len(words) == 5:
            words = ["0", *words]
        second, minute, hour, day, month, weekday = words
        self.seconds = {v for item in second.split(",") for v in plain_values(item, 0, 59, [])}
        self.minutes = {v for item in minute.split(",") for v in plain_values(item, 0, 59, [])}
        self.hours = {v for item in hour.split(",") for v in plain_values(item, 0, 23, [])}
        self.months = {v for item in month.split(",") for v in plain_values(item, 1, 12, MONTHS)}
        self.days = day.replace("?", "*").split(",")
        self.weekdays = weekday.replace("?", "*").split(",")
        self.both_days = day[0] in "*?" or weekday[0] in "*?"
        self.wildcard = "*" in (second[0], minute[0], hour[0])

    def date_matches(self, day: date) -> bool:
        if day not in self.known:
            by_day = any(day_matches(item, day) for item in self.days)
            by_weekday = any(weekday_matches(item, day) for item in self.weekdays)
            either = (by_day and by_weekday) if self.both_days else (by_day or by_weekday)
            self.known[day] = day.month in self.months and either
        return self.known[day]

    def matches(self, wall: datetime) -> bool:
        return (
            wall.second in self.seconds
            and wall.minute in self.minutes
            and wall.hour in self.hours
            and self.date_matches(wall.date())
        )

    def never(self) -> bool:
        """Within 28 years every kind of year comes."""
        start = date(2001, 1, 1)
        return not any(self.date_matches(start + timedelta(days=n)) for n in range(28 * 366))

    def quiet(self, day: date) -> bool:
        """Whether nothing can be due today and tomorrow, wherever the clock jumps."""
        if day not in self.quiet_days:
            self.quiet_days[day] = not any(self.date_matches(day + timedelta(days=n)) for n in range(-2, 4))
        return self.quiet_days[day]


def day_matches(item: str, day: date) -> bool:
    month_length = calendar.monthrange(day.year, day.month)[1]
    if item == "l":
        return day.day == month_length
    if item.startswith("l-"):
        return day.day == month_length - int(item[2:])
    if item.endswith("w"):
        whole_month = [day.replace(day=n) for n in range(1, month_length + 1)]
        working = [n.day for n in whole_month if n.isoweekday() <= 5]
        if item == "lw":
            return day.day == max(working)
        wanted = int(item[:-1])
        return wanted <= month_length and day.day == min(working, key=lambda n: abs(n - wanted))
    return day.day in plain_values(item, 1, 31, [])


def weekday_matches(item: str, day: date) -> bool:
    if "#" in item:
        name, _, nth = item.partition("#")
        return weekday_matches(name, day) and (day.day - 1) // 7 + 1 == int(nth)
    if "l" in item:
        return weekday_matches(item.strip("l"), day) and (day + timedelta(days=7)).month != day.month
    return day.isoweekday() % 7 in plain_values(item, 0, 7, WEEKDAYS)


def wall_at(instant: int, zone: ZoneInfo) -> datetime:
    return datetime.fromtimestamp(instant, zone).replace(tzinfo=None, fold=0)


def simulate(expression: Expression, zone: ZoneInfo, start: int, ticks: int) -> tuple[list[int], int]:
    """
    Watch the clock from `start` on for so many ticks, and return what was due, and until when (UTC seconds).

    A tick is a second for an expression with seconds, else a minute. Days on which nothing can be due pass in one tick.
    """
    length = 1 if expression.seconds != {0} or odd_seconds(zone, start) else 60
    step = timedelta(seconds=length)
    now = start - start % length
    shown = wall_at(now - length, zone)
    highest = highest_until(zone, now - length, length)
    due = []
    for _ in range(ticks):
        wall = wall_at(now, zone)
        if expression.quiet(wall.date()):
            now += DAY
            shown = wall_at(now - length, zone)
            highest = max(highest, shown)
            continue
        if expression.wildcard:
            fires = expression.matches(wall)
        else:
            jump = wall - shown - step
            if timedelta(0) < jump < timedelta(seconds=CORRECTION):
                skipped = [shown + step * n for n in range(1, jump // step + 1)]
                fires = any(expression.matches(missing) for missing in [*skipped, wall] if missing > highest)
            else:
                fires = wall > highest and expression.matches(wall)
        if fires and now >= start:
            due.append(now)
        shown, highest = wall, max(highest, wall)
        now += length
    return due, now


def odd_seconds(zone: ZoneInfo, start: int) -> bool:
    """Whether the zone's offset is no whole minute, as before standard time."""
    return any(wall_at(start + n * DAY, zone).second != (start + n * DAY) % 60 for n in range(-2, 3))


def highest_until(zone: ZoneInfo, instant: int, length: int) -> datetime:
    """Return the latest time that the clock has shown so far."""
    highest = wall_at(instant, zone)
    for end in range(instant, instant - MEMORY, -HOUR):
        earlier, later = wall_at(end - HOUR, zone), wall_at(end, zone)
        steady = later - earlier == timedelta(hours=1)  # it just ran on: no need to watch every tick
        shown = [later] if steady else [wall_at(n, zone) for n in range(end - HOUR, end + 1, length)]
        highest = max(highest, *shown)
    return highest
