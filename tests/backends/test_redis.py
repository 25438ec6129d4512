"""The Redis backend's connections, refusals and failures; test_conformance.py holds it to the contract."""

from __future__ import annotations

import contextlib
import gc
import socket
import socketserver
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import redis
from django.core.cache import caches

from django_cronductor.backends.base import Claim, ClaimResult, Declaration, JobState, Lease, Release
from django_cronductor.backends.redis import REFUSALS, RedisBackend
from django_cronductor.exceptions import BackendError, BackendRefused, ConfigurationError
from tests.backends.test_conformance import DJANGO_REDIS
from tests.redis_server import RedisServer, free_port

TTL = 30_000
PHRASES = [
    "no permission",
    "can't run this command",
    "can't access at least one of the keys",
    "without any password configured",
    "unknown command",
    "DB index is out of range",
]
ODD_PASSWORD = "p@ss:w/ör d#%?&"


@pytest.fixture
def server() -> Iterator[RedisServer]:
    """Return a server that the test may stop, pause and reconfigure."""
    with RedisServer() as server:
        yield server


def admin(server: RedisServer) -> contextlib.closing[redis.Redis]:
    """Return a client of a test's own server."""
    return contextlib.closing(redis.Redis.from_url(server.url, decode_responses=True))


def cluster_node() -> RedisServer:
    """Return a server, not started, that is a node of a cluster."""
    server = RedisServer({"cluster-enabled": "yes"})
    # A node needs the port 10,000 above its own, too.
    server.port = next(port for port in iter(free_port, None) if port < 55_000 and is_free(port + 10_000))
    return server


def is_free(port: int) -> bool:
    """Tell whether nobody uses a port of 127.0.0.1 just now."""
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def run_once(backend: RedisBackend, key: str = "job") -> Lease:
    """Declare, claim, renew and release a job, and return its lease."""
    backend.declare([Declaration(key, "v1", TTL)])
    occurrence = backend.time()
    result = claim(backend, occurrence, key)
    assert result.verdict == "won"
    lease = Lease(key, f"token-{occurrence}", result.fence, TTL, "a", occurrence)
    assert getattr(backend.renew([lease]).answers[0], "ok", False)
    assert getattr(backend.release([Release(lease)]).answers[0], "ok", False)
    return lease


def claim(backend: RedisBackend, occurrence: int, key: str = "job") -> ClaimResult:
    """Claim one occurrence."""
    (answer,) = backend.claim([Claim(key, occurrence, f"token-{occurrence}", TTL, TTL)], "a").answers
    assert isinstance(answer, ClaimResult)
    return answer


def everything_about(error: BaseException) -> str:
    """Return all that a log could show of an error."""
    return "".join(traceback.format_exception(error)) + repr(error)


