"""
Private PostgreSQL and MariaDB servers for tests.

They listen on a free port of 127.0.0.1 only, keep their files in a temporary directory, and die with the process that
started them, however that ends. Both refuse to run as root, or should: then they run as the user of their package.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import re
import shutil
import signal
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.redis_server import free_port

ENGINES = ("sqlite", "postgresql", "mariadb")
READY = re.compile("ready (to accept|for) connections")
READY_WITHIN = 60.0
ENDED_WITHIN = 20.0
PORT_TRIES = 5

# Reads until its standard input closes, which happens when the process that holds the other end is gone. Children may
# have been stopped by a test.
WATCHDOG = """
read _
for pid in $1 $(cat /proc/$1/task/$1/children 2>/dev/null); do kill -CONT $pid 2>/dev/null; done
kill -$2 $1 2>/dev/null
for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $1 2>/dev/null || break; sleep 0.2; done
kill -9 $1 2>/dev/null
rm -rf "$3"
"""


class DatabaseUnavailable(Exception):
    """There is no such server to start, or it did not start."""


class DatabaseServer(ABC):
    """One server, started by `start()` or by entering the object. Port and data stay the same over kill and start."""

    user: str
    """The user of the operating system that it runs as, where the tests run as root."""
    ending: signal.Signals
    """What asks it to end without waiting for its clients."""

    def __init__(self) -> None:
        self.port = 0
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> DatabaseServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @abstractmethod
    def settings(self, name: str) -> dict[str, Any]:
        """Return Django's settings for a database of it."""

    @abstractmethod
    def _prepare(self, data: Path) -> None:
        """Make an empty data directory."""

    @abstractmethod
    def _command(self, data: Path) -> list[str]: ...

    @property
    def directory(self) -> Path:
        """Return the server's own temporary directory, which also holds its log."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="cronductor-database-"))
            if os.geteuid() == 0:
                shutil.chown(self._directory, self._account())
        return self._directory

    def start(self) -> None:
        """Start the process and wait until it answers."""
        data = self.directory / "data"
        if not data.exists():
            self._prepare(data)
        for remaining in reversed(range(PORT_TRIES)):
            self.port = self.port or free_port()
            try:
                return self._launch(data)
            except DatabaseUnavailable as error:
                # Somebody took the port between our look and the server's start.
                if "ddress already in use" not in str(error) or not remaining:
                    self.stop()
                    raise
                self.port = 0
        raise AssertionError("not reached")

    def stop(self) -> None:
        """End the process in an orderly way and remove its files; does nothing if it does not run."""
        if self._process is not None:
            self.resume()
            self._process.send_signal(self.ending)
        self._reap(ENDED_WITHIN)
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def kill(self) -> None:
        """End it at once, with all its connections, and wait until it is gone. Its data stays."""
        assert self._process is not None
        os.kill(self._process.pid, self._sudden)
        self._reap(ENDED_WITHIN)

    @property
    def _sudden(self) -> signal.Signals:
        return signal.SIGKILL

    def pause(self) -> None:
        """Stop all of it: connections stay open and nothing is answered."""
        self._signal_all(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self._signal_all(signal.SIGCONT)

    def run_tool(self, command: list[str]) -> None:
        """Run a program that prepares the server, as the user that it runs as."""
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=self.directory,
            check=False,
            **self._as_user(),
        )
        if done.returncode:
            said = done.stdout.decode(errors="replace")[-2000:]
            raise DatabaseUnavailable(f"{' '.join(command)} failed:\n{said}")

    def _as_user(self) -> dict[str, Any]:
        return {"user": self._account(), "group": self._account(), "extra_groups": []} if os.geteuid() == 0 else {}

    def _account(self) -> str:
        try:
            return pwd.getpwnam(self.user).pw_name
        except KeyError:
            raise DatabaseUnavailable(f"There is no user {self.user} to run the server as, and root may not.") from None

    def _signal_all(self, number: signal.Signals) -> None:
        assert self._process is not None
        # The parent first: it starts no more children then.
        pid = self._process.pid
        for each in [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, number)

    def _launch(self, data: Path) -> None:
        log = self.directory / "server.log"
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal is for the tests, which stop the server when they are done.
            self._process = subprocess.Popen(
                self._command(data),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.directory,
                start_new_session=True,
                **self._as_user(),
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self._process.pid), self.ending.name[3:], str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        deadline = time.monotonic() + READY_WITHIN
        # Its own word for it: on a port that was taken meanwhile another server would answer our question.
        while not READY.search(said := log.read_text(errors="replace")):
            ended = self._process.poll() is not None
            if ended or time.monotonic() > deadline:
                self._reap(0.001)
                how = "ended at once" if ended else f"was not ready within {READY_WITHIN:g} s"
                raise DatabaseUnavailable(f"The server {how}:\n{said[-2000:]}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout=0.05)

    def _reap(self, patience: float) -> None:
        # The watchdog first: once the process is reaped its number may belong to another.
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
        if self._process is not None:
            try:
                self._process.wait(timeout=patience)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None


class PostgreSQL(DatabaseServer):
    """A PostgreSQL server."""

    user = "postgres"
    ending = signal.SIGINT

    @property
    def _sudden(self) -> signal.Signals:
        # Killed, it would leave children behind and the next start in doubt. So it ends as suddenly for its clients.
        return signal.SIGQUIT

    def settings(self, name: str) -> dict[str, Any]:
        """Return Django's settings for a database of it."""
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": name,
            "USER": "tester",
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }

    def _prepare(self, data: Path) -> None:
        # The collation of the C locale would hide what others do.
        command = [_postgresql("initdb"), "--pgdata", str(data), "--username", "tester", "--auth", "trust"]
        self.run_tool([*command, "--encoding", "UTF8", "--locale", "C.UTF-8", "--no-sync"])

    def _command(self, data: Path) -> list[str]:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": "",
            # Whatever befalls its process, not the machine, it keeps what it has said to have.
            "fsync": "off",
            "full_page_writes": "off",
            "shared_buffers": "32MB",
            "max_connections": 60,
            "log_min_messages": "log",
        }
        command = [_postgresql("postgres"), "-D", str(data)]
        return command + [word for name, value in options.items() for word in ("-c", f"{name}={value}")]


