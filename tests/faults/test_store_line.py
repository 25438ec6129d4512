"""The line to the store: replies that are lost after the command was done, that are slow, and connections that end."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator

import pytest

from tests.faults.proxy import Proxy, runs
from tests.faults.replicas import assert_each_once_or_told, assert_tokens_rise
from tests.faults.site import LOST_DATA, Site
from tests.redis_server import RedisServer

# Runs close old connections around them, which counts as access to the database.
pytestmark = [pytest.mark.faults, pytest.mark.django_db]


@pytest.fixture
def line(store: RedisServer) -> Iterator[Proxy]:
    with Proxy(store.port) as line:
        yield line


@pytest.fixture
def site(line: Proxy) -> Iterator[Site]:
    """Return a site; it is closed before the line is."""
    site = Site()
    yield site
    site.close()


def test_wins_whose_reply_was_lost_run_once(site: Site, line: Proxy) -> None:
    chance = random.Random(1)
    any_script = runs("claim", "renew", "release", "heartbeat")
    site.job()
    site.job("long", holds=True)
    for _ in range(2):
        site.start(line.url)
    site.wait_for_starts(1)
    line.loses = lambda request: any_script(request) and chance.random() < 0.4
    won = b'"verdict":"won"'
    site.wait("wins that are lost", lambda: sum(won in reply for reply in list(line.lost)) >= 3)
    line.loses = lambda request: False
    site.wait_for_return()
    site.finish()
    assert_each_once_or_told(site, "tick")
    assert_tokens_rise(site.starts("tick"))
    assert len(site.starts("long")) == 1
    assert site.entries("lost") == []
    assert [loop.count(LOST_DATA) for loop in site.loops] == [0, 0]


def test_a_store_that_is_a_little_slow_is_waited_for_and_one_that_is_slower_than_the_timeout_is_an_outage(
    site: Site, line: Proxy
) -> None:
    site.job()
    loop = site.start(line.url, timeout=1.0)
    line.delay = 0.1
    site.wait_for_starts(2)
    assert loop.outages == (0, 0)
    line.delay = 1.5
    site.wait_for_failure()
    failed = time.monotonic()
    site.wait("some more of it", lambda: time.monotonic() > failed + 1)
    line.delay = 0.0
    returned = time.monotonic()
    site.wait_for_return(since=returned)
    site.finish()
    # What was answered just before may have been on its way to a worker.
    assert [entry for entry in site.starts() if failed + 0.5 < entry.at < returned] == []
    assert_each_once_or_told(site, "tick")
    assert loop.outages == (1, 1)


def test_connections_that_end_at_random_double_and_lose_nothing(site: Site, line: Proxy) -> None:
    chance = random.Random(2)
    site.job()
    site.job("long", holds=True)
    for _ in range(2):
        site.start(line.url)
    site.wait_for_starts(1)
    cuts = 0
    next_cut = time.monotonic()

    def enough() -> bool:
        nonlocal cuts, next_cut
        if time.monotonic() > next_cut:
            line.cut(reset=chance.random() < 0.5)
            cuts += 1
            next_cut = time.monotonic() + chance.uniform(0.01, 0.4)
        return cuts >= 15 and len(site.starts("tick")) >= 3

    site.wait("cuts between runs", enough)
    site.wait_for_return()
    site.finish()
    assert_each_once_or_told(site, "tick")
    assert len(site.starts("long")) == 1
    assert site.entries("lost") == []


def test_renewals_that_fail_alone_are_one_outage(site: Site, line: Proxy) -> None:
    site.job()
    site.job("long", holds=True)
    loop = site.start(line.url)
    site.wait_for_starts(1, "long")
    line.loses = runs("renew")
    site.wait("renewals to fail", lambda: len(line.lost) >= 2)
    begun = time.monotonic()
    site.wait_for_starts(1, after=begun)
    assert loop.outages == (1, 0)
    line.loses = lambda request: False
    site.wait_for_return()
    site.finish()
    assert loop.outages == (1, 1)
    assert [entry.details["outcome"] for entry in site.entries("finished", "long")] == ["succeeded"]
    assert site.entries("lost") == []
