"""
Schedules: a cron expression and a time zone, read as occurrences in UTC.

The file goes from text to instants: one field, the days of a month, the times of a day, the offsets of a zone, and the
schedule that joins them. "Wall" seconds are what a local clock shows, counted from 1970 as if it showed UTC.
"""

from __future__ import annotations

import hashlib
import importlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from functools import lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

from django_cronductor.exceptions import ConfigurationError

MAX_LENGTH = 1000  # characters; every minute, hour and day listed one by one is shorter

_DAY = 86_400
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)
_EPOCH_ORDINAL = _EPOCH.toordinal()
# The instants we look at keep two days from the ends of the calendar, so that no zone's wall time falls off it.
_FIRST = (3 - _EPOCH_ORDINAL) * _DAY
_LAST = (date.max.toordinal() - 2 - _EPOCH_ORDINAL) * _DAY - 1

# --- One field


class _Unreadable(ValueError):
    """Why an expression cannot be read; becomes a ConfigurationError that names the expression too."""


@dataclass(frozen=True, eq=False)
class _Kind:
    """A field's place: what it is called, its bounds, how many values there are before they begin again, its names."""

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
            also = f" or a name like {self.names[1].title()}" if self.names else ""
            raise _Unreadable(f"{text!r} is not a number{also}")
        value = int(text)
        if not self.low <= value <= self.high:
            raise _Unreadable(f"{text} is out of range, use {self.low} to {self.high}")
        return value


_MONTH_NAMES = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_SECOND = _Kind("second", 0, 59, 60)
_MINUTE = _Kind("minute", 0, 59, 60)
_HOUR = _Kind("hour", 0, 23, 24)
_DATE = _Kind("day-of-month", 1, 31, 31)
_MONTH = _Kind("month", 1, 12, 12, _MONTH_NAMES)
_WEEKDAY = _Kind("day-of-week", 0, 7, 7, ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"))
_KINDS = (_SECOND, _MINUTE, _HOUR, _DATE, _MONTH, _WEEKDAY)

_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}

_TERM = re.compile(r"(?:(\*)|(\w+)(?:-(\w+))?)(?:/(\d+))?", re.ASCII)
_LAST_DAY = re.compile(r"L(?:-(\d+))?", re.ASCII)
_WORKDAY = re.compile(r"(\d+|L)W", re.ASCII)
_NTH_WEEKDAY = re.compile(r"(\w+)#(\d+)", re.ASCII)
_LAST_WEEKDAY = re.compile(r"([A-Z0-9]+)L|L([A-Z0-9]+)", re.ASCII)
_HASH = re.compile(r"H(?:\((\d+)-(\d+)\))?(?:/(\d+))?", re.ASCII)

# ("last", days before it, 0), ("workday", day or 0 for the last, 0), ("nth", weekday, its number or 0 for the last)
_Special = tuple[str, int, int]


class _Field(NamedTuple):
    """A field as read: its plain values as bits, what depends on the month, and what is odd about it."""

    text: str
    values: int
    special: tuple[_Special, ...]
    single_steps: tuple[tuple[str, int], ...]  # terms whose step is larger than what it steps through

    @property
    def starred(self) -> bool:
        """Debian's rules look at the first character alone."""
        return self.text.startswith("*")


def _bits(values: int) -> Iterator[int]:
    while values:
        low = values & -values
        yield low.bit_length() - 1
        values ^= low


@lru_cache(maxsize=4096)
def _read_field(kind: _Kind, text: str) -> _Field:
    """Read one field, in capitals."""
    if text == "?" and kind in (_DATE, _WEEKDAY):
        text = "*"
    values = 0
    special: list[_Special] = []
    single_steps: list[tuple[str, int]] = []
    try:
        for term in text.split(","):
            found = _read_special(kind, term)
            if found:
                special.append(found)
                continue
            members, step = _read_term(kind, term)
            values |= members
            if step > 1 and not members & (members - 1):
                single_steps.append((term, members.bit_length() - 1))
    except _Unreadable as error:
        raise _Unreadable(f'the {kind.name} field "{_shorten(text)}" is wrong: {error}') from None
    return _Field(text, values, tuple(special), tuple(single_steps))


