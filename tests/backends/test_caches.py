"""Every cache that the Redis backend can be given, and every form in which its address is written."""

from __future__ import annotations

import contextlib
import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

import pytest
import redis
from django.conf import settings
from django.core import checks as django_checks
from django.test import override_settings

from django_cronductor import checks
from django_cronductor.backends import create_backend
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.exceptions import BackendError, BackendRefused, ConfigurationError
from django_cronductor.testing.conformance import (
    ClaimConformance,
    ControlConformance,
    InstanceConformance,
    LockConformance,
    RenewConformance,
    RequestConformance,
)
from tests.backends.conftest import ClockedRedisCase
from tests.backends.test_redis import (
    ODD_PASSWORD,
    admin,
    cluster_node,
    everything_about,
    run_once,
    use_every_key,
    wait_until,
)
from tests.faults.test_store_failover import Sentinel
from tests.redis_server import RedisServer, ServerUnavailable, free_port

Make = Callable[..., RedisBackend]
DJANGO = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS = "django_redis.cache.RedisCache"
DJANGO_VALKEY = "django_valkey.cache.ValkeyCache"
CACHES = [pytest.param(name, id=name.partition(".")[0]) for name in (DJANGO, DJANGO_REDIS, DJANGO_VALKEY)]
PACKAGES = CACHES[1:]
"""Those that are not Django's own."""

every_cache = pytest.mark.parametrize("cache", CACHES)


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Return a server of the test's own, which no pool of these packages, shared by address, knows."""
    with RedisServer() as server:
        yield server


class TestDjangoValkey(
    ClockedRedisCase,
    ClaimConformance,
    RequestConformance,
    ControlConformance,
    InstanceConformance,
    LockConformance,
    RenewConformance,
):
    """A server of Redis through django-valkey."""

    CACHE: ClassVar[dict[str, Any]] = {"BACKEND": DJANGO_VALKEY}


@every_cache
class TestAddress:
    """How LOCATION says where the server is, and who we are there."""

    @pytest.mark.parametrize(
        ("form", "database"),
        [("redis://{0}", 0), ("redis://{0}/5", 5), ("redis://{0}?db=5", 5), ("redis://{0}/?db=5", 5)],
    )
    def test_the_database_number_is_in_the_address(
        self, backend_on: Make, server: RedisServer, cache: str, form: str, database: int
    ) -> None:
        backend = backend_on(form.format(f"127.0.0.1:{server.port}"), BACKEND=cache)
        run_once(backend)
        assert f"database {database} " in backend.describe()
        with admin(server) as client:
            assert list(client.info("keyspace")) == [f"db{database}"]

    def test_a_password_is_escaped_in_the_address(self, backend_on: Make, cache: str) -> None:
        with RedisServer({"requirepass": ODD_PASSWORD}) as server:
            run_once(backend_on(server.url, BACKEND=cache))

    @pytest.mark.parametrize("password", ["se#cret", "se/cret", "se?cret"])
    def test_a_password_that_is_not_escaped_is_an_error_that_tells_how(
        self, backend_on: Make, cache: str, password: str
    ) -> None:
        with pytest.raises(ConfigurationError, match=r"in a password %2F for /, %3F for .*, %23 for #") as caught:
            backend_on(f"redis://:{password}@127.0.0.1:6379/0", BACKEND=cache).time()
        assert "cret" not in everything_about(caught.value)
        assert "se" + password[2] not in everything_about(caught.value)

    def test_a_user_of_an_acl_needs_the_keys_of_its_site_alone(
        self, backend_on: Make, server: RedisServer, cache: str
    ) -> None:
        """These are the rules that the documentation recommends."""
        rules = (Path(__file__).parents[2] / "docs" / "backends.rst").read_text().partition("ACL SETUSER cron ")[2]
        with admin(server) as client:
            client.execute_command("ACL", "SETUSER", "cron", *rules.splitlines()[0].split())
        location = f"redis://cron:secret@127.0.0.1:{server.port}/0"
        use_every_key(backend_on(location, "cronductor", BACKEND=cache, KEY_PREFIX="shop"))
        with pytest.raises(BackendRefused, match="key"):
            use_every_key(backend_on(location, "cronductor", BACKEND=cache, KEY_PREFIX="other"))

    def test_a_socket(self, backend_on: Make, tmp_path: Path, cache: str) -> None:
        path = tmp_path / "redis.sock"
        with RedisServer({"unixsocket": str(path), "requirepass": ODD_PASSWORD}):
            backend = backend_on(f"unix://:{quote(ODD_PASSWORD, safe='')}@{path}?db=2", BACKEND=cache)
            run_once(backend)
            assert backend.describe() == f"Redis at {path}, database 2 (cache 'locks')"

    def test_tls_with_certificates_of_both_sides(self, backend_on: Make, tmp_path: Path, cache: str) -> None:
        made, key = certificate(tmp_path)
        port = str(free_port())
        files = {"tls-cert-file": str(made), "tls-key-file": str(key), "tls-ca-cert-file": str(made)}
        with tls_server({"tls-port": port, "tls-auth-clients": "yes", **files}):
            trusted = f"ssl_ca_certs={quote(str(made))}"
            ours = f"ssl_certfile={quote(str(made))}&ssl_keyfile={quote(str(key))}"
            run_once(backend_on(f"rediss://127.0.0.1:{port}/0?{trusted}&{ours}", BACKEND=cache))
            with pytest.raises(BackendError, match="ConnectionError"):
                backend_on(f"rediss://127.0.0.1:{port}/0?{trusted}", BACKEND=cache).time()

    @pytest.mark.parametrize("join", [list, ",".join], ids=["a list", "one text"])
    def test_of_several_addresses_the_first_is_the_one_that_is_written_to(
        self, backend_on: Make, server: RedisServer, cache: str, join: Callable[[list[str]], Any]
    ) -> None:
        backend = backend_on(join([f"{server.url[:-2]}/5", "redis://127.0.0.1:1/0"]), BACKEND=cache)
        for number in range(5):
            run_once(backend, f"job-{number}")
        assert "database 5 " in backend.describe()


