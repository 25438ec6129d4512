"""Schedules: what an expression means, when it is due around changes of the clock, and what is refused."""

from __future__ import annotations

import itertools
import json
import pickle
import random
import re
import subprocess
import sys
import threading
import time
import types
import zoneinfo
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from croniter import croniter
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from django_cronductor import schedules
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.schedules import Schedule
from tests.schedule_fuzz import ZONES, deviation, random_case
from tests.schedule_oracle import Expression, simulate

UTC = timezone.utc
CASES = [
    json.loads(line) for line in (Path(__file__).parent / "data" / "schedule_cases.jsonl").read_text().splitlines()
]
DUE = [pytest.param(case, id=case["id"]) for case in CASES if not case.get("refuse")]
REFUSED = [pytest.param(case["expression"], id=case["id"]) for case in CASES if case.get("refuse")]


def at(text: str) -> datetime:
    return datetime.fromisoformat(text)


def to_ms(instant: datetime) -> int:
    return (instant - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def following(schedule: Schedule, instant: datetime, count: int) -> list[datetime]:
    found = []
    for _ in range(count):
        answer = schedule.next_after(instant)
        assert answer is not None
        found.append(answer)
        instant = answer
    return found


# --- When jobs are due


@pytest.mark.parametrize("case", DUE)
def test_the_next_occurrences_are_those_of_the_case(case: dict[str, Any]) -> None:
    expected = [at(text) for text in case["expected"]]
    assert following(Schedule(case["expression"], case["zone"]), at(case["start"]), len(expected)) == expected


@pytest.mark.parametrize("case", DUE)
def test_going_back_meets_the_same_occurrences(case: dict[str, Any]) -> None:
    expected = [at(text) for text in case["expected"]]
    schedule = Schedule(case["expression"], case["zone"])
    for earlier, later in itertools.pairwise(expected):
        assert schedule.latest_until(later) == later
        assert schedule.latest_until(later - timedelta(seconds=1)) == earlier
        assert Schedule(case["expression"], case["zone"]).latest_until(later - timedelta(seconds=1)) == earlier
    assert (schedule.latest_until(at(case["start"])) or at(case["start"])) <= at(case["start"])


@pytest.mark.parametrize("case", DUE)
def test_the_oracle_agrees_with_the_case(case: dict[str, Any]) -> None:
    expression, zone = Expression(case["expression"]), zoneinfo.ZoneInfo(case["zone"])
    found: list[int] = []
    now = int(at(case["start"]).timestamp()) + 1
    while len(found) < len(case["expected"]):
        due, now = simulate(expression, zone, now, 1000)
        found += due
    assert found[: len(case["expected"])] == [int(at(text).timestamp()) for text in case["expected"]]


@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(rng=st.randoms(use_true_random=False), seed=st.integers(0, 2**32))
def test_schedules_and_the_oracle_agree_on_any_expression_zone_and_start(rng: random.Random, seed: int) -> None:
    case = random_case(rng, ZONES)
    assert deviation(case, random.Random(seed), ticks=400) is None, case


PLAIN = st.sampled_from(["*", "*/2", "*/5", "*/7", "3", "1,4", "2-5", "1-6/2", "1,3-5"])


@given(PLAIN, PLAIN, PLAIN, PLAIN, PLAIN, st.booleans(), st.integers(1_500_000_000, 2_500_000_000))
def test_plain_expressions_are_due_in_utc_when_croniter_says(
    minute: str, hour: str, day: str, month: str, weekday: str, by_weekday: bool, start: int
) -> None:
    """One of the two kinds of days alone: how both are joined is where readings differ."""
    expression = " ".join([minute, hour, *(("*", month, weekday) if by_weekday else (day, month, "*"))])
    theirs = croniter(expression, float(start))
    mine, instant = Schedule(expression), start * 1000
    for _ in range(5):
        instant = mine.next_after_ms(instant) or 0
        assert instant == theirs.get_next(float) * 1000


CHANGES = [
    ("Europe/Berlin", "2026-03-29T01:00:00+00:00"),
    ("Europe/Berlin", "2026-10-25T01:00:00+00:00"),
    ("Asia/Baku", "2013-03-31T00:00:00+00:00"),
    ("Asia/Baku", "2010-10-31T00:00:00+00:00"),
    ("America/Sao_Paulo", "2018-11-04T03:00:00+00:00"),
    ("America/St_Johns", "2006-10-29T02:31:00+00:00"),
    ("Australia/Lord_Howe", "2026-04-04T15:00:00+00:00"),
    ("America/Recife", "2000-10-15T02:00:00+00:00"),
    ("Africa/Freetown", "1939-09-01T01:00:00+00:00"),
    ("Antarctica/Troll", "2026-10-25T01:00:00+00:00"),
    ("Antarctica/Casey", "2011-10-27T18:00:00+00:00"),
    ("Antarctica/Casey", "2010-03-04T15:00:00+00:00"),
    ("Pacific/Apia", "2011-12-30T10:00:00+00:00"),
    ("Pacific/Kwajalein", "1969-09-30T13:00:00+00:00"),
]
DAYS = timedelta(days=1)


@pytest.mark.parametrize(
    "expression", ["*/30 * * * *", "15,45 0-5,22,23 * * *", "0 3,12 * * *", "30 0-3 {day} * *", "50 {hour} {day} * *"]
)
@pytest.mark.parametrize(("zone", "change"), CHANGES)
def test_it_does_not_matter_from_where_one_asks_around_a_change(expression: str, zone: str, change: str) -> None:
    moment = at(change)
    eve = (moment - timedelta(minutes=1)).astimezone(zoneinfo.ZoneInfo(zone))
    expression = expression.format(day=eve.day, hour=eve.hour)
    start = int((moment - 5 * DAYS).timestamp())
    due, until = simulate(Expression(expression), zoneinfo.ZoneInfo(zone), start, 10 * 1440)
    asked = range(int((moment - 2 * DAYS).timestamp()), int((moment + 2 * DAYS).timestamp()), 900)
    remembering = Schedule(expression, zone)
    for instant in random.Random(1).sample(asked, len(asked)):
        following = next((n * 1000 for n in due if n > instant), None)
        latest = next((n * 1000 for n in reversed(due) if n <= instant), None)
        for schedule in (remembering, Schedule(expression, zone)):
            found, before = schedule.next_after_ms(instant * 1000), schedule.latest_until_ms(instant * 1000)
            assert found == following or (following is None and found is not None and found >= until * 1000)
            assert before == latest or (latest is None and before is not None and before < start * 1000)


def test_minutes_and_seconds_before_the_gap_give_the_same_answer() -> None:
    schedule = Schedule("1 2 * * *", "America/New_York")
    for start in ("2026-03-08T01:59:55-05:00", "2026-03-08T01:58:55-05:00", "2026-03-08T01:59:59.999999-05:00"):
        assert schedule.next_after(at(start)) == at("2026-03-08T03:00:00-04:00")


def test_the_same_wall_time_in_both_passes_of_a_fold_is_two_instants() -> None:
    zone = zoneinfo.ZoneInfo("Europe/Berlin")
    schedule = Schedule("*/10 * * * *", zone)
    first = datetime(2026, 10, 25, 2, 55, tzinfo=zone)
    assert schedule.next_after(first) == at("2026-10-25T02:00:00+01:00")
    assert schedule.next_after(first.replace(fold=1)) == at("2026-10-25T03:00:00+01:00")


def test_milliseconds_and_microseconds_count() -> None:
    schedule = Schedule("* * * * *")
    noon = at("2026-06-01T12:00:00+00:00")
    noon_ms = to_ms(noon)
    assert schedule.next_after(noon - timedelta(microseconds=1)) == noon
    assert (
        schedule.next_after(noon)
        == schedule.next_after(noon + timedelta(microseconds=1))
        == noon + timedelta(minutes=1)
    )
    assert schedule.latest_until(noon) == schedule.latest_until(noon + timedelta(microseconds=1)) == noon
    assert schedule.latest_until(noon - timedelta(microseconds=1)) == noon - timedelta(minutes=1)
    assert [schedule.next_after_ms(noon_ms + n) for n in (-1, 0, 1)] == [noon_ms, noon_ms + 60_000, noon_ms + 60_000]
    assert [schedule.latest_until_ms(noon_ms + n) for n in (-1, 0, 1)] == [noon_ms - 60_000, noon_ms, noon_ms]


def test_answers_are_in_utc() -> None:
    schedule = Schedule("0 0 * * *", "Asia/Tokyo")
    for answer in (
        schedule.next_after(at("2026-01-01T00:00:00+09:00")),
        schedule.latest_until(at("2026-01-01T00:00:00+00:00")),
    ):
        assert answer is not None
        assert answer.tzinfo is UTC


@pytest.mark.parametrize("zone", ["UTC", "Pacific/Kiritimati", "America/New_York"])
def test_where_the_calendar_ends_there_is_nothing(zone: str) -> None:
    schedule = Schedule("0 0 1 1 *", zone)
    assert schedule.next_after(datetime.max.replace(tzinfo=UTC)) is None
    assert schedule.latest_until(datetime.min.replace(tzinfo=UTC)) is None
    assert schedule.next_after_ms(10**30) is None
    assert schedule.latest_until_ms(-(10**30)) is None
    assert schedule.next_after(datetime(9999, 1, 2, tzinfo=UTC)) is None
    assert Schedule("0 0 31 12 *", zone).latest_until(datetime(1, 1, 5, tzinfo=UTC)) is None
    assert schedule.latest_until_ms(10**30) == schedule.latest_until_ms(to_ms(datetime(9999, 12, 1, tzinfo=UTC)))
    assert schedule.next_after_ms(-(10**30)) == schedule.next_after_ms(to_ms(datetime.min.replace(tzinfo=UTC)))


@pytest.fixture
def sydney_process(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Australia/Sydney")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("sydney_process")
def test_the_time_zone_of_the_process_does_not_matter() -> None:
    assert time.timezone == -10 * 3600
    hours = following(Schedule("0 * * * *"), at("2025-10-04T15:00:00+00:00"), 3)
    assert hours == [at(f"2025-10-04T{hour}:00:00+00:00") for hour in (16, 17, 18)]
    nights = following(Schedule("30 2 * * *", "Europe/Berlin"), at("2026-03-28T12:00:00+01:00"), 2)
    assert nights == [at("2026-03-29T03:00:00+02:00"), at("2026-03-30T02:30:00+02:00")]


def test_threads_share_a_schedule() -> None:
    schedule = Schedule("*/20 1-4 * * *", "Europe/Berlin")
    starts = [at("2026-03-20T00:00:00+00:00") + timedelta(days=100 * n) for n in range(4)]
    expected = [following(Schedule("*/20 1-4 * * *", "Europe/Berlin"), start, 300) for start in starts]
    found: dict[int, list[datetime]] = {}
    threads = [
        threading.Thread(target=lambda n=n, start=start: found.update({n: following(schedule, start, 300)}))
        for n, start in enumerate(starts)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[n] for n in range(4)] == expected


# --- What is refused


@pytest.mark.parametrize("expression", REFUSED)
def test_an_expression_that_cannot_be_kept_is_refused_by_name(expression: str) -> None:
    with pytest.raises(ConfigurationError, match="The schedule") as caught:
        Schedule(expression)
    assert repr(expression) in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        (None, "it is NoneType, not text"),
        (b"* * * * *", "it is bytes, not text"),
        (5, "it is int, not text"),
        (",".join(["0-59"] * 5000) + " * * * *", "characters, at most 1000 are read; use ranges and steps"),
        ("0\u00a00 * * *", r"character 2, '\xa0', has no meaning here"),
        ("* * *", "it has 3 fields; write five, or six with the seconds first"),
        ("* * * * * * *", "it has 7 fields; write five, or six"),
        ("0 24 * * *", 'the hour field "24" is wrong: 24 is out of range, use 0 to 23'),
        ("0 0 0 * * 8", 'the day-of-week field "8" is wrong: 8 is out of range, use 0 to 7'),
        ("*/0 * * * *", 'the minute field "*/0" is wrong: a step of 0'),
        ("0 0 * FOO *", '"FOO" is not a number or a name such as FEB'),
        ("1,,2 * * * *", "there is an empty place in the list"),
        ("R * * * *", "R would be drawn anew in each replica; use H"),
        ("H * * * *", "H is hashed by the job's key, and there is none"),
        ("1,H * * * *", "H stands alone in its field"),
        ("0 ? * * *", "? stands alone, and only in the day-of-month or day-of-week field"),
        ("0 0 * * L", "L alone names no weekday; 5L is the last Friday"),
        ("0 0 * * 1#6", "#6 is no week of a month, use #1 to #5"),
        ("0 0 L-31 * *", "no month has 31 days before its last"),
        ("0 0 31 2 *", "it never runs, because no month has such a day"),
        ("@reboot", "there is no such alias; there are @yearly,"),
    ],
)
def test_a_refusal_says_where_and_why(expression: Any, reason: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Schedule(expression)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("field", ["H(5-3)", "H(0-99)", "H/0", "H(0-9)/0", "H-5", "H(1)", "HH", "H(0-9", "H#2"])
def test_a_hash_that_cannot_be_read_is_refused(field: str) -> None:
    with pytest.raises(ConfigurationError, match="minute field"):
        Schedule(f"{field} * * * *", key="shop.sync")


@given(st.text(alphabet="0123456789*/-,LWHR#?@ ()\tJANMONSUNjanmon\x00\u00a0\u0663", max_size=40))
@settings(max_examples=1500, deadline=None)
def test_any_text_is_read_or_refused_with_a_reason(text: str) -> None:
    try:
        schedule = Schedule(text, key="shop.sync")
    except ConfigurationError:
        return
    assert schedule.next_after_ms(0) is not None


@pytest.mark.parametrize(
    "zone",
    [
        "Europe/Berlim",
        '"Europe/Berlin"',
        "",
        None,
        "/etc/localtime",
        "../x",
        "a\x00b",
        "x" * 5000,
        "Europe",
        "localtime",
    ],
)
def test_a_zone_that_does_not_exist_is_refused_by_name_with_what_to_do(zone: Any) -> None:
    with pytest.raises(ConfigurationError, match="install the package tzdata") as caught:
        Schedule("* * * * *", zone)
    assert repr(zone)[:70] in str(caught.value)


def test_a_zone_without_a_name_is_refused() -> None:
    """Replicas could not compare it."""
    path = next(Path(folder) / "UTC" for folder in zoneinfo.TZPATH if (Path(folder) / "UTC").exists())
    with path.open("rb") as file, pytest.raises(ConfigurationError):
        Schedule("* * * * *", zoneinfo.ZoneInfo.from_file(file))


def test_naive_instants_are_refused() -> None:
    schedule = Schedule("* * * * *")
    for ask in (schedule.next_after, schedule.latest_until):
        with pytest.raises(ConfigurationError, match="has no time zone; give an aware datetime"):
            ask(datetime(2026, 1, 1))
        with pytest.raises(TypeError, match="not str"):
            ask("2026-01-01")  # type: ignore[arg-type]


HOSTILE = [
    "0 0 29 2 */7",
    "* * 29 2 MON#5",
    "* * * * * *",
    "59 59 23 31 12 *",
    "0 0 */28 2 7",
    ",".join(["1-59/2"] * 140) + " * * * *",
    "0 0 31 2,4,6,9,11 *",
    "0 0 L-30 2 *",
    "9" * 900 + " * * * *",
    "*/" + "9" * 900 + " * * * *",
    "H/" + "9" * 900 + " * * * *",
    "0" * 990 + " * * * *",
]


@pytest.mark.parametrize("expression", HOSTILE)
@pytest.mark.parametrize("zone", ["UTC", "Africa/Casablanca", "Pacific/Apia"])
def test_nothing_takes_longer_than_ten_milliseconds(expression: str, zone: str) -> None:
    def once(start: datetime) -> float:
        for cached in (schedules._read_field, schedules._read_pattern, schedules._seconds_of_hour, schedules._periods):
            cached.cache_clear()
        began = time.process_time()
        try:
            schedule = Schedule(expression, zone, "shop.sync")
            schedule.next_after(start)
            schedule.latest_until(start)
        except ConfigurationError:
            pass
        return time.process_time() - began

    Schedule("H * * * *", key="croniter is loaded now")
    for start in (datetime.min, datetime(2011, 12, 30, 10), datetime(2097, 1, 1), datetime.max):
        assert min(once(start.replace(tzinfo=UTC)) for _ in range(5)) < 0.010


# --- Names, hashes, words


@pytest.mark.parametrize(
    ("expression", "key", "same_as"),
    [
        ("H H * * *", "shop.sync", "42 15 * * *"),
        ("H H * * *", "shop.report", "13 12 * * *"),
        ("H/15 * * * *", "shop.sync", "12,27,42,57 * * * *"),
        ("H(30-40) H(0-5) * * H(1-5)", "shop.sync", "31 3 * * 4"),
        ("H H H H H H", "shop.sync", "51 42 15 4 4 0"),
        ("h/90 * * * *", "shop.sync", "42 * * * *"),
        ("H/1 H(3-3) * * *", "shop.sync", "* 3 * * *"),
        ("0 0 H * *", "shop.sync", "0 0 4 * *"),
    ],
)
def test_a_hash_is_the_same_everywhere_and_always(expression: str, key: str, same_as: str) -> None:
    start = at("2026-01-01T00:00:00+00:00")
    assert following(Schedule(expression, key=key), start, 20) == following(Schedule(same_as), start, 20)


@given(st.text())
def test_a_hashed_day_of_month_comes_in_every_month(key: str) -> None:
    months = [day.month for day in following(Schedule("0 0 H * *", key=key), at("2026-01-01T00:00:00+00:00"), 12)]
    assert sorted(months) == list(range(1, 13))


def test_a_key_changes_nothing_where_there_is_no_hash() -> None:
    assert Schedule("@daily", key="shop.sync") == Schedule("@daily", key="shop.report") == Schedule("@daily")


def test_croniter_is_loaded_only_for_a_hash() -> None:
    code = (
        "import sys; from django_cronductor.schedules import Schedule; Schedule('*/5 * * * 1-5').next_after_ms(0); "
        "assert 'croniter' not in sys.modules; Schedule('H * * * *', key='a'); assert 'croniter' in sys.modules"
    )
    root = Path(__file__).parent.parent
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


def test_the_fingerprint_tells_meanings_apart() -> None:
    different = [
        Schedule("0 2 * * *"),
        Schedule("0 2 * * *", "Europe/Berlin"),
        Schedule("0 3 * * *"),
        Schedule("1 0 2 * * *"),
        Schedule("*/60 2 * * *"),
        Schedule("0 2 13 * 5"),
        Schedule("0 2 13 * */5"),
        Schedule("0 2 L * *"),
        Schedule("0 2 L-1 * *"),
        Schedule("0 2 * * 1#1"),
        Schedule("0 2 * * 1L"),
        Schedule("0 H * * *", key="shop.sync"),
        Schedule("0 H * * *", key="shop.report"),
    ]
    assert len({schedule.fingerprint for schedule in different}) == len(different)
    assert len(set(different)) == len(different)


def test_the_fingerprint_is_the_same_for_the_same_meaning() -> None:
    assert (
        Schedule("@hourly").fingerprint == Schedule(" 0  *\t* * ? ").fingerprint == Schedule("0 0 * * * *").fingerprint
    )
    assert Schedule("0 0 * JAN SUN") == Schedule("00 00 * 1 7")
    assert Schedule("0 0 * JAN SUN") != "0 0 * JAN SUN"


def test_the_fingerprint_does_not_change_between_releases() -> None:
    """What the store knows of a job hangs on it."""
    assert Schedule("*/5 * * * *").fingerprint == "f7eeb25e55a535f6"
    assert Schedule("H 2 L * MON#1", "Europe/Berlin", "shop.sync").fingerprint == "e76e2bf4bb98a6c3"


def test_the_expression_is_kept_as_given_but_for_blanks() -> None:
    schedule = Schedule("  0\t2  * *  Mon ", zoneinfo.ZoneInfo("Europe/Berlin"))
    assert (schedule.expression, schedule.timezone) == ("0 2 * * Mon", "Europe/Berlin")
    assert repr(schedule) == "Schedule('0 2 * * Mon', 'Europe/Berlin')"


def test_a_schedule_cannot_be_changed() -> None:
    schedule = Schedule("@daily")
    for name in ("expression", "timezone", "fingerprint", "warnings", "other"):
        with pytest.raises(AttributeError):
            setattr(schedule, name, "x")


def test_a_schedule_can_be_pickled() -> None:
    schedule = Schedule("H 2 * * *", "Europe/Berlin", "shop.sync")
    copy = pickle.loads(pickle.dumps(schedule))
    assert copy == schedule
    assert copy.next_after_ms(0) == schedule.next_after_ms(0)


@pytest.mark.parametrize(
    ("expression", "said"),
    [
        ("*/90 * * * *", ['"*/90" in the minute field of "*/90 * * * *" runs only at 0']),
        ("59/15 * * * *", ["runs only at 59"]),
        ("0 */24 */31 * *", ['"*/24" in the hour field', '"*/31" in the day-of-month field']),
        ("* */4 * * *", ['"* */4 * * *" runs 60 times in each matching hour']),
        ("*/30 * */4 * * *", ['"*/30 * */4 * * *" runs 120 times in each matching hour']),
        ("* */5 * * * *", ['"* */5 * * * *" runs 60 times in each matching minute']),
    ],
)
def test_what_is_probably_not_meant_is_warned_of(expression: str, said: list[str]) -> None:
    warnings = Schedule(expression).warnings
    assert len(warnings) == len(said)
    assert all(part in warning for part, warning in zip(said, warnings, strict=True))


@pytest.mark.parametrize(
    "expression",
    [
        "* * * * *",
        "*/5 * * * *",
        "0 */4 * * *",
        "* 9-17 * * *",
        "* * * * * *",
        "*/10 * * * * *",
        "0 0 1-7 * */7",
        "* */1 * * *",
    ],
)
def test_what_is_usual_is_not_warned_of(expression: str) -> None:
    assert Schedule(expression).warnings == ()


def test_words_come_from_the_library_if_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("cron_descriptor")
    library.get_description = lambda text: f"<{text}>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cron_descriptor", library)
    assert Schedule("@daily").describe() == "<0 0 * * *>"
    assert Schedule("*/10 H * * * ?", key="shop.sync").describe() == "<*/10 42 * * * *>"
    assert Schedule("0 0 13 * 5").describe() == "<0 0 13 * 5>"


