"""What operators order of a process that keeps the lock store in its own memory."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.core.management import call_command
from django.db import OperationalError, connections
from django.test import override_settings

from django_cronductor import operations, orders, signals
from django_cronductor.backends.base import Declaration, Lease
from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.clock import SystemClock
from django_cronductor.history import DatabaseHistory
from django_cronductor.instants import as_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.commands import runcron
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.orders import Orders, taking_orders
from django_cronductor.runner import RunContext
from tests.history_records import job

pytestmark = pytest.mark.django_db

LOCAL = "django_cronductor.backends.local.LocalBackend"
TTL = 30_000
KEY = "shop.sync"
LOGGER = "django_cronductor.orders"
DEADLINE = 20.0


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.schedule("30 2 * * *", print, key=KEY)
    return registry


@pytest.fixture
def backend() -> LocalBackend:
    """Return the store of the process that runs the jobs: the job is declared there."""
    backend = LocalBackend(clock=SystemClock(), store=Store())
    backend.declare([Declaration(KEY, "v1", TTL)])
    return backend


@pytest.fixture
def other() -> LocalBackend:
    """Return the store of the process that gives the orders."""
    return LocalBackend(clock=SystemClock(), store=Store())


@pytest.fixture
def looking(registry: JobRegistry, backend: LocalBackend) -> Orders:
    history = DatabaseHistory(keep=5, inline=True)
    history.declared([job()])
    with override_settings(CRONDUCTOR={"BACKEND": LOCAL}):
        return Orders(backend, registry, history)


def state(backend: LocalBackend, key: str = KEY) -> Any:
    return backend.states([key]).answers[0]


def take(backend: LocalBackend) -> Lease:
    answer = backend.take_request(KEY, "token", TTL, "host:1:a", unasked=True)
    return Lease(KEY, "token", answer.fence, TTL, "host:1:a", "manual")


def texts(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == LOGGER]


class TestPauses:
    def test_a_pause_is_obeyed_and_lifted(
        self, registry: JobRegistry, backend: LocalBackend, other: LocalBackend, looking: Orders
    ) -> None:
        operations.pause(KEY, backend=other, by="anna", registry=registry)
        looking.look()
        assert state(backend).paused
        looking.look()
        assert state(backend).paused
        operations.resume(KEY, backend=other, by="anna", registry=registry)
        looking.look()
        assert not state(backend).paused

    def test_a_job_that_is_not_declared_yet_is_let_alone(
        self, registry: JobRegistry, backend: LocalBackend, other: LocalBackend, looking: Orders
    ) -> None:
        operations.pause(KEY, backend=other, by="anna", registry=registry)
        backend.forget(KEY)
        looking.look()
        assert state(backend).since is None
        assert not state(backend).paused


class TestRuns:
    def test_a_run_is_requested_once(
        self, registry: JobRegistry, backend: LocalBackend, other: LocalBackend, looking: Orders
    ) -> None:
        operations.request_run(KEY, backend=other, by="anna", registry=registry)
        looking.look()
        assert backend.heartbeat("i").requests == {KEY}
        assert backend.take_request(KEY, "token", TTL, "i").verdict == "won"
        looking.look()
        assert backend.heartbeat("i").requests == frozenset()
        assert DeclaredJob.objects.get().run_requested_at is None

    def test_an_old_order_is_dropped_and_that_is_told(
        self, backend: LocalBackend, looking: Orders, caplog: pytest.LogCaptureFixture
    ) -> None:
        old = as_stored(datetime.now(timezone.utc) - timedelta(seconds=61))
        take(backend)
        DeclaredJob.objects.update(run_requested_at=old, release_requested_at=old)
        looking.look()
        assert state(backend).requested is None
        assert state(backend).lease is not None
        assert DeclaredJob.objects.get().run_requested_at is None
        assert texts(caplog) == [
            "shop.sync: the order to run it is more than a minute old and is not carried out.",
            "shop.sync: the order to release it is more than a minute old and is not carried out.",
        ]

    def test_an_order_that_another_has_taken_is_not_taken_again(
        self, registry: JobRegistry, backend: LocalBackend, other: LocalBackend, looking: Orders
    ) -> None:
        operations.request_run(KEY, backend=other, by="anna", registry=registry)
        rows = list(DeclaredJob.objects.all())
        DeclaredJob.objects.update(run_requested_at=None)
        looking._carry_out(rows)
        assert state(backend).requested is None

    def test_a_job_that_is_not_declared_here_is_not_run_and_that_is_told(
        self,
        registry: JobRegistry,
        backend: LocalBackend,
        other: LocalBackend,
        looking: Orders,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        backend.forget(KEY)
        operations.request_run(KEY, backend=other, by="anna", registry=registry)
        looking.look()
        assert texts(caplog) == ["shop.sync is not run as ordered: it is not declared here."]


class TestReleases:
    def test_the_lease_goes_and_its_run_is_reported(
        self, registry: JobRegistry, backend: LocalBackend, other: LocalBackend, looking: Orders
    ) -> None:
        lease = take(backend)
        heard = []

        def hear(**details: Any) -> None:
            heard.append((details["sender"], details["holder"]))

        operations.release(KEY, backend=other, by="anna", registry=registry)
        signals.run_abandoned.connect(hear)
        looking.look()
        signals.run_abandoned.disconnect(hear)
        assert heard == [(registry.get(KEY), "host:1:a")]
        assert state(backend).fence == lease.fence + 1
        run = JobRun.objects.get()
        assert (run.outcome, run.holder) == ("abandoned", "host:1:a")
        assert DeclaredJob.objects.get().release_requested_at is None

    def test_where_nobody_holds_it_that_is_told(
        self,
        registry: JobRegistry,
        backend: LocalBackend,
        other: LocalBackend,
        looking: Orders,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        operations.release(KEY, backend=other, by="anna", registry=registry)
        with caplog.at_level(logging.INFO, LOGGER):
            looking.look()
        assert texts(caplog) == ["shop.sync: nobody holds the lease that was to be released."]

    def test_a_store_that_fails_is_told_of(
        self,
        registry: JobRegistry,
        other: LocalBackend,
        looking: Orders,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail(*args: Any) -> Any:
            raise orders.CronductorError("broken")

        operations.release(KEY, backend=other, by="anna", registry=registry)
        monkeypatch.setattr(orders, "take_lease_away", fail)
        looking.look()
        assert texts(caplog) == ["shop.sync: its lease was not released as ordered: broken"]


class TestTrouble:
    def test_a_database_that_fails_is_told_of_once_and_asked_again(
        self,
        registry: JobRegistry,
        backend: LocalBackend,
        other: LocalBackend,
        looking: Orders,
        caplog: pytest.LogCaptureFixture,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def fail() -> Any:
            raise OperationalError("it is down: postgres://user:sesame-open@host")

        operations.pause(KEY, backend=other, by="anna", registry=registry)
        for _ in range(2):
            with monkeypatch.context() as patch:
                patch.setattr(orders, "_ordered", fail)
                looking.look()
                looking.look()
            looking.look()
            assert state(backend).paused
        assert len(texts(caplog)) == 2
        assert "The database does not tell what operators have ordered: it is down" in texts(caplog)[0]
        assert "sesame" not in texts(caplog)[0]

    def test_whatever_else_goes_wrong_the_next_orders_are_seen(
        self, looking: Orders, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail() -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(orders, "_ordered", fail)
        looking.look()
        assert texts(caplog) == ["An order could not be carried out."]

    def test_no_orders_are_taken_where_the_store_is_shared_or_there_is_no_history(
        self, registry: JobRegistry, backend: LocalBackend
    ) -> None:
        history = DatabaseHistory(keep=5, inline=True)
        for given in ((RedisBackend(cache="locks"), history), (backend, None)):
            with taking_orders(given[0], registry, given[1]):
                assert not any(thread.name == "cronductor-orders" for thread in threading.enumerate())


@pytest.fixture
def in_memory(prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}):
        yield


@pytest.mark.django_db(transaction=True)
def test_a_runcron_of_a_single_instance_does_as_it_is_told(
    in_memory: None, registry: JobRegistry, other: LocalBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Run, release and pause: seen by the run that is told, and given from another thread with a store of its own."""
    monkeypatch.setattr(runcron, "registry", registry)
    monkeypatch.setattr(orders, "LOOK_EVERY", 0.05)
    seen: list[str] = []
    changed = threading.Condition()
    failures: list[BaseException] = []

    def note(what: str) -> None:
        with changed:
            seen.append(what)
            changed.notify_all()

    def wait_for(condition: Callable[[], bool]) -> None:
        with changed:
            end = datetime.now(timezone.utc) + timedelta(seconds=DEADLINE)
            while not condition():
                changed.wait(0.05)
                assert datetime.now(timezone.utc) < end, seen

    def work(context: RunContext) -> None:
        note(f"ran: {context.trigger}")
        wait_for(lambda: context.lease_lost)
        note("lost")
        wait_for(lambda: DeclaredJob.objects.get(key="told").paused_at is not None)

    registry.schedule("0 0 1 1 *", work, key="told", takes_context=True)

    def give_orders() -> None:
        try:
            wait_for(lambda: DeclaredJob.objects.filter(key="told").exists())
            operations.request_run("told", backend=other, by="anna", registry=registry)
            wait_for(lambda: "ran: manual" in seen)
            operations.release("told", backend=other, by="anna", registry=registry)
            wait_for(lambda: "lost" in seen)
            operations.pause("told", backend=other, by="anna", registry=registry)
            wait_for(lambda: running.backend.states(["told"]).answers[0].paused)  # type: ignore[union-attr]
        except BaseException as error:
            failures.append(error)
        finally:
            running.stop()
            connections.close_all()

    class Noted(runcron.Scheduler):
        def run(self) -> int:
            nonlocal running
            running = self
            orderer.start()
            return super().run()

    running: Any = None
    orderer = threading.Thread(target=give_orders)
    monkeypatch.setattr(runcron, "Scheduler", Noted)
    call_command("runcron")
    orderer.join(DEADLINE)
    assert failures == []
    assert [run.outcome for run in JobRun.objects.filter(job_key="told")] == ["lost"]
    assert not any(thread.name == "cronductor-orders" for thread in threading.enumerate())
