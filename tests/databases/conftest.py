"""What the tests of databases share: the engine of this run, observers of its server, empty databases."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.db import connection, connections

from tests.databases.observer import Observer
from tests.databases.servers import DatabaseServer

ENGINE = os.environ.get("CRONDUCTOR_TEST_DATABASE", "sqlite")

# What some do to a server cannot be done to a file; others need to be run on one database only, and are long.
collect_ignore = ["test_outages.py", "test_connections.py"] if ENGINE == "sqlite" else ["test_memory.py"]


@pytest.fixture
def server(request: pytest.FixtureRequest) -> DatabaseServer | None:
    """Return the server of this run, if it has one."""
    return None if ENGINE == "sqlite" else request.getfixturevalue("database_server")


@pytest.fixture
def observer(database_server: DatabaseServer, transactional_db: None) -> Iterator[Observer]:
    """Return who looks at the server from outside, and sees that it goes on in the end."""
    connection.close()
    observer = Observer(database_server, connection.settings_dict["NAME"])
    yield observer
    observer.close()


def ask_server(server: DatabaseServer, ask: Callable[[Observer], object]) -> None:
    """Ask a server something by a connection of its own."""
    observer = Observer(server)
    ask(observer)
    observer.close()


@pytest.fixture
def empty_database(
    server: DatabaseServer | None, tmp_path: Path, request: pytest.FixtureRequest
) -> Callable[[str], dict[str, Any]]:
    """Return what makes an empty database and returns Django's settings for it."""

    def make(name: str) -> dict[str, Any]:
        if server is None:
            return {"ENGINE": "django.db.backends.sqlite3", "NAME": str(tmp_path / f"{name}.sqlite3")}
        ask_server(server, lambda observer: observer.create_database(name))
        request.addfinalizer(lambda: ask_server(server, lambda observer: observer.drop_database(name)))
        return server.settings(name)

    return make


@pytest.fixture
def kept_connections(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let connections live as long as their threads."""
    settings = connections.settings["default"]
    settings["CONN_MAX_AGE"] = None
    yield
    settings["CONN_MAX_AGE"] = 0
