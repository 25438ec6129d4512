"""What the fault tests share: a private Redis each, and the replicas on it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from django.conf import settings
from django.test import override_settings

from django_cronductor.backends.redis import RedisBackend
from tests.faults.replicas import Replicas
from tests.redis_server import RedisServer


@pytest.fixture
def store_options() -> dict[str, str]:
    """Return directives for the server; a test that needs other ones parametrizes this."""
    return {}


@pytest.fixture
def store(store_options: dict[str, str]) -> Iterator[RedisServer]:
    """Start a server of the test's own: it may be stopped, killed and flushed."""
    with RedisServer(store_options) as server:
        yield server


@pytest.fixture
def backend(store: RedisServer) -> Iterator[RedisBackend]:
    """Return a backend on that server, for looking at what is stored."""
    caches = {**settings.CACHES, "faults": {**settings.CACHES["locks"], "LOCATION": store.url}}
    with override_settings(CACHES=caches):
        backend = RedisBackend(cache="faults")
        yield backend
        backend.close()


@pytest.fixture
def replicas(tmp_path: Path, store: RedisServer, backend: RedisBackend) -> Iterator[Replicas]:
    """Return what starts replicas on that server; none of them outlives the test."""
    replicas = Replicas(tmp_path, store.url, backend)
    yield replicas
    replicas.end()
