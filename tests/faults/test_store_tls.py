"""A store behind TLS."""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
import redis

from tests.faults.replicas import assert_each_once_or_told
from tests.faults.site import FAILED, Site
from tests.redis_server import RedisServer, ServerUnavailable, free_port

# Runs close old connections around them, which counts as access to the database.
pytestmark = [pytest.mark.faults, pytest.mark.django_db]


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 that its own key has signed; return where it and the key are."""
    made, key = directory / f"{name}.crt", directory / f"{name}.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", f"/CN={name}"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@pytest.fixture
def ours(tmp_path: Path) -> tuple[Path, Path]:
    return certificate(tmp_path, "ours")


@pytest.fixture
def store(ours: tuple[Path, Path]) -> Iterator[RedisServer]:
    """Start a server with a second port for TLS. Not every server can: that is no matter but where all must be seen."""
    made, key = ours
    files = {"tls-cert-file": str(made), "tls-key-file": str(key), "tls-ca-cert-file": str(made)}
    server = RedisServer({"tls-port": str(free_port()), "tls-auth-clients": "no", **files})
    try:
        server.start()
    except ServerUnavailable as error:
        why = f"The Redis server that was found has no TLS (install redis-server from a distribution): {error}"
        if os.environ.get("CI"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
    yield server
    server.stop()


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.closing(Site()) as site:
        yield site


def address(server: RedisServer, trusted: Path) -> str:
    """Return the address of the port for TLS, for whom trusts that certificate."""
    return f"rediss://127.0.0.1:{server.options['tls-port']}/0?ssl_ca_certs={quote(str(trusted))}"


@pytest.mark.parametrize(
    "cache", [{}, {"BACKEND": "django_redis.cache.RedisCache"}], ids=["the cache of Django", "django-redis"]
)
def test_jobs_run_over_tls_through_cuts(
    site: Site, store: RedisServer, ours: tuple[Path, Path], cache: dict[str, str]
) -> None:
    site.job()
    loop = site.start(address(store, ours[0]), cache=cache)
    site.wait_for_starts(1)
    with redis.Redis.from_url(store.url) as admin:
        admin.client_kill_filter(_type="normal", skipme=True)
    site.wait_for_starts(1, after=time.monotonic())
    site.finish()
    assert_each_once_or_told(site, "tick")
    place = f"Redis at 127.0.0.1:{store.options['tls-port']} with TLS, "
    assert loop.scheduler.backend.describe().startswith(place)


def test_a_store_whose_certificate_is_not_trusted_is_not_used(site: Site, store: RedisServer, tmp_path: Path) -> None:
    foreign, _ = certificate(tmp_path, "foreign")
    site.job()
    loop = site.start(address(store, foreign))
    site.wait_for_failure()
    failed = time.monotonic()
    site.wait("some more of it", lambda: time.monotonic() > failed + 1.5)
    site.finish()
    assert site.starts() == []
    (text,) = [line for line in loop.lines if FAILED in line]
    assert "CERTIFICATE_VERIFY_FAILED" in text
