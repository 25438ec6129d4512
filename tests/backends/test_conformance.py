"""The conformance suite on every backend that this package has."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from django_cronductor.testing.conformance import (
    BackendClockConformance,
    BackendConformance,
    BackendDamageConformance,
    BackendHarness,
    ClaimConformance,
    ControlConformance,
    InstanceConformance,
    LockConformance,
    RenewConformance,
    RequestConformance,
)
from tests.backends.conftest import ClockedRedisCase, LocalCase, RedisCase

DJANGO_REDIS: dict[str, Any] = {
    "BACKEND": "django_redis.cache.RedisCache",
    "OPTIONS": {"CLIENT_CLASS": "django_redis.client.DefaultClient"},
}


class TestLocal(LocalCase, BackendConformance):
    """The single-instance backend."""


class TestLocalClock(LocalCase, BackendClockConformance):
    """The single-instance backend, its clock moved."""


class TestRedis(ClockedRedisCase, BackendConformance):
    """Redis through Django's cache, its clock moved so that nothing waits."""


class TestRedisClock(ClockedRedisCase, BackendClockConformance):
    """Redis, its clock set back."""


class TestRedisDamage(ClockedRedisCase, BackendDamageConformance):
    """Redis with a key that is no hash."""


class TestRedisRealClock(RedisCase, ClaimConformance, RenewConformance, LockConformance):
    """Redis by its own clock, with leases as short as is safe on a busy machine."""

    TTL: ClassVar[int] = 300
    SLACK: ClassVar[int] = 150


class TestRedisDecoded(ClockedRedisCase, BackendConformance):
    """A cache whose client decodes what it reads, and that has a key prefix, a version and a key function."""

    CACHE: ClassVar[dict[str, Any]] = {
        "OPTIONS": {"decode_responses": True},
        "KEY_PREFIX": "site-a",
        "VERSION": 7,
        "KEY_FUNCTION": "tests.backends.test_conformance.unused_key_function",
    }


class TestDjangoRedis(
    ClockedRedisCase,
    ClaimConformance,
    RequestConformance,
    ControlConformance,
    InstanceConformance,
    LockConformance,
    RenewConformance,
):
    """Redis through django-redis."""

    CACHE: ClassVar[dict[str, Any]] = DJANGO_REDIS


class TestDjangoRedisDecoded(ClockedRedisCase, ClaimConformance, LockConformance):
    """Redis through django-redis with a client that decodes."""

    CACHE: ClassVar[dict[str, Any]] = {
        **DJANGO_REDIS,
        "OPTIONS": {"CONNECTION_POOL_KWARGS": {"decode_responses": True}},
        "KEY_PREFIX": "site-b",
    }


def unused_key_function(key: str, key_prefix: str, version: int) -> str:
    raise AssertionError("the cache's key function has no part in the backend's keys")


class TestHarness:
    """What the suite asks of those who use it."""

    @pytest.mark.parametrize("hook", [BackendHarness().make_backend, lambda: BackendHarness().lose(None)])  # type: ignore[arg-type]
    def test_a_hook_that_is_needed_must_be_filled_in(self, hook: Any) -> None:
        with pytest.raises(NotImplementedError):
            hook()
