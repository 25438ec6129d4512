"""One claim and release in microseconds: bare commands, redis-py's Lock, our claim of an occurrence, our plain lock."""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from collections.abc import Callable

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.ours_settings"

import django
import redis

django.setup()
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Claim, Declaration, Lease, Release, new_token
from django_cronductor.conf import get_config

RELEASE = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"
TTL = 30_000
CALLS = 500
"""For which the work of the server is counted."""


def bare() -> Callable[[], object]:
    """Return what a lock costs at least: `SET NX PX` and one script."""
    client = redis.Redis.from_url(os.environ["BENCHMARK_REDIS"], decode_responses=True)
    sha = client.script_load(RELEASE)

    def work() -> None:
        token = new_token()
        assert client.set("bare", token, nx=True, px=TTL)
        assert client.evalsha(sha, 1, "bare", token) == 1

    return work


def own_lock() -> Callable[[], object]:
    """Return redis-py's own lock."""
    client = redis.Redis.from_url(os.environ["BENCHMARK_REDIS"], decode_responses=True)

    def work() -> None:
        lock = client.lock("theirs", timeout=30, blocking=False)
        assert lock.acquire()
        lock.release()

    return work


def claim() -> Callable[[], object]:
    """Return a claim of an occurrence and the release of its lease."""
    backend = create_backend(get_config())
    backend.declare([Declaration("job", "fingerprint", TTL)])
    occurrence = backend.time() - 100_000  # One more each time, and never later than now.

    def work() -> None:
        nonlocal occurrence
        occurrence += 1
        question = Claim("job", occurrence, new_token(), TTL, 300_000)
        (answer,) = backend.claim([question], "me").answers
        lease = Lease("job", question.token, answer.fence, TTL, "me", question.occurrence)
        (released,) = backend.release([Release(lease, "succeeded")]).answers
        assert released.ok

    return work


def plain_lock() -> Callable[[], object]:
    """Return our lock for any purpose, on its backend."""
    backend = create_backend(get_config())

    def work() -> None:
        token = new_token()
        fence = backend.acquire("name", token, TTL, "me").fence
        (released,) = backend.release([Release(Lease("name", token, fence, TTL, "me"))]).answers
        assert released.ok

    return work


def main() -> None:
    """Print the medians, taken in turn."""
    works = {
        "bare redis-py, set and evalsha": bare(),
        "ours, claim of an occurrence": claim(),
        "ours, plain lock": plain_lock(),
        "redis-py's Lock": own_lock(),
    }
    took: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(int(sys.argv[1])):
        for name, work in works.items():
            began = time.perf_counter()
            work()
            took[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(each) * 1e6 for name, each in took.items()}
    print(json.dumps({name: {"whole": medians[name], "server": _in_the_server(work)} for name, work in works.items()}))


def _in_the_server(work: Callable[[], object]) -> float:
    """Return the microseconds that the server works for each call."""
    with redis.Redis.from_url(os.environ["BENCHMARK_REDIS"]) as client:
        client.config_resetstat()
        for _ in range(CALLS):
            work()
        # What a script calls is counted twice, the second time within the script.
        stats = client.info("commandstats")
        return sum(stats[name]["usec"] for name in ("cmdstat_set", "cmdstat_evalsha") if name in stats) / CALLS


if __name__ == "__main__":
    main()
