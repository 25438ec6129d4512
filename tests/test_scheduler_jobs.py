"""The loop: what is made up and what is not, jobs that come and go, days on which the clocks change."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from django.test import override_settings

from django_cronductor.exceptions import ConfigurationError, JobNotFound
from django_cronductor.jobs import JobRegistry
from django_cronductor.schedules import Schedule
from tests.scheduler_world import LocalStore, RedisStore, World, at

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


# What is made up.


def test_the_first_start_runs_nothing_that_was_due_before(world: World) -> None:
    world.job("* * * * *", "minutely")
    world.job("0 12 * * *", "now")
    world.job("0 15 * * *", "later")
    world.replica()
    world.tick()
    world.go(at(12, 0, 59))
    assert world.runs == []
    world.go(at(15), step=60)
    assert world.ran("later") == [at(15)]
    assert world.ran("now") == []
    assert world.missed() == []


def test_a_restart_near_the_minute_does_not_run_it_again(world: World) -> None:
    world.job("* * * * *", grace=60, ttl=30)
    first = world.replica()
    world.tick(first)
    world.go(at(12, 1, 0.2), first)
    world.until(at(12, 1, 3))
    second = world.replica()
    world.go(at(12, 1, 59), second)
    assert world.ran() == [at(12, 1)]


def test_an_occurrence_due_while_all_were_down_runs_once_within_its_grace(world: World) -> None:
    world.job("0 12 * * *", grace=60)
    world.clock.set_time(at(11, 59, 50))
    world.tick(world.replica())
    world.until(at(12, 0, 20))
    restarted = [world.replica(), world.replica()]
    world.go(at(12, 1), *restarted)
    assert [(context.scheduled_at, context.trigger, context.missed) for context in world.runs] == [
        (at(12), "catch-up", 0)
    ]
    assert world.missed() == []


def test_an_occurrence_due_while_all_were_down_is_reported_missed_once_after_its_grace(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("0 13 * * *", grace=60)
    world.tick(world.replica())
    world.until(at(13, 1, 0.001))
    restarted = [world.replica(), world.replica()]
    world.go(at(13, 3), *restarted)
    assert world.runs == []
    assert world.missed() == [("job", at(13), 1)]
    record = next(record for record in caplog.records if record.levelno == logging.WARNING)
    assert (record.job, record.scheduled_at, record.outcome) == ("job", at(13), "missed")


def test_an_occurrence_at_the_very_end_of_its_grace_still_runs(world: World) -> None:
    world.job("0 13 * * *", grace=60)
    world.tick(world.replica())
    world.until(at(13, 1))
    world.tick(world.replica())
    assert world.ran() == [at(13)]


def test_many_occurrences_are_one_run_of_the_newest(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.clock.advance(2 * 3600 + 10)
    world.tick()
    world.go(at(14, 0, 59))
    assert [(context.scheduled_at, context.trigger, context.missed) for context in world.runs] == [
        (at(14), "catch-up", 119)
    ]
    assert world.missed() == [("job", at(13, 59), 119)]


def test_a_thousand_missed_occurrences_are_counted_and_no_more(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.job("* * * * * *")
    world.replica()
    world.tick()
    world.clock.advance(86_400)
    world.tick()
    assert [(context.scheduled_at, context.missed) for context in world.runs] == [(at(12, day=6), 1000)]
    assert world.missed() == [("job", at(11, 59, 59, day=6), 1000)]
    assert "(1000+ in all)" in caplog.text


def test_the_grace_is_each_jobs_own(world: World) -> None:
    world.job("30 12 * * *", "patient", grace=timedelta(hours=4))
    world.job("30 12 * * *", "strict", grace=60)
    world.tick(world.replica())
    world.until(at(15))
    replicas = [world.replica(), world.replica()]
    world.go(at(15, 1), *replicas)
    assert world.ran("patient") == [at(12, 30)]
    assert world.ran("strict") == []
    assert world.missed() == [("strict", at(12, 30), 1)]


def test_the_default_grace_is_for_jobs_that_name_none_and_never_below_their_ttl(world: World) -> None:
    world.job("0 13 * * *", "plain")
    world.job("0 13 * * *", "long", ttl=600)
    world.tick(world.replica(default_grace_ms=120_000))
    world.until(at(13, 8))
    world.tick(world.replica(default_grace_ms=120_000))
    assert world.ran("long") == [at(13)]
    assert world.missed() == [("plain", at(13), 1)]


def test_a_loop_late_by_seconds_drops_nothing_by_default(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.until(at(12, 1, 1.5))
    world.tick()
    assert world.ran() == [at(12, 1)]


def test_with_unequal_gaps_the_newest_slot_is_judged(world: World) -> None:
    world.clock.set_time(at(8, 40))
    world.job("0,45 * * * *", grace=1800)
    replica = world.replica()
    world.tick()
    world.go(at(8, 46), replica, step=60)
    world.until(at(10, 20))
    world.tick(world.replica())
    assert world.ran() == [at(8, 45), at(10)]
    assert world.missed() == [("job", at(9, 45), 2)]


def test_a_changed_schedule_starts_anew(world: World) -> None:
    world.job("0 13 * * *")
    world.tick(world.replica())
    world.until(at(14))
    registry = JobRegistry()
    world.job("55 * * * *", registry=registry, grace=3600)
    changed = world.replica(registry=registry)
    world.go(at(14, 54), changed, step=60)
    assert (world.runs, world.missed()) == ([], [])
    world.go(at(14, 55), changed, step=60)
    assert world.ran() == [at(14, 55)]


def test_a_changed_zone_runs_nothing_at_once_and_is_not_silent_for_hours(world: World) -> None:
    world.job("*/10 * * * *")
    first = world.replica()
    world.tick()
    world.go(at(12, 11), first, step=10)
    moved = world.replica(timezone="Asia/Shanghai")
    world.go(at(12, 20), moved, step=10)
    assert world.ran() == [at(12, 10), at(12, 20)]


def test_jobs_follow_the_time_zone_of_the_settings_or_the_one_given(world: World) -> None:
    world.job("30 13 * * *", "default")
    world.job("30 13 * * *", "own", timezone="Europe/London")
    with override_settings(TIME_ZONE="Europe/Berlin"):
        world.replica()
    world.replica(timezone="Asia/Kolkata", registry=JobRegistry())
    world.tick()
    assert [instant for instant, _ in world.replicas[0].upcoming(1)] == [at(12, 30)]
    world.go(at(13, 30), step=60)
    assert (world.ran("default"), world.ran("own")) == ([at(12, 30)], [at(13, 30)])


def test_a_long_period_job_runs_on_schedule_over_hourly_restarts(world: World) -> None:
    world.job("0 */4 * * *")
    for hour in range(12, 21):
        world.until(at(hour, 30) if hour > 12 else at(12))
        replica = world.replica()
        world.go(at(hour + 1, 25), replica, step=60)
    assert world.ran() == [at(16), at(20)]


def test_a_job_enabled_again_makes_up_nothing(world: World) -> None:
    disabled = JobRegistry()
    world.job("0 * * * *", grace=3600)
    world.job("0 * * * *", grace=3600, enabled=False, registry=disabled)
    world.tick(world.replica())
    world.until(at(12, 30))
    off = world.replica(registry=disabled)
    world.go(at(14, 10), off, step=60)
    on = world.replica()
    world.go(at(14, 59), on, step=60)
    assert (world.runs, world.missed()) == ([], [])
    world.go(at(15), on)
    assert world.ran() == [at(15)]


# Jobs that come and go.


def test_a_job_stopped_and_started_again_makes_up_nothing(world: World) -> None:
    job = world.job("* * * * *", grace=3600)
    world.replica()
    world.tick()
    world.go(at(12, 1))
    job.stop()
    world.go(at(12, 3, 30))
    assert world.ran() == [at(12, 1)]
    job.start()
    world.go(at(12, 3, 59))
    assert world.ran() == [at(12, 1)]
    world.go(at(12, 4))
    assert world.ran() == [at(12, 1), at(12, 4)]


def test_a_job_started_again_makes_up_nothing_after_an_outage_either(world: World) -> None:
    job = world.job("0 13 * * *", grace=3600)
    replica = world.replica()
    world.tick()
    job.stop()
    world.go(at(13, 0, 30), step=30)
    job.start()
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(13, 0, 40))
    replica.link.broken = set()
    world.go(at(13, 1))
    assert (world.runs, world.missed()) == ([], [])


def test_a_job_stopped_here_still_runs_elsewhere(world: World) -> None:
    elsewhere = JobRegistry()
    world.job("* * * * *").stop()
    world.job("* * * * *", registry=elsewhere)
    world.replica()
    world.replica(registry=elsewhere)
    world.tick()
    world.go(at(12, 1))
    assert [context.instance for context in world.runs] == ["replica-2"]


def test_a_job_declared_at_run_time_runs_from_its_next_occurrence_on(world: World) -> None:
    world.replica()
    world.tick()
    world.go(at(12, 0, 30))
    world.job("* * * * *", grace=3600)
    world.go(at(12, 0, 59))
    assert world.runs == []
    world.go(at(12, 1))
    assert world.ran() == [at(12, 1)]


def test_a_job_destroyed_at_run_time_runs_no_more(world: World) -> None:
    job = world.job("* * * * *")
    world.replica()
    world.tick()
    world.go(at(12, 1))
    job.destroy()
    world.go(at(12, 3))
    assert world.ran() == [at(12, 1)]
    assert world.replicas[0].jobs == []


def test_a_job_destroyed_and_declared_anew_goes_on_with_the_new_schedule(world: World) -> None:
    job = world.job("* * * * *")
    world.replica()
    world.tick()
    world.go(at(12, 1))
    job.destroy()
    world.job("*/5 * * * *")
    world.go(at(12, 10))
    assert world.ran() == [at(12, 1), at(12, 5), at(12, 10)]


def test_a_renamed_job_runs_under_both_names_while_a_deploy_lasts(world: World) -> None:
    new = JobRegistry()
    world.job("* * * * *", "demo.tick")
    world.job("* * * * *", "demo.tock", registry=new)
    world.replica()
    world.replica(registry=new)
    world.tick()
    world.go(at(12, 1))
    world.go(at(12, 2), world.replicas[1])
    assert (world.ran("demo.tick"), world.ran("demo.tock")) == ([at(12, 1)], [at(12, 1), at(12, 2)])


def test_only_and_exclude_choose_jobs(world: World) -> None:
    for key in ("a", "b", "c"):
        world.job("* * * * *", key)
    assert [job.key for job in world.replica(only=["a", "b"], exclude=["b"]).jobs] == ["a"]
    assert [job.key for job in world.replica(exclude=["b"]).jobs] == ["a", "c"]


@pytest.mark.parametrize("choice", ["only", "exclude"])
def test_an_unknown_key_in_only_or_exclude_names_the_nearest(world: World, choice: str) -> None:
    world.job("* * * * *", "shop.sync_users")
    with pytest.raises(JobNotFound, match=r"shop\.sync_user.*did you mean shop\.sync_users"):
        world.replica(**{choice: ["shop.sync_user"]})


def test_a_grace_below_the_default_ttl_is_refused_and_named(world: World) -> None:
    world.job("* * * * *", "brief", grace=10)
    with pytest.raises(ConfigurationError, match=r"Job brief .*test_scheduler|Job brief .*scheduler_world"):
        world.replica(default_ttl_ms=30_000)
    world.replica(default_ttl_ms=10_000)


def test_a_bad_job_declared_at_run_time_is_logged_and_does_not_end_the_loop(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *", "good")
    world.replica()
    world.tick()
    world.job("* * * * *", "brief", grace=10)
    world.job("* * * * *", "too", grace=20)
    world.go(at(12, 1))
    world.job("* * * * *", "late")
    world.go(at(12, 2))
    assert (world.ran("good"), world.ran("late")) == ([at(12, 1), at(12, 2)], [at(12, 2)])
    assert world.ran("brief") == []
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert "Job brief" in errors[0]
    assert "Job too" in errors[1]


def test_upcoming_lists_the_nearest_first_and_leaves_out_what_does_not_run(world: World) -> None:
    world.job("0 0 * * *", "nightly")
    world.job("* * * * *", "minutely")
    world.job("* * * * *", "off", enabled=False)
    replica = world.replica()
    assert [(instant, job.key) for instant, job in replica.upcoming(5)] == [
        (at(12, 1), "minutely"),
        (at(0, day=6), "nightly"),
    ]
    assert len(replica.upcoming(1)) == 1


# Changes of the clocks.


def test_jobs_in_the_skipped_hour_run_once_and_minute_jobs_go_on(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.clock.set_time(datetime(2026, 3, 8, 6, 58, 59, tzinfo=timezone.utc))  # 01:58:59 in New York
    world.job("* * * * *", "minutely", timezone="America/New_York")
    world.job("0 2 * * 0", "two", timezone="America/New_York")
    world.job("30 2 * * *", "half past two", timezone="America/New_York")
    world.replica()
    calls = count_schedule_calls(monkeypatch)
    world.tick()
    most = 0
    for _ in range(120):
        world.clock.advance(1)
        calls.clear()
        world.tick()
        most = max(most, len(calls))
    seven = datetime(2026, 3, 8, 7, tzinfo=timezone.utc)
    assert world.ran("two") == [seven]
    assert world.ran("half past two") == [seven]
    assert world.ran("minutely") == [seven - timedelta(minutes=1), seven]
    assert 0 < most <= 4 * 3


def count_schedule_calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    calls: list[str] = []
    for name in ("next_after_ms", "latest_until_ms"):
        real = getattr(Schedule, name)

        def counted(self: Schedule, instant: int, name: str = name, real: object = real) -> object:
            calls.append(name)
            return real(self, instant)  # type: ignore[operator]

        monkeypatch.setattr(Schedule, name, counted)
    return calls


def test_a_tick_with_nothing_due_asks_no_schedule(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(50):
        world.job("0 0 * * *", f"job-{number}")
    world.replica()
    world.tick()
    calls = count_schedule_calls(monkeypatch)
    world.go(at(12, 0, 30))
    assert calls == []


def test_two_fixed_time_jobs_on_the_day_of_the_change_run_once_each(world: World) -> None:
    world.clock.set_time(datetime(2022, 3, 13, 0, 0, tzinfo=timezone.utc))
    for hour in (10, 12):
        world.job(f"0 {hour} * * *", f"at {hour}", timezone="America/New_York")
    world.replica()
    world.tick()
    world.go(datetime(2022, 3, 14, 0, 0, tzinfo=timezone.utc), step=60)
    assert world.ran("at 10") == [datetime(2022, 3, 13, 14, tzinfo=timezone.utc)]
    assert world.ran("at 12") == [datetime(2022, 3, 13, 16, tzinfo=timezone.utc)]


def test_a_day_of_a_noon_job_in_summer_is_one_run(world: World) -> None:
    world.clock.set_time(datetime(2026, 7, 1, 0, 30, tzinfo=timezone.utc))
    world.job("1 12 * * *", timezone="Europe/Berlin")
    world.replica()
    world.tick()
    world.go(datetime(2026, 7, 2, 0, 30, tzinfo=timezone.utc), step=30)
    assert world.ran() == [datetime(2026, 7, 1, 10, 1, tzinfo=timezone.utc)]
