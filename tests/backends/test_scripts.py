"""What the Redis scripts leave in the store, seen from outside."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from django_cronductor.backends.base import Claim, ClaimResult, JobState
from django_cronductor.exceptions import BackendError
from tests.backends.conftest import ClockedRedisCase
from tests.redis_server import RedisServer

LEASE_FIELDS = {"token", "run", "attempt", "holder", "expires", "ttl", "started"}


class TestScripts(ClockedRedisCase):
    """The stored form, and what happens when it is damaged or cannot be written."""

    def stored(self, key: str | None = None) -> dict[str, str]:
        """Return the fields of a job that are not empty."""
        fields = self.client.hgetall(self.backend._job(key or self.JOB))
        return {name: value for name, value in fields.items() if value}

    def names(self) -> set[str]:
        """Return the names of all keys, without what they share."""
        base = self.backend._base
        return {key.removeprefix(f"{base}:") for key in self.client.keys(f"{base}:*")}

    def test_a_lease_goes_with_all_its_fields(self) -> None:
        first, second, third = self.due()
        lease = self.win(first)
        assert set(self.stored()) >= LEASE_FIELDS
        self.release(lease)
        assert not set(self.stored()) & LEASE_FIELDS
        self.win(second)
        self.lapse()
        self.claim(second)
        assert not set(self.stored()) & LEASE_FIELDS
        self.win(third, "t3")
        self.backend.force_release(self.JOB)
        assert not set(self.stored()) & LEASE_FIELDS
        assert self.claim(third, "t3").verdict == "lost"
        assert not set(self.stored()) & LEASE_FIELDS

    def test_values_are_stored_as_plain_whole_numbers_and_text(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        numbers = LEASE_FIELDS - {"token", "holder"} | {"since", "occurrence", "fence"}
        assert all(re.fullmatch(r"\d+", self.stored()[name]) for name in numbers)
        self.backend.heartbeat("i")
        assert self.client.zscore(self.backend._instances, "i") == self.now()
        self.lock("report")
        assert self.client.hget(self.backend._lock("report"), "fence") == str(self.now())
        assert self.client.get(self.backend._counter) == str(self.now())

    def test_a_jobs_hash_never_expires_and_a_plain_lock_does(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        lock = self.lock("report")
        assert self.client.ttl(self.backend._job(self.JOB)) == -1
        assert 0 < self.client.pttl(self.backend._lock("report")) <= self.TTL
        self.lose(self.backend)
        self.renew(lock)
        assert 0 < self.client.pttl(self.backend._lock("report")) <= self.TTL

    def test_a_released_lock_leaves_nothing_but_the_counter(self) -> None:
        self.release(self.lock("report"))
        assert self.names() == {"fence"}

    def test_a_forgotten_job_leaves_nothing(self) -> None:
        self.due()
        self.request()
        self.backend.forget(self.JOB)
        assert self.names() == set()

    def test_questions_about_unknown_jobs_leave_nothing(self) -> None:
        self.claim(self.now())
        self.take()
        self.state()
        self.backend.request_run(self.JOB)
        assert self.names() == set()

    def test_fields_of_a_later_release_are_left_alone(self) -> None:
        first, _, _ = self.due()
        self.client.hset(self.backend._job(self.JOB), "colour", "blue")
        lease = self.win(first)
        assert self.release(lease).ok
        assert self.stored()["colour"] == "blue"

    def test_a_declared_job_has_the_format_of_its_state(self) -> None:
        self.declare()
        assert self.stored()["format"] == "1"

    def test_a_job_of_the_first_format_may_lack_its_number(self) -> None:
        first, _, _ = self.due()
        self.client.hset(self.backend._job(self.JOB), "format", "")
        assert self.claim(first).verdict == "won"

    def test_a_job_of_a_later_format_is_left_alone_and_says_why(self) -> None:
        first, _, _ = self.due()
        self.due(key="other")
        lease = self.win(first)
        self.client.hset(self.backend._job(self.JOB), "format", 2)
        before = self.stored()
        self.advance(20)
        questions: list[Callable[[], object]] = [
            self.declare,
            lambda: self.claim(first + 1),
            lambda: self.renew(lease),
            lambda: self.release(lease),
            self.request,
            self.take,
            self.state,
            lambda: self.backend.force_release(self.JOB),
        ]
        for question in questions:
            with pytest.raises(BackendError, match=r"format 2, which a newer version of django-cronductor wrote$"):
                question()
        assert self.stored() == before
        claims = [Claim(key, first, self.token(), self.TTL, self.grace) for key in (self.JOB, "other")]
        later, other = self.backend.claim(claims, "b").answers
        assert isinstance(later, BackendError)
        assert isinstance(other, ClaimResult)

    def test_a_job_that_lacks_a_field_it_must_have_fails_alone(self) -> None:
        first, _, _ = self.due(key="one")
        for key in ("bad", "two"):
            self.due(key=key)
        self.win(first, key="bad")
        self.client.hdel(self.backend._job("bad"), "expires")
        before = self.stored("bad")
        claims = [Claim(key, first, self.token(), self.TTL, self.grace) for key in ("one", "bad", "two")]
        one, bad, two = self.backend.claim(claims, "b").answers
        assert isinstance(one, ClaimResult)
        assert isinstance(two, ClaimResult)
        assert isinstance(bad, BackendError)
        assert re.search(r"arithmetic|compare|number", str(bad))
        assert (one.verdict, two.verdict) == ("won", "won")
        assert self.stored("bad") == before

    def test_a_number_that_is_none_fails_alone(self) -> None:
        first, _, _ = self.due()
        self.win(first)
        self.client.hset(self.backend._job(self.JOB), "expires", "soon")
        with pytest.raises(BackendError):
            self.claim(first)

    def test_a_number_that_no_answer_can_hold_fails_alone(self) -> None:
        for key in ("one", "bad", "two"):
            self.due(key=key)
        self.client.hset(self.backend._job("bad"), "fence", "1e400")
        one, bad, two = self.backend.states(["one", "bad", "two"]).answers
        assert isinstance(bad, BackendError)
        assert isinstance(one, JobState)
        assert isinstance(two, JobState)

    def test_the_set_of_requests_in_the_way_of_a_request_says_so_and_changes_nothing(self) -> None:
        self.declare()
        self.request()
        self.client.delete(self.backend._requests)
        self.client.lpush(self.backend._requests, "not a set")
        before = self.stored()
        self.advance(20)
        with pytest.raises(BackendError, match="WRONGTYPE"):
            self.take()
        with pytest.raises(BackendError, match="WRONGTYPE"):
            self.request()
        assert self.stored() == before


class TestFullStore(ClockedRedisCase):
    """A server of its own that has run out of memory, and evicts nothing."""

    def setup_method(self) -> None:
        self.server = RedisServer({"maxmemory-policy": "noeviction"})
        self.server.start()
        super().setup_method()

    def teardown_method(self) -> None:
        super().teardown_method()
        self.server.stop()

    def location(self) -> str:
        return self.server.url

    def contents(self) -> dict[str, dict[str, str]]:
        """Return all that is stored."""
        return {key: self.client.hgetall(key) for key in self.client.keys(f"{self.backend._base}:*")}

    def test_nothing_is_decided_and_nothing_half_written(self) -> None:
        first, second, _ = self.due()
        lease = self.win(first)
        self.advance(1)
        before = self.contents()
        self.client.config_set("maxmemory", 1)
        questions: list[Callable[[], object]] = [
            lambda: self.claim(second),
            lambda: self.renew(lease),
            lambda: self.release(lease),
            lambda: self.declare("v2"),
            lambda: self.request(),
            lambda: self.backend.pause(self.JOB),
            lambda: self.backend.force_release(self.JOB),
            lambda: self.acquire("report"),
            lambda: self.backend.heartbeat("i"),
        ]
        for question in questions:
            with pytest.raises(BackendError, match="maxmemory"):
                question()
        assert self.contents() == before
        self.client.config_set("maxmemory", 0)
        assert self.renew(lease).ok
        assert self.claim(second).verdict == "held"
