"""What users of scheduled jobs ran into elsewhere, each as a case with its right outcome."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
import redis
from django.test import override_settings

from django_cronductor import ConfigurationError, Schedule
from django_cronductor.history import DatabaseHistory
from django_cronductor.models import JobRun
from django_cronductor.runner import RunContext
from tests.scheduler_world import LocalStore, RedisStore, World, at

NEW_YORK, BERLIN, AMSTERDAM = "America/New_York", "Europe/Berlin", "Europe/Amsterdam"


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


@pytest.mark.parametrize(
    ("expression", "zone", "start", "expected"),
    [
        # The hour that is skipped in spring.
        (
            "0 * * * *",
            NEW_YORK,
            "2022-03-12T22:00:30-05:00",
            ["2022-03-12T23:00-05:00", "2022-03-13T00:00-05:00", "2022-03-13T01:00-05:00", "2022-03-13T03:00-04:00"],
        ),
        # A day that is 23 hours long is a day.
        (
            "0 12 * * 0",
            BERLIN,
            "2022-03-24T12:00+01:00",
            ["2022-03-27T12:00+02:00", "2022-04-03T12:00+02:00", "2022-04-10T12:00+02:00"],
        ),
        (
            "5 0 * * *",
            AMSTERDAM,
            "2021-03-28T01:00+01:00",
            ["2021-03-29T00:05+02:00", "2021-03-30T00:05+02:00", "2021-03-31T00:05+02:00"],
        ),
        ("4 16 * * *", NEW_YORK, "2025-03-09T00:00-05:00", ["2025-03-09T16:04-04:00", "2025-03-10T16:04-04:00"]),
        # Working days around the end of summer time.
        (
            "0 8 * * 1-5",
            NEW_YORK,
            "2018-11-02T07:00-04:00",
            ["2018-11-02T08:00-04:00", "2018-11-05T08:00-05:00", "2018-11-06T08:00-05:00"],
        ),
        # Sunday is 0 and 7, wherever a range or a step ends.
        ("0 10 * * 7", "UTC", "2026-01-01T00:00+00:00", ["2026-01-04T10:00+00:00", "2026-01-11T10:00+00:00"]),
        ("0 9 * * 4-7/3", "UTC", "2026-01-01T12:00+00:00", ["2026-01-04T09:00+00:00", "2026-01-08T09:00+00:00"]),
        # The last Friday, and the last Sunday, of a month.
        ("0 0 * * 5L", "UTC", "2026-01-01T00:00+00:00", ["2026-01-30T00:00+00:00", "2026-02-27T00:00+00:00"]),
        ("0 0 * * SUNL", "UTC", "2026-01-01T00:00+00:00", ["2026-01-25T00:00+00:00", "2026-02-22T00:00+00:00"]),
    ],
)
def test_the_next_occurrences_are_these(expression: str, zone: str, start: str, expected: list[str]) -> None:
    schedule, instant, found = Schedule(expression, zone), datetime.fromisoformat(start), []
    for _ in expected:
        following = schedule.next_after(instant)
        assert following is not None
        found.append(following)
        instant = following
    assert found == [datetime.fromisoformat(one).astimezone(timezone.utc) for one in expected]


def test_a_step_of_zero_in_any_form_is_refused() -> None:
    for field in ("*/0", "5-5/0", "1-31/0", "1-0/0"):
        with pytest.raises(ConfigurationError):
            Schedule(f"0 0 {field} * *")


@pytest.mark.django_db
@override_settings(USE_TZ=False, TIME_ZONE=NEW_YORK)
@pytest.mark.parametrize("flushed", [False, True])
def test_a_restart_in_the_second_pass_of_the_repeated_hour_neither_fails_nor_runs_anything_again(
    world: World, flushed: bool
) -> None:
    first, second = (datetime(2019, 11, 3, hour, tzinfo=timezone.utc) for hour in (5, 6))  # 01:00 in both passes
    world.clock.set_time(first - timedelta(seconds=10))
    world.job("0 * * * *", timezone=NEW_YORK)
    old = world.replica(history=DatabaseHistory(100, inline=True))
    old.tick()
    world.go(first, old)
    world.go(second, old, step=60)
    assert world.ran() == [first, second]

    world.clock.advance(0.336)
    if flushed:
        world.flush()
    new = world.replica(history=DatabaseHistory(100, inline=True))
    new.tick()
    world.go(second + timedelta(seconds=30), new)
    assert world.ran() == [first, second]
    assert sorted(JobRun.objects.values_list("slot", flat=True)) == [
        first.timestamp() * 1000,
        second.timestamp() * 1000,
    ]


@pytest.mark.django_db
def test_two_thousand_jobs_of_one_minute_all_start_within_their_grace(world: World) -> None:
    keys = {f"job-{number:04}" for number in range(2000)}
    for key in keys:
        world.job("* * * * *", key, lambda context: world.clock.advance(0.02), grace=60)
    world.replica()
    world.tick()
    world.until(at(12, 1))
    world.tick()
    assert Counter(context.key for context in world.runs) == Counter(keys)
    assert world.missed() == []


@pytest.mark.django_db
def test_a_burst_that_takes_longer_than_a_lease_starts_nothing_twice(world: World) -> None:
    def work(context: RunContext) -> None:
        world.clock.advance(0.3)
        if len(world.runs) % 20 == 0 and len(world.runs) < 100:
            other.tick()

    keys = [f"job-{number:03}" for number in range(250)]
    for key in keys:
        world.job("1 12 * * *", key, work, ttl=60)
    one, other = world.replica(), world.replica()
    world.tick()
    world.until(at(12, 1))
    one.tick()
    world.tick()
    assert world.clock.time() - at(12, 1).timestamp() > 60
    assert Counter(context.key for context in world.runs) == Counter(keys)


@pytest.mark.django_db
def test_a_manual_run_just_before_an_occurrence_holds_it_and_does_not_take_its_place(world: World) -> None:
    def work(context: RunContext) -> None:
        if context.trigger == "manual":
            world.clock.advance(5)
            other.tick()

    world.job("* * * * *", body=work)
    one, other = world.replica(), world.replica()
    world.tick()
    world.until(at(12, 0, 58))
    assert world.backend.request_run("job")
    one.tick()
    world.go(at(12, 2), step=1)
    assert world.ran() == [None, at(12, 2)]
    assert world.skipped() == [("job", at(12, 1), "held")]


@pytest.mark.django_db
def test_a_thousand_runs_of_twenty_jobs_open_no_more_connections_than_the_first(redis_client: redis.Redis) -> None:
    world = World(RedisStore())
    try:
        for number in range(20):
            world.job("* * * * * *", f"job-{number}")
        replica = world.replica()
        replica.tick()
        world.clock.advance(1)
        replica.tick()
        before = len(redis_client.client_list())
        for _ in range(50):
            world.clock.advance(1)
            replica.tick()
        assert len(world.runs) > 1000
        assert len(redis_client.client_list()) <= before
    finally:
        world.close()


@pytest.mark.django_db
def test_a_store_that_comes_back_empty_from_an_outage_makes_nothing_run_or_be_reported_again() -> None:
    world = World(RedisStore())
    try:
        world.job("* * * * *", grace=3600)
        replicas = [world.replica(), world.replica()]
        world.tick()
        world.go(at(12, 2, 10))
        for replica in replicas:
            replica.link.broken = {"all"}
        world.go(at(12, 2, 15))
        world.flush()
        for replica in replicas:
            replica.link.broken = set()
        world.go(at(12, 3, 30))
        assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]
        assert world.missed() == []
    finally:
        world.close()
