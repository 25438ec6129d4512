"""The loop: each occurrence once, in time, by the store's clock; what is made up and what is not."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest
from django.test import override_settings

from django_cronductor.exceptions import BackendError, BackendRefused, ConfigurationError, JobNotFound
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


# Once, whatever the clocks say.


def test_an_occurrence_runs_once_over_replicas(world: World) -> None:
    world.job("* * * * *")
    for _ in range(3):
        world.replica()
    world.tick()
    world.go(at(12, 10))
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]


def test_an_occurrence_runs_once_whatever_the_replicas_clocks_say(world: World) -> None:
    world.job("* * * * *")
    for ahead in (0.0, 0.4, -0.4, 300.0, -86_400.0):
        world.replica(ahead=ahead, uptime=abs(ahead) * 7)
    world.tick()
    for replicas in itertools.islice(itertools.cycle([world.replicas, world.replicas[::-1]]), 360):
        world.clock.advance(0.5)
        world.tick(*replicas)
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]


@pytest.mark.parametrize("late", [0.001, 0.3, 1.05, 30.0, 59.9])
def test_a_replica_that_wakes_after_the_winner_has_released_does_not_run_it_again(world: World, late: float) -> None:
    world.job("* * * * *")
    punctual, sleeper = world.replica(), world.replica()
    world.tick()
    world.go(at(12, 1), punctual)
    assert world.state().lease is None, "released by the winner"
    world.clock.advance(late)
    world.tick(sleeper)
    assert world.ran() == [at(12, 1)]


def test_three_replicas_that_wake_apart_all_name_the_scheduled_instant(world: World) -> None:
    world.job("5 12 * * *")
    replicas = [world.replica() for _ in range(3)]
    world.tick()
    for replica, second in zip(replicas, (0.0, 0.9, 1.05), strict=True):
        world.until(at(12, 5, second))
        world.tick(replica)
    asked = {claim.occurrence for replica in replicas for claims in replica.link.asked("claim") for claim in claims}
    assert asked == {int(at(12, 5).timestamp() * 1000)}
    assert world.ran() == [at(12, 5)]


def test_two_apps_jobs_that_are_due_at_once_both_run(world: World) -> None:
    world.job("* * * * *", "first.process")
    world.job("* * * * *", "second.process")
    world.replica()
    world.tick()
    world.go(at(12, 1))
    assert sorted(context.key for context in world.runs) == ["first.process", "second.process"]


def test_two_prefixes_on_one_store_do_not_share_occurrences(world: World) -> None:
    other = World(type(world.store)())
    for one in (world, other):
        one.job("* * * * *")
        one.replica()
        one.tick()
        one.go(at(12, 1))
    other.close()
    assert [world.ran(), other.ran()] == [[at(12, 1)], [at(12, 1)]]


def test_many_jobs_due_at_once_run_once_each_over_replicas(world: World) -> None:
    keys = [f"job-{number:03}" for number in range(300)]
    for key in keys:
        world.job("* * * * *", key)
    world.replica()
    world.replica()
    world.tick()
    world.go(at(12, 1))
    assert sorted(context.key for context in world.runs) == keys


def test_twenty_replicas_make_one_run_a_minute(world: World) -> None:
    world.job("* * * * *")
    for number in range(20):
        world.replica(uptime=number)
    world.tick()
    world.go(at(12, 10), step=5)
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]


def test_a_call_asks_about_250_jobs_and_no_more(world: World) -> None:
    for number in range(600):
        world.job("* * * * *", f"job-{number:03}", grace=30)
    replica = world.replica(inline=False, max_workers=1000)
    world.tick()
    world.until(at(12, 1, 31))  # Too late for any of them: nothing is to be run.
    world.tick()
    assert [len(claims) for claims in replica.link.asked("claim")] == [250, 250, 100]
    replica.settle()
    assert len(world.missed()) == 600


# In time.


def test_nothing_runs_before_its_instant_on_the_stores_clock(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica(ahead=0.5)
    world.tick()
    world.until(at(12, 0, 59.998))
    world.tick()
    assert world.ran() == []
    assert replica.tick() <= 0.0021
    world.until(at(12, 1))
    world.tick()
    world.clock.advance(0.001)
    world.tick()
    assert world.ran() == [at(12, 1)]
    assert world.runs[0].trigger == "schedule"


@pytest.mark.parametrize("ahead", [300.0, -300.0])
def test_a_replica_whose_wall_clock_is_wrong_runs_on_time_and_warns_once(
    world: World, caplog: pytest.LogCaptureFixture, ahead: float
) -> None:
    world.job("* * * * *")
    world.replica(ahead=ahead)
    world.tick()
    for minute in range(1, 11):
        world.until(at(12, minute, -0.001))
        world.tick()
        assert world.ran() == [at(12, earlier) for earlier in range(1, minute)]
        world.until(at(12, minute))
        world.tick()
    assert world.ran() == [at(12, minute) for minute in range(1, 11)]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 1
    assert f"300.0 s {'ahead of' if ahead > 0 else 'behind'} the lock store's" in warnings[0]


def test_a_replica_whose_clock_is_right_does_not_warn(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.job("* * * * *")
    world.replica(ahead=0.9)
    world.tick()
    world.go(at(12, 2))
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_wall_clock_set_back_eight_hours_changes_nothing(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    world.go(at(12, 1, 30))
    replica.clocks.ahead = -8 * 3600
    world.go(at(12, 3))
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]


def test_a_loop_that_is_late_still_runs_the_occurrence_it_slept_over(world: World) -> None:
    world.job("* * * * *")
    world.replica()
    world.tick()
    world.go(at(12, 0, 59.9))
    world.clock.advance(1.2)
    world.tick()
    assert world.ran() == [at(12, 1)]
    world.go(at(12, 2))
    assert world.ran() == [at(12, 1), at(12, 2)]


def test_the_wait_for_a_job_in_years_is_at_most_a_second(world: World) -> None:
    world.job("0 0 29 2 *")
    replica = world.replica()
    assert 0 < replica.tick() <= 1
    assert world.replica(registry=JobRegistry()).tick() == 1


def test_the_wait_ends_a_little_before_the_instant_and_the_claim_connection_is_touched_then(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    world.until(at(12, 0, 59.5))
    assert replica.tick() == pytest.approx(0.497, abs=0.0005)
    world.clock.advance(0.498)
    assert replica.tick() == pytest.approx(0.002, abs=0.0005)
    assert replica.link.count("time") == 1
    assert replica.tick() == pytest.approx(0.002, abs=0.0005)
    assert replica.link.count("time") == 1, "once per instant"


def test_an_idle_replica_makes_one_call_a_second(world: World) -> None:
    world.job("0 0 1 1 *")
    replica = world.replica()
    world.tick()
    replica.link.calls.clear()
    for _ in range(1000):
        world.clock.advance(0.01)
        world.tick()
    assert [name for name, _ in replica.link.calls] == ["heartbeat"] * 10


def test_the_lateness_and_the_instant_are_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="django_cronductor")
    world.job("* * * * *")
    world.replica(instance="here")
    world.tick()
    world.until(at(12, 1, 1.5))
    world.tick()
    started = next(record for record in caplog.records if record.getMessage() == "job started.")
    assert started.lateness == pytest.approx(1.5)
    assert (started.job, started.scheduled_at, started.instance) == ("job", at(12, 1), "here")
    assert started.fencing_token == world.runs[0].fencing_token


def test_a_lost_claim_is_told_at_debug_only(world: World, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger="django_cronductor")
    world.job("* * * * *")
    winner, loser = world.replica(instance="winner"), world.replica(instance="loser")
    world.tick()
    world.until(at(12, 1))
    world.tick(winner)
    caplog.clear()
    world.tick(loser)
    assert [(record.levelno, record.outcome) for record in caplog.records] == [(logging.DEBUG, "taken")]


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
    world.go(at(12, 2))
    assert world.ran("good") == [at(12, 1), at(12, 2)]
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


# Starting.


def test_the_first_tick_raises_when_the_store_cannot_be_reached_and_the_next_connects(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    replica.link.broken = {"all"}
    with pytest.raises(BackendError):
        replica.tick()
    replica.link.broken = set()
    world.tick()
    world.go(at(12, 1))
    assert world.ran() == [at(12, 1)]


def test_a_store_that_refuses_us_raises_at_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job("* * * * *")
    replica = world.replica()

    def refuse(instance: str) -> None:
        raise BackendRefused("NOPERM")

    monkeypatch.setattr(replica.link, "heartbeat", refuse)
    with pytest.raises(BackendRefused):
        replica.run()


def test_a_store_that_refuses_every_job_raises_at_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.job("* * * * *", "a")
    world.job("* * * * *", "b")
    replica = world.replica()
    declare = replica.link.declare

    def refuse(declarations: list[object]) -> object:
        reply = declare(declarations)
        reply.answers[:] = [BackendRefused("NOPERM")] * len(declarations)
        return reply

    monkeypatch.setattr(replica.link, "declare", refuse)
    with pytest.raises(BackendRefused, match="NOPERM"):
        replica.run()


def test_the_shortest_ttl_bounds_how_long_a_call_may_wait(world: World) -> None:
    world.job("* * * * *", "a", ttl=1.5)
    world.job("* * * * *", "b", ttl=60)
    assert world.replica().link.timeout == pytest.approx(0.5)
    assert world.replica(only=["b"]).link.timeout == 1.0


def test_on_pass_is_called_at_each_pass(world: World) -> None:
    passes: list[int] = []
    replica = world.replica(on_pass=lambda: passes.append(1))
    for _ in range(3):
        replica.tick()
    assert len(passes) == 3


# Once and no more.


def test_run_once_runs_what_is_due_and_returns(world: World) -> None:
    world.job("0 13 * * *", "due")
    world.job("0 15 * * *", "later")
    assert world.replica().run_once() == 0
    assert world.runs == []
    world.until(at(13, 0, 5))
    assert world.replica().run_once() == 0
    assert world.ran("due") == [at(13)]
    assert world.state("due").lease is None
    world.until(at(13, 0, 10))
    assert world.replica().run_once() == 0
    assert world.ran("due") == [at(13)]
    assert world.backend.instances() == {}


def test_run_once_raises_when_the_store_fails_while_it_is_asked(world: World) -> None:
    world.job("0 13 * * *")
    world.tick(world.replica())
    world.until(at(13))
    replica = world.replica()
    replica.link.broken = {"claim"}
    with pytest.raises(BackendError):
        replica.run_once()
    replica = world.replica()
    replica.link.broken = {"all"}
    with pytest.raises(BackendError):
        replica.run_once()