def test_no_words_are_said_where_the_library_would_say_or_of_days_that_must_match_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    library = types.ModuleType("cron_descriptor")
    library.get_description = lambda text: f"<{text}>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cron_descriptor", library)
    for expression in ("0 0 */2 * 1", "0 0 1-7 * */2"):
        assert Schedule(expression).describe() == expression


def test_one_value_is_said_as_one_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("cron_descriptor")
    library.get_description = lambda text: f"<{text}>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cron_descriptor", library)
    assert Schedule("0-0 0 * * *").describe() == "<0 0 * * *>"
    assert Schedule("00 9-9 * */90 SUN-SUN").describe() == "<0 9 * 1 0>"
    assert Schedule("0 0 LW * *").describe() == "<0 0 LW * *>"


def test_no_words_are_said_of_lists_that_the_library_would_say_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("cron_descriptor")
    library.get_description = lambda text: f"<{text}>"  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cron_descriptor", library)
    for expression in ("0 0 1W,LW * *", "0 0 15,L * *", "0 0 * * 1#2,3", "1,*/20 * * * *"):
        assert Schedule(expression).describe() == expression


def test_without_the_library_the_expression_is_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cron_descriptor", None)
    assert Schedule("@daily").describe() == "@daily"


def test_where_the_library_has_no_words_the_expression_is_the_description(monkeypatch: pytest.MonkeyPatch) -> None:
    library = types.ModuleType("cron_descriptor")
    library.get_description = lambda text: 1 / 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cron_descriptor", library)
    assert Schedule("@daily").describe() == "@daily"


