"""
The conformance suite of lock backends: what `django_cronductor.backends.base` promises, as tests.

Whoever writes a backend subclasses `BackendConformance` in a test module, says how to make the backend and how to make
its store lose its data, and runs pytest. A backend whose clock a test can move runs `BackendClockConformance` as well,
and one in which a single key can be damaged `BackendDamageConformance`::

    class TestMyBackend(BackendConformance):
        def make_backend(self):
            return MyBackend(prefix=new_prefix())

        def lose(self, backend):
            backend.delete_everything_under_its_prefix()

The store's clock may run: then set TTL to a few hundred milliseconds, so that waiting for the end of a lease is short,
and SLACK to how long a test may take.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar

from django_cronductor.backends.base import (
    INSTANCE_LIFETIME,
    REQUEST_LIFETIME,
    Acquired,
    Claim,
    ClaimResult,
    DeadRun,
    Declaration,
    JobState,
    Lease,
    LockBackend,
    Release,
    ReleaseResult,
    RenewResult,
    Reply,
    Seeds,
    renewal_period,
)
from django_cronductor.exceptions import BackendError

T = TypeVar("T")

HOSTILE_KEYS = (
    "tägliche-Übersicht",
    "日次レポート",
    "two words",
    " ",
    "a:b:c",
    "}{",
    'quo"ted \\ key',
    "line\nbreak",
    "*?[a-z]",
    "007",
    "1e3",
    "x" * 10_000,
)


class BackendHarness:
    """What the suites share: the hooks to fill in, and short words for the questions."""

    TTL: ClassVar[int] = 30_000
    """The length of the tests' leases, in milliseconds; at least 60."""

    SLACK: ClassVar[int] = 0
    """By how many milliseconds the store's clock may run on by itself during a test; 0 if it stands still."""

    JOB: ClassVar[str] = "shop.sync"

    backend: LockBackend

    # Hooks.

    def make_backend(self) -> LockBackend:
        """Return a backend on an empty store."""
        raise NotImplementedError

    def lose(self, backend: LockBackend) -> None:
        """Make the store lose all that it has under the backend's prefix, as a flush would."""
        raise NotImplementedError

    def advance(self, milliseconds: int) -> None:
        """Let that much time pass in the store: wait for it, unless the test can move the store's clock."""
        end, deadline = self.now() + milliseconds, time.monotonic() + milliseconds / 1000 + 10
        while self.now() < end:
            assert time.monotonic() < deadline, "the store's clock does not run"
            threading.Event().wait(0.002)

    # Set-up.

    def setup_method(self) -> None:
        """Make the backend."""
        self._tokens = 0
        self.backend = self.make_backend()

    def teardown_method(self) -> None:
        """Close it."""
        self.backend.close()

    # Words.

    @property
    def grace(self) -> int:
        """A grace that no test exceeds by accident."""
        return 10 * self.TTL

    @property
    def rest(self) -> int:
        """How long a job rests after a loss."""
        return 3 * renewal_period(self.TTL)

    def now(self) -> int:
        """Return the store's time."""
        return self.backend.time()

    def near(self, value: int | None, expected: int) -> None:
        """Assert a length of time or an instant, as exactly as the clock allows: never more than expected."""
        assert value is not None
        assert expected - self.SLACK <= value <= expected

    def token(self) -> str:
        """Return a new token."""
        self._tokens += 1
        return f"token-{self._tokens}"

    def declare(self, fingerprint: str = "v1", *, key: str = JOB, ttl: int | None = None, **seeds: Any) -> int:
        """Declare one job and return since when it is."""
        return only(self.backend.declare([Declaration(key, fingerprint, ttl or self.TTL, Seeds(**seeds))]))

    def due(self, *, key: str = JOB) -> tuple[int, int, int]:
        """Declare a job, and return three occurrences that are due and not decided."""
        since = self.declare(key=key)
        self.advance(10)
        return since + 1, since + 2, since + 3

    def claim(
        self,
        occurrence: int,
        token: str | None = None,
        *,
        key: str = JOB,
        holder: str = "b",
        ttl: int | None = None,
        grace: int | None = None,
        recover: bool = False,
    ) -> ClaimResult:
        """Claim one occurrence, by default as replica b."""
        question = Claim(
            key,
            occurrence,
            token or self.token(),
            ttl or self.TTL,
            self.grace if grace is None else grace,
            recover,
        )
        return only(self.backend.claim([question], holder))

    def win(self, occurrence: int, token: str | None = None, **options: Any) -> Lease:
        """Claim one occurrence, by default as replica a, be sure to have won it, and return the lease."""
        token, holder = token or self.token(), options.setdefault("holder", "a")
        result = self.claim(occurrence, token, **options)
        assert result.runs
        key, ttl = options.get("key", self.JOB), options.get("ttl") or self.TTL
        return Lease(key, token, result.fence, ttl, holder, occurrence, result.attempt)

    def renew(self, lease: Lease) -> RenewResult:
        """Renew one lease."""
        return only(self.backend.renew([lease]))

    def release(self, lease: Lease, outcome: str = "succeeded") -> ReleaseResult:
        """Release one lease."""
        return only(self.backend.release([Release(lease, outcome)]))

    def state(self, key: str = JOB) -> JobState:
        """Read one job."""
        return only(self.backend.states([key]))

    def request(self, *, key: str = JOB) -> None:
        """Ask for a run of a job that is declared."""
        assert self.backend.request_run(key)

    def take(
        self,
        token: str | None = None,
        *,
        key: str = JOB,
        holder: str = "b",
        ttl: int | None = None,
        unasked: bool = False,
    ) -> ClaimResult:
        """Take a request, by default as replica b."""
        return self.backend.take_request(key, token or self.token(), ttl or self.TTL, holder, unasked=unasked)

    def manual(self, token: str | None = None, holder: str = "a") -> Lease:
        """Ask for a run, take it, and return the lease."""
        self.request()
        token = token or self.token()
        result = self.take(token, holder=holder)
        assert result.verdict == "won"
        return Lease(self.JOB, token, result.fence, self.TTL, holder, "manual")

    def superseded(self, first: int, second: int) -> tuple[Lease, Lease]:
        """
        Return the leases of a run of `first` and of a run of `second` that took over from it.

        The store has lost its data since, and the older one wrote its lease back first: it is live, the newer is not.
        """
        older = self.win(first, holder="a")
        self.lapse()
        newer = self.win(second, holder="b")
        self.lose(self.backend)
        self.declare(since=first - 1)
        self.advance(self.rest)
        assert self.renew(older).ok
        return older, newer

    def lapse(self) -> None:
        """Let a lease that was just taken end: its holder is dead."""
        self.advance(self.TTL)

    def acquire(self, key: str = JOB, token: str | None = None, holder: str = "a") -> Acquired:
        """Ask for a plain lock."""
        return self.backend.acquire(key, token or self.token(), self.TTL, holder)

    def lock(self, key: str = JOB, holder: str = "a") -> Lease:
        """Acquire a plain lock that is free, and return its lease."""
        token = self.token()
        answer = self.acquire(key, token, holder)
        assert answer.fence > 0
        return Lease(key, token, answer.fence, self.TTL, holder)


def only(reply: Reply[T]) -> T:
    """Return the answer of a batch of one."""
    (answer,) = reply.answers
    if isinstance(answer, BackendError):
        raise answer
    return answer


def dead(lease: Lease) -> DeadRun:
    """Return how the end of a lease is to be reported."""
    assert lease.run is not None
    return DeadRun(lease.run, lease.holder, lease.attempt, lease.fence)


def sound(reply: Reply[T]) -> list[T]:
    """Return the answers of a batch in which nothing failed."""
    failures = [answer for answer in reply.answers if isinstance(answer, BackendError)]
    if failures:
        raise failures[0]
    return [answer for answer in reply.answers if not isinstance(answer, BackendError)]


