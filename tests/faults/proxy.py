"""A line to a server that a test can cut, slow down and make lose replies: a small TCP proxy on the loopback."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import struct
import threading
from collections.abc import Callable
from types import TracebackType

from django_cronductor.backends.redis import script_source

HOST = "127.0.0.1"
RESET = struct.pack("ii", 1, 0)
"""A linger of no time: closing the socket then sends a reset instead of a farewell."""


def sha(script: str) -> bytes:
    """Return what a request that runs this script of the Redis backend contains."""
    return hashlib.sha1(script_source(script).encode(), usedforsecurity=False).hexdigest().encode()


def runs(*scripts: str) -> Callable[[bytes], bool]:
    """Return what tells the requests that run one of these scripts."""
    names = [sha(script) for script in scripts]
    return lambda request: any(name in request for name in names)


class Proxy:
    """
    Forwards connections to a port of this machine, and does harm on the way as its attributes say.

    One request at a time goes over a connection, as with Redis: what comes back is the answer to what was sent last.
    """

    def __init__(self, target: int) -> None:
        self.target = target
        """The port that new connections are led to."""
        self.delay = 0.0
        """Seconds by which every reply is late."""
        self.loses: Callable[[bytes], bool] = lambda request: False
        """Tells of which requests the reply is lost: the server has done them, and then the connection ends."""
        self.lost: list[bytes] = []
        """The replies that were lost."""
        self._listener = socket.create_server((HOST, 0))
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._start(self._accept)

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closed.set()
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    @property
    def url(self) -> str:
        """Return the address under which a Redis server is reached through this line."""
        return f"redis://{HOST}:{self._listener.getsockname()[1]}/0"

    def cut(self, *, reset: bool = False) -> None:
        """End all connections, in good order or by a reset."""
        with self._lock:
            for client, server in self._pairs:
                if reset:
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                for end in (server,) if reset else (client, server):
                    with contextlib.suppress(OSError):
                        end.shutdown(socket.SHUT_RDWR)

    def _start(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, name="proxy", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            if not select.select([self._listener], [], [], 0.1)[0]:
                continue
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection((HOST, self.target), timeout=1)
            except OSError:
                client.close()  # As a server does that is not there, but for the time it takes.
                continue
            self._start(self._serve, client, server)

    def _serve(self, client: socket.socket, server: socket.socket) -> None:
        with self._lock:
            self._pairs.add((client, server))
        try:
            with contextlib.suppress(OSError):
                self._forward(client, server)
        finally:
            with self._lock:
                self._pairs.discard((client, server))
                client.close()
                server.close()

    def _forward(self, client: socket.socket, server: socket.socket) -> None:
        doomed = False
        while not self._closed.is_set():
            ready = select.select([client, server], [], [], 0.1)[0]
            if client in ready:
                request = client.recv(1 << 16)
                if not request:
                    return
                doomed = doomed or self.loses(request)
                server.sendall(request)
            elif server in ready:
                reply = server.recv(1 << 16)
                if doomed or not reply:
                    self.lost += [reply] if doomed else []
                    return
                self._closed.wait(self.delay)
                client.sendall(reply)