def certificate(directory: Path) -> tuple[Path, Path]:
    """Make a certificate for 127.0.0.1 and its key, and return where they are."""
    made, key = directory / "ours.crt", directory / "ours.key"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=ours"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(made)]
    subprocess.run(command, check=True, capture_output=True)
    return made, key


@contextlib.contextmanager
def tls_server(options: dict[str, str]) -> Iterator[RedisServer]:
    """Start a server with TLS. Not every server can: that is no matter but in CI."""
    server = RedisServer(options)
    try:
        server.start()
    except ServerUnavailable as error:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"The Redis server that was found has no TLS: {error}")
    with contextlib.closing(contextlib.ExitStack()) as stack:
        stack.callback(server.stop)
        yield server


class TestOptions:
    """What OPTIONS say."""

    @pytest.mark.parametrize(
        ("cache", "options"),
        [
            (DJANGO, {"password": ODD_PASSWORD, "db": 3}),
            (DJANGO_REDIS, {"PASSWORD": ODD_PASSWORD, "CONNECTION_POOL_KWARGS": {"db": 3}}),
            (DJANGO_VALKEY, {"PASSWORD": ODD_PASSWORD, "CONNECTION_POOL_KWARGS": {"db": 3}}),
        ],
    )
    def test_password_and_database_number(self, backend_on: Make, cache: str, options: dict[str, Any]) -> None:
        with RedisServer({"requirepass": ODD_PASSWORD}) as server:
            backend = backend_on(f"redis://127.0.0.1:{server.port}", BACKEND=cache, OPTIONS=options)
            run_once(backend)
            assert "database 3 " in backend.describe()
            assert ODD_PASSWORD not in backend.describe()

    @pytest.mark.parametrize("option", ["PASSWORD", "CONNECTION_POOL_KWARGS", "IGNORE_EXCEPTIONS"])
    def test_those_of_another_package_are_named_and_not_shown(self, backend_on: Make, option: str) -> None:
        backend = backend_on("redis://127.0.0.1:1/0", OPTIONS={option: "hunter2"})
        with pytest.raises(ConfigurationError, match=rf"OPTIONS.* has '{option}'.*of django-redis") as caught:
            backend.time()
        assert "hunter2" not in everything_about(caught.value)

    @pytest.mark.parametrize(("cache", "option"), [(DJANGO, "pool_class"), (DJANGO_REDIS, "CLIENT_CLASS")])
    def test_what_cannot_be_imported_is_said(self, backend_on: Make, cache: str, option: str) -> None:
        backend = backend_on("redis://127.0.0.1:1/0", BACKEND=cache, OPTIONS={option: "no_such.Class"})
        with pytest.raises(
            ConfigurationError, match=r"CACHES\['\w+'\] names something .*\(No module named 'no_such'\)"
        ):
            backend.time()

    @pytest.mark.parametrize(
        ("cache", "options"),
        [
            (DJANGO, {"decode_responses": True}),
            (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"decode_responses": True}}),
            (DJANGO_VALKEY, {"CONNECTION_POOL_KWARGS": {"decode_responses": True}}),
            (DJANGO_REDIS, {"IGNORE_EXCEPTIONS": True}),
            (DJANGO_VALKEY, {"IGNORE_EXCEPTIONS": True}),
            (DJANGO_REDIS, {"COMPRESSOR": "django_redis.compressors.zlib.ZlibCompressor"}),
            (DJANGO_VALKEY, {"COMPRESSOR": "django_valkey.compressors.zlib.ZlibCompressor"}),
            (DJANGO_REDIS, {"SERIALIZER": "django_redis.serializers.json.JSONSerializer"}),
            (DJANGO_VALKEY, {"SERIALIZER": "django_valkey.serializers.json.JSONSerializer"}),
        ],
    )
    def test_what_the_cache_does_with_values_plays_no_part(
        self, backend_on: Make, server: RedisServer, cache: str, options: dict[str, Any]
    ) -> None:
        use_every_key(backend_on(server.url, BACKEND=cache, OPTIONS=options))

    @pytest.mark.parametrize("cache", PACKAGES)
    def test_a_cache_that_ignores_exceptions_does_not_hide_those_of_the_store(
        self, backend_on: Make, cache: str
    ) -> None:
        with pytest.raises(BackendError, match="ConnectionError"):
            run_once(backend_on("redis://127.0.0.1:1/0", BACKEND=cache, OPTIONS={"IGNORE_EXCEPTIONS": True}))

    @pytest.mark.parametrize(
        ("cache", "options"),
        [
            (DJANGO, {"max_connections": 2}),
            (DJANGO_REDIS, {"CONNECTION_POOL_KWARGS": {"max_connections": 2}}),
            (DJANGO_VALKEY, {"CONNECTION_POOL_KWARGS": {"max_connections": 2}}),
        ],
    )
    def test_a_pool_of_two_connections_is_enough_for_many_threads(
        self, backend_on: Make, server: RedisServer, cache: str, options: dict[str, Any]
    ) -> None:
        backend = backend_on(server.url, BACKEND=cache, OPTIONS=options)
        failures, barrier = list[BaseException](), threading.Barrier(8)

        def work(number: int) -> None:
            try:
                barrier.wait()
                for turn in range(10):
                    run_once(backend, f"job-{number}-{turn}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []


class TestSentinel:
    """Servers that sentinels know."""

    @pytest.mark.parametrize(("cache", "package"), [(DJANGO_REDIS, "django_redis"), (DJANGO_VALKEY, "django_valkey")])
    def test_the_master_is_found_and_the_password_is_for_it_alone(
        self, backend_on: Make, cache: str, package: str, prefix: str
    ) -> None:
        with RedisServer({"requirepass": ODD_PASSWORD}) as master, Sentinel(master, prefix) as sentinel:
            options = {
                "CLIENT_CLASS": f"{package}.client.SentinelClient",
                "CONNECTION_FACTORY": f"{package}.pool.SentinelConnectionFactory",
                "SENTINELS": [("127.0.0.1", 1), ("127.0.0.1", sentinel.port)],
                "PASSWORD": ODD_PASSWORD,
            }
            backend = backend_on(f"redis://{prefix}/4", BACKEND=cache, OPTIONS=options)
            use_every_key(backend)
            assert backend.describe() == f"Redis at service {prefix}, database 4 (cache 'locks')"
            with contextlib.closing(redis.Redis.from_url(master.url)) as client:
                assert list(client.info("keyspace")) == ["db4"]


class TestCluster:
    """A cluster is not supported, and that is said."""

    @every_cache
    def test_a_database_number_on_a_node_is_refused_with_the_reason(self, backend_on: Make, cache: str) -> None:
        reason = "node of a cluster: clusters are not sup|DB index is out of range"  # The latter since Valkey 9.
        with cluster_node() as server, pytest.raises(BackendRefused, match=reason):
            backend_on(server.url.replace("/0", "/1"), BACKEND=cache).time()

    @every_cache
    def test_a_node_without_our_keys_is_an_error_with_the_reason(self, backend_on: Make, cache: str) -> None:
        with cluster_node() as server, pytest.raises(BackendError, match="node of a cluster: clusters are not sup"):
            run_once(backend_on(server.url, BACKEND=cache))

    def test_w102_a_node_that_has_our_keys_may_have_to_give_them_away(self, backend_on: Make) -> None:
        with cluster_node() as server, admin(server) as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_until(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")))
            run_once(backend_on(server.url))
            (message,) = RedisBackend.check(cache="locks", prefix="p", deploy=True)
        assert message.id == "cronductor.W102"
        assert "is a node of a cluster" in message.msg

    def test_a_client_of_a_cluster_is_refused_before_it_connects(self) -> None:
        cache = {
            "BACKEND": "django_valkey.cluster_cache.cache.ClusterValkeyCache",
            "LOCATION": "valkey://127.0.0.1:1/0",
        }
        with override_settings(CACHES={**settings.CACHES, "locks": cache}, CRONDUCTOR={"CACHE": "locks"}):
            with pytest.raises(ConfigurationError, match="'locks' is a client of a cluster, and clusters are not sup"):
                create_backend().time()
            messages = django_checks.run_checks(tags=[checks.TAG], include_deployment_checks=True)
            assert [message.id for message in messages] == ["cronductor.E101"]


def test_a_cache_that_is_not_in_redis_is_named() -> None:
    with pytest.raises(
        ConfigurationError, match="'default' gives no Redis connection pool: it is not a Redis cache: name"
    ):
        RedisBackend(cache="default").time()
