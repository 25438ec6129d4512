"""The loop when the store fails or loses replies."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from datetime import datetime

import pytest

from django_cronductor.backends.base import BackendError
from tests.scheduler_world import LocalStore, RedisStore, World, at, end_runs, start_runs

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture(params=[LocalStore, RedisStore])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    world = World(request.param())
    yield world
    world.close()


def texts(caplog: pytest.LogCaptureFixture, level: int) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def phases(world: World) -> list[tuple[str, datetime | None]]:
    return [(context.phase, context.scheduled_at) for _, context in world.errors]


# Lost replies.


def test_a_claim_whose_reply_did_not_come_is_asked_again_with_its_token(world: World) -> None:
    world.job("* * * * *")
    replica, other = world.replica(), world.replica()
    world.tick()
    world.until(at(12, 1))
    replica.link.deaf["claim"] = 1
    world.tick(replica, other)
    assert world.runs == []
    world.clock.advance(0.1)
    world.tick(replica, other)
    assert [(context.scheduled_at, context.instance) for context in world.runs] == [(at(12, 1), replica.instance)]
    (first,), (second,) = replica.link.asked("claim")[:2]
    assert first == second
    world.go(at(12, 1, 59))
    assert world.ran() == [at(12, 1)]


@pytest.mark.parametrize("losses", [1, 2, 5])
def test_many_lost_replies_make_exactly_one_run(world: World, losses: int) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.replica()
    world.tick()
    replica.link.deaf["claim"] = losses
    world.go(at(12, 3), step=0.5)
    assert world.ran() == [at(12, 1), at(12, 2), at(12, 3)]
    assert world.abandoned() == []


def test_the_question_in_doubt_is_asked_before_anything_newer(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    world.until(at(12, 1))
    replica.link.deaf["claim"] = 1
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(12, 2, 10))
    replica.link.broken = set()
    replica.link.calls.clear()
    world.go(at(12, 2, 12))
    asked = [(claim.occurrence, claim.token) for claims in replica.link.asked("claim") for claim in claims]
    assert [datetime.fromtimestamp(instant / 1000, tz=at(12).tzinfo) for instant, _ in asked[:2]] == [
        at(12, 1),
        at(12, 2),
    ]
    assert asked[0][1] != asked[1][1]
    assert world.ran() == [at(12, 1), at(12, 2)]
    assert world.abandoned() == []


def test_a_win_that_was_never_heard_of_is_reported_as_abandoned_and_not_run_late(world: World) -> None:
    world.job("0 * * * *", ttl=30)
    deaf, other = world.replica(instance="deaf"), world.replica()
    world.tick()
    world.until(at(13))
    deaf.link.deaf["claim"] = 1
    world.tick()
    deaf.link.broken = {"all"}
    world.go(at(13, 0, 40))
    assert world.abandoned() == [("job", at(13), "deaf")]
    deaf.link.broken = set()
    world.go(at(13, 2))
    assert world.runs == []
    assert world.abandoned() == [("job", at(13), "deaf")]
    world.go(at(14), other, step=30)
    assert world.ran() == [at(14)]


def test_a_win_that_is_heard_of_after_its_grace_is_not_started_and_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("0 13 * * *", ttl=30, grace=60)
    replica = world.replica(instance="cut off")
    world.tick()
    world.until(at(13))
    replica.link.deaf["claim"] = 1
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(14), step=10)
    replica.link.broken = set()
    world.go(at(14, 2))
    assert world.runs == []
    assert world.abandoned() == [("job", at(13), "cut off")]
    assert any("after its grace" in text for text in texts(caplog, logging.WARNING))


def test_a_win_whose_reply_took_longer_than_the_lease_is_not_started(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("0 * * * *", ttl=30)
    replica = world.replica(instance="slow")
    world.tick()
    world.until(at(13))
    replica.link.lag["claim"] = 30.0
    world.tick()
    assert world.runs == []
    assert any("not started" in text for text in texts(caplog, logging.WARNING))
    world.go(at(13, 2))
    assert world.runs == []
    assert world.abandoned() == [("job", at(13), "slow")]
    world.go(at(14), step=30)
    assert world.ran() == [at(14)]


def test_a_win_whose_reply_came_just_in_time_runs_with_what_is_left_of_its_lease(world: World) -> None:
    world.job("0 * * * *", ttl=30)
    replica = world.replica()
    world.tick()
    world.until(at(13))
    replica.link.lag["claim"] = 29.9
    world.tick()
    assert world.ran() == [at(13)]
    assert world.outcomes() == ["succeeded"]


def test_a_release_whose_reply_did_not_come_reports_the_held_once(world: World) -> None:
    world.slow_job("* * * * *")
    holder = world.replica(inline=False)
    world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    world.go(at(12, 2, 30))
    holder.link.deaf["release"] = 2
    end_runs(world, holder)
    world.go(at(12, 2, 59), step=0.25)
    holder.settle()
    assert world.skipped() == [("job", at(12, 2), "held")]
    assert holder.link.count("release") == 3
    assert world.ran() == [at(12, 1)]


def test_a_requested_run_whose_reply_did_not_come_is_made_once(world: World) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    world.replica()
    world.tick()
    replica.link.deaf["take_request"] = 1
    world.backend.request_run("job")
    world.go(at(12, 2), step=0.5)
    assert [context.trigger for context in world.runs] == ["manual"]
    assert world.abandoned() == []


def test_a_request_is_taken_with_back_off_while_the_store_does_not_answer(world: World) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    world.tick()
    replica.link.broken = {"take_request"}
    world.backend.request_run("job")
    world.go(at(12, 0, 4), step=0.05)
    assert replica.link.count("take_request") <= 7
    assert phases(world) == [("acquire", None)]
    replica.link.broken = set()
    world.go(at(12, 0, 6), step=0.05)
    assert [context.trigger for context in world.runs] == ["manual"]


# One bad key.


def test_a_key_that_the_store_cannot_work_on_hurts_its_job_alone(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *", "bad")
    world.job("* * * * *", "good")
    replica = world.replica()
    world.tick()
    replica.link.spoiled = {"bad"}
    world.go(at(12, 3, 30))
    assert world.ran("good") == [at(12, 1), at(12, 2), at(12, 3)]
    assert world.ran("bad") == []
    (told,) = texts(caplog, logging.ERROR)
    assert "bad" in told
    assert phases(world) == [("acquire", at(12, 1))]
    replica.link.spoiled = set()
    world.go(at(12, 5))
    assert world.ran("bad") == [at(12, 1), at(12, 3), at(12, 4), at(12, 5)]
    assert len(texts(caplog, logging.ERROR)) == 1


def test_a_key_that_was_bad_from_the_start_makes_up_nothing_when_it_is_mended(world: World) -> None:
    world.job("0 12 * * *", "bad", grace=3600)
    world.job("0 * * * *", "good")
    world.clock.advance(60)
    replica = world.replica()
    replica.link.spoiled = {"bad"}
    world.tick()
    world.go(at(12, 3))
    replica.link.spoiled = set()
    world.go(at(12, 5))
    assert world.ran("bad") == []
    assert world.missed() == []
    world.go(at(12, day=6), step=600)
    assert world.ran("bad") == [at(12, day=6)]


def test_a_bad_key_that_was_never_declared_anywhere_makes_up_nothing_when_it_is_mended(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.job("0 12 * * *", "bad", grace=3600)
    world.job("0 12 * * *", "good", grace=3600)
    world.clock.advance(60)
    replica = world.replica()
    declare = replica.link.declare

    def fail_once(declarations: list[object]) -> object:
        monkeypatch.undo()
        reply = declare(declarations)
        world.backend.forget("bad")
        reply.answers[:] = [
            BackendError("a bad key") if one.key == "bad" else answer  # type: ignore[attr-defined]
            for one, answer in zip(declarations, reply.answers, strict=True)
        ]
        return reply

    monkeypatch.setattr(replica.link, "declare", fail_once)
    world.tick()
    world.go(at(12, 5))
    assert world.runs == []
    world.go(at(12, day=6), step=600)
    assert sorted(context.key for context in world.runs) == ["bad", "good"]


def test_a_lease_that_the_store_cannot_renew_is_told_once_and_others_are_renewed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.slow_job("* * * * *", "bad", ttl=10)
    world.slow_job("* * * * *", "good", ttl=10)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica, 2)
    replica.link.spoiled = {"bad"}
    world.go(at(12, 1, 9))
    replica.settle()
    assert phases(world) == [("renew", at(12, 1))]
    assert len(texts(caplog, logging.ERROR)) == 1
    world.go(at(12, 1, 15))
    assert {context.key: context.lease_lost for context in world.runs} == {"bad": True, "good": False}


# Outages.


def test_nothing_starts_while_the_store_is_away_and_the_newest_due_runs_when_it_is_back(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(12, 3, 30), step=0.1)
    assert world.runs == []
    replica.link.broken = set()
    world.go(at(12, 3, 40), step=0.1)
    assert [(context.scheduled_at, context.trigger) for context in world.runs[:1]] == [(at(12, 1), "catch-up")]
    assert world.ran()[1:] == [at(12, 3)]
    assert world.runs[1].missed == 1
    assert world.missed() == [("job", at(12, 2), 1)]
    errors, warnings = texts(caplog, logging.ERROR), texts(caplog, logging.WARNING)
    assert [text for text in errors if "nothing starts until it is back" in text] == errors
    assert len(errors) == 1
    assert [text for text in warnings if "is back after" in text] == [warnings[0]]
    assert phases(world) == [("acquire", at(12, 1))]


def test_what_became_due_in_an_outage_is_reported_missed_once_after_its_grace(world: World) -> None:
    world.job("0 13 * * *", grace=60)
    world.replica()
    world.replica()
    world.tick()
    for replica in world.replicas:
        replica.link.broken = {"all"}
    world.go(at(13, 2), step=10)
    for replica in world.replicas:
        replica.link.broken = set()
    world.go(at(13, 4))
    assert world.runs == []
    assert world.missed() == [("job", at(13), 1)]


def test_the_newest_due_runs_when_only_heartbeats_noticed_the_outage(world: World) -> None:
    world.job("0 13 * * *")
    replica = world.replica()
    world.tick()
    world.go(at(12, 59, 50), step=10)
    replica.link.broken = {"all"}
    world.clock.advance(2)
    world.tick()
    world.clock.advance(20)
    replica.link.broken = set()
    world.tick()
    assert world.ran() == [at(13)]


def test_each_outage_is_one_error_and_one_warning(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    for hour_minute in (2, 5):
        world.go(at(12, hour_minute, 30))
        replica.link.broken = {"all"}
        world.go(at(12, hour_minute + 1, 15))
        replica.link.broken = set()
    world.go(at(12, 7, 30))
    assert len(texts(caplog, logging.ERROR)) == 2
    assert len([text for text in texts(caplog, logging.WARNING) if "is back after" in text]) == 2
    assert phases(world) == [("acquire", at(12, 3)), ("acquire", at(12, 6))]
    assert world.ran() == [at(12, minute) for minute in range(1, 8)]


def test_an_outage_while_nothing_is_due_is_told_too(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.job("0 15 * * *")
    replica = world.replica()
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(12, 5))
    replica.link.broken = set()
    world.go(at(12, 6))
    assert len(texts(caplog, logging.ERROR)) == 1
    assert len(texts(caplog, logging.WARNING)) == 1
    assert world.errors == [], "no job has come to harm"


def test_renewals_that_fail_alone_are_one_outage_though_heartbeats_succeed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    holder = world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, holder, 1)
    holder.link.broken = {"renew"}
    world.go(at(13, 0, 20))
    assert len(texts(caplog, logging.ERROR)) == 1
    assert texts(caplog, logging.WARNING) == []
    holder.link.broken = set()
    world.go(at(13, 0, 22))
    (text,) = texts(caplog, logging.WARNING)
    assert "is back after" in text
    end_runs(world, holder)


def test_an_outage_of_renewals_ends_with_the_last_run(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    holder = world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, holder)
    holder.link.broken = {"renew"}
    world.go(at(13, 0, 10))
    end_runs(world, holder)
    world.go(at(13, 0, 12))
    assert len(texts(caplog, logging.ERROR)) == 1
    assert len(texts(caplog, logging.WARNING)) == 1


def test_what_is_made_up_for_says_so_though_heartbeats_fail_yet(world: World) -> None:
    world.job("0 13 * * *")
    replica = world.replica()
    world.tick()
    world.go(at(12, 59, 59), step=60)
    replica.link.broken = {"all"}
    world.go(at(13, 0, 5))
    replica.link.broken = {"heartbeat"}
    world.go(at(13, 0, 7))
    assert [(context.scheduled_at, context.trigger) for context in world.runs] == [(at(13), "catch-up")]


def test_claims_back_off_from_a_tenth_of_a_second_to_one(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    world.until(at(12, 1))
    replica.link.broken = {"claim"}
    asked: list[float] = []
    begin = world.clock.monotonic()
    wait = 0.0
    for _ in range(400):
        before = replica.link.count("claim")
        wait = replica.tick()
        assert wait <= 1.0
        if replica.link.count("claim") > before:
            asked.append(round(world.clock.monotonic() - begin, 3))
        world.clock.advance(max(wait, 0.001))
        if len(asked) == 8:
            break
    gaps = [round(later - earlier, 1) for earlier, later in itertools.pairwise(asked)]
    assert gaps == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0]


def test_the_back_off_begins_anew_after_an_answer(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    for minute in (1, 2):
        world.go(at(12, minute, -0.5))
        replica.link.broken = {"claim"}
        world.until(at(12, minute))
        world.tick()
        replica.link.broken = set()
        world.clock.advance(0.1)
        world.tick()
    assert world.ran() == [at(12, 1), at(12, 2)]


def test_an_error_of_renewals_is_reported_in_its_phase_once_and_the_run_goes_on(world: World) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    holder = world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, holder)
    holder.link.broken = {"all"}
    world.go(at(13, 0, 20))
    holder.link.broken = set()
    world.go(at(13, 0, 22))
    assert not world.runs[0].lease_lost
    end_runs(world, holder)
    assert phases(world) == [("renew", at(13))]
    assert world.outcomes() == ["succeeded"]


def test_an_error_of_a_release_is_reported_in_its_phase_once_and_it_is_sent_again(world: World) -> None:
    world.slow_job("0 13 * * *", ttl=30)
    holder = world.replica(inline=False)
    world.tick()
    world.until(at(13))
    start_runs(world, holder)
    holder.link.broken = {"all"}
    end_runs(world, holder)
    world.go(at(13, 0, 5), step=0.5)
    holder.settle()
    assert phases(world).count(("release", at(13))) == 1
    assert {phase for phase, _ in phases(world)} == {"release", "renew"}
    assert world.state().lease is not None
    holder.link.broken = set()
    world.go(at(13, 0, 7), step=0.5)
    assert world.state().lease is None
    assert world.outcomes() == ["succeeded"]


def test_a_lease_lost_in_an_outage_is_told_once_though_the_store_confirms_it_later(world: World) -> None:
    world.slow_job("* * * * *", ttl=10)
    holder, other = world.replica(inline=False), world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, holder)
    holder.link.broken = {"all"}
    world.go(at(12, 1, 11))
    holder.settle()
    assert world.runs[0].lease_lost
    assert len(world.heard("lease_lost")) == 1
    world.go(at(12, 1, 59))
    world.clock.advance(1)
    start_runs(world, other, 2)
    holder.link.broken = set()
    world.go(at(12, 2, 3))
    holder.settle()
    assert len(world.heard("lease_lost")) == 1
    assert [phase for phase, _ in phases(world)].count("renew") <= 2, "the outage, and the loss"
    end_runs(world, other)
    end_runs(world, holder)
    assert sorted(world.outcomes()) == ["lost", "succeeded"]


def test_a_job_declared_in_an_outage_runs_once_it_is_over_and_the_end_is_told(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    replica = world.replica()
    world.tick()
    replica.link.broken = {"declare"}
    world.job("0 13 * * *")
    world.go(at(12, 0, 10))
    replica.link.broken = set()
    world.go(at(12, 0, 20))
    assert len(texts(caplog, logging.ERROR)) == 1
    assert len(texts(caplog, logging.WARNING)) == 1
    world.go(at(13), step=10)
    assert world.ran() == [at(13)]


def test_a_start_during_an_outage_makes_up_nothing(world: World) -> None:
    world.job("0 12 * * *", grace=3600)
    world.clock.advance(60)
    replica = world.replica()
    replica.link.broken = {"all"}
    for _ in range(3):
        with pytest.raises(BackendError):
            replica.tick()
        world.clock.advance(1)
    replica.link.broken = set()
    world.go(at(12, 5))
    assert world.runs == []


def test_an_outage_that_is_over_before_it_was_heard_of_ends_all_the_same(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("0 0 * * *")
    replica = world.replica()
    replica.tick()
    replica.store_failed("release", BackendError("cut"), [])
    replica.store_answered("release")
    replica.tick()
    assert not replica._trouble.is_failing("release")
    caplog.clear()
    replica.link.broken = {"all"}
    world.go(at(12, 1))
    replica.link.broken = set()
    world.go(at(12, 2))
    assert len(texts(caplog, logging.ERROR)) == 1, "the next outage is told of"
    assert len(texts(caplog, logging.WARNING)) == 1
