"""A store that hangs, that dies and comes back with its data or without, and one that is flushed."""

from __future__ import annotations

import time

import pytest
import redis

from tests.faults.replicas import (
    Entry,
    Replicas,
    assert_each_once_or_told,
    assert_none_twice,
    assert_tokens_rise,
)
from tests.redis_server import RedisServer

pytestmark = pytest.mark.faults

FAILED = "The lock store failed, and nothing starts until it is back"
BACK = "The lock store is back after"
LOST_DATA = "The lock store has lost its data"
RESUMES_WITHIN = 5.0
"""Seconds from the store's return to the next run."""

# Else a server may answer up to two seconds before it writes: what it had acknowledged is not there when it comes back.
KEEP_ALL = {"appendonly": "yes", "appendfsync": "always"}
keeps_data = pytest.mark.parametrize("store_options", [KEEP_ALL], ids=["with its data"])


def begin(replicas: Replicas, *more: str) -> Entry:
    """
    Start three replicas; return a run of `steady`, which goes on until it is let go.

    `tick` runs every second; `more` are further jobs.
    """
    replicas.hold.touch()
    replicas.start("tick", "steady", *more, clocks=(0.0, 0.0, 0.0))
    replicas.wait_for_starts("tick", 3)
    return replicas.wait_for_start("steady")


def wait_for_return(replicas: Replicas) -> None:
    """Wait until `tick` runs again, as soon as is promised, and for some more of it."""
    returned = time.monotonic()
    replicas.wait_for_start("tick", after=returned, within=RESUMES_WITHIN)
    replicas.wait_for_starts("tick", 3, after=returned)


def let_go(replicas: Replicas, steady: Entry) -> None:
    """Hold that the run of `steady` is still the only one and has its lease, let it end, and end everything."""
    assert replicas.journal.starts("steady") == [steady]
    replicas.hold.unlink()
    replicas.wait_for_starts("steady", 2)
    replicas.finish()
    assert replicas.journal.entries("finished", "steady")[0].details["outcome"] == "succeeded"
    assert replicas.journal.entries("finished", "steady")[0].token == steady.token
    for job in ("tick", "steady"):
        assert_tokens_rise(replicas.journal.starts(job))


def assert_one_line_each(replicas: Replicas, *lines: str) -> None:
    for replica in replicas.all:
        assert {line: replica.log.count(line) for line in (FAILED, BACK, LOST_DATA)} == {
            line: int(line in lines) for line in (FAILED, BACK, LOST_DATA)
        }


def test_a_store_that_hangs_for_thirty_seconds_stops_work_but_no_loop_and_loses_and_doubles_nothing(
    replicas: Replicas, store: RedisServer
) -> None:
    steady = begin(replicas, "long")
    long = replicas.wait_for_start("long")
    store.pause()
    paused, paused_at = time.monotonic(), time.time()
    replicas.wait(
        "heartbeat files touched thirty seconds into the outage",
        lambda: min(replica.last_alive for replica in replicas.all) >= paused_at + 30,
        within=60,
    )
    resumed = time.monotonic()
    store.resume()
    wait_for_return(replicas)
    let_go(replicas, steady)

    # What was answered a moment before may have been on its way to a worker.
    assert [entry for entry in replicas.journal.starts() if paused + 0.5 < entry.at < resumed] == []
    # The lease of `long` is shorter than the outage: its run cannot ask any more, and knows that it is over.
    left = replicas.journal.entries("finished", "long")[0]
    assert (left.token, left.details["outcome"]) == (long.token, "lost")
    assert left.at < resumed
    for job in ("tick", "steady", "long"):
        assert_each_once_or_told(replicas.journal, job)
    assert_one_line_each(replicas, FAILED, BACK)


@keeps_data
def test_a_store_that_dies_and_comes_back_loses_and_doubles_nothing(replicas: Replicas, store: RedisServer) -> None:
    steady = begin(replicas)
    store.kill()
    replicas.wait("every replica to notice", lambda: all(FAILED in replica.log for replica in replicas.all))
    store.start()
    wait_for_return(replicas)
    let_go(replicas, steady)

    assert_each_once_or_told(replicas.journal, "tick")
    assert_one_line_each(replicas, FAILED, BACK)


def test_a_store_that_dies_and_comes_back_empty_lets_no_second_run_begin_beside_one_in_progress(
    replicas: Replicas, store: RedisServer
) -> None:
    steady = begin(replicas)
    store.kill()
    replicas.wait("every replica to notice", lambda: all(FAILED in replica.log for replica in replicas.all))
    store.start()
    wait_for_return(replicas)
    let_go(replicas, steady)

    assert_none_twice(replicas.journal.starts())
    assert_one_line_each(replicas, FAILED, BACK, LOST_DATA)


def test_a_flushed_store_lets_no_second_run_begin_beside_one_in_progress(
    replicas: Replicas, store: RedisServer
) -> None:
    steady = begin(replicas)
    with redis.Redis.from_url(store.url) as client:
        client.flushdb()
    wait_for_return(replicas)
    let_go(replicas, steady)

    assert_none_twice(replicas.journal.starts())
    assert_one_line_each(replicas, LOST_DATA)
