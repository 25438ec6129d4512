"""Keeping leases alive, and giving them back."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from django_cronductor.backends.base import (
    Claim,
    ClaimResult,
    Declaration,
    Heartbeat,
    JobState,
    Lease,
    Release,
    ReleaseResult,
    RenewResult,
    Reply,
    new_token,
)
from django_cronductor.backends.local import LocalBackend
from django_cronductor.clock import Clock, SystemClock
from django_cronductor.exceptions import BackendError
from django_cronductor.leases import GATHER_RELEASES, HeldLease, LeaseKeeper
from django_cronductor.testing import ManualClock

PATIENCE = 10.0
"""Seconds after which something that should have happened has not."""
HOUR = 3_600_000
NOON = 1_767_614_400_000
"""The start of a ManualClock, in milliseconds."""
NOW = 1_000.0
"""The start of a ManualClock on its monotonic time."""

Script = Callable[[list[Lease]], list[Any]]


def lease(key: str = "a", ttl: int = 30_000, run: int | None = NOON) -> Lease:
    return Lease(key, f"token of {key}", 7, ttl, "me", run)


class ScriptedBackend:
    """Answers as it is told to, and everything with yes otherwise; keeps the questions and when they came."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.renewals: list[tuple[float, list[Lease]]] = []
        self.releases: list[tuple[float, list[Release]]] = []
        self.beats: list[float] = []
        self.on_renew: Script = lambda leases: [RenewResult(True)] * len(leases)
        self.on_release: Script = lambda leases: [ReleaseResult(True)] * len(leases)
        self.on_beat: Callable[[], object] = lambda: None

    def renew(self, leases: Sequence[Lease]) -> Reply[RenewResult]:
        self.renewals.append((self.clock.monotonic() - NOW, list(leases)))
        return Reply(0, self.on_renew(list(leases)))

    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        self.releases.append((self.clock.monotonic() - NOW, list(releases)))
        return Reply(0, self.on_release([one.lease for one in releases]))

    def heartbeat(self, instance: str) -> Heartbeat:
        self.beats.append(self.clock.monotonic() - NOW)
        self.on_beat()
        return Heartbeat(NOON, True, frozenset({instance}))

    def renewed_at(self, key: str = "a") -> list[float]:
        """Return when the lease was to be renewed, in seconds from the start."""
        return [moment for moment, leases in self.renewals if key in [one.key for one in leases]]


def down(*args: object) -> Any:
    """Stand for a store that does not answer."""
    raise BackendError("The store is down.")


def answer(**by_key: object) -> Script:
    """Answer each lease with what is given for its key, or else with yes."""
    return lambda leases: [by_key.get(one.key, ReleaseResult(True)) for one in leases]


@dataclass
class Ears:
    """Hears what the keeper tells, in order."""

    heard: list[tuple[Any, ...]] = field(default_factory=list)

    def lease_lost(self, held: HeldLease, left: int | None) -> None:
        self.heard.append(("lost", held.lease.key, left))

    def lease_released(self, held: HeldLease, result: ReleaseResult) -> None:
        self.heard.append(("released", held.lease.key, result))

    def store_failed(self, phase: str, error: BackendError, leases: Sequence[Lease]) -> None:
        self.heard.append(("store failed", phase, [one.key for one in leases]))

    def lease_failed(self, phase: str, error: BackendError, lease: Lease) -> None:
        self.heard.append(("lease failed", phase, lease.key))

    def store_answered(self, phase: str) -> None:
        self.heard.append(("answered", phase))

    def heart_beaten(self, heartbeat: Heartbeat, sent: float, received: float) -> None:
        self.heard.append(("beaten", heartbeat, sent, received))

    def of(self, *kinds: str) -> list[tuple[Any, ...]]:
        return [one for one in self.heard if one[0] in kinds]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def backend(clock: ManualClock) -> ScriptedBackend:
    return ScriptedBackend(clock)


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
def keeper(backend: ScriptedBackend, clock: ManualClock, ears: Ears) -> LeaseKeeper:
    return LeaseKeeper(backend, clock, ears)  # type: ignore[arg-type]