class TestConnection:
    """The connection is the cache's."""

    def test_making_a_backend_and_describing_it_opens_no_connection(self, backend_on: Any) -> None:
        backend = backend_on("redis://127.0.0.1:1/3")
        assert backend.describe() == "Redis at 127.0.0.1:1, database 3 (cache 'locks')"

    @pytest.mark.parametrize("extra", [{}, DJANGO_REDIS], ids=["django", "django-redis"])
    def test_what_is_asked_by_tls_is_said_to_be(self, backend_on: Any, extra: dict[str, Any]) -> None:
        backend = backend_on("rediss://127.0.0.1:1/3", **extra)
        assert backend.describe() == "Redis at 127.0.0.1:1 with TLS, database 3 (cache 'locks')"

    def test_a_database_that_the_server_does_not_have_is_said_to_be_the_settings_fault(
        self, backend_on: Any, server: RedisServer
    ) -> None:
        backend = backend_on(server.url.replace("/0", "/99"))
        with pytest.raises(BackendRefused, match="mend it in the LOCATION or the OPTIONS of the cache"):
            backend.time()

    def test_a_password_with_special_characters_works_and_is_never_shown(self, backend_on: Any) -> None:
        with RedisServer({"requirepass": ODD_PASSWORD}) as server:
            backend = backend_on(server.url)
            run_once(backend)
            shown = backend.describe() + repr(backend) + str(vars(backend).get("_failure"))
            assert ODD_PASSWORD not in shown

    def test_the_database_number_is_the_caches(self, backend_on: Any, server: RedisServer) -> None:
        backend = backend_on(server.url.replace("/0", "/5"))
        run_once(backend)
        assert "database 5" in backend.describe()
        with admin(server) as client:
            assert client.dbsize() == 0
            client.select(5)
            assert client.dbsize() == 1

    def test_a_unix_socket_works(self, backend_on: Any, tmp_path: Path) -> None:
        path = tmp_path / "redis.sock"
        with RedisServer({"unixsocket": str(path)}):
            backend = backend_on(f"unix://{path}?db=2")
            run_once(backend)
            assert backend.describe() == f"Redis at {path}, database 2 (cache 'locks')"

    @pytest.mark.parametrize("extra", [{}, DJANGO_REDIS], ids=["django", "django-redis"])
    def test_of_several_servers_the_first_is_used_alone(
        self, backend_on: Any, server: RedisServer, extra: dict[str, Any]
    ) -> None:
        backend = backend_on([server.url, "redis://127.0.0.1:1/0", "redis://127.0.0.1:1/1"], **extra)
        for number in range(10):
            run_once(backend, f"job-{number}")
            backend.states([f"job-{number}"])

    def test_the_pool_is_of_the_caches_class(self, backend_on: Any, redis_url: str) -> None:
        backend = backend_on(redis_url, OPTIONS={"pool_class": "redis.BlockingConnectionPool"})
        run_once(backend)
        for client in (backend._claims, backend._upkeep):
            assert type(client.connection_pool) is redis.BlockingConnectionPool

    def test_a_small_limit_on_the_caches_own_pool_starves_neither_claims_nor_renewals(
        self, backend_on: Any, redis_url: str
    ) -> None:
        backend = backend_on(redis_url, OPTIONS={"max_connections": 2})
        failures, barrier = list[BaseException](), threading.Barrier(10)

        def work(number: int) -> None:
            try:
                barrier.wait()
                for turn in range(10):
                    run_once(backend, f"job-{number}-{turn}")
            except BaseException as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []

    def test_claims_and_renewals_have_a_connection_each_and_keep_it(self, backend_on: Any, server: RedisServer) -> None:
        backend = backend_on(server.url)
        with admin(server) as client:
            before = client.info("stats")["total_connections_received"]
            for number in range(50):
                run_once(backend, f"job-{number}")
                backend.heartbeat("i")
            assert client.info("stats")["total_connections_received"] == before + 2
            # The cache's own pool has not been touched.
            assert caches["locks"]._cache.get_client(write=True).connection_pool is backend._cache_pool.pool  # type: ignore[attr-defined]

    def test_close_ends_the_connections_and_a_later_call_opens_them_again(
        self, backend_on: Any, server: RedisServer
    ) -> None:
        backend = backend_on(server.url)
        run_once(backend)
        with admin(server) as client:
            backend.close()
            wait_until(lambda: client.info("clients")["connected_clients"] == 1)
            run_once(backend, "again")
            assert client.info("clients")["connected_clients"] == 3

    @pytest.mark.parametrize(
        "cache",
        [
            {"BACKEND": "django.core.cache.backends.dummy.DummyCache"},
            {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
            {"BACKEND": "tests.backends.test_redis.ClusterCache"},
        ],
        ids=["dummy", "memory", "cluster"],
    )
    def test_a_cache_without_one_redis_pool_is_a_configuration_error(
        self, backend_on: Any, cache: dict[str, str]
    ) -> None:
        backend = backend_on("", **cache)
        with pytest.raises(ConfigurationError, match="'locks'"):
            backend.time()
        with pytest.raises(ConfigurationError, match=r"CRONDUCTOR\[\"CACHE\"\]"):
            backend.describe()

    @pytest.mark.parametrize("extra", [{}, DJANGO_REDIS], ids=["django", "django-redis"])
    @pytest.mark.parametrize(
        "location",
        [
            "127.0.0.1:6379",
            "",
            "http://x",
            "redis://h:99999/0",
            "redis://:pa/ss@host",
            "redis://:pa?ss@host",
            "redis://[::1",
            "redis://h/0?socket_timeout=pa",
            [],
            None,
        ],
    )
    def test_an_address_that_cannot_be_read_is_a_configuration_error_that_quotes_nothing_of_it(
        self, backend_on: Any, location: Any, extra: dict[str, Any]
    ) -> None:
        backend = backend_on(location, **extra)
        for ask in (backend.time, backend.describe):
            with pytest.raises(ConfigurationError) as caught:
                ask()
            assert "CACHES['locks'][\"LOCATION\"]" in str(caught.value)
            assert "redis://user:password@host:6379/1" in str(caught.value)
            assert "'pa'" not in everything_about(caught.value)
        (message,) = RedisBackend.check(cache="locks", prefix="p", deploy=True)
        assert message.id == "cronductor.E101"
        del caches["locks"]  # Some versions of django-redis cannot even close such a cache.

    def test_an_argument_that_no_connection_takes_is_a_configuration_error(self, backend_on: Any) -> None:
        backend = backend_on("redis://127.0.0.1:1/0?nonsense=1")
        with pytest.raises(ConfigurationError, match="LOCATION"):
            backend.time()

    def test_a_client_of_another_library_is_a_configuration_error(self, backend_on: Any) -> None:
        backend = backend_on("", BACKEND="tests.backends.test_redis.StrangeCache")
        with pytest.raises(ConfigurationError, match="StrangeClient"):
            backend.time()


class ClusterCache:
    """A cache whose client is one of a whole cluster: it has no connection pool of its own."""

    key_prefix = ""

    def __init__(self, location: str, params: dict[str, Any]) -> None:
        self._cache = self

    def get_client(self, *, write: bool) -> Any:
        client = object.__new__(redis.RedisCluster)
        client.close = lambda: None  # type: ignore[method-assign]
        return client

    def close(self) -> None:
        pass


class StrangeClient:
    """A client that is neither redis-py's nor valkey-py's."""

    connection_pool = None


class StrangeCache(ClusterCache):
    """A cache with such a client."""

    def get_client(self, *, write: bool) -> Any:
        return StrangeClient()


class TestKeys:
    """Where things are stored."""

    def test_every_key_begins_with_the_caches_prefix_and_holds_one_hash_tag(
        self, backend_on: Any, server: RedisServer
    ) -> None:
        backend = backend_on(server.url, "cron", KEY_PREFIX="site-a", VERSION=3)
        use_every_key(backend)
        with admin(server) as client:
            assert set(client.keys("*")) == {
                "site-a:{cron}:job:shop.sync",
                "site-a:{cron}:lock:report",
                "site-a:{cron}:fence",
                "site-a:{cron}:instances",
                "site-a:{cron}:requests",
            }

    def test_without_a_prefix_of_the_cache_the_hash_tag_comes_first(self, backend_on: Any, server: RedisServer) -> None:
        use_every_key(backend_on(server.url, "cron"))
        with admin(server) as client:
            assert all(key.startswith("{cron}:") for key in client.keys("*"))

    def test_two_sites_on_one_database_do_not_meet(self, backend_on: Any, redis_url: str) -> None:
        leases = []
        for site in ("site-a", "site-b"):
            backend = backend_on(redis_url, KEY_PREFIX=site)
            backend.declare([Declaration("job", "v1", TTL)])
            leases.append(claim(backend, backend.time()).verdict)
        assert leases == ["won", "won"]

    def test_all_keys_are_in_one_slot_and_work_on_a_cluster_of_one_node(self, backend_on: Any) -> None:
        with cluster_node() as server, admin(server) as client:
            client.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            wait_until(lambda: "cluster_state:ok" in str(client.execute_command("CLUSTER", "INFO")))
            use_every_key(backend_on(server.url, KEY_PREFIX="site-a"), "}{odd key")
            keys = client.keys("*")
            assert len(keys) == 5
            assert len({client.execute_command("CLUSTER", "KEYSLOT", key) for key in keys}) == 1


def use_every_key(backend: RedisBackend, job: str = "shop.sync") -> None:
    """Call every operation once, and leave one key of each kind."""
    run_once(backend, job)
    backend.pause(job)
    backend.resume(job)
    backend.force_release(job)
    assert backend.request_run(job)
    assert backend.take_request(job, "t", TTL, "a").verdict == "won"
    assert backend.request_run(job)
    for key in ("report", "other"):
        answer = backend.acquire(key, "t", TTL, "a")
        lease = Lease(key, "t", answer.fence, TTL, "a")
        assert getattr(backend.renew([lease]).answers[0], "ok", False)
    assert getattr(backend.release([Release(lease)]).answers[0], "ok", False)
    backend.heartbeat("i")
    backend.heartbeat("j")
    backend.retire("j")
    assert list(backend.instances()) == ["i"]
    backend.states([job])
    backend.declare([Declaration("gone", "v1", TTL)])
    backend.request_run("gone")
    backend.forget("gone")


class TestTimeouts:
    """Our timeouts are in force, and the driver sends nothing twice."""

    OPTIONS: ClassVar[dict[str, Any]] = {
        "socket_timeout": 30,
        "socket_connect_timeout": 30,
        "retry_on_timeout": True,
        "health_check_interval": 5,
    }

    def test_a_connection_has_our_timeouts_whatever_the_caches_are(self, backend_on: Any, redis_url: str) -> None:
        backend = backend_on(redis_url, OPTIONS=self.OPTIONS)
        backend.timeout = 0.25
        run_once(backend)
        for client in (backend._claims, backend._upkeep):
            (connection,) = client.connection_pool._available_connections
            assert connection.socket_timeout == connection.socket_connect_timeout == 0.25
            assert connection._sock.gettimeout() == 0.25
            assert connection.retry._retries == 0
            assert not connection.health_check_interval
            left = {name: value for name, value in vars(connection).items() if name.startswith("orig_")}
            assert left.get("orig_socket_timeout", 0.25) == left.get("orig_socket_connect_timeout", 0.25) == 0.25
            if config := client.connection_pool.connection_kwargs.get("maint_notifications_config"):
                assert not config.enabled

    @pytest.mark.parametrize(("extra", "timeout"), [({}, 1.0), (DJANGO_REDIS, 0.3)], ids=["django", "django-redis"])
    def test_a_server_that_does_not_answer_fails_the_call_in_time(
        self, backend_on: Any, server: RedisServer, extra: dict[str, Any], timeout: float
    ) -> None:
        options = {"CONNECTION_POOL_KWARGS": self.OPTIONS} if extra else self.OPTIONS
        backend = backend_on(server.url, **{**extra, "OPTIONS": options})
        assert backend.timeout == 1.0
        backend.timeout = timeout
        lease = run_once(backend)
        server.pause()
        try:
            for ask in (lambda: backend.time(), lambda: backend.renew([lease])):
                start = time.monotonic()
                with pytest.raises(BackendError) as caught:
                    ask()
                assert timeout - 0.1 < time.monotonic() - start < timeout + 0.9
                assert not isinstance(caught.value, BackendRefused)
        finally:
            server.resume()
        run_once(backend, "after")

    def test_a_server_that_does_not_even_greet_fails_the_call_in_time(
        self, backend_on: Any, server: RedisServer
    ) -> None:
        backend = backend_on(server.url, OPTIONS=self.OPTIONS)
        backend.timeout = 0.3
        server.pause()
        try:
            start = time.monotonic()
            with pytest.raises(BackendError):
                backend.time()
            assert time.monotonic() - start < 1.5
        finally:
            server.resume()

    @pytest.mark.parametrize("extra", [{}, DJANGO_REDIS], ids=["django", "django-redis"])
    def test_what_is_sent_is_sent_once(self, backend_on: Any, extra: dict[str, Any]) -> None:
        with SilentServer() as silent:
            backend = backend_on(f"redis://127.0.0.1:{silent.port}/0?protocol=2", **extra)
            backend.timeout = 5
            with pytest.raises(BackendError) as caught:
                backend.claim([Claim("job", 1, "t", TTL, TTL)], "a")
            assert silent.asked == 1
            assert caught.value.__cause__ is not None


class SilentServer:
    """A server that greets like Redis, and hangs up when a script is called."""

    def __init__(self) -> None:
        outer = self
        self.asked = 0

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                while arguments := outer.read(self.rfile):
                    if arguments[0].upper() == b"EVALSHA":
                        outer.asked += 1
                        return
                    self.wfile.write(b"+OK\r\n")

        self.server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)

    @staticmethod
    def read(stream: Any) -> list[bytes]:
        """Return the words of the next command; none where the connection ended."""
        head = stream.readline()
        words = []
        for _ in range(int(head[1:] or 0)):
            length = int(stream.readline()[1:])
            words.append(stream.read(length + 2)[:-2])
        return words

    def __enter__(self) -> SilentServer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