def _read_term(kind: _Kind, term: str) -> tuple[int, int]:
    """Return the values that a term stands for, as bits, and its step."""
    match = _TERM.fullmatch(term)
    if match is None:
        raise _Unreadable(_explain_term(kind, term))
    star, start, end, every = match.groups()
    step = int(every or 1)
    if step == 0:
        raise _Unreadable("a step of 0 never moves on, use 1 or more")
    low = kind.low if star else kind.number(start)
    high = kind.high if star or (every and not end) else kind.number(end) if end else low
    if high < low:  # over the end: 22-2 is 22, 23, 0, 1, 2
        high += kind.cycle
    members = 0
    for value in range(low, high + 1, step):
        members |= 1 << (value - kind.low) % kind.cycle + kind.low
    return members, step


def _explain_term(kind: _Kind, term: str) -> str:
    if not term:
        return "there is an empty place in the list"
    if term[0] == "R":
        return "R is drawn anew in each replica, which would disagree; use H, which is the same in all"
    if term[0] == "H":
        return "H stands alone in its field, as H, H/5, H(0-29) or H(0-29)/5"
    if "?" in term:
        return "? stands alone, and only in the day-of-month or day-of-week field"
    return f'"{_shorten(term)}" is not a value, a range like {kind.low}-{kind.high} or a step like */2'


def _read_special(kind: _Kind, term: str) -> _Special | None:
    """Read a term that depends on the month, or None if it is a plain one."""
    if kind is _DATE:
        return _read_special_date(term)
    if kind is not _WEEKDAY:
        return None
    match = _NTH_WEEKDAY.fullmatch(term)
    if match:
        if not 1 <= int(match[2]) <= 5:
            raise _Unreadable(f"#{match[2]} is no week of a month, use #1 to #5")
        return "nth", kind.number(match[1]) % 7, int(match[2])
    if term == "L":
        raise _Unreadable("L alone names no weekday, use for example 5L for the last Friday")
    match = _LAST_WEEKDAY.fullmatch(term)
    return ("nth", kind.number(match[1] or match[2]) % 7, 0) if match else None


def _read_special_date(term: str) -> _Special | None:
    match = _LAST_DAY.fullmatch(term)
    if match:
        back = int(match[1] or 0)
        if back > 30:
            raise _Unreadable(f"no month has {back} days before its last")
        return "last", back, 0
    match = _WORKDAY.fullmatch(term)
    if match:
        return "workday", 0 if match[1] == "L" else _DATE.number(match[1]), 0
    return None


def _resolve_hash(kind: _Kind, text: str, key: str) -> str:
    """Return the text that a field with an H stands for, for the job of that key."""
    match = _HASH.fullmatch(text)
    if match is None:
        raise _Unreadable(f'the {kind.name} field "{_shorten(text)}" is wrong: {_explain_term(kind, "H")}')
    low, high = kind.low, kind.low + kind.cycle - 1
    if kind is _DATE:
        high = 28  # a day that every month has
    if match[1]:
        low, high = kind.number(match[1]), kind.number(match[2])
        if low > high:
            raise _Unreadable(f'the {kind.name} field "{text}" is wrong: its range ends before it begins')
    if not match[3]:
        return str(_draw(kind, low, high, key))
    step = int(match[3])
    if step == 0:
        raise _Unreadable(f'the {kind.name} field "{text}" is wrong: a step of 0 never moves on, use 1 or more')
    return f"{_draw(kind, low, min(high, low + step - 1), key)}-{high}/{step}"