def pass_time(keeper: LeaseKeeper, clock: ManualClock, seconds: float) -> None:
    """Let time pass, with a pass of the keeper whenever one is due, and one at the end."""
    end = clock.monotonic() + seconds
    wait = keeper.tick()
    while (left := end - clock.monotonic()) > 1e-6:
        clock.advance(min(max(wait, 0.001), left))
        wait = keeper.tick()


def about(moments: list[float]) -> Any:
    """Allow for rounding."""
    return pytest.approx(moments, abs=0.01)


class TestHeldLease:
    def test_it_is_lost_from_its_deadline_on(self, keeper: LeaseKeeper, clock: ManualClock) -> None:
        held = keeper.hold(lease(ttl=2_000), clock.monotonic())
        clock.advance(1.998)
        assert not held.lost
        clock.advance(0.001)
        assert held.lost, "the store counts whole milliseconds: it may have ended"

    def test_its_deadline_counts_from_before_the_request_that_won_it(
        self, keeper: LeaseKeeper, clock: ManualClock
    ) -> None:
        sent = clock.monotonic()
        clock.advance(0.8)
        assert keeper.hold(lease(ttl=2_000), sent).deadline == pytest.approx(sent + 1.999, abs=1e-6)

    def test_a_win_that_was_read_too_late_is_lost_at_once(self, keeper: LeaseKeeper, clock: ManualClock) -> None:
        sent = clock.monotonic()
        clock.advance(2)
        assert keeper.hold(lease(ttl=2_000), sent).lost

    def test_its_deadline_counts_from_before_the_renewal_was_sent(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        def slowly(leases: list[Lease]) -> list[RenewResult]:
            clock.advance(0.9)
            return [RenewResult(True)]

        held = keeper.hold(lease(), clock.monotonic())
        backend.on_renew = slowly
        clock.advance(1)
        keeper.tick()
        assert held.deadline == pytest.approx(NOW + 1 + 29.999, abs=1e-6)

    def test_setting_the_wall_clock_loses_nothing(self, keeper: LeaseKeeper, clock: ManualClock) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        clock.set_time(clock.time() + 3600)
        assert not held.lost

    def test_it_stays_lost_although_a_later_renewal_succeeds(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        held = keeper.hold(lease(ttl=3_000), clock.monotonic())
        clock.advance(3.5)
        keeper.tick()
        assert backend.renewed_at() == [3.5]
        assert held.lost
        pass_time(keeper, clock, 5)
        assert held.lost

    def test_it_stays_lost_although_nobody_asked_between_its_deadline_and_a_renewal(self, clock: ManualClock) -> None:
        held = HeldLease(lease(ttl=2_000), clock.monotonic(), clock)
        clock.advance(2)
        held.renewed(clock.monotonic())
        assert held.lost

    def test_what_happens_after_its_holder_is_done_with_it_is_no_loss(
        self, keeper: LeaseKeeper, clock: ManualClock
    ) -> None:
        held = keeper.hold(lease(ttl=2_000), clock.monotonic())
        keeper.release(held, "succeeded")
        clock.advance(5)
        assert not held.lost
        held.lose()
        assert not held.lost

    def test_a_loss_before_the_end_remains_one(self, keeper: LeaseKeeper, clock: ManualClock) -> None:
        held = keeper.hold(lease(ttl=2_000), clock.monotonic())
        clock.advance(5)
        assert held.lost
        keeper.release(held, "lost")
        assert held.lost


class TestRenewing:
    @pytest.mark.parametrize(("ttl", "period"), [(30_000, 1.0), (3_000, 1.0), (1_500, 0.5), (300, 0.1)])
    def test_a_lease_is_renewed_every_second_or_three_times_in_its_length(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ttl: int, period: float
    ) -> None:
        held = keeper.hold(lease(ttl=ttl), clock.monotonic())
        pass_time(keeper, clock, 5 * period + 0.02)
        assert backend.renewed_at() == about([period * number for number in range(1, 6)])
        assert not held.lost

    def test_its_first_renewal_counts_from_the_request_that_won_it(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        sent = clock.monotonic()
        clock.advance(0.7)
        keeper.hold(lease(), sent)
        pass_time(keeper, clock, 1)
        assert backend.renewed_at() == about([1.0])

    def test_errors_never_slow_the_renewals_down(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        keeper.hold(lease(), clock.monotonic())
        backend.on_renew = down
        pass_time(keeper, clock, 20)
        assert backend.renewed_at() == about([float(number) for number in range(1, 21)])

    def test_one_failed_renewal_costs_nothing(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_renew = down
        pass_time(keeper, clock, 1)
        backend.on_renew = answer()
        pass_time(keeper, clock, 5)
        assert not held.lost
        assert ears.of("lost") == []

    def test_all_leases_are_renewed_in_one_call(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        for key in "abc":
            keeper.hold(lease(key), clock.monotonic())
        pass_time(keeper, clock, 3)
        assert [len(leases) for _, leases in backend.renewals] == [3, 3, 3]

    def test_leases_that_began_at_different_moments_come_to_share_calls(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        for number in range(10):
            keeper.hold(lease(str(number)), clock.monotonic())
            pass_time(keeper, clock, 0.1)
        backend.renewals.clear()
        pass_time(keeper, clock, 10)
        assert len(backend.renewals) <= 20
        assert all(len(backend.renewed_at(str(number))) >= 9 for number in range(10))

    def test_of_leases_with_different_lengths_each_keeps_its_own_period(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        keeper.hold(lease("short", ttl=300), clock.monotonic())
        keeper.hold(lease("long"), clock.monotonic())
        pass_time(keeper, clock, 3)
        assert len(backend.renewed_at("short")) == pytest.approx(30, abs=1)
        assert len(backend.renewed_at("long")) <= 6

    def test_one_lease_that_fails_does_not_stop_the_others(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        bad, good = (keeper.hold(lease(key, ttl=3_000), clock.monotonic()) for key in ("bad", "good"))
        backend.on_renew = answer(bad=BackendError("wrong type"))
        pass_time(keeper, clock, 3)
        assert bad.lost
        assert not good.lost
        assert backend.renewed_at("bad") == backend.renewed_at("good") == about([1.0, 2.0, 3.0])
        assert ears.of("lease failed") == [("lease failed", "renew", "bad")] * 3
        assert ears.of("lost") == [("lost", "bad", None)]
        assert ears.of("store failed") == []

    def test_a_failed_call_is_told_with_all_its_leases(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        for key in "ab":
            keeper.hold(lease(key), clock.monotonic())
        backend.on_renew = down
        pass_time(keeper, clock, 1)
        assert ears.heard == [("store failed", "renew", ["a", "b"])]

    def test_an_answered_call_is_told(self, keeper: LeaseKeeper, clock: ManualClock, ears: Ears) -> None:
        keeper.hold(lease(), clock.monotonic())
        pass_time(keeper, clock, 1)
        assert ears.heard == [("answered", "renew")]

    def test_a_pass_tells_when_the_next_is_due(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        assert keeper.tick() == pytest.approx(60)
        keeper.hold(lease(ttl=1_500), clock.monotonic())
        assert keeper.tick() == pytest.approx(0.5)
        clock.advance(0.2)
        assert keeper.tick() == pytest.approx(0.3)

    def test_a_pass_is_due_at_a_deadline_that_comes_before_the_next_renewal(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_renew = down
        clock.advance(2.5)  # Nobody came sooner.
        assert keeper.tick() == pytest.approx(0.499)
        clock.advance(0.5)
        keeper.tick()
        assert ears.of("lost") == [("lost", "a", None)]


class TestLosing:
    def test_a_lease_that_another_has_is_lost_and_told_with_what_the_others_has_left(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        backend.on_renew = answer(a=RenewResult(False, 1234))
        pass_time(keeper, clock, 5)
        assert held.lost
        assert ears.of("lost") == [("lost", "a", 1234)]

    def test_it_is_renewed_no_more(self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend) -> None:
        keeper.hold(lease(), clock.monotonic())
        backend.on_renew = answer(a=RenewResult(False))
        pass_time(keeper, clock, 60)
        assert backend.renewed_at() == about([1.0])

    def test_its_release_is_sent_all_the_same(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        backend.on_renew = answer(a=RenewResult(False))
        backend.on_release = answer(a=ReleaseResult(False, 99))
        pass_time(keeper, clock, 1)
        keeper.release(held, "lost")
        keeper.tick()
        keeper.tick()
        assert ears.of("released") == [("released", "a", ReleaseResult(False, 99))]

    def test_others_are_kept(self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend) -> None:
        keeper.hold(lease("a"), clock.monotonic())
        other = keeper.hold(lease("b"), clock.monotonic())
        backend.on_renew = answer(a=RenewResult(False))
        pass_time(keeper, clock, 60)
        assert not other.lost

    def test_a_deadline_that_passes_is_told_once_and_the_lease_renewed_on(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_renew = down
        pass_time(keeper, clock, 2.99)
        assert ears.of("lost") == []
        pass_time(keeper, clock, 0.01)
        assert ears.of("lost") == [("lost", "a", None)]
        pass_time(keeper, clock, 3)
        backend.on_renew = answer()
        pass_time(keeper, clock, 3)
        assert ears.of("lost") == [("lost", "a", None)]
        assert len(backend.renewed_at()) == 9

    @pytest.mark.parametrize(("left", "more"), [(None, []), (1234, [("lost", "a", 1234)])])
    def test_what_another_has_left_is_told_also_of_a_loss_that_was_told_before(
        self,
        keeper: LeaseKeeper,
        clock: ManualClock,
        backend: ScriptedBackend,
        ears: Ears,
        left: int | None,
        more: list[tuple[Any, ...]],
    ) -> None:
        held = keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_renew = down
        pass_time(keeper, clock, 4)
        assert held.told
        backend.on_renew = answer(a=RenewResult(False, left))
        pass_time(keeper, clock, 4)
        assert ears.of("lost") == [("lost", "a", None), *more]

    def test_a_listener_can_tell_the_first_word_of_a_loss_from_a_second(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        told: list[bool] = []
        ears.lease_lost = lambda held, left: told.append(held.told)  # type: ignore[method-assign]
        keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_renew = down
        pass_time(keeper, clock, 4)
        backend.on_renew = answer(a=RenewResult(False, 1))
        pass_time(keeper, clock, 4)
        assert told == [False, True]

    def test_after_a_pause_of_the_process_the_stores_answer_comes_first(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_renew = answer(a=RenewResult(False, 1234))
        clock.advance(60)
        keeper.tick()
        assert ears.of("lost") == [("lost", "a", 1234)]


class TestReleasing:
    def test_a_release_is_sent_at_the_next_pass_with_its_outcome_and_its_answer_told(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        backend.on_release = answer(a=ReleaseResult(True, held=(1, 2)))
        keeper.release(held, "succeeded")
        assert backend.releases == []
        keeper.tick()
        keeper.tick()
        assert backend.releases == [(0.0, [Release(lease(), "succeeded")])]
        assert ears.heard == [("answered", "release"), ("released", "a", ReleaseResult(True, held=(1, 2)))]

    def test_a_released_lease_is_renewed_no_more(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        keeper.release(held, "succeeded")
        pass_time(keeper, clock, 60)
        assert backend.renewals == []
        assert ears.of("lost") == []

    def test_all_releases_are_sent_in_one_call(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        for held in [keeper.hold(lease(key), clock.monotonic()) for key in "abc"]:
            keeper.release(held, "succeeded")
        keeper.tick()
        assert [[one.lease.key for one in releases] for _, releases in backend.releases] == [["a", "b", "c"]]

    def test_it_is_sent_again_the_same_until_it_is_answered(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        backend.on_release = down
        keeper.release(held, "failed")
        pass_time(keeper, clock, 10)
        moments = [moment for moment, _ in backend.releases]
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert pauses[:5] == about([0.05, 0.1, 0.2, 0.4, 0.8])
        assert max(pauses) == pytest.approx(1.0, abs=0.01)
        backend.on_release = answer()
        pass_time(keeper, clock, 10)
        assert {str(releases) for _, releases in backend.releases} == {str([Release(lease(), "failed")])}
        assert len(ears.of("released")) == 1
        assert len(backend.releases) == len(moments) + 1

    def test_the_lease_is_renewed_until_its_release_is_answered(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        backend.on_release = down
        keeper.release(held, "succeeded")
        pass_time(keeper, clock, 10)
        assert backend.renewed_at() == about([float(number) for number in range(1, 11)])
        assert ears.of("lost") == []

    def test_waiting_for_an_answer_past_the_deadline_does_not_spin(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        held = keeper.hold(lease(ttl=3_000), clock.monotonic())
        backend.on_release = backend.on_renew = down
        keeper.release(held, "succeeded")
        pass_time(keeper, clock, 10)
        waits = []
        for _ in range(20):
            waits.append(keeper.tick())
            clock.advance(waits[-1])
        assert sum(waits) > 5

    def test_a_lost_answer_to_a_renewal_does_not_end_the_release(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        held = keeper.hold(lease(), clock.monotonic())
        backend.on_release, backend.on_renew = down, answer(a=RenewResult(False, 5))
        keeper.release(held, "succeeded")
        pass_time(keeper, clock, 2)
        backend.on_release = answer(a=ReleaseResult(False, 4))
        pass_time(keeper, clock, 2)
        assert not held.lost
        assert ears.of("lost", "released") == [("lost", "a", 5), ("released", "a", ReleaseResult(False, 4))]

    def test_one_release_that_fails_does_not_stop_the_others(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        bad, good = (keeper.hold(lease(key), clock.monotonic()) for key in ("bad", "good"))
        backend.on_release = answer(bad=BackendError("wrong type"))
        keeper.release(bad, "succeeded")
        keeper.release(good, "succeeded")
        keeper.tick()
        assert ears.of("released", "lease failed") == [
            ("lease failed", "release", "bad"),
            ("released", "good", ReleaseResult(True)),
        ]
        clock.advance(1)
        keeper.tick()
        assert [one.lease.key for one in backend.releases[-1][1]] == ["bad"], "it alone is sent again"

    def test_a_new_release_waits_for_no_other_that_fails_alone(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        bad, good = (keeper.hold(lease(key), clock.monotonic()) for key in ("bad", "good"))
        backend.on_release = answer(bad=BackendError("wrong type"))
        keeper.release(bad, "succeeded")
        pass_time(keeper, clock, 5)
        keeper.release(good, "succeeded")
        keeper.tick()
        assert ears.of("released") == [("released", "good", ReleaseResult(True))]

    def test_new_releases_do_not_make_a_store_that_fails_be_asked_more_often(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        backend.on_release = down
        for number in range(50):
            keeper.release(keeper.hold(lease(str(number)), clock.monotonic()), "succeeded")
            pass_time(keeper, clock, 0.1)
        moments = [moment for moment, _ in backend.releases]
        pauses = [after - before for before, after in itertools.pairwise(moments)]
        assert pauses[:5] == about([0.05, 0.1, 0.2, 0.4, 0.8])
        assert pauses[5:] == about([1.0] * len(pauses[5:]))
        backend.on_release = answer()
        pass_time(keeper, clock, 1)
        assert len(ears.of("released")) == 50
        keeper.release(keeper.hold(lease("after"), clock.monotonic()), "succeeded")
        keeper.tick()
        assert ears.of("released")[-1] == ("released", "after", ReleaseResult(True))

    def test_one_that_comes_while_a_call_fails_goes_with_the_next(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        def fail_meanwhile(leases: list[Lease]) -> list[Any]:
            backend.on_release = answer()
            keeper.release(second, "succeeded")
            raise BackendError("The store is down.")

        first, second = (keeper.hold(lease(key), clock.monotonic()) for key in "ab")
        backend.on_release = fail_meanwhile
        keeper.release(first, "succeeded")
        pass_time(keeper, clock, 0.05)
        assert [one.lease.key for one in backend.releases[-1][1]] == ["a", "b"]
        assert ears.of("released") == [("released", key, ReleaseResult(True)) for key in "ab"]

    def test_a_withdrawn_lease_is_neither_renewed_nor_released(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        running, ended = (keeper.hold(lease(key), clock.monotonic()) for key in "ab")
        keeper.release(ended, "succeeded")
        keeper.withdraw(running)
        keeper.withdraw(ended)
        pass_time(keeper, clock, 60)
        assert (backend.renewals, backend.releases, ears.heard) == ([], [], [])
        assert running.lost


class TestHeartbeat:
    @pytest.fixture
    def keeper(self, backend: ScriptedBackend, clock: ManualClock, ears: Ears) -> LeaseKeeper:
        return LeaseKeeper(backend, clock, ears, "me")  # type: ignore[arg-type]

    def test_the_heart_beats_every_second_whether_leases_are_held_or_not(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        pass_time(keeper, clock, 2)
        keeper.hold(lease(), clock.monotonic())
        pass_time(keeper, clock, 2)
        assert backend.beats == about([0.0, 1.0, 2.0, 3.0, 4.0])

    def test_the_answer_is_told_with_the_two_moments_between_which_it_was_given(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        backend.on_beat = lambda: clock.advance(0.25)
        keeper.tick()
        heartbeat = Heartbeat(NOON, True, frozenset({"me"}))
        assert ears.heard == [("answered", "heartbeat"), ("beaten", heartbeat, NOW, NOW + 0.25)]

    def test_a_failure_is_told_and_the_next_beat_comes_a_second_later(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        backend.on_beat = down
        pass_time(keeper, clock, 3)
        assert backend.beats == about([0.0, 1.0, 2.0, 3.0])
        assert ears.heard == [("store failed", "heartbeat", [])] * 4

    def test_a_slow_beat_does_not_keep_a_loss_from_being_told(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, ears: Ears
    ) -> None:
        def fail_slowly() -> None:
            clock.advance(1)
            down()

        backend.on_beat, backend.on_renew = fail_slowly, down
        keeper.hold(lease(ttl=500), clock.monotonic())
        keeper.tick()
        assert ears.of("lost") == [("lost", "a", None)]


class TestWithAStore:
    """Against the single-instance backend, on a clock that the test moves."""

    @pytest.fixture
    def store(self, clock: ManualClock) -> LocalBackend:
        store = LocalBackend(clock=clock)
        store.declare([Declaration("job", "* * * * *", 3_000)])
        return store

    @pytest.fixture
    def keeper(self, store: LocalBackend, clock: ManualClock, ears: Ears) -> LeaseKeeper:
        return LeaseKeeper(store, clock, ears, "me")

    def win(self, store: LocalBackend, keeper: LeaseKeeper, clock: ManualClock) -> HeldLease:
        token, occurrence, sent = new_token(), store.time(), clock.monotonic()
        (won,) = store.claim([Claim("job", occurrence, token, 3_000, HOUR)], "me").answers
        assert isinstance(won, ClaimResult)
        assert won.verdict == "won"
        return keeper.hold(Lease("job", token, won.fence, 3_000, "me", occurrence), sent)

    def claim(self, store: LocalBackend) -> str:
        (answer,) = store.claim([Claim("job", store.time(), new_token(), 3_000, HOUR)], "other").answers
        assert isinstance(answer, ClaimResult)
        return answer.verdict

    def test_a_lease_is_held_for_as_long_as_it_is_kept(
        self, store: LocalBackend, keeper: LeaseKeeper, clock: ManualClock
    ) -> None:
        held = self.win(store, keeper, clock)
        for _ in range(20):
            pass_time(keeper, clock, 1)
            assert self.claim(store) == "held"
        assert not held.lost

    def test_after_its_release_the_next_occurrence_can_be_won(
        self, store: LocalBackend, keeper: LeaseKeeper, clock: ManualClock, ears: Ears
    ) -> None:
        held = self.win(store, keeper, clock)
        pass_time(keeper, clock, 1)
        keeper.release(held, "succeeded")
        keeper.tick()
        assert ears.of("released") == [("released", "job", ReleaseResult(True))]
        clock.advance(1)
        assert self.claim(store) == "won"
        (state,) = store.states(["job"]).answers
        assert isinstance(state, JobState)
        assert state.last is not None
        assert state.last.outcome == "succeeded"

    def test_a_paused_process_learns_that_another_has_taken_over(
        self, store: LocalBackend, keeper: LeaseKeeper, clock: ManualClock, ears: Ears
    ) -> None:
        held = self.win(store, keeper, clock)
        clock.advance(5)
        assert self.claim(store) == "won"
        clock.advance(1)
        keeper.tick()
        assert held.lost
        assert ears.of("lost") == [("lost", "job", 2_000)]

    def test_a_lease_that_is_released_by_force_is_lost_within_a_period(
        self, store: LocalBackend, keeper: LeaseKeeper, clock: ManualClock, ears: Ears
    ) -> None:
        held = self.win(store, keeper, clock)
        store.force_release("job")
        pass_time(keeper, clock, 1)
        assert held.lost
        assert ears.of("lost") == [("lost", "job", None)]

    def test_plain_locks_are_kept_alongside(self, store: LocalBackend, keeper: LeaseKeeper, clock: ManualClock) -> None:
        fence = store.acquire("lock", "t", 3_000, "me").fence
        keeper.hold(Lease("lock", "t", fence, 3_000, "me"), clock.monotonic())
        self.win(store, keeper, clock)
        pass_time(keeper, clock, 10)
        assert store.acquire("lock", "other", 3_000, "other").fence == 0
        assert self.claim(store) == "held"


class TestThread:
    """In a thread of its own, on a clock that stands still unless the test moves it."""

    @pytest.fixture
    def keeper(self, backend: ScriptedBackend, clock: ManualClock, ears: Ears) -> Iterator[LeaseKeeper]:
        keeper = LeaseKeeper(backend, clock, ears)  # type: ignore[arg-type]
        yield keeper
        keeper.stop()

    @pytest.fixture
    def renewed(self, backend: ScriptedBackend) -> threading.Semaphore:
        """Return a semaphore that counts the renewals."""

        def count(leases: list[Lease]) -> list[RenewResult]:
            renewed.release()
            return [RenewResult(True)] * len(leases)

        renewed = threading.Semaphore(0)
        backend.on_renew = count
        return renewed

    def test_a_lease_that_is_held_while_the_thread_waits_is_seen_at_once(
        self, keeper: LeaseKeeper, clock: ManualClock, renewed: threading.Semaphore
    ) -> None:
        keeper.start()
        keeper.hold(lease("a"), clock.monotonic() - 1)
        assert renewed.acquire(timeout=PATIENCE)
        keeper.hold(lease("b"), clock.monotonic() - 1)
        assert renewed.acquire(timeout=PATIENCE)

    def test_a_release_while_the_thread_waits_is_sent_at_once(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend
    ) -> None:
        def note(leases: list[Lease]) -> list[ReleaseResult]:
            sent.set()
            return [ReleaseResult(True)]

        sent = threading.Event()
        backend.on_release = note
        keeper.start()
        keeper.release(keeper.hold(lease(), clock.monotonic()), "succeeded")
        assert sent.wait(PATIENCE)

    def test_releases_soon_after_one_another_go_in_one_call(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def note(leases: list[Lease]) -> list[ReleaseResult]:
            sent.set()
            return [ReleaseResult(True)] * len(leases)

        sent = threading.Event()
        backend.on_release = note
        monkeypatch.setattr("django_cronductor.leases.GATHER_RELEASES", GATHER_RELEASES * 200)
        keeper.start()
        keeper.release(keeper.hold(lease("a"), clock.monotonic()), "succeeded")
        assert not sent.wait(0.1)
        keeper.release(keeper.hold(lease("b"), clock.monotonic()), "succeeded")
        assert sent.wait(PATIENCE)
        assert [[one.lease.key for one in releases] for _, releases in backend.releases] == [["a", "b"]]

    @pytest.mark.parametrize("what", ["hold", "release"])
    def test_what_comes_during_a_pass_is_seen_right_after_it(
        self, keeper: LeaseKeeper, clock: ManualClock, backend: ScriptedBackend, what: str
    ) -> None:
        def answer_late(leases: list[Lease]) -> list[RenewResult]:
            if leases[0].key == "late":
                seen.set()
            else:
                entered.set()
                assert go_on.wait(PATIENCE)
            return [RenewResult(True)] * len(leases)

        def note(leases: list[Lease]) -> list[ReleaseResult]:
            seen.set()
            return [ReleaseResult(True)]

        entered, go_on, seen = threading.Event(), threading.Event(), threading.Event()
        backend.on_renew, backend.on_release = answer_late, note
        first = keeper.hold(lease(), clock.monotonic() - 1)
        keeper.start()
        assert entered.wait(PATIENCE)
        if what == "hold":
            keeper.hold(lease("late"), clock.monotonic() - 1)
        else:
            keeper.release(first, "succeeded")
        go_on.set()
        assert seen.wait(PATIENCE)

    def test_a_fault_in_a_pass_does_not_end_the_thread_nor_cost_a_short_lease(
        self, backend: ScriptedBackend, ears: Ears, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail_once(phase: str) -> None:
            answered.release()
            if len(backend.renewals) == 1:
                raise RuntimeError("a fault")

        answered = threading.Semaphore(0)
        ears.store_answered = fail_once  # type: ignore[method-assign]
        clock = SystemClock()
        keeper = LeaseKeeper(backend, clock, ears)  # type: ignore[arg-type]
        held = keeper.hold(lease(ttl=900), clock.monotonic())
        keeper.start()
        try:
            assert answered.acquire(timeout=PATIENCE)
            assert answered.acquire(timeout=PATIENCE)
            assert keeper.running
            assert not held.lost
        finally:
            keeper.stop()
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert "a fault" in caplog.text

    def test_stop_ends_the_thread_although_it_waits(self, keeper: LeaseKeeper) -> None:
        assert not keeper.running
        keeper.start()
        assert keeper.running
        (thread,) = (one for one in threading.enumerate() if one.name == "cronductor-leases")
        assert thread.daemon
        keeper.stop()
        assert not keeper.running
        assert not thread.is_alive()

    def test_stop_is_heard_at_whatever_moment_it_comes(self, keeper: LeaseKeeper) -> None:
        # The worst moment: the thread has found that it is to go on, and has not begun its pass.
        class Keeper(LeaseKeeper):
            def __setattr__(self, name: str, value: object) -> None:
                if name == "_dirty" and threading.current_thread().name == "cronductor-leases" and not stopped:
                    stopped.append(True)
                    with self._changed:
                        self._stopped = True
                        self._wake()
                super().__setattr__(name, value)

        stopped: list[bool] = []
        keeper.__class__ = Keeper
        keeper.start()
        thread = keeper._thread
        assert thread is not None
        thread.join(PATIENCE)
        assert not thread.is_alive()

    def test_it_can_be_started_again(
        self, keeper: LeaseKeeper, clock: ManualClock, renewed: threading.Semaphore
    ) -> None:
        keeper.start()
        keeper.stop()
        keeper.start()
        keeper.hold(lease(), clock.monotonic() - 1)
        assert renewed.acquire(timeout=PATIENCE)

    def test_stop_without_a_thread_does_nothing(self, keeper: LeaseKeeper) -> None:
        keeper.stop()
        assert not keeper.running
