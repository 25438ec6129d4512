"""
Schedules: a cron expression and a time zone, read as occurrences in UTC.

From text to instants: one field, the expression as days and times of day, the offsets of a zone, and the schedule that
joins them. "Wall" seconds and days are what a local clock and calendar show, counted from 1970 as if they showed UTC.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_cronductor.exceptions import ConfigurationError, shown

MAX_LENGTH = 1000  # characters; every minute, hour and day listed one by one is shorter

_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_ORDINAL = _EPOCH.toordinal()
# The instants looked at keep two days from the ends of the calendar, so that no zone's wall time falls off it.
_FIRST = (date.min.toordinal() + 2 - _EPOCH_ORDINAL) * _DAY
_LAST = (date.max.toordinal() - 2 - _EPOCH_ORDINAL) * _DAY


class _Unreadable(ValueError):
    """Why an expression cannot be read; becomes a ConfigurationError that also names the expression."""


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- One field


@dataclass(frozen=True, eq=False)
class _Kind:
    """A field's place: its name, its bounds, after how many values they begin again, the names of its values."""

    name: str
    low: int
    high: int
    cycle: int
    names: tuple[str, ...] = ()

    def number(self, text: str) -> int:
        """Read one number or name."""
        if text in self.names:
            return self.names.index(text) + self.low
        if not text.isdigit():
            also = f" or a name such as {self.names[1]}" if self.names else ""
            raise _Unreadable(f'"{_shorten(text)}" is not a number{also}')
        if not self.low <= int(text) <= self.high:
            raise _Unreadable(f"{_shorten(text)} is out of range, use {self.low} to {self.high}")
        return int(text)