class MariaDB(DatabaseServer):
    """A MariaDB server."""

    user = "mysql"
    ending = signal.SIGTERM

    def settings(self, name: str) -> dict[str, Any]:
        """Return Django's settings for a database of it."""
        return {
            "ENGINE": "django.db.backends.mysql",
            "NAME": name,
            "USER": "root",
            "PASSWORD": "",
            "HOST": "127.0.0.1",
            "PORT": str(self.port),
        }

    def _prepare(self, data: Path) -> None:
        command = [_found("mariadb-install-db", "mysql_install_db"), "--no-defaults", f"--datadir={data}"]
        self.run_tool([*command, "--auth-root-authentication-method=normal", "--skip-test-db"])

    def _command(self, data: Path) -> list[str]:
        options = {
            "datadir": data,
            "port": self.port,
            "bind-address": "127.0.0.1",
            "socket": self.directory / "socket",
            "pid-file": self.directory / "pid",
            "tmpdir": self.directory,
            # What Debian sets; the programs' own default is another, which Django's documentation advises against.
            "character-set-server": "utf8mb4",
            "collation-server": "utf8mb4_general_ci",
            # Whatever befalls its process, not the machine, it keeps what it has said to have.
            "innodb-flush-log-at-trx-commit": 2,
            "innodb-buffer-pool-size": "64M",
        }
        command = [_found("mariadbd", "mysqld"), "--no-defaults", "--skip-name-resolve"]
        return command + [f"--{name}={value}" for name, value in options.items()]


def make_server(engine: str) -> DatabaseServer:
    """Return a server of an engine, not yet started."""
    return {"postgresql": PostgreSQL, "mariadb": MariaDB}[engine]()


def _found(*names: str) -> str:
    """Return the path of a program by one of these names. Servers are not always on the PATH of a user."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/usr/libexec"])
    for name in names:
        if found := shutil.which(name, path=path):
            return found
    raise DatabaseUnavailable(
        f"There is no {names[0]}: install a server, for example `apt-get install mariadb-server`."
    )


def _postgresql(name: str) -> str:
    """Return the path of a program of the newest PostgreSQL: Debian keeps them off PATH."""
    places = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"), key=lambda path: float(path.parts[4]))
    if places:
        return str(places[-1])
    if found := shutil.which(name):
        return found
    raise DatabaseUnavailable(f"There is no {name}: install one, for example `apt-get install postgresql`.")
