"""What is in the store goes or is spoilt in mid-run: scripts, single keys, everything, what is evicted."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

import pytest
import redis
from django.core.cache import caches

from tests.faults.replicas import assert_each_once_or_told, assert_none_twice, assert_tokens_rise
from tests.faults.site import LOST_DATA, Site
from tests.redis_server import RedisServer

# Runs close old connections around them, which counts as access to the database.
pytestmark = [pytest.mark.faults, pytest.mark.django_db]

EVICTS = "evicts keys when its memory is full"
BATCH = 500
"""Values of a kilobyte that another user of the store writes at once."""


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.closing(Site()) as site:
        yield site


@pytest.fixture
def admin(store: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(store.url, decode_responses=True) as admin:
        yield admin


def test_scripts_that_the_store_forgets_are_sent_again_and_nobody_notices(
    site: Site, store: RedisServer, admin: redis.Redis
) -> None:
    site.job()
    site.job("long", holds=True)
    loop = site.start(store.url)
    site.wait_for_starts(1)
    site.wait("runs between losses", lambda: admin.script_flush() and len(site.starts("tick")) >= 4)
    site.finish()
    assert_each_once_or_told(site, "tick")
    assert len(site.starts("long")) == 1
    assert site.entries("lost") == []
    assert loop.outages == (0, 0)


def test_a_key_that_is_spoilt_hurts_its_own_job_alone(site: Site, store: RedisServer, admin: redis.Redis) -> None:
    site.job("good")
    site.job("bad")
    loop = site.start(store.url)
    site.wait_for_starts(1, "bad")
    key = loop.scheduler.backend._job("bad")
    admin.pipeline().delete(key).lpush(key, "not a hash").execute()
    spoilt = time.monotonic()
    alone = "bad: the lock store failed on this job alone"
    site.wait("the loop to notice", lambda: loop.count(alone))
    site.wait_for_starts(2, "good", after=spoilt)
    admin.delete(key)
    site.wait_for_starts(1, "bad", after=time.monotonic())
    site.finish()
    assert_each_once_or_told(site, "good")
    assert_none_twice(site.starts("bad"))
    assert_tokens_rise(site.starts("bad"))
    assert loop.count(alone) == 1
    assert loop.outages == (0, 0)


def test_a_spoilt_list_of_instances_stops_no_job_and_is_one_outage(
    site: Site, store: RedisServer, admin: redis.Redis
) -> None:
    site.job()
    loop = site.start(store.url)
    site.wait_for_starts(1)
    key = loop.scheduler.backend._instances
    admin.pipeline().delete(key).set(key, "not a list").execute()
    site.wait_for_failure()
    site.wait_for_starts(2, after=time.monotonic())
    assert loop.outages == (1, 0)
    admin.delete(key)
    site.wait_for_return()
    site.finish()
    assert_none_twice(site.starts())
    assert loop.outages == (1, 1)


def test_clearing_the_cache_lets_no_second_run_begin_beside_one_in_progress_and_is_told_once(
    site: Site, store: RedisServer
) -> None:
    site.job()
    site.job("long", holds=True)
    loops = [site.start(store.url) for _ in range(2)]
    site.wait_for_starts(1)
    caches[loops[0].scheduler.backend.cache].clear()
    site.wait_for_return()
    site.finish()
    assert_none_twice(site.starts())
    assert_tokens_rise(site.starts("tick"))
    assert len(site.starts("long")) == 1
    assert site.entries("lost") == []
    assert [loop.count(LOST_DATA) for loop in loops] == [1, 1]
    assert [loop.outages for loop in loops] == [(0, 0), (0, 0)]


def fill(admin: redis.Redis) -> int:
    """Write as much as another user of the store might; return how many keys it has evicted so far."""
    pipeline = admin.pipeline(transaction=False)
    for number in range(BATCH):
        pipeline.set(f"session:{time.monotonic_ns()}:{number}", "x" * 1000, ex=3600)
    pipeline.execute(raise_on_error=False)
    evicted: int = admin.info("stats")["evicted_keys"]
    return evicted


def test_a_full_store_that_evicts_what_has_an_expiry_keeps_all_of_a_job(
    site: Site, store: RedisServer, admin: redis.Redis
) -> None:
    admin.config_set("maxmemory", "4mb")
    site.job()
    site.job("long", holds=True)
    loop = site.start(store.url)
    site.wait_for_starts(1)
    for policy in ("volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"):
        admin.config_set("maxmemory-policy", policy)
        evicted, begun = fill(admin), time.monotonic()
        site.wait("evictions", lambda evicted=evicted: fill(admin) > evicted + 4 * BATCH)
        site.wait_for_starts(1, after=begun)
    site.finish()
    assert_each_once_or_told(site, "tick")
    assert len(site.starts("long")) == 1
    assert site.entries("lost") == []
    assert loop.outages == (0, 0)
    assert [loop.count(LOST_DATA), loop.count(EVICTS)] == [0, 0]


def test_a_store_that_evicts_all_keys_is_warned_of_and_what_it_loses_ends_no_loop() -> None:
    with contextlib.ExitStack() as stack:
        sites: list[tuple[Site, redis.Redis]] = []
        for policy in ("allkeys-lru", "allkeys-lfu", "allkeys-random"):
            server = stack.enter_context(RedisServer({"maxmemory-policy": policy, "maxmemory": "100mb"}))
            admin = stack.enter_context(redis.Redis.from_url(server.url))
            site = stack.enter_context(contextlib.closing(Site()))
            site.job()
            site.start(server.url)
            sites.append((site, admin))
        for site, _ in sites:
            site.wait_for_starts(1)
        for site, admin in sites:
            admin.config_set("maxmemory", "1")
            site.wait("everything to be gone", lambda admin=admin: admin.dbsize() == 0)
        for site, admin in sites:
            site.wait_for_failure()
            admin.config_set("maxmemory", "100mb")
        returned = time.monotonic()
        for site, _ in sites:
            site.wait_for_return(since=returned)
        for site, _ in sites:
            site.finish()
            assert_none_twice(site.starts())
            assert_tokens_rise(site.starts("tick"))
            assert site.loops[0].outages == (1, 1)
            assert site.loops[0].count(EVICTS) == 1
