"""A store that fails over: to a replica that knows less, and by Sentinel."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
import redis

from django_cronductor.backends.base import JobState
from django_cronductor.history import DatabaseHistory
from django_cronductor.models import JobRun
from tests.faults.proxy import Proxy
from tests.faults.replicas import assert_none_twice, assert_tokens_rise
from tests.faults.site import LOST_DATA, Site
from tests.redis_server import RedisServer

pytestmark = [pytest.mark.faults, pytest.mark.django_db(transaction=True)]

AHEAD = 2
"""Seconds ahead of which an occurrence is declared, so that something can be done before it."""


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.closing(Site()) as site:
        yield site


@pytest.fixture
def service(prefix: str) -> str:
    """Return a name of its own for what the sentinels watch: django-redis keeps its pools by name."""
    return prefix


@pytest.fixture
def store_options() -> dict[str, str]:
    """Have replicas synchronized at once."""
    return {"repl-diskless-sync-delay": "0"}


@pytest.fixture
def other(site: Site, store: RedisServer) -> Iterator[RedisServer]:
    """Return a replica of the store that has its data."""
    with RedisServer({"replicaof": ("127.0.0.1", str(store.port))}) as other:
        with redis.Redis.from_url(other.url, decode_responses=True) as follows:
            site.wait("a synchronized replica", lambda: follows.role()[3] == "connected")
        yield other


def expression(instant: int) -> str:
    """Return the schedule of an occurrence that does not come again for a year."""
    return f"{datetime.fromtimestamp(instant, tz=timezone.utc):%S %M %H %d %m} *"


def known(site: Site, url: str, key: str) -> JobState:
    """Return what a server knows of a job."""
    with contextlib.closing(site.backend(url)) as backend:
        answer = backend.states([key]).answers[0]
    assert isinstance(answer, JobState)
    return answer


def test_an_occurrence_that_the_replica_knows_nothing_of_is_not_run_again(
    site: Site, store: RedisServer, other: RedisServer
) -> None:
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(Proxy(store.port))
        histories = [stack.enter_context(contextlib.closing(DatabaseHistory(keep=100))) for _ in range(2)]
        follows = stack.enter_context(redis.Redis.from_url(other.url))
        site.job()
        loops = [site.start(line.url, history=history, timezone="UTC") for history in histories]
        site.wait_for_starts(1)
        # Until the replica is cut off before the occurrence: on a busy machine that may take more than one try.
        for _ in range(10):
            due = math.ceil(time.time()) + AHEAD
            job = site.job("once", expression(due))
            site.wait("the replica to know the job", lambda: known(site, other.url, "once").since)
            follows.execute_command("REPLICAOF", "NO", "ONE")
            if time.time() < due - 0.1:
                break
            job.destroy()
            follows.execute_command("REPLICAOF", "127.0.0.1", str(store.port))
        site.wait_for_starts(1, "once")
        site.wait("its row", lambda: JobRun.objects.filter(job_key="once", outcome="succeeded").exists())
        site.wait("the store to know", lambda: known(site, store.url, "once").lease is None)

        assert known(site, other.url, "once").occurrence is None
        store.kill()
        site.wait_for_failure()
        line.target = other.port
        returned = time.monotonic()
        site.wait("the rows to decide", lambda: "was run before" in "\n".join(text for _, text in site.log.lines))
        site.wait_for_return(since=returned)
        site.finish()
    assert len(site.starts("once")) == 1
    assert_none_twice(site.starts())
    assert_tokens_rise(site.starts("tick"))
    assert [loop.outages for loop in loops] == [(1, 1), (1, 1)]


def test_a_server_that_was_demoted_is_left_for_the_one_that_its_address_leads_to_now(
    site: Site, store: RedisServer, other: RedisServer
) -> None:
    with contextlib.ExitStack() as stack:
        line = stack.enter_context(Proxy(store.port))
        demoted = stack.enter_context(redis.Redis.from_url(store.url))
        promoted = stack.enter_context(redis.Redis.from_url(other.url))
        site.job(ttl=3)  # The other may not have heard of the last release: then its lease has to end there.
        site.job("long", holds=True)
        loop = site.start(line.url)
        site.wait_for_starts(1)
        site.wait_for_starts(1, "long")
        promoted.execute_command("REPLICAOF", "NO", "ONE")
        line.target = other.port
        # Its connections stay open, and it answers: that it takes no writes.
        demoted.execute_command("REPLICAOF", "127.0.0.1", str(other.port))
        site.wait_for_failure()
        site.wait_for_return()
        site.finish()
    assert_none_twice(site.starts())
    assert_tokens_rise(site.starts("tick"))
    assert len(site.starts("long")) == 1
    assert site.entries("lost") == []
    assert loop.outages == (1, 1)


class Sentinel(RedisServer):
    """A sentinel that watches one server, and is all that there is of them."""

    def __init__(self, master: RedisServer, service: str) -> None:
        super().__init__({})
        self._master = master
        self._service = service

    def _arguments(self) -> list[str]:
        # It writes what it finds out into its own configuration.
        configuration = self.directory / "sentinel.conf"
        lines = [
            f"port {self.port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"sentinel monitor {self._service} 127.0.0.1 {self._master.port} 1",
            f"sentinel down-after-milliseconds {self._service} 500",
            f"sentinel failover-timeout {self._service} 5000",
        ]
        configuration.write_text("\n".join(lines))
        return [str(configuration), "--sentinel"]

    def _listens(self) -> bool:
        return b"Sentinel ID is" in (self.directory / "server.log").read_bytes()


def by_sentinel(*sentinels: RedisServer, cache: str = "django_redis.cache.RedisCache") -> dict[str, Any]:
    """Return the settings of a cache whose servers these know."""
    package = cache.partition(".")[0]
    return {
        "BACKEND": cache,
        "OPTIONS": {
            "CLIENT_CLASS": f"{package}.client.SentinelClient",
            "CONNECTION_FACTORY": f"{package}.pool.SentinelConnectionFactory",
            "SENTINELS": [(sentinel.host, sentinel.port) for sentinel in sentinels],
        },
    }


@pytest.mark.parametrize("cache", ["django_redis.cache.RedisCache", "django_valkey.cache.ValkeyCache"])
def test_a_failover_by_sentinel_doubles_nothing_and_work_resumes(
    site: Site, service: str, store: RedisServer, other: RedisServer, cache: str
) -> None:
    with contextlib.ExitStack() as stack:
        sentinel = stack.enter_context(Sentinel(store, service))
        watcher = stack.enter_context(redis.Redis.from_url(sentinel.url, decode_responses=True))
        promoted = stack.enter_context(redis.Redis.from_url(other.url, decode_responses=True))
        site.wait("the sentinel to know the replica", lambda: watcher.sentinel_slaves(service))
        site.job()
        loops = [site.start(f"redis://{service}/0", cache=by_sentinel(sentinel, cache=cache)) for _ in range(2)]
        site.wait_for_starts(1)
        # What is lost with a server before its replica has it is another matter.
        site.wait("the replica to know the last run", lambda: knows_all_runs(site, other))
        store.kill()
        site.wait_for_failure()
        site.wait("the replica to be promoted", lambda: promoted.role()[0] == "master")
        site.wait_for_return()
        site.finish()
    assert_none_twice(site.starts())
    assert_tokens_rise(site.starts("tick"))
    assert [loop.outages for loop in loops] == [(1, 1), (1, 1)]
    assert [loop.count(LOST_DATA) for loop in loops] == [0, 0]


def knows_all_runs(site: Site, server: RedisServer) -> bool:
    state = known(site, server.url, "tick")
    return state.lease is None and state.occurrence == max(entry.occurrence for entry in site.starts("tick"))


def test_a_sentinel_that_hangs_does_not_keep_from_asking_another(site: Site, service: str, store: RedisServer) -> None:
    with contextlib.ExitStack() as stack:
        hung, sound = (stack.enter_context(Sentinel(store, service)) for _ in range(2))
        admin = stack.enter_context(redis.Redis.from_url(store.url))
        site.job()
        site.start(f"redis://{service}/0", cache=by_sentinel(hung, sound), timeout=1.0)
        site.wait_for_starts(1)
        hung.pause()
        admin.client_kill_filter(_type="normal", skipme=True)
        site.wait_for_starts(2, after=time.monotonic())
        site.finish()
        hung.resume()
    assert_none_twice(site.starts())
