"""What a replica that runs for long keeps in memory, with DEBUG too."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from django_cronductor import signals
from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.history import DatabaseHistory
from django_cronductor.jobs import JobRegistry
from django_cronductor.models import JobRun
from django_cronductor.records import RunRecord
from django_cronductor.scheduler import Scheduler
from django_cronductor.testing import ManualClock
from tests.history_records import end
from tests.scheduler_world import LocalStore, World


class Noted(DatabaseHistory):
    """A history that notes in its own thread how much that keeps for debugging."""

    kept: int = 0

    def begun(self, record: RunRecord, answer: Any) -> None:
        def note(ours: bool) -> None:
            self.kept = max(self.kept, len(connection.queries_log))
            answer(ours)

        super().begun(record, note)


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("kept_connections")
@override_settings(DEBUG=True)
def test_a_thousand_runs_leave_nothing_behind_in_debug_mode(world: World) -> None:
    kept: list[int] = []

    def work(context: Any) -> None:
        kept.append(len(connection.queries_log))
        JobRun.objects.exists()

    def hear(sender: Any, **details: Any) -> None:
        kept.append(len(connection.queries_log))
        JobRun.objects.exists()

    world.job("* * * * * *", body=work, grace=3, ttl=1)
    history = Noted(keep=10)
    replica = world.replica(history=history, inline=False, max_workers=2)
    signals.job_missed.connect(hear)
    try:
        replica.tick()
        for number in range(1, 1001):
            world.clock.advance(1 if number % 50 else 10)
            replica.tick()
            while len(world.runs) < number or replica._runs:
                replica._read_inbox(20)
                replica.tick()
        replica.settle()
        assert history.flush(60)
    finally:
        signals.job_missed.disconnect(hear)
        end(history)
    assert len(world.missed()) == 20
    assert len(kept) == 1020
    assert max(kept) == 0, "each run and each report begins with nothing"
    assert 0 < history.kept < 50
    assert JobRun.objects.count() < 10 + 10 + 5


@pytest.mark.django_db
@override_settings(DEBUG=True)
def test_nor_objects_that_nobody_needs_any_more() -> None:
    def work() -> None:
        JobRun.objects.exists()

    clock, registry, counts = ManualClock(), JobRegistry(), []
    for number in range(3):
        registry.schedule("* * * * * *", work, key=f"job-{number}")
    history = DatabaseHistory(keep=10, inline=True)
    scheduler = Scheduler(registry, LocalBackend(clock=clock, store=Store()), clock=clock, inline=True, history=history)
    scheduler.tick()
    for number in range(1, 351):
        clock.advance(1)
        scheduler.tick()
        if number in (100, 350):
            gc.collect()
            counts.append(len(gc.get_objects()))
    history.close()
    assert scheduler.begun == 1050
    assert counts[1] - counts[0] < 250, "less than one for each pass"
