"""The conformance suite on a server of Valkey."""

from __future__ import annotations

from typing import Any, ClassVar

from django_cronductor.testing.conformance import (
    BackendConformance,
    ClaimConformance,
    LockConformance,
    RenewConformance,
)
from tests.backends.conftest import ClockedRedisCase
from tests.redis_server import RedisServer, find_valkey


class OnValkey(ClockedRedisCase):
    """A server of Valkey."""

    server: ClassVar[RedisServer]

    @classmethod
    def setup_class(cls) -> None:
        cls.server = RedisServer(binary=find_valkey())
        cls.server.start()

    @classmethod
    def teardown_class(cls) -> None:
        cls.server.stop()

    def location(self) -> str:
        return self.server.url


class TestValkeyServer(OnValkey, BackendConformance):
    """A server of Valkey through Django's own cache."""


class TestValkeyServerAndClient(OnValkey, ClaimConformance, LockConformance, RenewConformance):
    """A server of Valkey through a client of Valkey that decodes."""

    CACHE: ClassVar[dict[str, Any]] = {
        "BACKEND": "django_valkey.cache.ValkeyCache",
        "OPTIONS": {"CONNECTION_POOL_KWARGS": {"decode_responses": True}},
        "KEY_PREFIX": "site-c",
    }
