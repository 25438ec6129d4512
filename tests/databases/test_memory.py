"""What a replica that runs for long keeps in memory, with DEBUG too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import override_settings

from django_cronductor import signals
from django_cronductor.history import DatabaseHistory
from django_cronductor.models import JobRun
from django_cronductor.records import RunRecord
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