_DATE = _Kind("day-of-month", 1, 31, 31)
_WEEKDAY = _Kind("day-of-week", 0, 7, 7, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
_KINDS = (
    _Kind("second", 0, 59, 60),
    _Kind("minute", 0, 59, 60),
    _Kind("hour", 0, 23, 24),
    _DATE,
    _Kind("month", 1, 12, 12, ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")),
    _WEEKDAY,
)

_TERM = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_LAST_DAY = re.compile(r"L(?:-(\d+))?", re.ASCII)
_WORKDAY = re.compile(r"(\d+|L)W", re.ASCII)
_NTH_WEEKDAY = re.compile(r"(\w+)#(\d+)", re.ASCII)
_LAST_WEEKDAY = re.compile(r"(\w+)L|L(\w+)", re.ASCII)
_HASH = re.compile(r"H(?:\((\d+)-(\d+)\))?(?:/(\d+))?", re.ASCII)


class _Field(NamedTuple):
    """A field as read: its text in capitals, its plain values in order, and what depends on the month."""

    text: str
    values: tuple[int, ...]
    # ("last", days before it, 0), ("workday", day, 0), ("nth", weekday, n): a day or an n of 0 is the last of the month
    special: tuple[tuple[str, int, int], ...]
    # terms whose step is larger than what it steps through, and their one value
    lone_steps: tuple[tuple[str, int], ...]

    @property
    def starred(self) -> bool:
        """Whether it starts with `*`: that alone is what Debian's rules look at."""
        return self.text.startswith("*")

    @property
    def text_for_words(self) -> str:
        """The text as the library of words reads it alike: 9-9 and 5/90 are one value there, too."""
        return str(self.values[0]) if len(self.values) == 1 and not self.special else self.text


@lru_cache(maxsize=4096)
def _read_field(kind: _Kind, text: str) -> _Field:
    if text == "?" and kind in (_DATE, _WEEKDAY):
        text = "*"
    values: set[int] = set()
    special, lone_steps = [], []
    for term in text.split(","):
        found = _read_date(term) if kind is _DATE else _read_weekday(term) if kind is _WEEKDAY else None
        if found:
            special.append(found)
            continue
        members, step = _read_term(kind, term)
        values.update(members)
        if step > 1 and len(members) == 1:
            lone_steps.append((term, members[0]))
    return _Field(text, tuple(sorted(values)), tuple(special), tuple(lone_steps))


def _read_term(kind: _Kind, term: str) -> tuple[list[int], int]:
    """Return the values that a plain term stands for, and its step."""
    match = _TERM.fullmatch(term)
    if match is None or term[0] in "HR":
        raise _Unreadable(_why_unreadable(kind, term))
    star, start, end, every = match.groups()
    step = int(every or 1)
    if step == 0:
        raise _Unreadable("a step of 0 never moves on, use 1 or more")
    low = kind.low if star else kind.number(start)
    high = kind.number(end) if end else kind.high if star or every else low
    if high < low:  # over the end: 22-2 is 22, 23, 0, 1, 2
        high += kind.cycle
    return [(value - kind.low) % kind.cycle + kind.low for value in range(low, high + 1, step)], step


def _why_unreadable(kind: _Kind, term: str) -> str:
    if not term:
        return "there is an empty place in the list"
    if term[0] == "R":
        return "R would be drawn anew in each replica; use H, which is the same in all"
    if term[0] == "H":
        return "H stands alone in its field, as H, H/5, H(0-29) or H(0-29)/5"
    if "?" in term:
        return "? stands alone, and only in the day-of-month or day-of-week field"
    return f'"{_shorten(term)}" is not a value, a range such as {kind.low}-{kind.high} or a step such as */2'


def _read_date(term: str) -> tuple[str, int, int] | None:
    """Read a term of the day-of-month field that depends on the month; None if it is a plain one."""
    if match := _LAST_DAY.fullmatch(term):
        back = int(match[1] or 0)
        if back > 30:
            raise _Unreadable(f"no month has {back} days before its last")
        return "last", back, 0
    if match := _WORKDAY.fullmatch(term):
        return "workday", 0 if match[1] == "L" else _DATE.number(match[1]), 0
    return None


def _read_weekday(term: str) -> tuple[str, int, int] | None:
    """Read a term of the day-of-week field that depends on the month; None if it is a plain one."""
    if match := _NTH_WEEKDAY.fullmatch(term):
        if not 1 <= int(match[2]) <= 5:
            raise _Unreadable(f"#{match[2]} is no week of a month, use #1 to #5")
        return "nth", _WEEKDAY.number(match[1]) % 7, int(match[2])
    if match := _LAST_WEEKDAY.fullmatch(term):
        return "nth", _WEEKDAY.number(match[1] or match[2]) % 7, 0
    if term == "L":
        raise _Unreadable("L alone names no weekday; 5L is the last Friday of the month")
    return None


def _resolve_hash(kind: _Kind, text: str, key: str | None) -> str:
    """Return what a field that begins with H stands for, for the job of that key."""
    match = _HASH.fullmatch(text)
    if match is None:
        raise _Unreadable(_why_unreadable(kind, "H"))
    if key is None:
        raise _Unreadable("H is hashed by the job's key, and there is none; give a key, or a number")
    low, high = kind.low, kind.low + kind.cycle - 1
    if kind is _DATE:
        high = 28  # so that every month has the day
    if match[1]:
        low, high = kind.number(match[1]), kind.number(match[2])
    step = int(match[3] or 1)
    if low > high or step == 0:
        raise _Unreadable("its range ends before it begins, or its step is 0")
    if not match[3]:
        return str(_draw(kind, low, high, key))
    return f"{_draw(kind, low, min(high, low + step - 1), key)}-{high}/{step}"


def _draw(kind: _Kind, low: int, high: int, key: str) -> int:
    """Draw a value from low to high by croniter's hash of the key."""
    if low == high:
        return low
    from croniter import croniter  # few need it, and it is slow to load

    place = _KINDS.index(kind)
    fields = ["*"] * 6
    fields[place] = f"H({low}-{high})"
    hash_id = key.encode("utf-8", "surrogatepass")
    expanded, _ = croniter.expand(" ".join(fields), hash_id=hash_id, second_at_beginning=True)
    return int(expanded[place - 1][0])  # there the seconds come last


# --- The expression as days and times of day

_LENGTHS = {month: (28, 29) if month == 2 else (30,) if month in (4, 6, 9, 11) else (31,) for month in range(1, 13)}
_EVERY_WEEK = sum(1 << day for day in range(0, 32, 7))


class _Days:
    """The days that match, by month, day-of-month and day-of-week: one at least."""

    __slots__ = ("_both", "_dates", "_masks", "_months", "_weekdays")

    def __init__(self, dates: _Field, months: _Field, weekdays: _Field) -> None:
        self._dates, self._months, self._weekdays = dates, months.values, weekdays
        self._both = dates.starred or weekdays.starred
        # A month's days as bits, 1 for its first; they depend on its length and the weekday before it (Sunday is 0).
        self._masks = [-1] * 28
        kinds = ((length, eve) for month in self._months for length in _LENGTHS[month] for eve in range(7))
        if not any(self._mask(length, eve) for length, eve in kinds):
            raise _Unreadable("it never runs, because no month has such a day; mend the day or the month")

    def nearest(self, day: int, step: int) -> int | None:
        """Return the first matching day from `day` on (step 1), or the last until it (step -1)."""
        at = date.fromordinal(day + _EPOCH_ORDINAL)
        months, count = self._months, len(self._months)
        place = bisect_left(months, at.month) if step > 0 else bisect_right(months, at.month) - 1
        index = at.year * count + place
        within = -1
        if at.month in months:
            within = -1 << at.day if step > 0 else (2 << at.day) - 1
        while True:
            year, place = divmod(index, count)
            if not 1 <= year <= 9999:
                return None
            month = months[place]
            before = date(year, month, 1).toordinal() - 1
            leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
            length = _LENGTHS[month][leap]
            mask = self._masks[(length - 28) * 7 + before % 7]
            found = (mask if mask >= 0 else self._mask(length, before % 7)) & within
            if found:
                return before + (found & -found if step > 0 else found).bit_length() - 1 - _EPOCH_ORDINAL
            index += step
            within = -1

    def _mask(self, length: int, eve: int) -> int:
        dates, weekdays = self._date_mask(length, eve), self._weekday_mask(length, eve)
        mask = (dates & weekdays if self._both else dates | weekdays) & ((2 << length) - 2)
        self._masks[(length - 28) * 7 + eve] = mask
        return mask

    def _date_mask(self, length: int, eve: int) -> int:
        mask = sum(1 << day for day in self._dates.values)
        for kind, number, _ in self._dates.special:
            day = length - number if kind == "last" else number or length
            if kind == "workday" and day <= length:
                weekday = (eve + day) % 7
                if weekday == 6:
                    day += -1 if day > 1 else 2
                elif weekday == 0:
                    day += 1 if day < length else -2
            mask |= 1 << max(day, 0)
        return mask

    def _weekday_mask(self, length: int, eve: int) -> int:
        mask = 0
        for weekday in self._weekdays.values:
            mask |= _EVERY_WEEK << (weekday - eve) % 7
        for _, weekday, nth in self._weekdays.special:
            day = (weekday - eve - 1) % 7 + 1
            mask |= 1 << (day + 7 * (nth - 1) if nth else day + (length - day) // 7 * 7)
        return mask


@lru_cache(maxsize=1024)
def _seconds_of_hour(minutes: tuple[int, ...], seconds: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(minute * 60 + second for minute in minutes for second in seconds)


_read_days = lru_cache(maxsize=1024)(_Days)


class _Pattern:
    """A whole expression: which wall seconds match."""

    __slots__ = ("_days", "_first", "_hours", "_in_hour", "_last", "fields", "fixed")

    def __init__(self, fields: tuple[_Field, ...]) -> None:
        self.fields = fields
        second, minute, hour, *days = fields
        self.fixed = not (second.starred or minute.starred or hour.starred)  # Debian's fixed-time job
        self._hours = hour.values
        self._in_hour = _seconds_of_hour(minute.values, second.values)
        self._first = self._hours[0] * 3600 + self._in_hour[0]
        self._last = self._hours[-1] * 3600 + self._in_hour[-1]
        self._days = _read_days(*days)

    def time_from(self, time: int) -> int:
        """Return the first matching second of a day from `time` on, or -1."""
        if time > self._last:
            return -1
        hour, rest = divmod(time, 3600)
        hours, in_hour = self._hours, self._in_hour
        place = bisect_left(hours, hour)
        if hours[place] == hour:
            if rest <= in_hour[-1]:
                return time - rest + in_hour[bisect_left(in_hour, rest)]
            place += 1
        return hours[place] * 3600 + in_hour[0]

    def time_until(self, time: int) -> int:
        """Return the last matching second of a day until `time`, or -1."""
        if time < self._first:
            return -1
        hour, rest = divmod(time, 3600)
        hours, in_hour = self._hours, self._in_hour
        place = bisect_right(hours, hour) - 1
        if hours[place] == hour:
            if rest >= in_hour[0]:
                return time - rest + in_hour[bisect_right(in_hour, rest) - 1]
            place -= 1
        return hours[place] * 3600 + in_hour[-1]

    def nearest(self, wall: int, step: int) -> int | None:
        """Return the first matching wall second from `wall` on (step 1), or the last until it (step -1)."""
        today, time = divmod(wall, _DAY)
        day = self._days.nearest(today, step)
        if day == today:
            time = self.time_from(time) if step > 0 else self.time_until(time)
            if time >= 0:
                return day * _DAY + time
            day = self._days.nearest(today + step, step)
        if day is None:
            return None
        return day * _DAY + (self._first if step > 0 else self._last)

    def meaning(self) -> str:
        """Return a text that differs wherever the meaning does."""
        and_or = "and" if self.fields[3].starred or self.fields[5].starred else "or"
        return f"{[(field.values, field.special) for field in self.fields]} {and_or} {self.fixed}"


_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


def _split(expression: object) -> list[str]:
    """Return the six fields of an expression, in capitals."""
    if not isinstance(expression, str):
        raise _Unreadable(f"it is {type(expression).__name__}, not text (str)")
    if len(expression) > MAX_LENGTH:
        raise _Unreadable(f"it has {len(expression)} characters, at most {MAX_LENGTH} are read; use ranges and steps")
    if odd := re.search(r"[^\x20-\x7e\t\r\n]", expression):
        raise _Unreadable(f"character {odd.start() + 1}, {odd[0]!a}, has no meaning here; type it anew in plain ASCII")
    words = expression.upper().split()
    if expression.lstrip().startswith("@"):
        alias = _ALIASES.get(expression.strip().lower())
        if alias is None:
            raise _Unreadable(f"there is no such alias; there are {', '.join(_ALIASES)}")
        words = alias.split()
    if len(words) == 5:
        words.insert(0, "0")
    if len(words) != 6:
        raise _Unreadable(f"it has {len(words)} fields; write five, or six with the seconds first")
    return words


def _read_place(kind: _Kind, text: str, key: str | None) -> _Field:
    try:
        return _read_field(kind, _resolve_hash(kind, text, key) if text.startswith("H") else text)
    except _Unreadable as error:
        raise _Unreadable(f'the {kind.name} field "{_shorten(text)}" is wrong: {error}') from None


_read_pattern = lru_cache(maxsize=1024)(_Pattern)


def _read_expression(expression: str, key: str | None) -> _Pattern:
    try:
        places = zip(_KINDS, _split(expression), strict=True)
        return _read_pattern(tuple(_read_place(kind, text, key) for kind, text in places))
    except _Unreadable as error:
        raise ConfigurationError(f"The schedule {shown(expression)} cannot be used: {error}.") from None


def _warnings(expression: str, pattern: _Pattern) -> Iterator[str]:
    for kind, field in zip(_KINDS, pattern.fields, strict=True):
        for term, value in field.lone_steps:
            yield (
                f'"{term}" in the {kind.name} field of "{expression}" runs only at {value}: '
                f"its step is larger than what it steps through."
            )
    second, minute, hour = pattern.fields[:3]
    runs = len(minute.values) * len(second.values)
    if hour.text.startswith("*/") and len(hour.values) < 24 and len(minute.values) == 60:
        yield f'"{expression}" runs {runs} times in each matching hour; for once, put 0 in the minute field.'
    if minute.text.startswith("*/") and len(minute.values) < 60 and len(second.values) == 60:
        yield f'"{expression}" runs 60 times in each matching minute; for once, put 0 in the second field.'


# --- The offsets of a zone

_HOUR = 3600
_CORRECTION = 3 * _HOUR  # a jump this long corrects the clock: nothing is made up for it
_FAR = 26 * _HOUR  # more than any two offsets of a zone differ
# zoneinfo tells offsets but no transitions: they are sought block by block, looking back as far as a fold reaches and
# ahead so that a day is seen whole. All that is less than the shortest period on record, so one transition at most.
_BLOCK = 36 * _HOUR
_AHEAD = 30 * _HOUR
_PLAIN = 1 << 34  # the year 2514: from 1970 until then every system converts timestamps


class _Period(NamedTuple):
    """A time of one offset, in UTC seconds: start <= instant < end."""

    start: int
    end: int
    offset: int
    opens: int  # the wall second from which fixed-time jobs are due here: with what a gap skipped, without repetitions


def _offset(zone: ZoneInfo, instant: int) -> int:
    if 0 <= instant < _PLAIN:
        offset = datetime.fromtimestamp(instant, zone).utcoffset()
    else:  # slower; kept within the calendar
        offset = (_EPOCH + timedelta(seconds=max(_FIRST, min(instant, _LAST)))).astimezone(zone).utcoffset()
    return offset.days * _DAY + offset.seconds if offset else 0


@lru_cache(maxsize=16384)
def _periods(zone: ZoneInfo, block: int) -> tuple[_Period, ...]:
    """Return the one or two periods of a block and what follows, cut at the block's start."""
    start = block * _BLOCK
    end = start + _BLOCK + _AHEAD
    before, offset, after = (_offset(zone, at) for at in (start - _FAR, start, end))
    if before == offset == after:
        return (_Period(start, end, offset, start + offset),)
    if after == offset:  # a gap right at the start, or a fold that may reach past it
        change = _change(zone, start - _FAR, start)
        opens = _opening(change, before, offset)
        return (_Period(start, end, offset, opens if change == start else max(opens, start + offset)),)
    change = _change(zone, start, end)
    return _Period(start, change, offset, start + offset), _Period(change, end, after, _opening(change, offset, after))


def _change(zone: ZoneInfo, start: int, end: int) -> int:
    """Return when the offset changes, later than `start` and not later than `end`."""
    offset = _offset(zone, start)
    return start + bisect_left(range(start, end), True, key=lambda at: _offset(zone, at) != offset)


def _opening(change: int, before: int, offset: int) -> int:
    """Return the wall second from which fixed-time jobs are due after a change."""
    return change + (offset if offset - before >= _CORRECTION else before)


_ALWAYS = _Period(_FIRST - 1, _LAST + 1, 0, _FIRST - 1)


def _period(zone: ZoneInfo, instant: int) -> _Period:
    if zone.key == "UTC":
        return _ALWAYS
    periods = _periods(zone, instant // _BLOCK)
    return periods[0] if instant < periods[0].end else periods[1]


def _read_zone(zone: object) -> ZoneInfo:
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone
    try:
        # "localtime" is a file that some systems have: the machine's own zone, another one on each.
        if isinstance(zone, str) and zone != "localtime":
            return ZoneInfo(str.__str__(zone))  # The characters alone: a member of an enum would name itself.
    except (LookupError, OSError, ValueError):
        pass
    raise ConfigurationError(
        f"The time zone {shown(zone)} is not found. Use a name such as Europe/Berlin, without quotes; "
        f"where the system has no time zone data, install the package tzdata."
    )


# --- The schedule


class Schedule:
    """
    The occurrences of a cron expression in a time zone.

    Raises ConfigurationError if either cannot be used. `key` is the job's key, by which `H` is hashed. Where
    day-of-month or day-of-week starts with `*` a day must match both, else one of them. Clock changes follow Debian
    cron: a fixed-time job in the skipped hour runs once, right after it; in the repeated hour once, the first time;
    one whose second, minute or hour field starts with `*` follows elapsed time; a jump of three hours or more is a
    correction, and nothing is made up for it. Immutable, and safe in threads.
    """

    __slots__ = ("_expression", "_fingerprint", "_known_day", "_pattern", "_zone")

    def __init__(self, expression: str, timezone: str | ZoneInfo = "UTC", key: str | None = None) -> None:
        if key is not None and not isinstance(key, str):
            raise ConfigurationError(f"The key of a schedule must be a string, not {shown(key)}.")
        self._pattern = _read_expression(expression, key)
        self._expression = " ".join(expression.split())
        self._zone = _read_zone(timezone)
        meaning = f"{self._pattern.meaning()} {self._zone.key}"
        self._fingerprint = hashlib.sha256(meaning.encode()).hexdigest()[:16]
        # A memo: the last matching day, where an answer needs no search, as far as one offset holds on it
        # (from, until, its midnight, before which none of it is), in UTC seconds.
        self._known_day = (0, 0, 0)

    @property
    def expression(self) -> str:
        """The expression as given, its blanks normalised."""
        return self._expression

    @property
    def timezone(self) -> str:
        """The name of the zone."""
        return self._zone.key

    @property
    def fingerprint(self) -> str:
        """A short text, the same in every process, that changes when what expression, zone and `H` mean does."""
        return self._fingerprint

    @property
    def crontab(self) -> str | None:
        """
        The schedule in the five fields of crontab(5), without names, wraps and `H`, and the second left out.

        None if they cannot say it: several seconds, `L`, `W` or `#`.
        """
        second, *fields = self._pattern.fields
        if len(second.values) > 1 or any(field.special for field in fields):
            return None
        return " ".join(field.text if field.starred else ",".join(map(str, field.values)) for field in fields)

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not meant, in plain sentences."""
        return tuple(_warnings(self._expression, self._pattern))

    def __repr__(self) -> str:
        return f"Schedule({self._expression!r}, {self.timezone!r})"

    def __eq__(self, other: object) -> bool:
        return self._fingerprint == other._fingerprint if isinstance(other, Schedule) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._fingerprint)

    def next_after(self, instant: datetime) -> datetime | None:
        """Return the first occurrence strictly later than an aware instant, in UTC, or None if there is none."""
        return _to_datetime(self.next_after_ms(_to_seconds(instant) * 1000))

    def latest_until(self, instant: datetime) -> datetime | None:
        """Return the last occurrence not later than an aware instant, in UTC, or None if there is none."""
        return _to_datetime(self.latest_until_ms(_to_seconds(instant) * 1000))

    def next_after_ms(self, epoch_ms: int) -> int | None:
        """Return the first occurrence strictly later, all in whole milliseconds since the epoch."""
        instant = epoch_ms // 1000 + 1
        start, end, midnight = self._known_day
        if start <= instant < end:
            time = self._pattern.time_from(instant - midnight)
            if 0 <= time < end - midnight:
                return (midnight + time) * 1000
            instant = end
        found = self._next(instant)
        return None if found is None else found * 1000

    def latest_until_ms(self, epoch_ms: int) -> int | None:
        """Return the last occurrence not later, all in whole milliseconds since the epoch."""
        instant = epoch_ms // 1000
        start, end, midnight = self._known_day
        if start <= instant < end:
            time = self._pattern.time_until(instant - midnight)
            if time >= start - midnight:  # Which -1, that there is none, never is.
                return (midnight + time) * 1000
            instant = start - 1
        found = self._previous(instant)
        return None if found is None else found * 1000

    def describe(self) -> str:
        """Return the schedule in words if cron-descriptor is installed and reads it alike, else as it is."""
        fields = self._pattern.fields
        texts = [field.text_for_words for field in fields]
        dates, weekdays = fields[3], fields[5]
        if "*" not in (dates.text, weekdays.text) and (dates.starred or weekdays.starred):
            return self._expression  # A day must match both: the library says "or".
        if any("," in field.text and (field.special or "*" in field.text) for field in fields):
            return self._expression  # In a list the library leaves such terms out, or says them as they are.
        try:
            library = importlib.import_module("cron_descriptor")
            return str(library.get_description(" ".join(texts[1:] if texts[0] == "0" else texts)))
        except Exception:  # noqa: BLE001 - words are a courtesy: where the library has none, the expression says it
            return self._expression

    def clock_change(self, instant: datetime) -> str | None:
        """Say what a clock change means for an occurrence, such as that its wall time comes twice; None if nothing."""
        at = _to_seconds(instant)
        period = _period(self._zone, at)
        wall = at + period.offset
        fixed = self._pattern.fixed
        if fixed and at == period.start and period.opens < wall:
            skipped = self._pattern.nearest(period.opens, 1)
            if skipped is not None and skipped < wall:
                return f"{_clock(skipped)} does not exist this day: runs at {_clock(wall)}"
        ahead, behind = _period(self._zone, period.end), _period(self._zone, period.start - 1)
        if wall >= period.end + ahead.offset:
            return f"{_clock(wall)} comes twice this day: {'runs the first time only' if fixed else 'the first time'}"
        if wall < period.start + behind.offset:
            return f"{_clock(wall)} comes twice this day: the second time"
        return None

    def _next(self, at: int) -> int | None:
        """Return the first occurrence from `at` on, in UTC seconds."""
        fixed, nearest, zone = self._pattern.fixed, self._pattern.nearest, self._zone
        at = max(at, _FIRST)
        period = _period(zone, at)
        searched, wall = 1, 0  # nothing matches from the wall second `searched` until `wall`: at first an empty range
        while at <= _LAST:
            start, end, offset, opens = period
            lowest = at + offset
            if fixed and (at == start or lowest < opens):
                lowest = opens
            if not searched <= lowest <= wall:
                answer = nearest(lowest, 1)
                if answer is None:
                    return None
                searched, wall = lowest, answer
            found = wall - offset
            if found < end:
                self._remember(wall, period)
                return (found if found > start else start) if found <= _LAST else None
            ahead = _period(zone, found)
            if fixed or end - at > _FAR:
                # Nothing from `searched` until `wall` is nothing under other offsets either, if no fold brings back
                # what was before `searched`.
                end = max(end, ahead.start if ahead.opens <= wall else found - _FAR)
            at = end
            period = ahead if ahead.start == at else _period(zone, at)
        return None

    def _previous(self, at: int) -> int | None:
        """Return the last occurrence until `at`, in UTC seconds."""
        fixed, nearest, zone = self._pattern.fixed, self._pattern.nearest, self._zone
        at = min(at, _LAST)
        while at >= _FIRST:
            period = _period(zone, at)
            start, _, offset, opens = period
            highest = at + offset
            wall = nearest(highest, -1)
            if wall is None:
                return None
            found = wall - offset
            if wall >= (opens if fixed else start + offset):
                self._remember(wall, period)
                return found if found > start else start
            # Before this period no clock showed `opens` yet: looking down from there missed nothing since `wall`.
            at = min(start - 1, found + _FAR) if highest >= opens else start - 1
        return None

    def _remember(self, wall: int, period: _Period) -> None:
        """Keep the day of `wall`, where an answer needs no search: after the period's start, which a gap may open."""
        start, end, offset, opens = period
        midnight = wall - wall % _DAY - offset
        tomorrow = midnight + _DAY
        self._known_day = (max(midnight, start + 1, opens - offset), end if end < tomorrow else tomorrow, midnight)


def _clock(wall: int) -> str:
    minutes, second = divmod(wall % _DAY, 60)
    return f"{minutes // 60:02}:{minutes % 60:02}" + (f":{second:02}" if second else "")


def _to_seconds(instant: datetime) -> int:
    if not isinstance(instant, datetime):
        raise TypeError(f"An instant is a datetime, not {type(instant).__name__}.")
    if instant.utcoffset() is None:
        raise ConfigurationError(f"The instant {instant!r} has no time zone; give an aware datetime.")
    return (instant - _EPOCH) // timedelta(seconds=1)


def _to_datetime(epoch_ms: int | None) -> datetime | None:
    return None if epoch_ms is None else _EPOCH + timedelta(milliseconds=epoch_ms)