class TestFailures:
    """What a failing store looks like."""

    def test_a_server_that_is_down_is_an_error_with_its_cause(self, backend_on: Any) -> None:
        backend = backend_on(f"redis://:{'hunter2'}@127.0.0.1:{free_port()}/0")
        start = time.monotonic()
        with pytest.raises(BackendError) as caught:
            backend.claim([Claim("job", 1, "t", TTL, TTL)], "a")
        assert time.monotonic() - start < 1
        assert not isinstance(caught.value, BackendRefused)
        assert isinstance(caught.value.__cause__, redis.ConnectionError)
        assert "127.0.0.1" in str(caught.value)
        assert "hunter2" not in everything_about(caught.value)

    def test_a_password_that_the_driver_quotes_is_blotted_out(self, backend_on: Any, monkeypatch: Any) -> None:
        backend = backend_on("redis://:hunter2@127.0.0.1:1/0")

        def fail() -> None:
            raise redis.ConnectionError("cannot log in with hunter2")

        monkeypatch.setattr(backend._claims, "time", fail)
        with pytest.raises(BackendError, match=r"cannot log in with \*\*\*"):
            backend.time()

    def test_a_name_that_is_not_known_is_an_error_to_wait_for(self, backend_on: Any, monkeypatch: Any) -> None:
        def unknown(*_: object, **__: object) -> None:
            raise socket.gaierror(-2, "Name or service not known")

        monkeypatch.setattr(socket, "getaddrinfo", unknown)
        with pytest.raises(BackendError, match="not known") as caught:
            backend_on("redis://no-such-host:6379/0").time()
        assert not isinstance(caught.value, BackendRefused)

    def test_after_one_failure_calls_of_every_kind_connect_anew(self, backend_on: Any, server: RedisServer) -> None:
        """What made one fail, such as a failover behind an address, meets the others too: one outage and not two."""
        backend = backend_on(server.url)
        backend.time()
        backend.heartbeat("i")
        with admin(server) as client:
            before = {entry["id"] for entry in client.client_list()}
            client.lpush(backend._job("job"), "not a hash")
            client.execute_command("ACL", "SETUSER", "default", "-evalsha")
            with pytest.raises(BackendError):
                backend.declare([Declaration("job", "v1", TTL)])
            client.execute_command("ACL", "SETUSER", "default", "+evalsha")
            backend.heartbeat("i")
            after = {entry["id"] for entry in client.client_list()}
        assert len(before & after) == 1, "that of the test itself"

    def test_a_restart_of_the_server_is_survived(self, backend_on: Any, server: RedisServer) -> None:
        backend = backend_on(server.url)
        lease = run_once(backend)
        backend.heartbeat("i")
        server.restart()
        wait_until(lambda: answers(backend))
        assert not backend.heartbeat("i").known
        assert backend.states(["job"]).answers[0].since is None  # type: ignore[union-attr]
        # What the holder knows is written back, and the scripts are loaded again.
        assert getattr(backend.renew([lease]).answers[0], "ok", False)
        assert backend.declare([Declaration("job", "v1", TTL)]).answers

    def test_scripts_that_the_server_forgot_are_sent_again(self, backend_on: Any, server: RedisServer) -> None:
        backend = backend_on(server.url)
        run_once(backend)
        with admin(server) as client:
            client.script_flush()
        run_once(backend, "again")

    def test_a_lost_connection_is_opened_again(self, backend_on: Any, server: RedisServer) -> None:
        backend = backend_on(server.url)
        run_once(backend)
        with admin(server) as client:
            client.client_kill_filter(_type="normal", skipme=True)
        wait_until(lambda: answers(backend))
        run_once(backend, "again")

    @pytest.mark.parametrize("pool", ["ConnectionPool", "BlockingConnectionPool"])
    def test_a_server_that_takes_no_writes_is_connected_to_anew(
        self, backend_on: Any, server: RedisServer, pool: str
    ) -> None:
        backend = backend_on(server.url, OPTIONS={"pool_class": f"redis.{pool}"})
        run_once(backend)
        with admin(server) as client:
            before = connections(client)
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            for refused in (
                lambda: backend.declare([Declaration("another", "v1", TTL)]),
                lambda: backend.heartbeat("i"),
            ):
                with pytest.raises(BackendError, match=r"(?i)read.?only"):
                    refused()
            client.execute_command("REPLICAOF", "NO", "ONE")
            run_once(backend, "again")
            gc.collect()
            wait_until(lambda: not before & connections(client))
            assert len(connections(client)) == len(before)