@pytest.mark.parametrize(
    ("expression", "zone", "instant", "words"),
    [
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T03:00:00+02:00", "02:30 does not exist this day: runs at 03:00"),
        (
            "0 2 * * *",
            "Australia/Lord_Howe",
            "2026-10-04T02:30:00+11:00",
            "02:00 does not exist this day: runs at 02:30",
        ),
        (
            "5 30 2 * * *",
            "Europe/Berlin",
            "2026-03-29T03:00:00+02:00",
            "02:30:05 does not exist this day: runs at 03:00",
        ),
        (
            "30 2 * * *",
            "Europe/Berlin",
            "2026-10-25T02:30:00+02:00",
            "02:30 comes twice this day: runs the first time only",
        ),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T02:30:00+02:00", "02:30 comes twice this day: the first time"),
        ("30 * * * *", "Europe/Berlin", "2026-10-25T02:30:00+01:00", "02:30 comes twice this day: the second time"),
        (
            "30 0 * * *",
            "Antarctica/Casey",
            "2010-03-05T00:30:00+11:00",
            "00:30 comes twice this day: runs the first time only",
        ),
        ("0 3 * * *", "Europe/Berlin", "2026-03-29T03:00:00+02:00", None),
        ("*/30 * * * *", "Europe/Berlin", "2026-03-29T03:00:00+02:00", None),
        ("30 2 * * *", "Europe/Berlin", "2026-03-28T02:30:00+01:00", None),
        ("30 3 * * *", "Europe/Berlin", "2026-10-25T03:30:00+01:00", None),
        ("0 12 * * *", "Pacific/Apia", "2011-12-31T12:00:00+14:00", None),
        ("30 2 * * *", "UTC", "2026-03-29T02:30:00+00:00", None),
    ],
)
def test_what_a_clock_change_means_for_an_occurrence_is_said(
    expression: str, zone: str, instant: str, words: str | None
) -> None:
    schedule = Schedule(expression, zone)
    at = datetime.fromisoformat(instant)
    assert schedule.latest_until(at) == at, "it is an occurrence"
    assert schedule.clock_change(at) == words