def _draw(kind: _Kind, low: int, high: int, key: str) -> int:
    """Draw a value from low to high by croniter's hash of the key."""
    if low == high:
        return low
    from croniter import croniter  # needed by few, and slow to load

    fields = ["*"] * 6
    fields[_KINDS.index(kind)] = f"H({low}-{high})"
    identity = key.encode("utf-8", "surrogatepass")
    expanded = croniter.expand(" ".join(fields), hash_id=identity, second_at_beginning=True)[0]
    return int(expanded[_KINDS.index(kind) - 1][0])  # croniter puts the seconds last


def _shorten(text: str) -> str:
    return text if len(text) <= 80 else f"{text[:77]}..."


# --- The days of a month


class _Table(NamedTuple):
    """The members of a set of small numbers by nearness: up[v] is the first from v on, down[v] the last until v, or -1."""

    up: tuple[int, ...]
    down: tuple[int, ...]  # one longer than needed, so that down[-1] is -1 too
    first: int
    last: int


@lru_cache(maxsize=4096)
def _table(values: int, size: int) -> _Table:
    up, down = [-1] * (size + 1), [-1] * (size + 1)
    nearest = -1
    for value in range(size):
        nearest = down[value] = value if values >> value & 1 else nearest
    nearest = -1
    for value in reversed(range(size)):
        nearest = up[value] = value if values >> value & 1 else nearest
    return _Table(tuple(up), tuple(down), up[0], down[size - 1])


