"""The private Redis of the test run, and the fixtures that every test may use."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator

import pytest
import redis
from django.conf import settings
from django.db import connections

from tests.databases.servers import ENGINES, DatabaseServer, DatabaseUnavailable, make_server
from tests.redis_server import RedisServer, ServerUnavailable

SERVER = pytest.StashKey[RedisServer]()
DATABASE = pytest.StashKey[DatabaseServer]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the server before any test, and tell Django and the processes that tests start where it is."""
    if config.option.help or config.option.collectonly:
        return
    # Told to end, the run ends as by Ctrl-C: fixtures stop the processes that they have started.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    capture = config.pluginmanager.getplugin("capturemanager")
    server = RedisServer()
    try:
        # Building a server takes a minute: say so at once.
        with capture.global_and_fixture_disabled():
            server.start()
    except ServerUnavailable as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    config.stash[SERVER] = server
    os.environ["CRONDUCTOR_TEST_REDIS_URL"] = server.url
    settings.CACHES["locks"]["LOCATION"] = server.url
    _start_database(config)


def _start_database(config: pytest.Config) -> None:
    """Start the database server that is asked for, and let Django use it."""
    engine = os.environ.get("CRONDUCTOR_TEST_DATABASE", "sqlite")
    if engine not in ENGINES:
        pytest.exit(f"CRONDUCTOR_TEST_DATABASE must be one of {', '.join(ENGINES)}.", pytest.ExitCode.USAGE_ERROR)
    if engine == "sqlite":
        return
    database = make_server(engine)
    try:
        database.start()
    except DatabaseUnavailable as error:
        pytest.exit(str(error), returncode=pytest.ExitCode.USAGE_ERROR)
    config.stash[DATABASE] = database
    settings.DATABASES["default"] = database.settings("cronductor")
    connections.settings = connections.configure_settings(settings.DATABASES)
    del connections["default"]


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the servers."""
    if DATABASE in config.stash:
        config.stash[DATABASE].stop()
        del config.stash[DATABASE]
    if SERVER in config.stash:
        config.stash[SERVER].stop()
        del config.stash[SERVER]


@pytest.fixture(scope="session")
def django_db_modify_db_settings(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Keep the test database in a file: a database in memory cannot be shared well by threads."""
    if connections["default"].vendor != "sqlite":
        return
    database = tmp_path_factory.mktemp("database") / "test.sqlite3"
    connections["default"].settings_dict["TEST"]["NAME"] = str(database)


@pytest.fixture(autouse=True)
def _no_connection_is_left_open() -> Iterator[None]:
    """Close what a test has opened: those that come later, in whatever order, are not to find it."""
    yield
    for connection in connections.all(initialized_only=True):
        if not connection.in_atomic_block:  # That of a class goes on until the last of its tests.
            connection.close()


@pytest.fixture(scope="session")
def database_server(request: pytest.FixtureRequest) -> DatabaseServer:
    """Return the run's database server; in a run on SQLite there is none."""
    if DATABASE not in request.config.stash:
        pytest.fail("This test needs a database server: set CRONDUCTOR_TEST_DATABASE to postgresql or mariadb.")
    return request.config.stash[DATABASE]


@pytest.fixture(scope="session")
def redis_server(request: pytest.FixtureRequest) -> RedisServer:
    """Return the run's server. Who stops, pauses or flushes one starts a RedisServer of their own."""
    return request.config.stash[SERVER]


@pytest.fixture(scope="session")
def redis_url(redis_server: RedisServer) -> str:
    """Return the address of the run's server."""
    return redis_server.url


@pytest.fixture
def redis_client(redis_url: str) -> Iterator[redis.Redis]:
    """Return a client that answers in text, for looking at what is stored."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    yield client
    client.close()


@pytest.fixture
def prefix() -> str:
    """Return a prefix for keys that no other test uses."""
    return f"test-{uuid.uuid4().hex[:12]}"
