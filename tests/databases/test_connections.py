"""Connections to a database server: how many there are, how they are left, and that one that was cut is replaced."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import DatabaseError, IntegrityError, connection, transaction

from django_cronductor import signals
from django_cronductor.models import JobRun
from tests.databases.loop import Loop, wait
from tests.databases.observer import Observer

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults]

NEVER = "0 0 1 1 *"
"""Runs on request only."""
WORKERS = 3


def query(context: Any) -> None:
    """Do as most jobs do."""
    with transaction.atomic():
        Group.objects.count()


def break_transaction(context: Any) -> None:
    """Go on in a transaction that the database has given up."""
    with transaction.atomic():
        Group.objects.create(name="one")
        with contextlib.suppress(IntegrityError):
            Group.objects.create(name="one")
        Group.objects.create(name="two")


def leave_transaction(context: Any) -> None:
    """Begin a transaction and forget it."""
    transaction.atomic().__enter__()
    Group.objects.create(name="never committed")


def leave_autocommit(context: Any) -> None:
    """Turn autocommit off and forget it."""
    transaction.set_autocommit(False)
    Group.objects.create(name="never committed")


async def query_async(context: Any) -> None:
    """Query from an async handler."""
    await Group.objects.acount()


@pytest.fixture
def listening() -> Iterator[None]:
    """Have receivers that use the database too."""

    def hear(sender: Any, **details: Any) -> None:
        Group.objects.count()

    for signal in (signals.job_started, signals.job_finished, signals.job_skipped, signals.job_missed):
        signal.connect(hear, weak=False)
    yield
    for signal in (signals.job_started, signals.job_finished, signals.job_skipped, signals.job_missed):
        signal.disconnect(hear)


def busy_loop() -> Loop:
    """Return a loop with more jobs than workers, which do all that a job should not do."""
    loop = Loop(workers=WORKERS)
    for number, work in enumerate([query, query, query, query, break_transaction, leave_transaction, leave_autocommit]):
        loop.job("* * * * * *", f"shop.job-{number}", work)
    loop.registry.schedule("* * * * * *", query_async, key="shop.async", takes_context=True)
    loop.job("* * * * * *", "shop.paused")
    loop.backend.pause("shop.paused")
    return loop


def watch_while_busy(loop: Loop, observer: Observer) -> int:
    """Let some runs go by, then stop all jobs; return how many connections there were at most."""
    most = 0

    def enough() -> bool:
        nonlocal most
        most = max(most, len(observer.connections()))
        return len(loop.ends) > 24

    loop.wait("enough runs", enough)
    for job in loop.registry:
        job.stop()
    loop.wait("the last ones to end", lambda: not loop.scheduler._runs)
    assert loop.history.flush(60)
    return most


@pytest.mark.usefixtures("listening")
def test_there_are_never_more_than_one_for_each_worker_and_two_and_none_when_idle(observer: Observer) -> None:
    with busy_loop() as loop:
        most = watch_while_busy(loop, observer)
        wait("all connections to be closed", lambda: not observer.connections())
    assert 1 <= most <= WORKERS + 2
    assert {outcome for key, outcome in loop.ends if key != "shop.job-4"} == {"succeeded"}
    assert JobRun.objects.filter(outcome="paused").exists()
    assert not JobRun.objects.filter(outcome="running").exists()
    assert not Group.objects.exists(), "neither what was broken off nor what was left open is committed"


@pytest.mark.usefixtures("listening", "kept_connections")
def test_those_that_live_on_are_as_few_and_none_is_left_in_a_transaction(observer: Observer) -> None:
    with busy_loop() as loop:
        most = watch_while_busy(loop, observer)
        wait("all transactions to end", lambda: set(observer.connections().values()) <= {"idle"})
        assert 1 <= len(observer.connections()) <= WORKERS + 2
    assert most <= WORKERS + 2
    wait("those of threads that have ended to be closed", lambda: not observer.connections())


@pytest.mark.usefixtures("kept_connections")
def test_a_job_finds_a_connection_that_works_though_its_last_one_was_cut(
    observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    loop = Loop(workers=1)
    loop.job(NEVER, "shop.query", query)
    with loop, caplog.at_level(logging.WARNING, "django_cronductor"):
        for _ in range(3):
            assert loop.run_now("shop.query") == "succeeded"
            assert observer.cut() == 2, "the worker's and the history's"
    assert caplog.records == []
    assert list(JobRun.objects.values_list("outcome", flat=True)) == ["succeeded"] * 3


@pytest.mark.usefixtures("kept_connections")
def test_a_connection_that_is_cut_in_a_run_costs_that_run_alone(observer: Observer) -> None:
    cuts = [True, False]

    def work(context: Any) -> None:
        Group.objects.create(name="before")
        if cuts.pop(0):
            observer.cut()
        Group.objects.create(name="after")

    loop = Loop(workers=1)
    loop.job(NEVER, "shop.work", work)
    with loop:
        assert loop.run_now("shop.work") == "failed"
        Group.objects.all().delete()
        connection.close()
        assert loop.run_now("shop.work") == "succeeded"
    found = list(JobRun.objects.order_by("id").values_list("outcome", "error_type"))
    assert [outcome for outcome, _ in found] == ["failed", "succeeded"]
    assert issubclass(getattr(__import__("django.db").db, found[0][1]), DatabaseError)


@pytest.mark.usefixtures("kept_connections")
def test_a_transaction_that_a_run_has_broken_is_not_passed_on(observer: Observer) -> None:
    loop = Loop(workers=1)
    for number, work in enumerate([break_transaction, leave_transaction, leave_autocommit, query]):
        loop.job(NEVER, f"shop.job-{number}", work)
    with loop:
        outcomes = [loop.run_now(f"shop.job-{number}") for number in range(4)]
        assert outcomes == ["failed", "succeeded", "succeeded", "succeeded"]
        assert set(observer.connections().values()) == {"idle"}
    assert not Group.objects.exists()