def connections(client: redis.Redis) -> set[str]:
    """Return the numbers of all connections to the server but this one."""
    return {one["id"] for one in client.client_list()} - {str(client.client_id())}


class TestUnreadable:
    """What was written into a job's hash by hand, and makes no sense."""

    DAMAGE: ClassVar[list[tuple[str, str]]] = [
        ("run", "abc"),
        ("attempt", "x"),
        ("last", "garbage"),
        ("last", '{"run": 1}'),
        ("last", "[1]"),
        ("occurrence", "x"),
    ]

    @pytest.fixture
    def backend(self, backend_on: Any, redis_url: str) -> RedisBackend:
        """Return a backend with two jobs that are leased."""
        backend: RedisBackend = backend_on(redis_url)
        backend.declare([Declaration(key, "v1", TTL) for key in ("bad", "good")])
        self.first = backend.time() - 1000
        for key in ("bad", "good"):
            assert claim(backend, self.first, key).verdict == "won"
        return backend

    @pytest.mark.parametrize(("field", "value"), DAMAGE[:2])
    def test_a_dead_run_that_cannot_be_read_fails_the_claim_of_its_job_alone(
        self, backend: RedisBackend, field: str, value: str
    ) -> None:
        for key in ("bad", "good"):
            backend._claims.hset(backend._job(key), "expires", 1)
        backend._claims.hset(backend._job("bad"), field, value)
        now = backend.time()
        bad, good = backend.claim([Claim(key, now, f"{key}-{now}", TTL, TTL) for key in ("bad", "good")], "b").answers
        assert isinstance(good, ClaimResult)
        assert good.dead is not None
        assert good.dead.run == self.first
        assert isinstance(bad, BackendError)
        assert not isinstance(bad, BackendRefused)
        assert isinstance(bad.__cause__, ValueError)
        # A later question hears the truth of the store again.
        assert claim(backend, now, "bad").verdict == "taken"

    @pytest.mark.parametrize(("field", "value"), [one for one in DAMAGE if one[0] != "attempt"])
    def test_a_state_that_cannot_be_read_fails_alone(self, backend: RedisBackend, field: str, value: str) -> None:
        backend._claims.hset(backend._job("bad"), field, value)
        bad, good = backend.states(["bad", "good"]).answers
        assert isinstance(bad, BackendError)
        assert isinstance(good, JobState)

    def test_a_number_that_has_no_json_fails_alone(self, backend: RedisBackend) -> None:
        backend._claims.hset(backend._job("bad"), "pending", "inf")
        bad, good = backend.states(["bad", "good"]).answers
        assert isinstance(bad, BackendError)
        assert isinstance(good, JobState)

    def test_heartbeats_that_another_wrote_are_read_as_they_are_or_named(self, backend: RedisBackend) -> None:
        now = backend.time()
        backend._claims.zadd(backend._instances, {"odd": now + 0.5})
        assert backend.instances() == {"odd": now}
        backend._claims.zadd(backend._instances, {"odd": "inf"})
        with pytest.raises(BackendError, match="cannot be read"):
            backend.instances()

    def test_a_list_of_instances_of_a_wrong_type_stops_no_question_about_jobs(self, backend: RedisBackend) -> None:
        backend._claims.set(backend._instances, "x")
        assert backend.states(["job"]).answers == [JobState("job")]
        with pytest.raises(BackendError, match="WRONGTYPE"):
            backend.survey(["job"])

    def test_very_many_jobs_are_read_in_their_order(self, backend: RedisBackend) -> None:
        keys = [f"job-{number}" for number in range(2_500)]
        backend.heartbeat("host:1:aa")
        reply, alive = backend.survey(keys)
        assert [getattr(state, "key", None) for state in reply.answers] == keys
        assert list(alive) == ["host:1:aa"]

    @pytest.mark.parametrize(("field", "value"), DAMAGE[:2])
    def test_a_single_question_about_a_dead_run_that_cannot_be_read_raises(
        self, backend: RedisBackend, field: str, value: str
    ) -> None:
        backend._claims.hset(backend._job("bad"), mapping={field: value, "expires": 1})
        assert backend.request_run("bad")
        with pytest.raises(BackendError, match="cannot be read"):
            backend.take_request("bad", "t", TTL, "b")
        backend._claims.hset(backend._job("bad"), field, value)
        with pytest.raises(BackendError, match="cannot be read"):
            backend.force_release("bad")

    def test_a_reply_that_is_no_json_fails_its_key_alone(self, backend: RedisBackend, monkeypatch: Any) -> None:
        monkeypatch.setattr(backend, "_run", lambda *_, **__: [1, ["{", '{"ok": true}']])
        leases = [Lease(key, "t", 1, TTL, "a", self.first) for key in ("bad", "good")]
        bad, good = backend.renew(leases).answers
        assert isinstance(bad, BackendError)
        assert getattr(good, "ok", False)


