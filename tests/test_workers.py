"""The worker threads."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest
from django.db import connection, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_cronductor.testing import ManualClock
from django_cronductor.workers import RECENT, WorkerPool

PATIENCE = 10.0
"""Seconds after which something that should have happened has not."""


class Gate:
    """Calls that stay in their threads until the gate is opened."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.entered = threading.Semaphore(0)
        self.threads: set[threading.Thread] = set()

    def __call__(self) -> None:
        self.threads.add(threading.current_thread())
        self.entered.release()
        assert self.open.wait(PATIENCE)

    def wait_for(self, count: int) -> None:
        for _ in range(count):
            assert self.entered.acquire(timeout=PATIENCE)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open.set()


@pytest.fixture
def make_pool(clock: ManualClock, gate: Gate) -> Iterator[Callable[..., WorkerPool]]:
    pools: list[WorkerPool] = []

    def make(size: int = 2, on_end: Callable[[], object] | None = None) -> WorkerPool:
        pools.append(WorkerPool(size, f"test-pool-{len(pools)}", clock, on_end))
        return pools[-1]

    yield make
    gate.open.set()
    for pool in pools:
        pool.close()
        for thread in pool._threads:
            thread.join(PATIENCE)


def threads_of_tests() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("test-pool-")]


def test_no_thread_is_started_before_there_is_work(make_pool: Callable[..., WorkerPool]) -> None:
    make_pool()
    assert threads_of_tests() == []


def test_threads_are_daemons_so_that_they_never_hold_the_exit(make_pool: Callable[..., WorkerPool], gate: Gate) -> None:
    make_pool().submit(gate)
    gate.wait_for(1)
    assert [thread.daemon for thread in threads_of_tests()] == [True]


def test_a_call_that_hangs_does_not_hold_the_exit_of_the_process() -> None:
    code = """
import threading
from django_cronductor.clock import SystemClock
from django_cronductor.workers import WorkerPool
entered = threading.Event()
pool = WorkerPool(1, "pool", SystemClock())
pool.submit(lambda: (entered.set(), threading.Event().wait()))
assert entered.wait(10)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_there_are_never_more_threads_than_the_size(make_pool: Callable[..., WorkerPool], gate: Gate) -> None:
    pool = make_pool(3)
    for _ in range(50):
        pool.submit(gate)
    gate.wait_for(3)
    assert len(threads_of_tests()) == 3
    gate.open.set()
    assert pool.wait_idle(PATIENCE)
    assert len(gate.threads) == 3
    for _ in range(50):
        pool.submit(gate)
    assert pool.wait_idle(PATIENCE)
    assert len(gate.threads) == 3


def test_calls_that_come_one_after_the_other_share_one_thread(make_pool: Callable[..., WorkerPool]) -> None:
    pool, names = make_pool(8), set()
    for _ in range(20):
        pool.submit(lambda: names.add(threading.current_thread().name))
        assert pool.wait_idle(PATIENCE)
    assert len(names) == 1


def test_calls_begin_in_the_order_they_came(make_pool: Callable[..., WorkerPool]) -> None:
    pool, order = make_pool(1), list[int]()
    for number in range(100):
        pool.submit(partial(order.append, number))
    assert pool.wait_idle(PATIENCE)
    assert order == list(range(100))


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError(), GeneratorExit(), ValueError("x")])
def test_nothing_that_a_call_raises_costs_a_thread(
    make_pool: Callable[..., WorkerPool], error: BaseException, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        names.append(threading.current_thread().name)
        raise error

    pool, names = make_pool(1), list[str]()
    for _ in range(3):
        pool.submit(fail)
    assert pool.wait_idle(PATIENCE)
    assert len(names) == 3
    assert len(set(names)) == 1
    assert [(record.levelno, record.exc_info and record.exc_info[1]) for record in caplog.records] == [
        (logging.ERROR, error)
    ] * 3


def test_room_is_what_is_free(make_pool: Callable[..., WorkerPool], gate: Gate) -> None:
    pool = make_pool(2)
    assert pool.look_for_room() == 2
    pool.submit(gate)
    assert pool.look_for_room() == 1
    pool.submit(gate)
    pool.submit(gate)
    assert pool.look_for_room() == -1


def test_room_counts_threads_that_came_free_of_late_twice(
    make_pool: Callable[..., WorkerPool], clock: ManualClock
) -> None:
    pool = make_pool(2)
    for _ in range(5):
        pool.submit(lambda: None)
    assert pool.wait_idle(PATIENCE)
    assert pool.look_for_room() == 2 + 5
    clock.advance(RECENT / 2)
    assert pool.look_for_room() == 2 + 5
    clock.advance(RECENT)
    assert pool.look_for_room() == 2


def test_waiting_until_idle_ends_when_the_last_call_has_ended(make_pool: Callable[..., WorkerPool], gate: Gate) -> None:
    pool = make_pool(2)
    assert pool.wait_idle(0)
    for _ in range(4):
        pool.submit(gate)
    assert not pool.wait_idle(0.01)
    gate.open.set()
    assert pool.wait_idle(PATIENCE)
    gate.wait_for(4)


def test_the_end_of_each_call_is_told_once_there_is_room_again(make_pool: Callable[..., WorkerPool]) -> None:
    def ended() -> None:
        rooms.append(pool.look_for_room())
        told.release()

    rooms, told = list[int](), threading.Semaphore(0)
    pool = make_pool(1, ended)
    pool.submit(lambda: None)
    assert told.acquire(timeout=PATIENCE)
    assert rooms == [2]


def test_after_close_the_threads_end_when_everything_has_been_called(
    make_pool: Callable[..., WorkerPool], gate: Gate
) -> None:
    pool, done = make_pool(1), list[int]()
    pool.submit(gate)
    for number in range(3):
        pool.submit(partial(done.append, number))
    gate.wait_for(1)
    (thread,) = threads_of_tests()
    pool.close()
    gate.open.set()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert done == [0, 1, 2]


def test_where_the_system_gives_no_more_threads_those_there_are_do_the_work(
    make_pool: Callable[..., WorkerPool], gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, done = make_pool(2), list[int]()
    pool.submit(gate)
    gate.wait_for(1)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pool.submit(lambda: done.append(1))
    assert "can't start new thread" in caplog.text
    gate.open.set()
    assert pool.wait_idle(PATIENCE)
    assert done == [1]


def test_without_any_thread_a_call_is_refused_and_not_counted(
    make_pool: Callable[..., WorkerPool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool = make_pool(2)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            pool.submit(lambda: None)
    assert pool.look_for_room() == 2
    pool.submit(lambda: None)
    assert pool.wait_idle(PATIENCE)


@pytest.mark.django_db(transaction=True)
def test_a_thread_that_ends_leaves_no_database_connection(make_pool: Callable[..., WorkerPool]) -> None:
    opened: list[BaseDatabaseWrapper] = []
    threads: list[threading.Thread] = []

    def query() -> None:
        connection.ensure_connection()
        opened.append(connections["default"])
        threads.append(threading.current_thread())

    pool = make_pool(1)
    pool.submit(query)
    pool.close()
    assert pool.wait_idle(PATIENCE)
    threads[0].join(PATIENCE)
    assert opened[0].connection is None