_LENGTHS = (0, 31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
_UNKNOWN = -1


class _Days:
    """The days that match, by month, day of month and day of week. Days are proleptic Gregorian ordinals."""

    __slots__ = ("_both", "_dates", "_masks", "_months", "_weekdays")

    def __init__(self, dates: _Field, months: _Field, weekdays: _Field) -> None:
        self._dates = dates
        self._weekdays = weekdays
        self._both = dates.starred or weekdays.starred
        self._months = _table(months.values, 13)
        self._masks = [_UNKNOWN] * 28  # by length and first weekday: all that a month's days depend on

    def never(self) -> bool:
        """Whether no day of any year matches."""
        for month in _bits(self._month_bits()):
            for length in (28, 29) if month == 2 else (_LENGTHS[month],):
                if any(self._mask(length, weekday) for weekday in range(7)):
                    return False
        return True

    def next(self, day: int) -> int | None:
        """Return the first matching day that is not before `day`, or None."""
        at = date.fromordinal(day)
        year, month, before = at.year, at.month, day - at.day
        found = self._month(year, month, before) >> at.day << at.day
        while not found:
            month = self._months.up[month + 1] if month < 12 else -1
            if month < 0:
                month, year = self._months.first, year + 1
                if year > date.max.year:
                    return None
            before = date(year, month, 1).toordinal() - 1
            found = self._month(year, month, before)
        return before + (found & -found).bit_length() - 1

    def previous(self, day: int) -> int | None:
        """Return the last matching day that is not after `day`, or None."""
        at = date.fromordinal(day)
        year, month, before = at.year, at.month, day - at.day
        found = self._month(year, month, before) & ((2 << at.day) - 1)
        while not found:
            month = self._months.down[month - 1]
            if month < 0:
                month, year = self._months.last, year - 1
                if year < date.min.year:
                    return None
            before = date(year, month, 1).toordinal() - 1
            found = self._month(year, month, before)
        return before + found.bit_length() - 1

    def _month_bits(self) -> int:
        return sum(1 << month for month in set(self._months.up) if month > 0)

    def _month(self, year: int, month: int, before: int) -> int:
        """Return the matching days of a month as bits; `before` is the day before its first."""
        if self._months.up[month] != month:
            return 0
        leap = month == 2 and year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        return self._mask(_LENGTHS[month] + leap, (before + 1) % 7)

    def _mask(self, length: int, first: int) -> int:
        """Return the matching days of a month of that length that begins on that weekday (Sunday is 0)."""
        place = (length - 28) * 7 + first
        if self._masks[place] == _UNKNOWN:
            dates, weekdays = self._date_mask(length, first), self._weekday_mask(length, first)
            joined = dates & weekdays if self._both else dates | weekdays
            self._masks[place] = joined & ((2 << length) - 2)
        return self._masks[place]

    def _date_mask(self, length: int, first: int) -> int:
        mask = self._dates.values
        for kind, number, _ in self._dates.special:
            day = length - number if kind == "last" or not number else number
            if kind == "workday" and day <= length:
                weekday = (first + day - 1) % 7
                if weekday == 6:
                    day += -1 if day > 1 else 2
                elif weekday == 0:
                    day += 1 if day < length else -2
            mask |= 1 << day if day > 0 else 0
        return mask

    def _weekday_mask(self, length: int, first: int) -> int:
        mask = 0
        for weekday in _bits(self._weekdays.values):
            mask |= 0b10000001000000100000010000001 << 1 + (weekday - first) % 7
        for _, weekday, nth in self._weekdays.special:
            day = 1 + (weekday - first) % 7
            mask |= 1 << (day + 7 * (nth - 1) if nth else day + (length - day) // 7 * 7)
        return mask


# --- The times of a day, and the expression as a whole


class _Times:
    """The times of day that match, in seconds after midnight."""

    __slots__ = ("_hours", "_minutes", "_seconds", "first", "last")

    def __init__(self, seconds: int, minutes: int, hours: int) -> None:
        self._seconds, self._minutes, self._hours = _table(seconds, 60), _table(minutes, 60), _table(hours, 24)
        self.first = self._hours.first * 3600 + self._minutes.first * 60 + self._seconds.first
        self.last = self._hours.last * 3600 + self._minutes.last * 60 + self._seconds.last

    def next(self, time: int) -> int:
        """Return the first matching time that is not before `time`, or -1."""
        hour, rest = divmod(time, 3600)
        hours = self._hours.up
        if hours[hour] == hour:
            minute, second = divmod(rest, 60)
            minutes = self._minutes.up
            if minutes[minute] == minute:
                found = self._seconds.up[second]
                if found >= 0:
                    return time - second + found
            found = minutes[minute + 1]
            if found >= 0:
                return hour * 3600 + found * 60 + self._seconds.first
        found = hours[hour + 1]
        return found * 3600 + self._minutes.first * 60 + self._seconds.first if found >= 0 else -1

    def previous(self, time: int) -> int:
        """Return the last matching time that is not after `time`, or -1."""
        hour, rest = divmod(time, 3600)
        hours = self._hours.down
        if hours[hour] == hour:
            minute, second = divmod(rest, 60)
            minutes = self._minutes.down
            if minutes[minute] == minute:
                found = self._seconds.down[second]
                if found >= 0:
                    return time - second + found
            found = minutes[minute - 1]
            if found >= 0:
                return hour * 3600 + found * 60 + self._seconds.last
        found = hours[hour - 1]
        return found * 3600 + self._minutes.last * 60 + self._seconds.last if found >= 0 else -1


class _Pattern:
    """A whole expression: which wall seconds match."""

    __slots__ = ("days", "fields", "follows_clock", "times")

    def __init__(self, fields: tuple[_Field, ...]) -> None:
        second, minute, hour, dates, months, weekdays = fields
        self.fields = fields
        self.times = _Times(second.values, minute.values, hour.values)
        self.days = _Days(dates, months, weekdays)
        self.follows_clock = not (second.starred or minute.starred or hour.starred)  # "fixed-time", not elapsed time

    def next(self, wall: int) -> int | None:
        """Return the first matching wall second that is not before `wall`, or None."""
        day, time = divmod(wall, _DAY)
        day += _EPOCH_ORDINAL
        found = self.days.next(day)
        if found == day:
            time = self.times.next(time)
            if time >= 0:
                return wall - wall % _DAY + time
            found = self.days.next(day + 1)
        return None if found is None else (found - _EPOCH_ORDINAL) * _DAY + self.times.first

    def previous(self, wall: int) -> int | None:
        """Return the last matching wall second that is not after `wall`, or None."""
        day, time = divmod(wall, _DAY)
        day += _EPOCH_ORDINAL
        found = self.days.previous(day)
        if found == day:
            time = self.times.previous(time)
            if time >= 0:
                return wall - wall % _DAY + time
            found = self.days.previous(day - 1)
        return None if found is None else (found - _EPOCH_ORDINAL) * _DAY + self.times.last

    def meaning(self) -> str:
        """Return a text that differs wherever the meaning does."""
        dates, weekdays = self.fields[3], self.fields[5]
        parts = [f"{field.values:x}{list(field.special) or ''}" for field in self.fields]
        return f"{parts} and={dates.starred or weekdays.starred} clock={self.follows_clock}"


@lru_cache(maxsize=1024)
def _read_pattern(texts: tuple[str, ...]) -> _Pattern:
    pattern = _Pattern(tuple(_read_field(kind, text) for kind, text in zip(_KINDS, texts, strict=True)))
    if pattern.days.never():
        raise _Unreadable("it never runs: no month that it names has such a day")
    return pattern


def _split(expression: object) -> list[str]:
    """Return the six fields of an expression, in capitals."""
    if not isinstance(expression, str):
        raise _Unreadable(f"it must be text (str), not {type(expression).__name__}")
    if len(expression) > MAX_LENGTH:
        raise _Unreadable(f"it has {len(expression)} characters, at most {MAX_LENGTH} are read; use ranges and steps")
    odd = re.search(r"[^\x20-\x7e\t\r\n]", expression)
    if odd:
        raise _Unreadable(f"character {odd.start() + 1}, {odd[0]!a}, has no meaning here; retype it in ASCII")
    words = expression.split()
    if words and words[0].startswith("@"):
        alias = _ALIASES.get(" ".join(words).lower())
        if alias is None:
            raise _Unreadable(f"there is no such alias, only {', '.join(_ALIASES)}")
        words = alias.split()
    if len(words) not in (5, 6):
        raise _Unreadable(f"it has {len(words)} fields; use five, or six with the seconds first")
    return [word.upper() for word in (["0", *words] if len(words) == 5 else words)]


def _parse(expression: str, key: str | None) -> _Pattern:
    try:
        texts = _split(expression)
        for place, text in enumerate(texts):
            if text.startswith("H"):
                if key is None:
                    raise _Unreadable("H is hashed by the job's key, and there is none; give a key, or a number")
                texts[place] = _resolve_hash(_KINDS[place], text, key)
        return _read_pattern(tuple(texts))
    except _Unreadable as error:
        shown = repr(expression) if len(repr(expression)) <= 80 else f"{repr(expression)[:77]}..."
        raise ConfigurationError(f"Schedule {shown} cannot be used: {error}.") from None


def _warnings(expression: str, pattern: _Pattern) -> Iterator[str]:
    for kind, field in zip(_KINDS, pattern.fields, strict=True):
        for term, value in field.single_steps:
            yield (
                f'"{term}" in the {kind.name} field of "{expression}" runs only at {value}: '
                f"the step is larger than what it steps through."
            )
    second, minute, hour = (field for field in pattern.fields[:3])
    if hour.text.startswith("*/") and hour.values.bit_count() < 24 and minute.values.bit_count() == 60:
        times = 60 * second.values.bit_count()
        yield f'"{expression}" runs {times} times in each matching hour; to run once there, put 0 in the minute field.'
    if minute.text.startswith("*/") and minute.values.bit_count() < 60 and second.values.bit_count() == 60:
        yield f'"{expression}" runs 60 times in each matching minute; to run once there, put 0 in the second field.'


# --- The offsets of a zone

# zoneinfo tells offsets but no transitions, so they are sought between two instants this far apart. No zone changes its
# offset twice in that time: the shortest period on record is four days.
_STRETCH = 2 * _DAY
_BLOCK = 16 * _DAY
_CORRECTION = 3 * 3600  # a jump this long corrects the clock: nothing is made up for it
_FAR = 2 * _DAY  # more than any two offsets differ


class _Period(NamedTuple):
    """A time of one offset, in UTC seconds: start <= t < end."""

    start: int
    end: int
    offset: int
    opens: int  # the wall second from which fixed-time jobs are due here: skipped ones after a gap, no repeated ones


def _offset(zone: ZoneInfo, instant: int) -> int:
    instant = max(_FIRST, min(instant, _LAST))
    offset = zone.fromutc(_EPOCH.replace(tzinfo=zone) + timedelta(seconds=instant)).utcoffset()
    assert offset is not None
    return offset.days * _DAY + offset.seconds


def _change(zone: ZoneInfo, start: int, offset: int, stop: int) -> int:
    """Return when the offset that begins at `start` ends, or `stop` if that is earlier."""
    while start < stop:
        until = min(start + _STRETCH, stop)
        if _offset(zone, until) != offset:
            while until - start > 1:
                middle = (start + until) // 2
                if _offset(zone, middle) == offset:
                    start = middle
                else:
                    until = middle
            return until
        start = until
    return stop


@lru_cache(maxsize=8192)
def _periods(zone: ZoneInfo, block: int) -> tuple[_Period, ...]:
    start, stop = block * _BLOCK, (block + 1) * _BLOCK
    before = _offset(zone, start - 1)
    periods = []
    while start < stop:
        offset = _offset(zone, start)
        end = _change(zone, start, offset, stop)
        opens = start + (offset if offset - before >= _CORRECTION else before)
        periods.append(_Period(start, end, offset, opens))
        start, before = end, offset
    return tuple(periods)


_ALWAYS_UTC = _Period(_FIRST - 1, _LAST + 1, 0, _FIRST - 1)


def _period(zone: ZoneInfo, instant: int) -> _Period:
    """Return the period, or a part of it, that an instant lies in."""
    if zone.key == "UTC":
        return _ALWAYS_UTC
    for period in _periods(zone, instant // _BLOCK):
        if instant < period.end:
            break
    return period


def _read_zone(zone: object) -> ZoneInfo:
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone
    if not isinstance(zone, str) or zone in ("", "localtime"):
        raise ConfigurationError(
            f'The time zone {zone!r} is not the name of a zone; use one like "Europe/Berlin". '
            f"(If names are not found, install the package tzdata.)"
        )
    try:
        return ZoneInfo(zone)
    except (LookupError, OSError, ValueError) as error:
        raise ConfigurationError(
            f"The time zone {_shorten(zone)!r} is not found: check its spelling (no quotes, no path); "
            f"where the system has no time zone data, install the package tzdata."
        ) from error


# --- The schedule


class Schedule:
    """
    The occurrences of a cron expression in a time zone.

    Raises ConfigurationError if either cannot be used. `key` is the job's key, by which `H` is hashed. Clock changes
    follow Debian cron: a fixed-time job in the skipped hour runs once, right after it; in the repeated hour once, the
    first time; one whose second, minute or hour field starts with `*` follows elapsed time; a jump of three hours or
    more is a correction, and nothing is made up for it. Immutable, and safe in threads.
    """

    __slots__ = ("_calm", "_expression", "_fingerprint", "_pattern", "_zone", "_zone_name")

    def __init__(self, expression: str, timezone: str | ZoneInfo = "UTC", key: str | None = None) -> None:
        self._pattern = _parse(expression, key)
        self._expression = " ".join(expression.split())
        self._zone = _read_zone(timezone)
        self._zone_name = self._zone.key
        meaning = f"{self._pattern.meaning()} {self._zone_name}"
        self._fingerprint = hashlib.sha256(meaning.encode()).hexdigest()[:16]
        # The last matching day, as far as one offset holds on it: (from, to, its midnight), in UTC seconds. A memo.
        self._calm = (0, 0, 0)

    @property
    def expression(self) -> str:
        """The expression as given, its blanks normalised."""
        return self._expression

    @property
    def timezone(self) -> str:
        """The name of the zone."""
        return self._zone_name

    @property
    def fingerprint(self) -> str:
        """A short text, the same in every process, that changes when the meaning of expression, zone or `H` does."""
        return self._fingerprint

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is allowed but probably not meant, in plain sentences."""
        return tuple(_warnings(self._expression, self._pattern))

    def __repr__(self) -> str:
        return f"Schedule({self._expression!r}, {self._zone_name!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self._fingerprint == other._fingerprint

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
        start, end, midnight = self._calm
        if start <= instant < end:
            time = self._pattern.times.next(instant - midnight)
            if time >= 0 and midnight + time < end:
                return (midnight + time) * 1000
        found = self._next(instant)
        return None if found is None else found * 1000

    def latest_until_ms(self, epoch_ms: int) -> int | None:
        """Return the last occurrence not later, all in whole milliseconds since the epoch."""
        instant = epoch_ms // 1000
        start, end, midnight = self._calm
        if start <= instant < end:
            time = self._pattern.times.previous(instant - midnight)
            if time >= 0 and midnight + time >= start:
                return (midnight + time) * 1000
        found = self._previous(instant)
        return None if found is None else found * 1000

    def describe(self) -> str:
        """Return the schedule in words if the library cron-descriptor is installed, else the expression."""
        try:
            library = importlib.import_module("cron_descriptor")
        except ImportError:
            return self._expression
        texts = [field.text for field in self._pattern.fields]
        plain = " ".join(texts[1:] if texts[0] == "0" else texts)
        try:
            return str(library.get_description(plain))
        except Exception:  # noqa: BLE001 - words are a courtesy: whatever it cannot say, the expression says
            return self._expression

    def _next(self, at: int) -> int | None:
        """Return the first occurrence that is not before `at`, in UTC seconds."""
        fixed = self._pattern.follows_clock
        at = max(at, _FIRST)
        searched, wall = 1, 0  # nothing matches from the wall second `searched` until `wall`
        while at <= _LAST:
            period = _period(self._zone, at)
            lowest = at + period.offset
            if fixed and (at == period.start or lowest < period.opens):
                lowest = period.opens
            if not searched <= lowest <= wall:
                answer = self._pattern.next(lowest)
                if answer is None:
                    return None
                searched, wall = lowest, answer
            found = max(wall - period.offset, period.start)
            if found < period.end:
                self._remember(wall, period)
                return found if found <= _LAST else None
            # Only where the period goes on for longer than clocks jump is what was searched all there is until `wall`.
            at = max(period.end, found - _FAR) if period.end - at > _FAR else period.end
        return None

    def _previous(self, at: int) -> int | None:
        """Return the last occurrence that is not after `at`, in UTC seconds."""
        fixed = self._pattern.follows_clock
        at = min(at, _LAST)
        while at >= _FIRST:
            period = _period(self._zone, at)
            wall = self._pattern.previous(at + period.offset)
            if wall is None:
                return None
            if wall >= (period.opens if fixed else period.start + period.offset):
                self._remember(wall, period)
                return max(wall - period.offset, period.start)
            found = wall - period.offset
            at = min(period.start - 1, found + _FAR) if at - period.start > _FAR else period.start - 1
        return None

    def _remember(self, wall: int, period: _Period) -> None:
        midnight = wall - wall % _DAY - period.offset
        start = max(midnight, period.start + 1, period.opens - period.offset)
        self._calm = (start, min(midnight + _DAY, period.end), midnight)


def _to_seconds(instant: datetime) -> int:
    if not isinstance(instant, datetime):
        raise TypeError(f"An instant is a datetime, not {type(instant).__name__}.")
    if instant.utcoffset() is None:
        raise ConfigurationError(f"The instant {instant!r} has no time zone; give an aware datetime.")
    return (instant - _EPOCH) // timedelta(seconds=1)


def _to_datetime(epoch_ms: int | None) -> datetime | None:
    return None if epoch_ms is None else _EPOCH + timedelta(milliseconds=epoch_ms)
