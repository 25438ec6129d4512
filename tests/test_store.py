"""The store's time as a replica knows it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_cronductor.store import StoreClock
from django_cronductor.testing import ManualClock

NOON = 1_767_614_400_000
"""The start of a ManualClock, in milliseconds."""


class Store:
    """A store whose clock differs from this machine's by `ahead` seconds, and which takes its time to answer."""

    def __init__(self, clock: ManualClock, ahead: float = 0.0) -> None:
        self.clock = clock
        self.ahead = ahead

    def time(self) -> float:
        return self.clock.time() + self.ahead

    def ask(self, known: StoreClock, there: float = 0.0, back: float = 0.0) -> float:
        """Ask for the time, with so many seconds on the way, and let `known` learn from the answer."""
        sent = self.clock.monotonic()
        self.clock.advance(there)
        now = int(self.time() * 1000 + 1e-6)
        self.clock.advance(back)
        return known.learn(now, sent, self.clock.monotonic())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def known(clock: ManualClock) -> StoreClock:
    return StoreClock(clock)


class TestStoreClock:
    @pytest.mark.parametrize("ahead", [0.0, 300.0, -300.0, 0.25])
    def test_it_tells_the_stores_time_and_not_this_machines(
        self, clock: ManualClock, known: StoreClock, ahead: float
    ) -> None:
        assert Store(clock, ahead).ask(known) == 0.0
        assert known.now() == NOON + ahead * 1000
        assert known.until(NOON + 60_000) == pytest.approx(60 - ahead)
        assert known.ahead() == pytest.approx(-ahead)

    def test_it_runs_on_by_the_monotonic_clock(self, clock: ManualClock, known: StoreClock) -> None:
        Store(clock).ask(known)
        clock.advance(12.5)
        assert known.now() == NOON + 12_500
        assert known.until(NOON + 13_000) == pytest.approx(0.5)

    def test_setting_the_wall_clock_changes_nothing_but_what_is_known_of_the_wall_clock(
        self, clock: ManualClock, known: StoreClock
    ) -> None:
        Store(clock).ask(known)
        clock.set_time(clock.time() - 8 * 3600)
        assert known.now() == NOON
        assert known.until(NOON + 1000) == pytest.approx(1.0)
        assert known.ahead() == pytest.approx(-8 * 3600)

    def test_a_reply_counts_as_half_of_the_quickest_call_old(self, clock: ManualClock, known: StoreClock) -> None:
        store = Store(clock)
        for _ in range(2):
            store.ask(known, there=0.1, back=0.3)
        assert known.now() == store.time() * 1000 - 100

    @pytest.mark.parametrize(("there", "back", "behind"), [(5.0, 0.0, 0.0), (0.0, 5.0, 5.0)])
    def test_the_first_reply_which_had_to_connect_makes_it_late_rather_than_early(
        self, clock: ManualClock, known: StoreClock, there: float, back: float, behind: float
    ) -> None:
        store = Store(clock)
        store.ask(known, there, back)
        assert known.now() == store.time() * 1000 - behind * 1000

    @pytest.mark.parametrize(("there", "back"), [(2.0, 0.0), (0.0, 2.0)])
    def test_a_much_quicker_reply_corrects_what_slow_ones_taught_and_is_no_step_of_the_clock(
        self, clock: ManualClock, known: StoreClock, there: float, back: float
    ) -> None:
        store = Store(clock)
        for _ in range(2):
            store.ask(known, there, back)
        assert store.ask(known, there=0.001, back=0.001) == 0.0
        assert known.now() == pytest.approx(store.time() * 1000, abs=1)

    @given(
        quickest=st.tuples(st.floats(0, 0.1), st.floats(0, 0.1)),
        before=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))),
        after=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1), st.floats(0, 1))),
    )
    def test_what_is_sent_when_it_is_due_does_not_come_early(
        self,
        quickest: tuple[float, float],
        before: list[tuple[float, float, float]],
        after: list[tuple[float, float, float]],
    ) -> None:
        clock = ManualClock()
        known, store = StoreClock(clock), Store(clock)
        for longer_there, longer_back, idle in [*before, (0.0, 0.0, 0.0), *after]:
            store.ask(known, quickest[0] + longer_there, quickest[1] + longer_back)
            clock.advance(idle)
        instant = known.now() + 5_000
        clock.advance(known.until(instant) + quickest[0])
        assert store.time() * 1000 >= instant - 1e-3

    def test_a_slower_reply_does_not_unlearn_what_a_quick_one_taught(
        self, clock: ManualClock, known: StoreClock
    ) -> None:
        store = Store(clock)
        store.ask(known)
        for there, back in [(0.4, 0.0), (0.0, 0.4), (0.2, 0.2)]:
            assert store.ask(known, there, back) == pytest.approx(0.0, abs=0.0011)
            assert known.now() == pytest.approx(store.time() * 1000, abs=1)

    @pytest.mark.parametrize("step", [3600.0, -3600.0, 2.0, -2.0])
    def test_it_follows_a_step_of_the_stores_clock_and_tells_how_far_it_went(
        self, clock: ManualClock, known: StoreClock, step: float
    ) -> None:
        store = Store(clock)
        store.ask(known)
        store.ahead += step
        assert store.ask(known, there=0.001, back=0.001) == pytest.approx(step, abs=0.003)
        assert known.now() == pytest.approx(store.time() * 1000, abs=3)

    @given(
        st.lists(
            st.tuples(
                st.floats(0, 1),
                st.floats(0, 1),
                st.floats(0, 100),
                st.just(0.0) | st.floats(-10_000, 10_000),
            ),
            min_size=1,
            max_size=20,
        )
    )
    def test_it_stays_within_the_bounds_of_every_reply(self, replies: list[tuple[float, float, float, float]]) -> None:
        clock = ManualClock()
        known, store = StoreClock(clock), Store(clock)
        for there, back, idle, step in replies:
            store.ahead += step
            store.ask(known, there, back)
            # Where within the call it was answered cannot be known, but no more than that; the rest is rounding.
            behind = store.time() * 1000 - known.now()
            assert -there * 1000 - 2 <= behind <= back * 1000 + 3
            clock.advance(idle)