@pytest.mark.parametrize(
    ("expression", "crontab"),
    [
        ("*/5 * * * *", "*/5 * * * *"),
        ("30 */5 9-17 * * mon-fri", "*/5 9,10,11,12,13,14,15,16,17 * * 1,2,3,4,5"),
        ("0 22-2 ? jan 7", "0 0,1,2,22,23 * 1 0"),
        ("@daily", "0 0 * * *"),
        ("59/15 * * * *", "59 * * * *"),
        ("0 0 13 * fri", "0 0 13 * 5"),
        ("*/10 * * * * *", None),
        ("0,30 * * * * *", None),
        ("0 0 L * *", None),
        ("0 0 15W * *", None),
        ("0 0 * * 1#2", None),
        ("0 0 * * 5L", None),
    ],
)
def test_a_schedule_is_told_in_the_fields_of_crontab_if_they_can_say_it(expression: str, crontab: str | None) -> None:
    assert Schedule(expression).crontab == crontab


def test_h_is_told_in_crontab_as_what_it_stands_for() -> None:
    schedule = Schedule("H H * * *", key="shop.sync")
    assert schedule.crontab is not None
    assert re.fullmatch(r"\d+ \d+ \* \* \*", schedule.crontab)
    start = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert Schedule(schedule.crontab).next_after(start) == schedule.next_after(start)