class TestRefusals:
    """A store that refuses us says what is missing."""

    def test_a_wrong_password(self, backend_on: Any) -> None:
        with RedisServer({"requirepass": "right"}) as server:
            backend = backend_on(server.url.replace(":right@", ":hunter2@"))
            with pytest.raises(BackendRefused, match="password") as caught:
                backend.time()
            assert "hunter2" not in everything_about(caught.value)

    def test_no_password_where_one_is_needed(self, backend_on: Any) -> None:
        with RedisServer({"requirepass": "right"}) as server:
            backend = backend_on(server.url.replace(":right@", ""))
            with pytest.raises(BackendRefused, match="AuthenticationError"):
                backend.time()

    @pytest.mark.parametrize(
        ("rules", "missing"),
        [
            (("~*", "+@all", "-@scripting"), "evalsha"),
            (("~other:*", "+@all"), "key"),
            (("~*", "+@all", "-hset"), "command"),
            (("~*", "+@all", "-time"), "command"),
        ],
        ids=["no scripts", "other keys", "no hset in a script", "no time in a script"],
    )
    def test_a_user_who_may_not(
        self, backend_on: Any, server: RedisServer, rules: tuple[str, ...], missing: str
    ) -> None:
        with admin(server) as client:
            client.execute_command("ACL", "SETUSER", "limited", "on", ">hunter2", *rules)
        backend = backend_on(server.url.replace("redis://", "redis://limited:hunter2@"))
        with pytest.raises(BackendRefused, match=missing) as caught:
            only(backend.declare([Declaration("job", "v1", TTL)]).answers)
        assert "hunter2" not in everything_about(caught.value)

    def test_a_user_who_may_use_the_keys_of_one_site_is_enough(self, backend_on: Any, server: RedisServer) -> None:
        with admin(server) as client:
            client.execute_command("ACL", "SETUSER", "site", "on", ">hunter2", "~site-a:*", "+@all", "-@dangerous")
        backend = backend_on(server.url.replace("redis://", "redis://site:hunter2@"), KEY_PREFIX="site-a")
        use_every_key(backend)

    def test_a_server_without_scripts(self, backend_on: Any) -> None:
        with RedisServer({"rename-command": ("EVALSHA", "")}) as server:
            backend = backend_on(server.url)
            with pytest.raises(BackendRefused, match=r"(?i)unknown command.*evalsha"):
                backend.declare([Declaration("job", "v1", TTL)])

    def test_a_database_number_that_the_server_does_not_have(self, backend_on: Any, server: RedisServer) -> None:
        with pytest.raises(BackendRefused, match="DB index"):
            backend_on(server.url.replace("/0", "/99")).time()

    def test_a_node_of_a_cluster_that_does_not_have_our_slot(self, backend_on: Any) -> None:
        with cluster_node() as server:
            # Not refused: the slot may be given to a node while we wait.
            with pytest.raises(BackendError, match="clusters are not supported") as caught:
                backend_on(server.url).declare([Declaration("job", "v1", TTL)])
            assert not isinstance(caught.value, BackendRefused)

    def test_a_node_of_a_cluster_that_has_not_our_keys_but_knows_who_has(self, backend_on: Any) -> None:
        with cluster_node() as one, cluster_node() as other, admin(one) as here, admin(other) as there:
            there.execute_command("CLUSTER", "ADDSLOTS", *range(16384))
            here.execute_command("CLUSTER", "MEET", "127.0.0.1", str(other.port))
            wait_until(lambda: "cluster_state:ok" in str(here.execute_command("CLUSTER", "INFO")))
            with pytest.raises(BackendRefused, match=r"(?i)moved.*clusters are not supported"):
                backend_on(one.url).declare([Declaration("job", "v1", TTL)])

    def test_what_every_key_would_meet_fails_the_whole_call(self, backend_on: Any, server: RedisServer) -> None:
        backend = backend_on(server.url)
        jobs = [Declaration(key, "v1", TTL) for key in ("one", "two")]
        with admin(server) as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(BackendError, match="maxmemory"):
                backend.declare(jobs)
            client.config_set("maxmemory", 0)
            client.execute_command("REPLICAOF", "127.0.0.1", "1")
            with pytest.raises(BackendError, match="READONLY"):
                backend.declare(jobs)
            client.execute_command("REPLICAOF", "NO", "ONE")
            client.execute_command("ACL", "SETUSER", "default", "-hset")
            with pytest.raises(BackendRefused, match="command"):
                backend.declare(jobs)
            client.execute_command("ACL", "SETUSER", "default", "+hset")
            client.lpush(backend._job("one"), "not a hash")
            bad, good = backend.declare(jobs).answers
        assert isinstance(bad, BackendError)
        assert isinstance(good, int)

    @pytest.mark.parametrize("word", [*REFUSALS, *PHRASES, *map(str.swapcase, PHRASES)])
    def test_each_code_and_phrase_of_refusal_is_known(self, backend_on: Any, redis_url: str, word: str) -> None:
        backend = backend_on(redis_url)
        assert isinstance(backend._failure(f"said: {word}, sorry"), BackendRefused)

    @pytest.mark.parametrize(
        "text",
        [
            "LOADING Redis is loading",
            "max number of clients reached",
            "READONLY",
            "OOM",
            "Connection closed: the endpoint was removed",
            "Error connecting to REMOVED:6379",
            "the service has moved, try again",
        ],
    )
    def test_what_may_pass_is_no_refusal(self, backend_on: Any, redis_url: str, text: str) -> None:
        backend = backend_on(redis_url)
        error = backend._failure(text)
        assert str(error).endswith(text)
        assert not isinstance(error, BackendRefused)


