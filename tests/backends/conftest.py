"""What the backend tests share: each backend with the hooks that the conformance suites ask for."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar

import pytest
import redis
from django.conf import settings
from django.test import override_settings

from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.testing.clock import ManualClock
from django_cronductor.testing.conformance import BackendHarness
from tests.redis_server import ServerUnavailable, find_valkey

try:
    find_valkey()
except ServerUnavailable:
    # In CI it is to be there where the package that ships it can be installed.
    collect_ignore = [] if os.environ.get("CI") and sys.version_info >= (3, 11) else ["test_valkey.py"]

NOON = 1_767_614_400_001
"""When the tests' clocks start: 2026-01-05, a millisecond past 12:00 UTC."""


CLOCK_KEY = f"clock-of-{os.getpid()}"
"""One for all tests, so that the scripts that read it stay the same."""


def new_prefix() -> str:
    """Return a prefix that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"


@cache
def client_for(url: str) -> redis.Redis:
    """Return a client for looking at what is stored, and for spoiling it."""
    return redis.Redis.from_url(url, decode_responses=True)


def delete_under(client: redis.Redis, base: str) -> None:
    """Delete the keys that begin with `base`, as a flush would."""
    if keys := client.keys(f"{base}:*"):
        client.delete(*keys)


class LocalCase(BackendHarness):
    """The single-instance backend on a clock of its own."""

    def make_backend(self) -> LocalBackend:
        self.clock = ManualClock(NOON / 1000)
        return LocalBackend(prefix=new_prefix(), clock=self.clock)

    def lose(self, backend: Any) -> None:
        for name in ("jobs", "locks", "instances"):
            getattr(backend.store, name).clear()
        backend.store.fence = Store().fence

    def advance(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds / 1000)

    def set_clock(self, now: int) -> None:
        self.clock.set_time(now / 1000)


class RedisCase(BackendHarness):
    """The Redis backend on the run's server, by that server's own clock."""

    CACHE: ClassVar[dict[str, Any]] = {}
    """What the cache's settings have besides the location."""

    backend: RedisBackend

    def location(self) -> str:
        """Return the address of the server."""
        location: str = settings.CACHES["locks"]["LOCATION"]
        return location

    def setup_method(self) -> None:
        cache_settings = {**settings.CACHES["locks"], **self.CACHE, "LOCATION": self.location()}
        self.client = client_for(self.location())
        self.override = override_settings(CACHES={**settings.CACHES, "locks": cache_settings})
        self.override.enable()
        super().setup_method()

    def teardown_method(self) -> None:
        super().teardown_method()
        self.override.disable()

    def make_backend(self) -> RedisBackend:
        return RedisBackend(cache="locks", prefix=new_prefix())

    def lose(self, backend: Any) -> None:
        delete_under(self.client, backend._base)

    def damage(self, key: str) -> None:
        for name in (self.backend._job(key), self.backend._lock(key)):
            self.client.delete(name)
            self.client.lpush(name, "not a hash")


class ClockedRedisBackend(RedisBackend):
    """The Redis backend with the server's clock replaced by a key, which the test writes."""

    def _source(self, name: str) -> str:
        ours = f"redis.call('HMGET', '{CLOCK_KEY}', 'seconds', 'microseconds')"
        return super()._source(name).replace("redis.call('TIME')", ours)

    def time(self) -> int:
        seconds, microseconds = self._call(lambda: self._claims.hmget(CLOCK_KEY, "seconds", "microseconds"))
        return int(seconds) * 1000 + int(microseconds) // 1000


class ClockedRedisCase(RedisCase):
    """The Redis backend with a clock that the test moves."""

    backend: ClockedRedisBackend

    def make_backend(self) -> ClockedRedisBackend:
        self.backend = ClockedRedisBackend(cache="locks", prefix=new_prefix())
        self.set_clock(NOON)
        return self.backend

    def set_clock(self, now: int) -> None:
        # Where odd, nearly a millisecond more: the scripts round down.
        clock = {"seconds": now // 1000, "microseconds": now % 1000 * 1000 + now % 2 * 999}
        self.client.hset(CLOCK_KEY, mapping=clock)
        self.clock = now

    def advance(self, milliseconds: int) -> None:
        self.set_clock(self.clock + milliseconds)
        # Plain locks end by the server's own clock: bring that forward, too.
        for key in self.client.keys(f"{self.backend._base}:lock:*"):
            self.client.pexpire(key, self.client.pttl(key) - milliseconds)


@pytest.fixture
def backend_on(prefix: str) -> Iterator[Callable[..., RedisBackend]]:
    """Return a maker of backends on a cache with these settings."""
    with contextlib.ExitStack() as stack:

        def make(location: Any, prefix: str = prefix, **cache_settings: Any) -> RedisBackend:
            chosen = {**settings.CACHES["locks"], **cache_settings, "LOCATION": location}
            stack.enter_context(override_settings(CACHES={**settings.CACHES, "locks": chosen}))
            return stack.enter_context(contextlib.closing(RedisBackend(cache="locks", prefix=prefix)))

        yield make
