"""Whatever is declared: a job that can be run, or a refusal that can be read."""

from __future__ import annotations

import math
from datetime import datetime, timedelta, timezone
from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from django_cronductor import ConfigurationError, Job, JobRegistry, Schedule
from django_cronductor.schedules import MAX_LENGTH

LONGEST_MESSAGE = 1000
ZONES = ["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]
START = datetime(1990, 1, 1, tzinfo=timezone.utc)

fuzz = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def work() -> None: ...


def work_with(context: object) -> None: ...


async def work_later() -> None: ...


numbers = st.one_of(st.integers(0, 70).map(str), st.integers().map(str))
names = st.sampled_from(
    ["MON", "sun", "Jan", "DEC", "L", "5L", "LW", "15W", "L-3", "2#5", "6#0", "H", "H(0-5)", "R", "?"]
)
atoms = st.one_of(st.just("*"), numbers, names)
ranges = st.builds("{}-{}".format, atoms, atoms)
terms = st.one_of(atoms, ranges, st.builds("{}/{}".format, st.one_of(atoms, ranges), numbers))
fields = st.lists(terms, min_size=1, max_size=4).map(",".join)
blanks = st.sampled_from([" ", "  ", "\t", "\n"])
shaped = st.builds(lambda parts, blank: blank.join(parts), st.lists(fields, min_size=4, max_size=7), blanks)
odd = st.text(st.sampled_from("0123456789*/,-#?@ LWHRMONJA()\t\0éß٣"), max_size=40)
aliases = st.sampled_from(["@daily", "@HOURLY", " @weekly ", "@reboot", "@", "@every 5m"])
expressions = st.one_of(shaped, odd, aliases, st.text(max_size=20))

junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.decimals(),
    st.text(max_size=20),
    st.binary(max_size=20),
    st.timedeltas(),
    st.datetimes(),
    st.lists(st.integers(), max_size=2),
    st.functions(like=lambda: None, returns=st.none()),
)
lengths = st.one_of(
    st.none(),
    st.integers(-1, 10**9),
    st.floats(),
    st.timedeltas(),
    junk,
)
flags = st.one_of(st.booleans(), junk)
zones = st.one_of(st.none(), st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Mars/Olympus"]), junk)
keys = st.one_of(st.text(min_size=1, max_size=10), st.text(st.sampled_from("ab{}\n \0.\ud800é"), max_size=250), junk)
handlers = st.one_of(st.sampled_from([work, work_with, work_later, print, len, int]), junk)


def check_refusal(error: ConfigurationError) -> None:
    assert str(error)
    assert len(str(error)) < LONGEST_MESSAGE
    str(error).encode()


@fuzz
@given(
    expressions, st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"]), st.datetimes()
)
@example("*" * (MAX_LENGTH + 1), "UTC", datetime(2026, 1, 1))
@example(",".join(["0-59"] * 190) + " * * * *", "UTC", datetime(2026, 1, 1))
@example("0 0 29 2 1#5", "UTC", datetime(9999, 12, 31))
def test_a_schedule_answers_in_order_or_is_refused(expression: str, zone: str, naive: datetime) -> None:
    try:
        schedule = Schedule(expression, zone, "some.key")
    except ConfigurationError as error:
        check_refusal(error)
        return
    instant = naive.replace(tzinfo=timezone.utc)
    following, latest = schedule.next_after(instant), schedule.latest_until(instant)
    assert following is None or following > instant
    assert latest is None or latest <= instant
    if following is not None:
        assert schedule.latest_until(following) == following
        assert schedule.latest_until(following - timedelta(seconds=1)) == latest
    assert schedule.describe()
    assert Schedule(schedule.expression, zone, "some.key") == schedule


@fuzz
@given(
    expression=st.one_of(st.just("* * * * *"), expressions, junk),
    handler=handlers,
    key=keys,
    ttl=lengths,
    timezone=zones,
    grace=lengths,
    recover=flags,
    timeout=lengths,
    when=st.one_of(st.none(), handlers),
    enabled=flags,
    takes_context=flags,
)
def test_a_declaration_makes_a_job_that_can_be_run_or_is_refused_and_leaves_nothing_behind(**given: Any) -> None:
    registry = JobRegistry()
    try:
        job = registry.schedule(given.pop("expression"), given.pop("handler"), **given)
    except ConfigurationError as error:
        check_refusal(error)
        assert len(registry) == 0
        return
    check_job(job, registry, given)


@fuzz
@given(option=st.sampled_from(["ttl", "grace", "timeout"]), value=lengths)
def test_a_length_of_time_is_whole_milliseconds_within_bounds_or_is_refused(option: str, value: Any) -> None:
    try:
        job = JobRegistry().schedule("* * * * *", work, key="job", **{option: value})
    except ConfigurationError as error:
        check_refusal(error)
        return
    found = getattr(job, f"{option}_ms")
    if value is None:
        assert found is None
        return
    seconds = value.total_seconds() if isinstance(value, timedelta) else value
    assert 1 <= found <= 366 * 24 * 3600 * 1000
    assert math.isclose(found, seconds * 1000, abs_tol=0.51)


def check_job(job: Job, registry: JobRegistry, given: dict[str, Any]) -> None:
    assert registry.get(job.key) is job
    assert 1 <= len(job.key) <= 200
    assert job.key.isprintable()
    assert not set(job.key) & set("{}")
    assert all(length is None or length >= 1 for length in (job.ttl_ms, job.grace_ms, job.timeout_ms))
    assert job.ttl_ms is None or job.grace_ms is None or job.ttl_ms <= job.grace_ms
    assert job.active is given["enabled"]
    following = job.schedule("UTC").next_after(START)
    assert following is not None
    assert following > START
    job.stop()
    job.destroy()
    assert job.key not in registry