class TestCheck:
    """The checks for deployment."""

    def test_nothing_is_asked_without_deploy(self, backend_on: Any) -> None:
        backend_on("redis://127.0.0.1:1/0")
        assert RedisBackend.check(cache="locks", prefix="p", deploy=False) == []

    def test_a_sound_store_has_nothing_to_report_and_nothing_written(
        self, backend_on: Any, server: RedisServer
    ) -> None:
        backend_on(server.url)
        with admin(server) as client:
            for limit, policy in ((0, "allkeys-lru"), (10**9, "noeviction"), (10**9, "volatile-lru")):
                client.config_set("maxmemory", limit)
                client.config_set("maxmemory-policy", policy)
                assert RedisBackend.check(cache="locks", prefix="p", deploy=True) == []
            assert client.dbsize() == 0
            assert client.info("clients")["connected_clients"] == 1

    def test_w101_a_store_that_evicts_keys_without_expiry(self, backend_on: Any, server: RedisServer) -> None:
        backend_on(server.url)
        with admin(server) as client:
            client.config_set("maxmemory", "1gb")
            client.config_set("maxmemory-policy", "allkeys-lru")
            (message,) = RedisBackend.check(cache="locks", prefix="p", deploy=True)
        assert message.id == "cronductor.W101"
        assert "allkeys-lru" in message.msg
        assert str(message.hint).startswith("Set maxmemory-policy to noeviction. ")

    def test_of_keys_those_of_plain_locks_alone_have_an_expiry(self, backend_on: Any, server: RedisServer) -> None:
        use_every_key(backend_on(server.url, "cron"))
        with admin(server) as client:
            assert [key for key in client.keys("*") if client.ttl(key) != -1] == ["{cron}:lock:report"]

    def test_w101_is_silent_where_we_may_not_ask(self, backend_on: Any, server: RedisServer) -> None:
        with admin(server) as client:
            client.config_set("maxmemory", "1gb")
            client.config_set("maxmemory-policy", "allkeys-lru")
            client.execute_command("ACL", "SETUSER", "limited", "on", ">hunter2", "~*", "+@all", "-info", "-config")
        backend_on(server.url.replace("redis://", "redis://limited:hunter2@"))
        assert RedisBackend.check(cache="locks", prefix="p", deploy=True) == []

    def test_e101_a_store_that_cannot_be_reached(self, backend_on: Any) -> None:
        backend_on(f"redis://:hunter2@127.0.0.1:{free_port()}/0")
        (message,) = RedisBackend.check(cache="locks", prefix="p", deploy=True)
        assert message.id == "cronductor.E101"
        assert "127.0.0.1" in message.msg
        assert "hunter2" not in str(message)

    def test_e101_a_store_that_refuses_us(self, backend_on: Any, server: RedisServer) -> None:
        with admin(server) as client:
            client.execute_command("ACL", "SETUSER", "limited", "on", ">hunter2", "~*", "+@all", "-@scripting")
        backend_on(server.url.replace("redis://", "redis://limited:hunter2@"))
        (message,) = RedisBackend.check(cache="locks", prefix="p", deploy=True)
        assert message.id == "cronductor.E101"
        assert "evalsha" in message.msg

    def test_e101_a_cache_that_is_not_in_redis(self, backend_on: Any) -> None:
        backend_on("", BACKEND="django.core.cache.backends.dummy.DummyCache")
        (message,) = RedisBackend.check(cache="locks", prefix="p", deploy=True)
        assert message.id == "cronductor.E101"


def only(answers: list[Any]) -> Any:
    """Return the answer of a batch of one, and raise it if it is an error."""
    (answer,) = answers
    if isinstance(answer, BackendError):
        raise answer
    return answer


def answers(backend: RedisBackend) -> bool:
    """Tell whether both connections work."""
    try:
        backend.time()
        backend.heartbeat("probe")
    except BackendError:
        return False
    return True


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come true in time"
        threading.Event().wait(0.01)
