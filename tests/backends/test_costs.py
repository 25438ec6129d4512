"""What a call of the Redis backend costs the server: which commands it runs for it, and how often."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from django_cronductor.backends.base import Claim, Declaration, Lease, Release
from django_cronductor.backends.redis import RedisBackend
from tests.redis_server import RedisServer

TTL = 30_000
LONG_AGO = 1_000
"""An occurrence; the grace is longer than it has been due."""
GRACE = 10**13
KEYS = [f"job-{number}" for number in range(1000)]

Costs = Callable[[Callable[[], object]], dict[str, int]]


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Return a server that nobody else asks anything."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def costs_of(server: RedisServer) -> Iterator[Costs]:
    """Return what counts the commands that the server runs during a call, in scripts or not."""
    with redis.Redis.from_url(server.url, decode_responses=True) as client:

        def count(call: Callable[[], object]) -> dict[str, int]:
            client.config_resetstat()
            call()
            told = client.info("commandstats")
            names = {name.removeprefix("cmdstat_"): each["calls"] for name, each in told.items()}
            return {name: calls for name, calls in names.items() if name.partition("|")[0] != "config"}

        yield count


@pytest.fixture
def backend(backend_on: Any, server: RedisServer) -> RedisBackend:
    """Return a backend whose connections are open and whose scripts the server knows; the jobs are declared."""
    backend: RedisBackend = backend_on(server.url)
    declare(backend, ["warm"])
    claim(backend, ["warm"])
    backend.renew(leases(["warm"]))
    release(backend, ["warm"])
    backend.heartbeat("me")
    backend.survey(["warm"])
    backend.request_run("warm")
    backend.take_request("warm", "token", TTL, "me")
    lock = plain_lock(backend, "warm")
    backend.renew([lock])
    backend.release([Release(lock)])
    declare(backend, KEYS)
    return backend


def declare(backend: RedisBackend, keys: list[str]) -> None:
    """Declare jobs, as a replica does when it starts."""
    assert len(backend.declare([Declaration(key, "v1", TTL) for key in keys]).answers) == len(keys)


def claim(backend: RedisBackend, keys: list[str], holder: str = "me") -> set[str]:
    """Claim one occurrence of each job, and return the verdicts."""
    claims = [Claim(key, LONG_AGO, f"{holder}-{key}", TTL, GRACE) for key in keys]
    return {answer.verdict for answer in backend.claim(claims, holder).answers}  # type: ignore[union-attr]


def leases(keys: list[str]) -> list[Lease]:
    """Return what `claim` has won; whose it is, the store sees by its token."""
    return [Lease(key, f"me-{key}", 1, TTL, "me", LONG_AGO) for key in keys]


def release(backend: RedisBackend, keys: list[str]) -> set[bool]:
    """Give back what `claim` has won, and return whether it was there."""
    requests = [Release(lease, "succeeded") for lease in leases(keys)]
    return {answer.ok for answer in backend.release(requests).answers}  # type: ignore[union-attr]


def plain_lock(backend: RedisBackend, key: str) -> Lease:
    """Take a plain lock."""
    return Lease(key, "token", backend.acquire(key, "token", TTL, "me").fence, TTL, "me")


def test_a_declaration_that_is_known_is_read_and_not_written(backend: RedisBackend, costs_of: Costs) -> None:
    fresh = [f"fresh-{number}" for number in range(1000)]
    assert costs_of(lambda: declare(backend, fresh)) == {"evalsha": 4, "time": 4, "hmget": 1000, "hset": 1000}
    assert costs_of(lambda: declare(backend, fresh)) == {"evalsha": 4, "time": 4, "hmget": 1000}


def test_an_occurrence_is_one_read_and_one_write_to_claim_to_renew_and_to_release(
    backend: RedisBackend, costs_of: Costs
) -> None:
    once_each = {"evalsha": 4, "time": 4, "hmget": 1000, "hset": 1000}
    heard: list[object] = []
    assert costs_of(lambda: heard.append(claim(backend, KEYS))) == once_each
    assert costs_of(lambda: backend.renew(leases(KEYS))) == once_each
    assert costs_of(lambda: heard.append(release(backend, KEYS))) == once_each
    assert heard == [{"won"}, {True}]


@pytest.mark.parametrize("over", [False, True], ids=["running", "over"])
def test_who_comes_second_to_an_occurrence_writes_nothing(backend: RedisBackend, costs_of: Costs, over: bool) -> None:
    claim(backend, KEYS)
    if over:
        release(backend, KEYS)
    heard: list[object] = []
    costs = costs_of(lambda: heard.append(claim(backend, KEYS, "another")))
    assert costs == {"evalsha": 4, "time": 4, "hmget": 1000}
    assert heard == [{"taken"}]


def test_a_job_alone_is_one_script_to_claim_and_one_to_release(backend: RedisBackend, costs_of: Costs) -> None:
    once = {"evalsha": 1, "time": 1, "hmget": 1, "hset": 1}
    assert costs_of(lambda: claim(backend, KEYS[:1])) == once
    assert costs_of(lambda: release(backend, KEYS[:1])) == once


def test_a_heartbeat_is_one_script_of_six_commands(backend: RedisBackend, costs_of: Costs) -> None:
    backend.request_run("job-1")
    assert costs_of(lambda: backend.heartbeat("me")) == {
        "evalsha": 1,
        "time": 1,
        "zscore": 1,
        "zadd": 1,
        "zremrangebyscore": 2,
        "zrange": 1,
    }


def test_a_request_is_one_script_to_make_and_one_to_take(backend: RedisBackend, costs_of: Costs) -> None:
    once = {"evalsha": 1, "time": 1, "hmget": 1, "hset": 1}
    assert costs_of(lambda: backend.request_run("job-1")) == once | {"zadd": 1}
    assert costs_of(lambda: backend.take_request("job-1", "token", TTL, "me")) == once | {"zrem": 1}


def test_the_states_of_a_thousand_jobs_and_the_instances_are_one_script(backend: RedisBackend, costs_of: Costs) -> None:
    costs = {"evalsha": 1, "time": 1, "hmget": 1000, "zrangebyscore": 1}
    assert costs_of(lambda: backend.survey(KEYS)) == costs
    assert costs_of(lambda: backend.states(KEYS)) == costs


def test_the_time_is_one_command(backend: RedisBackend, costs_of: Costs) -> None:
    assert costs_of(backend.time) == {"time": 1}


def test_a_plain_lock_is_one_script_to_take_to_renew_and_to_release(backend: RedisBackend, costs_of: Costs) -> None:
    locks: list[Lease] = []
    taken = costs_of(lambda: locks.append(plain_lock(backend, "lock")))
    assert taken == {"evalsha": 1, "time": 1, "hmget": 1, "get": 1, "set": 1, "hset": 1, "pexpire": 1}
    assert costs_of(lambda: backend.renew(locks)) == {"evalsha": 1, "time": 1, "hget": 1, "pexpire": 1}
    released = costs_of(lambda: backend.release([Release(lock) for lock in locks]))
    assert released == {"evalsha": 1, "time": 1, "hget": 1, "del": 1}
