"""Who looks at a database server from outside, and interferes."""

from __future__ import annotations

import contextlib
import importlib
from typing import Any

from tests.databases.servers import DatabaseServer, MariaDB

CONNECTIONS = {
    "postgresql": "SELECT pid, state FROM pg_stat_activity WHERE datname = %s AND pid <> pg_backend_pid()",
    "mariadb": """
        SELECT one.id, IF(one.command <> 'Sleep', 'active', IF(trx.trx_id IS NULL, 'idle', 'idle in transaction'))
        FROM information_schema.processlist one
        LEFT JOIN information_schema.innodb_trx trx ON trx.trx_mysql_thread_id = one.id
        WHERE one.db = %s AND one.id <> connection_id()
    """,
}


class Observer:
    """A connection of its own to a server, and the connections of others to one of its databases."""

    def __init__(self, server: DatabaseServer, database: str = "") -> None:
        self.server = server
        self.database = database
        self._engine = "mariadb" if isinstance(server, MariaDB) else "postgresql"
        self._own = self._connect("mysql" if self._engine == "mariadb" else "postgres")
        self._locking: Any = None

    def close(self) -> None:
        """Undo what was done to the server."""
        self.server.resume()
        self.unlock()
        self._own.close()

    def connections(self) -> dict[int, str]:
        """Return the states of the connections to the database, by id: `idle`, `idle in transaction` and others."""
        return dict(self._ask(self._own, CONNECTIONS[self._engine], self.database))

    def cut(self) -> int:
        """End all connections to the database; return how many there were."""
        found = list(self.connections())
        kill = "KILL %s" if self._engine == "mariadb" else "SELECT pg_terminate_backend(%s)"
        for number in found:
            with contextlib.suppress(Exception):  # It has ended by itself.
                self._ask(self._own, kill, number)
        return len(found)

    def lock(self, table: str) -> None:
        """Hold a table, so that nobody else can read it or write to it."""
        self._locking = self._connect(self.database)
        if self._engine == "mariadb":
            self._ask(self._locking, f"LOCK TABLES {table} WRITE")
        else:
            self._ask(self._locking, "BEGIN")
            self._ask(self._locking, f"LOCK TABLE {table} IN ACCESS EXCLUSIVE MODE")

    def unlock(self) -> None:
        """Let go what is held."""
        if self._locking is not None:
            self._locking.close()
            self._locking = None

    def reconnect(self) -> None:
        """Connect again, after the server was killed."""
        self._own.close()
        self._own = self._connect("mysql" if self._engine == "mariadb" else "postgres")

    def create_database(self, name: str) -> None:
        self._ask(self._own, f"CREATE DATABASE {name}")

    def drop_database(self, name: str) -> None:
        self._ask(self._own, f"DROP DATABASE {name}")

    def _connect(self, database: str) -> Any:
        where = {"host": "127.0.0.1", "port": self.server.port}
        if self._engine == "mariadb":
            driver = importlib.import_module("MySQLdb")
            return driver.connect(**where, user="root", database=database, autocommit=True)
        driver = importlib.import_module("psycopg")
        return driver.connect(**where, user="tester", dbname=database, autocommit=True)

    def _ask(self, connection: Any, question: str, *values: object) -> list[tuple[Any, ...]]:
        with connection.cursor() as cursor:
            cursor.execute(question, values or None)
            return list(cursor.fetchall()) if cursor.description else []