def run_together(work: Callable[[int], None], count: int) -> None:
    """Run `work` in that many threads, each with its number, and wait for them."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


class DeclareConformance(BackendHarness):
    """How jobs become known."""

    def test_nothing_is_known_of_a_job_before_it_is_declared(self) -> None:
        assert self.state() == JobState(self.JOB)
        assert self.claim(self.now()) == ClaimResult("undeclared")
        assert self.state() == JobState(self.JOB)

    def test_a_new_job_is_declared_since_now(self) -> None:
        before = self.now()
        since = self.declare()
        assert before <= since <= self.now()
        assert self.state() == JobState(self.JOB, since=since, fingerprint="v1")

    def test_a_job_declared_again_keeps_its_since(self) -> None:
        since = self.declare()
        self.advance(10)
        assert self.declare() == since
        assert self.declare(since=since - 5) == since
        assert self.state().since == since

    def test_another_schedule_starts_the_job_anew(self) -> None:
        since = self.declare("v1")
        self.advance(10)
        again = self.declare("v2")
        assert since + 10 <= again <= self.now()
        assert (self.state().since, self.state().fingerprint) == (again, "v2")
        assert self.declare("v2") == again

    def test_another_schedule_that_is_known_from_before_starts_at_its_seed(self) -> None:
        since = self.declare("v1")
        assert self.declare("v2", since=since - 500) == since - 500

    def test_a_new_job_starts_at_its_seed(self) -> None:
        since = self.now() - 500
        assert self.declare(since=since) == since

    def test_a_seeded_occurrence_counts_as_decided(self) -> None:
        occurrence = self.now() - 1
        self.declare(occurrence=occurrence, since=occurrence - 100)
        self.advance(self.rest)
        assert self.claim(occurrence) == ClaimResult("taken")
        result = self.claim(occurrence + 1)
        assert (result.verdict, result.previous) == ("won", occurrence)

    def test_an_occurrence_of_zero_is_a_seed_like_any_other(self) -> None:
        self.declare(occurrence=0, since=-5)
        assert self.state().occurrence == 0

    def test_a_seeded_fence_is_exceeded_by_the_next_win(self) -> None:
        self.declare(fence=self.now() + 10**9)
        self.advance(self.rest)
        seeded = self.state().fence
        assert self.win(self.now()).fence == seeded + 1

    def test_a_seeded_pause_is_taken_over(self) -> None:
        self.declare(paused=True)
        assert self.state().paused
        self.declare(key="other", paused=False)
        assert not self.state("other").paused

    def test_a_pause_that_is_in_the_store_stands_whatever_the_seed(self) -> None:
        self.backend.pause(self.JOB)
        self.declare(paused=False)
        assert self.state().paused

    def test_seeds_never_lower_what_the_store_knows(self) -> None:
        first, second, _ = self.due()
        lease = self.win(second)
        self.lose(self.backend)
        assert self.renew(lease).ok
        self.declare(occurrence=first, fence=lease.fence - 1)
        assert (self.state().occurrence, self.state().fence) == (second, lease.fence)

    def test_seeds_raise_what_a_holder_wrote_back(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        assert self.renew(lease).ok
        self.declare(occurrence=second, fence=lease.fence + 5)
        assert (self.state().occurrence, self.state().fence) == (second, lease.fence + 5)

    def test_seeds_are_nothing_to_a_store_that_knows_the_job(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.declare(occurrence=second, fence=lease.fence + 5, paused=True)
        self.declare("v2", occurrence=second, fence=lease.fence + 5, paused=True, since=first)
        state = self.state()
        assert (state.occurrence, state.fence, state.paused) == (first, lease.fence, False)
        assert self.claim(second).verdict == "held"

    def test_while_a_job_rests_a_seed_still_raises_what_is_decided(self) -> None:
        """The first who declares after a loss need not be the one who knows most."""
        if not self.backend.shared:
            return  # There is nobody else who could know more.
        for seed, known in ((5, 5), (7, 7), (6, 7)):
            self.declare(occurrence=seed)
            assert self.state().occurrence == known
        self.advance(self.rest)
        self.declare(occurrence=8)
        assert self.state().occurrence == 7

    def test_a_job_rests_after_any_seed_if_others_may_be_alive(self) -> None:
        seeds: list[dict[str, Any]] = [
            {"occurrence": 1},
            {"fence": 1},
            {"paused": True},
            {"paused": False},
            {"since": self.now()},
        ]
        for number, seed in enumerate(seeds):
            key = f"job-{number}"
            self.declare(key=key, **seed)
            self.backend.resume(key)
            result = self.claim(self.now(), key=key)
            assert result.verdict == ("early" if self.backend.shared else "won")
            self.near(result.left, self.rest if self.backend.shared else 0)

    def test_a_rest_ends(self) -> None:
        self.declare(fence=1)
        self.advance(self.rest)
        assert self.claim(self.now()).verdict == "won"

    def test_a_rest_is_three_renewal_periods_of_the_jobs_own_ttl(self) -> None:
        for ttl, rest in ((60, 60), (900, 900), (3_000, 3_000), (60_000, 3_000)):
            self.declare(key=f"job-{ttl}", ttl=ttl, fence=1)
            result = self.claim(self.now(), key=f"job-{ttl}", ttl=ttl)
            if self.backend.shared:
                assert result.verdict == "early"
                self.near(result.left, rest)
            else:
                assert result.verdict == "won"

    def test_what_is_decided_rests_as_well(self) -> None:
        occurrence = self.now()
        self.declare(occurrence=occurrence)
        result = self.claim(occurrence)
        assert result.verdict == ("early" if self.backend.shared else "taken")
        self.near(result.left, self.rest if self.backend.shared else 0)

    def test_a_job_without_seeds_does_not_rest(self) -> None:
        first, _, _ = self.due()
        assert self.claim(first).verdict == "won"

    def test_a_declaration_never_touches_a_lease_or_what_came_during_it(self) -> None:
        first, second, _ = self.due()
        self.win(first)
        self.claim(second)
        before = self.state()
        self.advance(10)
        self.declare("v2", fence=before.fence + 1)
        assert self.state() == replace(before, fingerprint="v2", since=self.state().since)

    def test_each_job_of_a_batch_is_declared_by_itself(self) -> None:
        since = self.declare(key="old")
        self.advance(10)
        reply = self.backend.declare(
            [Declaration("new", "n", self.TTL), Declaration("old", "v1", self.TTL), Declaration("new", "n", self.TTL)]
        )
        assert reply.answers == [reply.now, since, reply.now]
        assert reply.now >= since + 10


class ClaimConformance(BackendHarness):
    """How occurrences are decided."""

    def test_the_first_claim_wins_and_holds_the_lease(self) -> None:
        first, _, _ = self.due()
        result = self.claim(first, "t1", holder="a")
        assert (result.verdict, result.runs, result.previous, result.dead) == ("won", True, first - 1, None)
        assert (result.left, result.attempt) == (0, 0)
        state = self.state()
        assert state.lease == Lease(self.JOB, "t1", result.fence, self.TTL, "a", first, 0)
        assert (state.occurrence, state.fence, state.pending, state.last) == (first, result.fence, None, None)
        assert state.started is not None
        self.near(state.started, self.now())
        assert state.expires == state.started + self.TTL

    def test_an_occurrence_in_the_future_is_early_and_changes_nothing(self) -> None:
        self.due()
        before, ahead = self.state(), self.now() + 5_000
        result = self.claim(ahead)
        assert result.verdict == "early"
        self.near(result.left, 5_000)
        assert self.state() == before

    def test_an_occurrence_in_the_future_is_early_also_while_another_runs(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        assert self.claim(self.now() + 5_000).verdict == "early"
        assert self.state().pending is None

    def test_an_occurrence_starts_once(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        assert self.claim(first).verdict == "taken"
        assert self.release(lease).ok
        assert self.claim(first) == ClaimResult("taken")
        assert self.claim(first, recover=True) == ClaimResult("taken")
        later = self.claim(second)
        assert (later.verdict, later.previous) == ("won", first)

    def test_of_many_threads_one_wins(self) -> None:
        first, _, _ = self.due()
        barrier, results = threading.Barrier(8), list[ClaimResult]()

        def claim(number: int) -> None:
            barrier.wait()
            results.append(self.claim(first, f"thread-{number}", holder=f"holder-{number}"))

        run_together(claim, 8)
        assert sorted(result.verdict for result in results) == ["taken"] * 7 + ["won"]

    def test_an_older_occurrence_than_the_decided_one_is_taken(self) -> None:
        first, second, third = self.due()
        assert self.release(self.win(second)).ok
        assert self.claim(first).verdict == "taken"
        assert self.claim(third).previous == second

    def test_while_a_lease_is_live_a_decided_occurrence_is_taken(self) -> None:
        first, second, _ = self.due()
        self.win(second, holder="a")
        for occurrence in (first, second):
            result = self.claim(occurrence, recover=True)
            assert (result.verdict, result.holder, result.dead) == ("taken", "a", None)
            self.near(result.left, self.TTL)
        assert self.state().pending is None

    def test_while_a_lease_is_live_a_newer_occurrence_is_held_and_not_consumed(self) -> None:
        first, second, _ = self.due()
        self.win(first, holder="a")
        before = self.state()
        self.advance(20)
        result = self.claim(second)
        assert (result.verdict, result.holder, result.previous, result.dead) == ("held", "a", None, None)
        self.near(result.left, self.TTL - 20)
        assert self.state() == replace(before, pending=second)

    def test_the_newest_of_what_is_held_is_remembered(self) -> None:
        first, second, third = self.due()
        self.win(first)
        for occurrence in (second, third, second):
            assert self.claim(occurrence).verdict == "held"
        assert self.state().pending == third

    def test_a_held_occurrence_runs_if_the_holder_dies(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        assert self.claim(second, "asked-again").verdict == "held"
        self.lapse()
        result = self.claim(second, "asked-again")
        assert (result.verdict, result.previous, result.dead) == ("won", first, dead(lease))

    def test_what_was_held_is_forgotten_by_the_next_decision(self) -> None:
        first, second, third = self.due()
        self.win(first)
        assert self.claim(third).verdict == "held"
        self.lapse()
        lease = self.win(second)
        assert self.state().pending is None
        assert self.release(lease).held is None
        assert self.claim(third).verdict == "won"

    def test_a_pause_does_not_show_while_a_lease_is_live(self) -> None:
        first, second, _ = self.due()
        self.win(first)
        self.backend.pause(self.JOB)
        assert self.claim(second).verdict == "held"
        assert self.claim(first).verdict == "taken"

    def test_a_dead_run_is_told_to_the_first_who_looks(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first, holder="a")
        expires = self.state().expires
        self.lapse()
        assert self.claim(first) == ClaimResult("taken", dead=dead(lease))
        assert self.claim(first) == ClaimResult("taken")
        state = self.state()
        assert (state.lease, state.started, state.expires, state.fence) == (None, None, None, lease.fence)
        assert state.last is not None
        assert (state.last.holder, state.last.run, state.last.fence) == ("a", first, lease.fence)
        assert (state.last.ended, state.last.outcome) == (expires, "abandoned")

    def test_a_dead_run_is_told_with_a_newer_occurrence_that_is_won(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        result = self.claim(second)
        assert (result.verdict, result.previous, result.dead) == ("won", first, dead(lease))
        last = self.state().last
        assert last is not None
        assert (last.fence, last.outcome) == (lease.fence, "abandoned")

    def test_a_dead_run_is_told_with_a_newer_occurrence_that_is_missed(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        assert self.claim(second, grace=0) == ClaimResult("missed", previous=first, dead=dead(lease))
        assert self.state().lease is None
        assert self.claim(second) == ClaimResult("taken")

    def test_a_dead_run_is_told_with_a_newer_occurrence_that_is_paused(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.backend.pause(self.JOB)
        self.lapse()
        assert self.claim(second) == ClaimResult("paused", previous=first, dead=dead(lease))
        assert self.state().lease is None
        assert self.claim(second) == ClaimResult("taken")

    def test_a_dead_run_is_recovered_once(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        result = self.claim(first, "t2", holder="b", recover=True)
        assert result == ClaimResult("recovered", dead=dead(lease), fence=result.fence, attempt=1)
        assert result.runs
        assert result.fence > lease.fence
        state = self.state()
        assert state.lease == Lease(self.JOB, "t2", result.fence, self.TTL, "b", first, 1)
        assert (state.occurrence, state.fence) == (first, result.fence)
        assert state.started is not None
        self.near(state.started, self.now())
        assert state.expires == state.started + self.TTL
        assert state.last is not None
        assert (state.last.holder, state.last.outcome) == ("a", "abandoned")
        self.lapse()
        again = self.claim(first, recover=True)
        assert again == ClaimResult("taken", dead=DeadRun(first, "b", 1, result.fence))
        assert self.claim(second).verdict == "won"

    def test_nothing_is_recovered_unasked(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.lapse()
        assert self.claim(first, recover=False) == ClaimResult("taken", dead=dead(lease))

    def test_nothing_is_recovered_while_paused(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.backend.pause(self.JOB)
        self.lapse()
        assert self.claim(first, recover=True) == ClaimResult("taken", dead=dead(lease))

    def test_nothing_is_recovered_later_than_the_grace(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.lapse()
        self.advance(20)
        assert self.claim(first, recover=True, grace=10) == ClaimResult("taken", dead=dead(lease))

    def test_only_the_occurrence_that_died_is_recovered(self) -> None:
        first, second, _ = self.due()
        lease = self.win(second)
        self.lapse()
        assert self.claim(first, recover=True) == ClaimResult("taken", dead=dead(lease))
        assert self.claim(second, recover=True) == ClaimResult("taken")

    def test_a_dead_manual_run_is_told_and_not_recovered(self) -> None:
        first, _, _ = self.due()
        assert self.release(self.win(first)).ok
        lease = self.manual()
        self.lapse()
        assert self.claim(first, recover=True) == ClaimResult("taken", dead=dead(lease))

    def test_what_is_passed_over_is_counted_from_the_declaration_if_that_is_newer(self) -> None:
        first, _, _ = self.due()
        assert self.release(self.win(first)).ok
        since = self.declare("v2")
        self.advance(10)
        result = self.claim(since + 5)
        assert (result.verdict, result.previous) == ("won", since)

    def test_a_paused_occurrence_is_consumed(self) -> None:
        first, second, third = self.due()
        assert self.release(self.win(first)).ok
        self.backend.pause(self.JOB)
        assert self.claim(second) == ClaimResult("paused", previous=first)
        self.backend.resume(self.JOB)
        assert self.claim(second) == ClaimResult("taken")
        assert self.claim(third).previous == second

    def test_a_late_occurrence_is_missed_and_consumed(self) -> None:
        first, second, _ = self.due()
        assert self.claim(first, grace=0) == ClaimResult("missed", previous=first - 1)
        assert self.claim(first) == ClaimResult("taken")
        assert self.claim(second).previous == first

    def test_a_late_occurrence_of_a_paused_job_is_paused(self) -> None:
        first, _, _ = self.due()
        self.backend.pause(self.JOB)
        assert self.claim(first, grace=0).verdict == "paused"

    def test_fences_rise_and_are_never_below_the_stores_time(self) -> None:
        first, second, third = self.due()
        fences = []
        for occurrence in (first, second, third):
            before = self.now()
            lease = self.win(occurrence)
            assert lease.fence >= before
            assert self.release(lease).ok
            fences.append(lease.fence)
        assert fences[0] < fences[1] < fences[2]
        self.advance(10)
        self.near(self.win(self.now()).fence, self.now())


class ReplayConformance(BackendHarness):
    """How a question whose answer did not arrive is asked again."""

    def test_a_win_asked_again_is_the_same_win_with_a_full_lease(self) -> None:
        first, second, _ = self.due()
        dying = self.win(first)
        self.lapse()
        result = self.claim(second, "t1", holder="a")
        assert (result.verdict, result.dead) == ("won", dead(dying))
        self.advance(20)
        assert self.claim(second, "t1", holder="a") == result
        self.near(self.state().expires, self.now() + self.TTL)
        assert self.state().fence == result.fence

    def test_a_win_asked_again_after_its_lease_ran_out_is_live_again(self) -> None:
        first, _, _ = self.due()
        self.win(first, "t1")
        self.lapse()
        assert self.claim(first, "t1").verdict == "won"
        assert self.claim(first, "t2").left > 0

    def test_questions_of_others_do_not_spoil_it(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first, "t1")
        assert self.claim(first).verdict == "taken"
        assert self.claim(second).verdict == "held"
        assert self.claim(self.now() + 5_000).verdict == "early"
        assert self.claim(first, "t1").fence == lease.fence

    def test_a_look_at_what_is_over_does_not_spoil_it(self) -> None:
        first, second, _ = self.due()
        assert self.release(self.win(first)).ok
        assert self.release(self.win(second, "t1")).ok
        assert self.claim(second) == ClaimResult("taken")
        assert self.claim(second, "t1") == ClaimResult("lost", previous=first)

    def test_a_win_whose_lease_has_gone_is_lost_and_still_tells_all(self) -> None:
        first, second, _ = self.due()
        dying = self.win(first)
        self.lapse()
        lease = self.win(second, "t1")
        assert self.release(lease).ok
        assert self.claim(second, "t1") == ClaimResult("lost", previous=first, dead=dead(dying))
        assert self.state().lease is None

    def test_a_win_that_was_forced_off_is_lost(self) -> None:
        first, _, _ = self.due()
        self.win(first, "t1")
        self.backend.force_release(self.JOB)
        assert self.claim(first, "t1") == ClaimResult("lost", previous=first - 1)

    def test_a_recovery_asked_again_is_the_same(self) -> None:
        first, _, _ = self.due()
        dying = self.win(first)
        self.lapse()
        result = self.claim(first, "t2", recover=True)
        self.advance(20)
        assert self.claim(first, "t2", recover=True) == result
        assert (result.verdict, result.dead, result.attempt) == ("recovered", dead(dying), 1)
        self.near(self.state().expires, self.now() + self.TTL)

    def test_a_recovery_whose_lease_has_gone_is_lost_and_still_tells_of_the_dead(self) -> None:
        first, _, _ = self.due()
        dying = self.win(first)
        self.lapse()
        recovered = self.win(first, "t2", holder="b", recover=True)
        assert self.release(recovered).ok
        assert self.claim(first, "t2", recover=True) == ClaimResult("lost", dead=dead(dying))

    def test_a_dead_run_is_told_again_to_the_one_who_asked(self) -> None:
        first, _, _ = self.due()
        dying = self.win(first)
        self.lapse()
        answer = self.claim(first, "t2")
        assert self.claim(first, "t2") == answer == ClaimResult("taken", dead=dead(dying))
        assert self.claim(first, "t3") == ClaimResult("taken")

    def test_a_missed_occurrence_is_told_again(self) -> None:
        first, second, _ = self.due()
        dying = self.win(first)
        self.lapse()
        answer = self.claim(second, "t2", grace=0)
        assert self.claim(second, "t2", grace=self.grace) == answer
        assert answer == ClaimResult("missed", previous=first, dead=dead(dying))

    def test_a_paused_occurrence_is_told_again_after_the_pause(self) -> None:
        first, _, _ = self.due()
        self.backend.pause(self.JOB)
        answer = self.claim(first, "t1")
        self.backend.resume(self.JOB)
        assert self.claim(first, "t1") == answer == ClaimResult("paused", previous=first - 1)

    def test_after_another_decision_it_is_a_question_like_any_other(self) -> None:
        first, second, _ = self.due()
        assert self.release(self.win(first, "t1")).ok
        self.win(second, holder="b")
        result = self.claim(first, "t1")
        assert (result.verdict, result.holder) == ("taken", "b")


class RenewConformance(BackendHarness):
    """How leases live on, and through a loss of the store's data."""

    def test_a_lease_is_renewed_to_its_full_length(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        before = self.state()
        self.advance(20)
        assert self.renew(lease) == RenewResult(True)
        state = self.state()
        self.near(state.expires, self.now() + self.TTL)
        assert state == replace(before, expires=state.expires)

    def test_a_lease_that_ran_out_and_that_nobody_took_is_renewed(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        assert self.renew(lease).ok
        assert self.claim(second).verdict == "held"

    def test_a_lease_is_renewed_also_while_paused(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.backend.pause(self.JOB)
        assert self.renew(lease).ok

    def test_a_lease_that_was_released_is_lost(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        assert self.release(lease).ok
        before = self.state()
        assert self.renew(lease) == RenewResult(False)
        assert self.state() == before

    def test_a_lease_that_was_reported_dead_is_lost(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.lapse()
        assert self.claim(first).dead
        assert self.renew(lease) == RenewResult(False)

    def test_a_lease_that_another_took_is_lost_and_told_what_that_has_left(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        self.win(second, holder="b")
        self.advance(20)
        before = self.state()
        result = self.renew(lease)
        assert not result.ok
        self.near(result.left, self.TTL - 20)
        assert self.state() == before

    def test_beside_anothers_dead_lease_nothing_is_left(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        self.win(second, holder="b")
        self.advance(self.TTL + 5)
        assert self.renew(lease) == RenewResult(False, 0)

    def test_after_a_loss_the_whole_lease_is_written_back(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        assert self.renew(lease) == RenewResult(True)
        state = self.state()
        assert (state.lease, state.fence, state.occurrence) == (lease, lease.fence, first)
        assert state.started is not None
        self.near(state.started, self.now())
        assert state.expires == state.started + self.TTL
        self.declare(since=first - 1)
        self.advance(self.rest)
        assert self.renew(lease).ok
        assert self.claim(first).verdict == "taken"
        assert self.claim(second).verdict == "held"

    def test_after_a_loss_the_second_attempt_is_still_the_second(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        self.lapse()
        lease = self.win(first, holder="b", recover=True)
        self.lose(self.backend)
        assert self.renew(lease).ok
        self.declare()
        self.lapse()
        assert self.claim(first, recover=True) == ClaimResult("taken", dead=DeadRun(first, "b", 1, lease.fence))

    def test_after_a_loss_a_manual_run_is_written_back_and_decides_nothing(self) -> None:
        first, _, _ = self.due()
        lease = self.manual()
        self.lose(self.backend)
        assert self.renew(lease).ok
        assert (self.state().lease, self.state().occurrence) == (lease, None)
        self.declare()
        assert self.claim(first).verdict == "held"

    def test_a_lease_written_back_never_lowers_what_is_decided(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        self.declare(occurrence=second, fence=lease.fence - 1)
        assert self.renew(lease).ok
        assert (self.state().occurrence, self.state().fence) == (second, lease.fence)

    def test_a_holders_own_fence_come_back_as_a_seed_does_not_stand_in_its_way_while_the_job_rests(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        self.declare(occurrence=first, fence=lease.fence)
        assert self.renew(lease).ok is self.backend.shared
        self.advance(self.rest)
        if self.backend.shared:
            assert self.renew(lease).ok
        assert self.claim(second).verdict == ("held" if self.backend.shared else "won")

    def test_an_equal_fence_after_the_rest_means_lost(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        self.declare(occurrence=first, fence=lease.fence)
        self.advance(self.rest)
        assert self.renew(lease) == RenewResult(False)

    def test_a_higher_fence_means_lost_also_while_the_job_rests(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        self.declare(occurrence=first, fence=lease.fence + 1)
        assert self.renew(lease) == RenewResult(False)

    def test_a_live_lease_means_lost_whatever_its_fence(self) -> None:
        first, second, _ = self.due()
        older, newer = self.superseded(first, second)
        result = self.renew(newer)
        assert not result.ok
        self.near(result.left, self.TTL)
        assert self.state().lease == older

    def test_a_dead_lease_of_a_lower_fence_is_written_over(self) -> None:
        first, second, _ = self.due()
        _, newer = self.superseded(first, second)
        self.lapse()
        assert self.renew(newer).ok
        state = self.state()
        assert (state.lease, state.occurrence) == (newer, second)


class ReleaseConformance(BackendHarness):
    """How leases are given back."""

    def test_a_release_ends_the_lease_and_keeps_the_rest(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first, holder="a")
        started = self.state().started
        self.advance(20)
        assert self.release(lease, "failed") == ReleaseResult(True)
        state = self.state()
        assert (state.lease, state.started, state.expires, state.pending) == (None, None, None, None)
        assert (state.occurrence, state.fence) == (first, lease.fence)
        assert state.last is not None
        assert (state.last.holder, state.last.run, state.last.fence) == ("a", first, lease.fence)
        assert (state.last.started, state.last.outcome) == (started, "failed")
        self.near(state.last.ended, self.now())

    def test_what_came_during_the_run_is_consumed_by_its_end(self) -> None:
        first, second, third = self.due()
        lease = self.win(first)
        self.claim(second)
        self.claim(third)
        assert self.release(lease) == ReleaseResult(True, held=(first, third))
        assert (self.state().occurrence, self.state().pending) == (third, None)
        assert self.claim(third) == ClaimResult("taken")

    def test_what_came_during_the_run_is_counted_from_the_declaration_if_that_is_newer(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        since = self.declare("v2")
        self.advance(10)
        assert self.claim(since + 5).verdict == "held"
        assert self.release(lease).held == (since, since + 5)

    def test_a_release_asked_again_tells_the_same(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        answer = self.release(lease)
        before = self.state()
        assert self.release(lease) == answer == ReleaseResult(True, held=(first, second))
        assert self.state() == before

    def test_what_one_release_told_is_told_to_no_other(self) -> None:
        first, second, third = self.due()
        older = self.win(first)
        self.lapse()
        newer = self.win(second, holder="b")
        self.claim(third)
        assert self.release(newer).held == (second, third)
        assert self.release(older) == ReleaseResult(False)
        assert self.release(newer).held == (second, third)

    def test_a_release_with_nothing_to_tell_asked_again_is_lost(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        assert self.release(lease).ok
        before = self.state()
        self.advance(20)
        assert self.release(lease) == ReleaseResult(False)
        assert self.state() == before

    def test_a_lease_that_ran_out_and_that_nobody_took_is_released(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        self.lapse()
        assert self.release(lease) == ReleaseResult(True, held=(first, second))

    def test_a_lease_that_another_took_is_not_released(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lapse()
        self.win(second, holder="b")
        before = self.state()
        result = self.release(lease)
        assert (result.ok, result.held) == (False, None)
        self.near(result.left, self.TTL)
        assert self.state() == before

    def test_a_lease_that_was_forced_off_is_not_released(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        self.backend.force_release(self.JOB)
        assert self.release(lease) == ReleaseResult(False)
        assert self.state().pending == second

    def test_after_a_loss_a_release_leaves_its_occurrence_and_its_fence(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        assert self.release(lease) == ReleaseResult(True)
        state = self.state()
        assert (state.lease, state.occurrence, state.fence) == (None, first, lease.fence)
        assert self.renew(lease) == RenewResult(False)
        self.declare()
        assert self.claim(first) == ClaimResult("taken")
        assert self.win(second).fence > lease.fence

    def test_after_a_loss_a_release_never_lowers_what_is_decided(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        self.declare(occurrence=second)
        assert self.release(lease).ok
        assert self.state().occurrence == second

    def test_after_a_loss_the_release_of_a_manual_run_decides_nothing(self) -> None:
        self.due()
        lease = self.manual()
        self.lose(self.backend)
        assert self.release(lease).ok
        assert (self.state().occurrence, self.state().fence) == (None, lease.fence)

    def test_what_came_during_a_run_that_died_is_told_by_its_successor(self) -> None:
        first, second, third = self.due()
        _, newer = self.superseded(first, second)
        assert self.claim(third).verdict == "held"
        self.lapse()
        assert self.release(newer) == ReleaseResult(True, held=(second, third))

    def test_what_was_decided_meanwhile_is_not_told_as_held(self) -> None:
        first, second, third = self.due()
        _, newer = self.superseded(first, third)
        assert self.claim(second).verdict == "held"
        self.lapse()
        assert self.release(newer) == ReleaseResult(True)
        assert (self.state().occurrence, self.state().pending) == (third, None)

    def test_a_run_is_not_told_as_held_by_itself(self) -> None:
        first, second, _ = self.due()
        _, newer = self.superseded(first, second)
        assert self.claim(second).verdict == "held"
        self.lapse()
        assert self.release(newer) == ReleaseResult(True)
        assert (self.state().occurrence, self.state().pending) == (second, None)


class RequestConformance(BackendHarness):
    """How a job is run by hand."""

    def test_a_job_that_is_not_declared_cannot_be_requested(self) -> None:
        assert not self.backend.request_run(self.JOB)
        assert self.state() == JobState(self.JOB)
        assert self.JOB not in self.backend.heartbeat("i").requests
        assert self.take() == ClaimResult("none")

    def test_a_request_is_carried_by_every_heartbeat_until_it_is_taken(self) -> None:
        self.declare()
        self.request()
        self.near(self.state().requested, self.now())
        assert self.backend.heartbeat("i").requests == {self.JOB}
        assert self.backend.heartbeat("j").requests == {self.JOB}
        assert self.take().verdict == "won"
        assert self.backend.heartbeat("i").requests == frozenset()
        assert self.state().requested is None

    def test_a_request_is_taken_once_with_its_lease(self) -> None:
        self.declare()
        self.request()
        result = self.take("t1", holder="a")
        assert result == ClaimResult("won", fence=result.fence)
        lease = Lease(self.JOB, "t1", result.fence, self.TTL, "a", "manual", 0)
        state = self.state()
        assert (state.lease, state.occurrence, state.pending) == (lease, None, None)
        assert state.started is not None
        assert state.expires == state.started + self.TTL
        assert self.release(lease).ok
        assert self.take() == ClaimResult("none")

    def test_without_a_request_there_is_nothing_to_take(self) -> None:
        self.declare()
        before = self.state()
        assert self.take() == ClaimResult("none")
        assert self.state() == before

    def test_two_requests_are_one(self) -> None:
        self.declare()
        self.request()
        self.advance(20)
        self.request()
        self.near(self.state().requested, self.now())
        assert self.release(self.manual()).ok
        assert self.take().verdict == "none"

    def test_a_request_waits_while_the_job_runs(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.request()
        answer = self.take()
        assert answer == ClaimResult("busy", left=answer.left, holder="a")
        self.near(answer.left, self.TTL)
        assert self.JOB in self.backend.heartbeat("i").requests
        assert self.release(lease).ok
        assert self.take().verdict == "won"

    def test_a_request_waits_while_the_job_rests(self) -> None:
        self.declare(fence=1)
        self.request()
        answer = self.take()
        assert answer.verdict == ("busy" if self.backend.shared else "won")
        self.near(answer.left, self.rest if self.backend.shared else 0)
        self.advance(self.rest)
        if self.backend.shared:
            assert self.take().verdict == "won"

    def test_a_paused_job_runs_on_request(self) -> None:
        self.declare()
        self.backend.pause(self.JOB)
        self.request()
        assert self.take().verdict == "won"

    def test_a_manual_run_consumes_no_occurrence_and_holds_those_that_come(self) -> None:
        first, second, _ = self.due()
        assert self.release(self.win(first)).ok
        lease = self.manual()
        assert self.claim(second).verdict == "held"
        assert self.claim(first).verdict == "taken"
        assert self.release(lease) == ReleaseResult(True, held=(first, second))

    def test_what_came_during_a_manual_run_is_counted_from_the_declaration(self) -> None:
        first, second, _ = self.due()
        lease = self.manual()
        assert self.claim(second).verdict == "held"
        assert self.release(lease) == ReleaseResult(True, held=(first - 1, second))

    def test_a_dead_run_is_told_to_the_one_who_takes_a_request(self) -> None:
        first, second, _ = self.due()
        dying = self.win(first)
        self.lapse()
        self.request()
        result = self.take("t1")
        assert result == ClaimResult("won", dead=dead(dying), fence=result.fence)
        assert result.fence > dying.fence
        last = self.state().last
        assert last is not None
        assert (last.run, last.outcome) == (first, "abandoned")
        self.lapse()
        later = self.claim(second)
        assert (later.previous, later.dead) == (first, DeadRun("manual", "b", 0, result.fence))

    def test_a_request_taken_again_by_the_same_question_is_the_same_win(self) -> None:
        first, _, _ = self.due()
        dying = self.win(first)
        self.lapse()
        self.request()
        result = self.take("t1")
        self.advance(20)
        self.request()
        assert self.take("t1") == result
        assert result.dead == dead(dying)
        self.near(self.state().expires, self.now() + self.TTL)
        assert self.state().requested is not None

    def test_a_run_that_nobody_asked_for_takes_the_lease_and_leaves_a_request_alone(self) -> None:
        first, second, _ = self.due()
        dying = self.win(first)
        self.lapse()
        self.request()
        result = self.take("t1", holder="a", unasked=True)
        assert result == ClaimResult("won", dead=dead(dying), fence=result.fence)
        assert self.take("t1", holder="a", unasked=True) == result
        lease = Lease(self.JOB, "t1", result.fence, self.TTL, "a", "manual", 0)
        assert self.state().lease == lease
        assert self.backend.heartbeat("i").requests == {self.JOB}
        assert self.claim(second).verdict == "held"
        assert self.release(lease) == ReleaseResult(True, held=(first, second))
        assert self.take(holder="a").verdict == "won"

    def test_a_run_that_nobody_asked_for_does_not_begin_while_another_goes_on(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        before = self.state()
        answer = self.take(unasked=True)
        assert answer == ClaimResult("busy", left=answer.left, holder="a")
        assert self.state() == before

    def test_a_run_that_nobody_asked_for_waits_while_the_job_rests(self) -> None:
        self.declare(fence=1)
        assert self.take(unasked=True).verdict == ("busy" if self.backend.shared else "won")

    def test_a_paused_job_runs_also_where_nobody_asked_for_it(self) -> None:
        self.declare()
        self.backend.pause(self.JOB)
        assert self.take(unasked=True).verdict == "won"

    def test_a_job_that_is_not_declared_does_not_run_without_a_request_either(self) -> None:
        assert self.take(unasked=True) == ClaimResult("undeclared")
        assert self.state() == JobState(self.JOB)

    def test_a_taken_request_whose_lease_has_gone_is_lost(self) -> None:
        first, _, _ = self.due()
        dying = self.win(first)
        self.lapse()
        lease = self.manual("t1")
        assert self.release(lease).ok
        assert self.take("t1") == ClaimResult("lost", dead=dead(dying))


class ControlConformance(BackendHarness):
    """What a person does to a job."""

    def test_a_pause_is_set_and_lifted_and_touches_nothing_else(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        before = self.state()
        self.backend.pause(self.JOB)
        assert self.state() == replace(before, paused=True)
        self.backend.pause(self.JOB)
        self.backend.resume(self.JOB)
        assert self.state() == before
        self.backend.resume(self.JOB)
        assert self.release(lease).held == (first, second)

    def test_a_job_can_be_paused_before_it_is_declared(self) -> None:
        self.backend.pause(self.JOB)
        assert self.claim(self.now()).verdict == "undeclared"
        first, _, _ = self.due()
        assert self.claim(first).verdict == "paused"

    def test_a_lease_is_released_by_force_and_its_run_returned(self) -> None:
        first, second, third = self.due()
        lease = self.win(first, holder="a")
        self.claim(second)
        assert self.backend.force_release(self.JOB) == dead(lease)
        state = self.state()
        assert (state.lease, state.started, state.expires) == (None, None, None)
        assert (state.occurrence, state.pending, state.fence) == (first, second, lease.fence + 1)
        assert state.last is not None
        assert (state.last.holder, state.last.run, state.last.fence) == ("a", first, lease.fence)
        assert state.last.outcome == "released by force"
        self.near(state.last.ended, self.now())
        assert self.renew(lease) == RenewResult(False)
        assert self.claim(first) == ClaimResult("taken")
        result = self.claim(third)
        assert (result.verdict, result.previous) == ("won", first)

    def test_a_dead_lease_is_released_by_force_and_its_run_returned(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        self.lapse()
        recovered = self.win(first, holder="b", recover=True)
        self.lapse()
        assert self.backend.force_release(self.JOB) == DeadRun(first, "b", 1, recovered.fence)
        assert self.claim(first) == ClaimResult("taken")

    def test_where_nobody_holds_a_lease_force_returns_none(self) -> None:
        assert self.backend.force_release("unknown") is None
        first, _, _ = self.due()
        lease = self.win(first)
        assert self.release(lease).ok
        before = self.state()
        assert self.backend.force_release(self.JOB) is None
        assert self.state() == replace(before, fence=lease.fence + 1)

    def test_a_lease_that_was_forced_off_cannot_be_written_back(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.lose(self.backend)
        self.declare(fence=lease.fence)
        self.backend.force_release(self.JOB)
        assert self.renew(lease) == RenewResult(False)
        assert self.release(lease) == ReleaseResult(False)

    def test_what_was_held_is_told_by_the_next_manual_run_after_a_forced_release(self) -> None:
        first, second, _ = self.due()
        self.win(first)
        self.claim(second)
        self.backend.force_release(self.JOB)
        assert self.release(self.manual()).held == (first, second)

    def test_a_forgotten_job_is_unknown(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        self.request()
        self.due(key="other")
        self.backend.forget(self.JOB)
        assert self.state() == JobState(self.JOB)
        assert self.claim(second).verdict == "undeclared"
        assert self.backend.heartbeat("i").requests == frozenset()
        assert self.state("other").since is not None
        assert self.renew(lease).ok
        self.backend.forget("never known")

    def test_states_are_read_without_changing_anything(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.claim(second)
        self.lapse()
        reply = self.backend.states([self.JOB, "unknown", self.JOB])
        state, unknown, again = sound(reply)
        self.near(reply.now, self.now())
        assert (state, unknown) == (again, JobState("unknown"))
        assert (state.lease, state.pending) == (lease, second)
        assert self.claim(second).dead == dead(lease)


class InstanceConformance(BackendHarness):
    """Who is alive."""

    def test_a_survey_is_of_the_jobs_and_of_who_is_alive(self) -> None:
        nothing, nobody = self.backend.survey([])
        assert (nothing.answers, nobody) == ([], {})
        self.near(nothing.now, self.now())
        self.win(self.due()[0])
        self.backend.heartbeat("host:1:aa")
        keys = [self.JOB, "unknown"]
        reply, alive = self.backend.survey(keys)
        assert sound(reply) == sound(self.backend.states(keys))
        assert alive == self.backend.instances() != {}
        self.near(reply.now, self.now())

    def test_an_instance_is_known_from_its_second_heartbeat_on(self) -> None:
        first = self.backend.heartbeat("host:1:aa")
        assert (first.known, first.requests) == (False, frozenset())
        self.near(first.now, self.now())
        assert self.backend.heartbeat("host:1:aa").known
        assert not self.backend.heartbeat("host:2:bb").known
        assert self.backend.heartbeat("host:1:aa").known

    def test_a_loss_of_data_shows_in_the_next_heartbeat(self) -> None:
        self.backend.heartbeat("host:1:aa")
        self.lose(self.backend)
        assert not self.backend.heartbeat("host:1:aa").known
        assert self.backend.heartbeat("host:1:aa").known

    def test_instances_are_listed_with_their_last_heartbeat(self) -> None:
        assert self.backend.instances() == {}
        self.backend.heartbeat("host:1:aa")
        self.advance(20)
        second = self.backend.heartbeat("host:2:bb").now
        first = self.backend.heartbeat("host:1:aa").now
        assert self.backend.instances() == {"host:1:aa": first, "host:2:bb": second}

    def test_a_retired_instance_is_struck_off(self) -> None:
        self.backend.heartbeat("host:1:aa")
        self.backend.heartbeat("host:2:bb")
        self.backend.retire("host:1:aa")
        self.backend.retire("never known")
        assert list(self.backend.instances()) == ["host:2:bb"]
        assert not self.backend.heartbeat("host:1:aa").known


class LockConformance(BackendHarness):
    """Plain locks."""

    def test_a_free_lock_is_acquired(self) -> None:
        before = self.now()
        answer = self.acquire("report", holder="a")
        assert (answer.holder, answer.left) == ("a", self.TTL)
        assert answer.fence >= before

    def test_a_lock_that_is_held_is_refused_and_its_holder_named(self) -> None:
        lease = self.lock("report", holder="a")
        answer = self.acquire("report", holder="b")
        assert (answer.fence, answer.holder) == (0, "a")
        assert 1 < answer.left <= self.TTL
        assert self.renew(lease).ok

    def test_an_acquisition_asked_again_is_the_same_with_the_full_ttl(self) -> None:
        first = self.acquire("report", "t1")
        self.advance(self.TTL // 2)
        assert self.acquire("report", "t1") == first
        self.advance(self.TTL * 3 // 4)
        assert self.acquire("report", "t2").fence == 0

    def test_locks_share_no_names_with_jobs(self) -> None:
        first, second, _ = self.due(key="report")
        self.win(first, key="report")
        before = self.state("report")
        lease = self.lock("report")
        assert self.renew(lease).ok
        assert self.release(lease).ok
        assert self.state("report") == before
        assert self.claim(second, key="report").verdict == "held"

    def test_fences_rise_over_all_locks(self) -> None:
        fences = []
        for key in ("one", "two", "one", "three"):
            lease = self.lock(key)
            assert self.release(lease).ok
            fences.append(lease.fence)
        assert fences == sorted(set(fences))
        self.advance(10)
        self.near(self.lock("four").fence, self.now())

    def test_a_lock_whose_holder_died_is_free_at_its_end(self) -> None:
        older = self.lock("report", holder="a")
        self.advance(self.TTL + 5)
        newer = self.lock("report", holder="b")
        assert newer.fence > older.fence
        result = self.renew(older)
        assert not result.ok
        assert result.left is not None
        assert 1 < result.left <= self.TTL

    def test_a_lock_lives_as_long_as_it_is_renewed(self) -> None:
        lease = self.lock("report")
        for _ in range(4):
            self.advance(self.TTL // 2)
            assert self.renew(lease) == RenewResult(True)
        assert self.acquire("report").fence == 0

    def test_after_a_loss_a_lock_is_written_back(self) -> None:
        lease = self.lock("report", holder="a")
        self.lose(self.backend)
        assert self.renew(lease) == RenewResult(True)
        refused = self.acquire("report", holder="b")
        assert (refused.fence, refused.holder) == (0, "a")
        assert 1 < refused.left <= self.TTL
        assert self.lock("other").fence > lease.fence
        assert self.acquire("report", lease.token).fence == lease.fence
        assert self.release(lease).ok

    def test_a_lock_written_back_ends_when_its_holder_dies(self) -> None:
        lease = self.lock("report")
        self.lose(self.backend)
        assert self.renew(lease).ok
        self.advance(self.TTL + 5)
        assert self.lock("report").fence > lease.fence

    def test_after_a_loss_a_lock_is_lost_if_a_higher_fence_was_given(self) -> None:
        lease = self.lock("report")
        self.lose(self.backend)
        self.advance(10)
        self.lock("other")
        assert self.renew(lease) == RenewResult(False)
        assert self.lock("report").fence > lease.fence

    def test_after_a_loss_a_lock_is_lost_if_another_is_back_whatever_its_fence(self) -> None:
        older = self.lock("report", holder="a")
        self.advance(self.TTL + 5)
        newer = self.lock("report", holder="b")
        self.lose(self.backend)
        assert self.renew(older).ok
        assert not self.renew(newer).ok
        assert self.acquire("report").holder == "a"

    def test_a_lock_that_ended_or_was_released_is_lost(self) -> None:
        lease = self.lock("report")
        assert self.release(lease) == ReleaseResult(True)
        assert self.renew(lease) == RenewResult(False)
        lease = self.lock("report")
        self.advance(self.TTL + 5)
        assert self.renew(lease) == RenewResult(False)
        assert self.lock("report").fence > lease.fence

    def test_a_release_by_another_releases_nothing(self) -> None:
        older = self.lock("report")
        self.advance(self.TTL + 5)
        newer = self.lock("report")
        result = self.release(older)
        assert (result.ok, result.held) == (False, None)
        assert result.left is not None
        assert 1 < result.left <= self.TTL
        assert self.renew(newer).ok

    def test_a_release_asked_again_is_released(self) -> None:
        lease = self.lock("report")
        assert self.release(lease) == ReleaseResult(True)
        assert self.release(lease) == ReleaseResult(True)

    def test_of_many_threads_one_acquires(self) -> None:
        barrier, answers = threading.Barrier(8), list[Acquired]()

        def acquire(number: int) -> None:
            barrier.wait()
            answers.append(self.acquire("report", f"thread-{number}", f"holder-{number}"))

        run_together(acquire, 8)
        assert len([answer for answer in answers if answer.fence]) == 1
        assert len({answer.holder for answer in answers}) == 1


class BatchConformance(BackendHarness):
    """Many questions at once, and odd names."""

    def test_an_empty_batch_has_no_answers(self) -> None:
        assert self.backend.declare([]).answers == []
        assert self.backend.claim([], "a").answers == []
        assert self.backend.renew([]).answers == []
        assert self.backend.release([]).answers == []
        assert self.backend.states([]).answers == []

    def test_one_unknown_job_does_not_stop_the_others(self) -> None:
        first, _, _ = self.due(key="one")
        self.declare(key="three")
        claims = [Claim(key, first, f"t-{key}", self.TTL, self.grace) for key in ("one", "two", "three")]
        reply = self.backend.claim(claims, "a")
        assert [answer.verdict for answer in sound(reply)] == ["won", "undeclared", "won"]
        self.near(reply.now, self.now())

    def test_the_same_job_twice_in_a_batch_is_asked_twice(self) -> None:
        first, second, _ = self.due()
        claims = [Claim(self.JOB, one, self.token(), self.TTL, self.grace) for one in (first, second, first)]
        assert [answer.verdict for answer in sound(self.backend.claim(claims, "a"))] == ["won", "held", "taken"]

    def test_each_question_of_a_batch_has_its_own_terms(self) -> None:
        first, _, _ = self.due(key="one")
        self.declare(key="two")
        self.declare(key="three")
        reply = self.backend.claim(
            [
                Claim("one", first, "t1", self.TTL, self.grace),
                Claim("two", first + 1, "t2", self.TTL * 2, 0),
                Claim("three", first + 2, "t3", self.TTL * 3, self.grace),
            ],
            "a",
        )
        assert [answer.verdict for answer in sound(reply)] == ["won", "missed", "won"]
        one, _, three = sound(self.backend.states(["one", "two", "three"]))
        fences = [answer.fence for answer in sound(reply)]
        assert one.lease == Lease("one", "t1", fences[0], self.TTL, "a", first)
        assert three.lease == Lease("three", "t3", fences[2], self.TTL * 3, "a", first + 2)

    def test_leases_of_jobs_and_plain_locks_are_answered_in_order(self) -> None:
        first, second, _ = self.due(key="job-1")
        self.declare(key="job-2")
        one, two = self.win(first, key="job-1"), self.win(first, key="job-2")
        lock, gone = self.lock("lock-1"), self.lock("lock-2")
        assert self.release(gone).ok
        assert self.release(two).ok
        leases = [lock, one, gone, two]
        reply = self.backend.renew(leases)
        assert [answer.ok for answer in sound(reply)] == [True, True, False, False]
        self.near(reply.now, self.now())
        self.claim(second, key="job-1")
        released = self.backend.release([Release(lease) for lease in leases])
        assert [answer.ok for answer in sound(released)] == [True, True, True, False]
        assert [answer.held for answer in sound(released)] == [None, (first, second), None, None]
        self.near(released.now, self.now())

    def test_locks_of_a_batch_keep_what_is_theirs(self) -> None:
        leases = [replace(self.lock(f"lock-{number}"), ttl=self.TTL * number) for number in (1, 2, 3)]
        self.lose(self.backend)
        assert [answer.ok for answer in sound(self.backend.renew(leases))] == [True] * 3
        for lease in leases:
            assert self.acquire(lease.key, lease.token).fence == lease.fence
            assert self.acquire(lease.key).holder == lease.holder

    def test_more_jobs_than_one_call_takes_are_all_answered(self) -> None:
        keys, ttl = [f"job-{number}" for number in range(601)], 60_000
        since = sound(self.backend.declare([Declaration(key, "v1", ttl) for key in keys]))
        assert len(since) == 601
        self.advance(10)
        claims = [Claim(key, since[0] + 1, f"t-{key}", ttl, ttl) for key in keys]
        assert [result.verdict for result in sound(self.backend.claim(claims, "a"))] == ["won"] * 601
        leases = [state.lease for state in sound(self.backend.states(keys)) if state.lease]
        assert [lease.token for lease in leases] == [f"t-{key}" for key in keys]
        assert [answer.ok for answer in sound(self.backend.renew(leases))] == [True] * 601
        released = sound(self.backend.release([Release(lease) for lease in leases]))
        assert [answer.ok for answer in released] == [True] * 601

    def test_keys_may_be_any_text(self) -> None:
        for key in HOSTILE_KEYS:
            first, _, _ = self.due(key=key)
            lease = self.win(first, key=key)
            assert self.claim(first, key=key).verdict == "taken"
            assert self.renew(lease).ok
            assert self.state(key).lease == lease
            self.request(key=key)
            assert self.backend.heartbeat("i").requests == {key}
            assert self.take(key=key).verdict == "busy"
            assert self.release(lease).ok
            assert self.take(key=key).verdict == "won"
            lock = self.lock(key)
            assert self.renew(lock).ok
            assert self.release(lock).ok
            self.backend.pause(key)
            assert self.state(key).paused
            assert self.backend.force_release(key) is not None
            self.backend.forget(key)
            assert self.state(key) == JobState(key)

    def test_holders_tokens_and_outcomes_may_be_any_text(self) -> None:
        first, _, _ = self.due()
        self.advance(len(HOSTILE_KEYS))
        for number, text in enumerate(HOSTILE_KEYS):
            lease = self.win(first + number, text, holder=text)
            assert self.state().lease == lease
            assert self.claim(first).holder == text
            assert self.release(lease, text).ok
            last = self.state().last
            assert last is not None
            assert (last.holder, last.outcome) == (text, text)
            assert not self.backend.heartbeat(text).known
            assert self.backend.heartbeat(text).known
        assert set(self.backend.instances()) == set(HOSTILE_KEYS)

    def test_a_backend_says_where_it_is(self) -> None:
        assert self.backend.describe()


class BackendConformance(
    DeclareConformance,
    ClaimConformance,
    ReplayConformance,
    RenewConformance,
    ReleaseConformance,
    RequestConformance,
    ControlConformance,
    InstanceConformance,
    LockConformance,
    BatchConformance,
):
    """The whole suite, for any clock."""


class BackendClockConformance(BackendHarness):
    """What shows only where a test can stop the store's clock, move it, and set it back."""

    def set_clock(self, now: int) -> None:
        """
        Set the store's clock, in milliseconds since the epoch.

        `advance` moves it too; between the two it stands still.
        """
        raise NotImplementedError

    def test_the_clock_is_in_milliseconds(self) -> None:
        self.set_clock(1_700_000_000_001)
        assert self.now() == self.declare() == 1_700_000_000_001
        self.advance(998)
        assert self.now() == self.declare("v2") == 1_700_000_000_999

    def test_every_reply_tells_the_time(self) -> None:
        self.set_clock(1_700_000_000_000)
        for now in (1_700_000_000_000, 1_700_000_000_998, 1_700_000_001_997):
            key = f"at-{now}"
            self.advance(now - self.now())
            assert self.backend.heartbeat("i").now == now
            assert self.backend.declare([Declaration(key, "v1", self.TTL)]).now == now
            assert self.backend.claim([Claim(key, now, self.token(), self.TTL, self.grace)], "a").now == now
            assert self.backend.states([key]).now == now
            lock = self.lock(key)
            job = self.state(key).lease
            assert job is not None
            assert lock.fence == job.fence == now
            for lease in (lock, job):
                assert self.backend.renew([lease]).now == now
                assert self.backend.release([Release(lease)]).now == now

    def test_an_occurrence_is_early_until_its_very_millisecond(self) -> None:
        self.declare()
        occurrence = self.now() + 5
        self.advance(4)
        assert self.claim(occurrence) == ClaimResult("early", left=1)
        self.advance(1)
        assert self.claim(occurrence).verdict == "won"

    def test_a_lease_is_live_until_its_very_millisecond(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.request()
        self.advance(self.TTL - 1)
        result = self.claim(second)
        assert (result.verdict, result.left) == ("held", 1)
        assert self.claim(first).left == 1
        assert self.take().verdict == "busy"
        self.advance(1)
        assert self.claim(first) == ClaimResult("taken", dead=dead(lease))

    def test_an_occurrence_is_missed_past_its_very_grace(self) -> None:
        first, second, _ = self.due()
        late = self.now() - first
        assert self.claim(first, grace=late - 1).verdict == "missed"
        assert self.claim(second, grace=late - 1).verdict == "won"

    def test_a_run_is_recovered_up_to_its_very_grace(self) -> None:
        first, second, _ = self.due()
        for occurrence, late, verdict in ((first, 500, "recovered"), (second, 501, "taken")):
            self.win(occurrence)
            self.lapse()
            self.advance(late)
            assert self.claim(occurrence, recover=True, grace=500).verdict == verdict
            self.backend.force_release(self.JOB)

    def test_a_rest_lasts_until_its_very_millisecond(self) -> None:
        occurrence = self.now()
        self.declare(occurrence=occurrence)
        self.request()
        self.advance(self.rest - 1)
        if self.backend.shared:
            assert self.claim(occurrence) == ClaimResult("early", left=1)
            assert self.take() == ClaimResult("busy", left=1)
        self.advance(1)
        assert self.claim(occurrence) == ClaimResult("taken")
        assert self.take().verdict == "won"

    def test_an_equal_fence_stands_in_no_holders_way_until_the_very_end_of_the_rest(self) -> None:
        first, _, _ = self.due()
        for left, ok in ((1, self.backend.shared), (0, False)):
            lease = self.win(first + 2 - left)
            self.lose(self.backend)
            self.declare(occurrence=first, fence=lease.fence)
            self.advance(self.rest - left)
            assert self.renew(lease).ok is ok
            self.backend.force_release(self.JOB)
            self.advance(left)

    def test_a_request_lasts_a_minute(self) -> None:
        self.declare()
        self.request()
        self.advance(REQUEST_LIFETIME + 1)
        assert self.take() == ClaimResult("none")
        assert self.backend.heartbeat("i").requests == frozenset()
        assert self.state().requested is None
        self.request()
        self.advance(REQUEST_LIFETIME)
        assert self.take().verdict == "won"

    def test_a_request_that_nobody_takes_is_carried_by_no_heartbeat_after_a_minute(self) -> None:
        for key in ("early", "late"):
            self.declare(key=key)
        self.request(key="early")
        self.advance(1)
        self.request(key="late")
        self.advance(REQUEST_LIFETIME - 1)
        assert self.backend.heartbeat("i").requests == {"early", "late"}
        self.advance(1)
        assert self.backend.heartbeat("i").requests == {"late"}
        assert [self.state(key).requested is None for key in ("early", "late")] == [True, False]
        self.request(key="early")
        assert self.backend.heartbeat("i").requests == {"early", "late"}

    def test_an_instance_is_listed_for_a_minute_after_its_last_heartbeat(self) -> None:
        self.backend.heartbeat("host:1:aa")
        self.advance(INSTANCE_LIFETIME)
        assert list(self.backend.instances()) == ["host:1:aa"]
        self.backend.heartbeat("host:2:bb")
        assert self.backend.heartbeat("host:1:aa").known
        self.advance(INSTANCE_LIFETIME + 1)
        assert self.backend.instances() == {}
        assert self.backend.heartbeat("host:1:aa").known

    def test_an_instance_that_others_saw_silent_for_more_than_a_minute_is_unknown(self) -> None:
        self.backend.heartbeat("host:1:aa")
        self.advance(INSTANCE_LIFETIME + 1)
        self.backend.heartbeat("host:2:bb")
        assert not self.backend.heartbeat("host:1:aa").known

    def test_a_fence_is_the_stores_time_or_one_more_than_the_last(self) -> None:
        first, second, third = self.due()
        now = self.now()
        one = self.win(first)
        assert self.release(one).ok
        two = self.win(second)
        assert self.release(two).ok
        self.advance(1_000)
        three = self.win(third)
        assert [one.fence, two.fence, three.fence] == [now, now + 1, now + 1_000]
        assert [self.lock(key).fence for key in ("one", "two")] == [now + 1_000, now + 1_001]

    def test_fences_rise_also_when_the_clock_goes_back(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        assert self.release(lease).ok
        lock = self.lock()
        self.set_clock(second)
        assert self.win(second).fence == lease.fence + 1
        assert self.lock("other").fence == lock.fence + 1

    def test_when_the_clock_goes_back_nothing_decided_is_early_or_runs_again(self) -> None:
        first, second, third = self.due()
        assert self.release(self.win(second)).ok
        self.set_clock(third - 1_000)
        assert self.claim(second) == ClaimResult("taken")
        assert self.claim(first) == ClaimResult("taken")
        assert self.claim(third) == ClaimResult("early", left=1_000)

    def test_when_the_clock_goes_back_a_lease_is_cut_to_its_own_length(self) -> None:
        first, _, _ = self.due()
        lease = self.win(first)
        self.set_clock(self.now() - 3_600_000)
        assert self.claim(first, ttl=self.TTL // 2).left == self.TTL
        assert self.state().expires == self.now() + self.TTL
        self.advance(self.TTL)
        assert self.claim(first).dead == dead(lease)

    def test_when_the_clock_goes_back_a_look_for_requests_cuts_the_lease_too(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        self.request()
        self.set_clock(self.now() - 3_600_000)
        assert self.take(ttl=self.TTL // 2) == ClaimResult("busy", left=self.TTL, holder="a")
        assert self.state().expires == self.now() + self.TTL

    def test_a_lease_is_not_cut_while_the_clock_goes_on(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        expires = self.state().expires
        self.request()
        for _ in range(2):
            self.claim(first)
            self.take()
            assert self.state().expires == expires
            self.advance(1)

    def test_when_the_clock_goes_back_a_rest_is_cut_to_its_own_length(self) -> None:
        start = self.now()
        for key in ("asked by a claim", "asked by a look for requests"):
            self.set_clock(start)
            self.declare(key=key, occurrence=start)
            self.request(key=key)
            self.set_clock(start - 3_600_000)
            if "claim" in key:
                self.claim(start, key=key)
            else:
                self.take(key=key)
            self.advance(self.rest - 1)
            assert self.claim(start, key=key).verdict == ("early" if self.backend.shared else "taken")
            self.advance(1)
            assert self.claim(start, key=key).verdict == "taken"


class BackendDamageConformance(BackendHarness):
    """How a batch fares in which one key cannot be read: it fails alone."""

    def damage(self, key: str) -> None:
        """Spoil what the store has under a job's key and under a plain lock's."""
        raise NotImplementedError

    def test_a_key_that_cannot_be_read_fails_alone_in_every_batch(self) -> None:
        keys = ("one", "bad", "two")
        first, _, _ = self.due(key="one")
        self.due(key="two")
        self.damage("bad")
        declared = self.backend.declare([Declaration(key, "v1", self.TTL) for key in keys])
        assert self.failed(declared) == [False, True, False]
        claims = [Claim(key, first, self.token(), self.TTL, self.grace) for key in keys]
        claimed = self.backend.claim(claims, "a")
        assert self.failed(claimed) == [False, True, False]
        assert self.failed(self.backend.states(keys)) == [False, True, False]
        leases = [
            Lease(claim.key, claim.token, getattr(answer, "fence", 1), self.TTL, "a", first)
            for claim, answer in zip(claims, claimed.answers, strict=True)
        ]
        assert self.failed(self.backend.renew(leases)) == [False, True, False]
        released = self.backend.release([Release(lease) for lease in leases])
        assert self.failed(released) == [False, True, False]

    def test_a_lock_that_cannot_be_read_fails_alone_in_every_batch(self) -> None:
        leases = [self.lock(key) for key in ("one", "bad", "two")]
        self.damage("bad")
        renewed = self.backend.renew(leases)
        assert self.failed(renewed) == [False, True, False]
        assert [getattr(answer, "ok", None) for answer in renewed.answers] == [True, None, True]
        released = self.backend.release([Release(lease) for lease in leases])
        assert self.failed(released) == [False, True, False]
        # The store's own words, not those of a reader who found none.
        assert "Error: " not in f"{renewed.answers[1]} {released.answers[1]}"

    def test_a_single_question_about_a_key_that_cannot_be_read_raises(self) -> None:
        self.damage("bad")
        questions: list[Callable[[], object]] = [
            lambda: self.backend.pause("bad"),
            lambda: self.backend.resume("bad"),
            lambda: self.backend.force_release("bad"),
            lambda: self.backend.request_run("bad"),
            lambda: self.take(key="bad"),
            lambda: self.acquire("bad"),
        ]
        for question in questions:
            try:
                question()
            except BackendError:
                continue
            raise AssertionError("a question about a damaged key was answered")

    def failed(self, reply: Reply[Any]) -> list[bool]:
        """Tell which answers are errors."""
        return [isinstance(answer, BackendError) for answer in reply.answers]
