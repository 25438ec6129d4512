"""Writers of several replicas at once."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from django_cronductor.history import DatabaseHistory
from django_cronductor.models import DeclaredJob, JobRun
from tests.history_records import end, finish, job, run, skip

pytestmark = pytest.mark.django_db(transaction=True)

DEADLINE = 60.0
SLOTS = 60


@pytest.fixture
def histories() -> Iterator[list[DatabaseHistory]]:
    """Return those of four replicas, each with a thread and a connection of its own."""
    histories = [DatabaseHistory(keep=500) for _ in range(4)]
    yield histories
    for history in histories:
        end(history)


def write_at_once(histories: list[DatabaseHistory], answers: list[tuple[int, int, bool]]) -> None:
    """Let all writers write the same slots, in different batches, at the same time."""
    together = threading.Barrier(len(histories))

    def write(writer: int) -> None:
        together.wait(DEADLINE)
        for slot in range(SLOTS):
            record = run(slot, id=f"run-{slot}-of-{writer}", holder=f"host:{writer}")
            histories[writer].begun(record, lambda ours, slot=slot: answers.append((slot, writer, ours)))

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(len(histories))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE)


def test_of_those_that_write_one_slot_one_has_its_row_and_the_others_are_told(
    histories: list[DatabaseHistory], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[tuple[int, int, bool]] = []
    with caplog.at_level(logging.WARNING, "django_cronductor"):
        write_at_once(histories, answers)
        assert all(history.flush(DEADLINE) for history in histories)
    assert len(answers) == SLOTS * len(histories)
    winners = {slot: writer for slot, writer, ours in answers if ours}
    assert Counter(ours for _, _, ours in answers)[True] == len(winners) == SLOTS
    rows = dict(JobRun.objects.values_list("slot", "holder"))
    assert rows == {run(slot).slot: f"host:{writer}" for slot, writer in winners.items()}
    assert caplog.records == [], "that replicas waited for each other's rows is no outage"


def test_one_job_that_all_declare_prune_and_skip_is_one_job(
    histories: list[DatabaseHistory], caplog: pytest.LogCaptureFixture
) -> None:
    def work(writer: int) -> None:
        history = histories[writer]
        for number in range(20):
            history.declared(job(f"shop.job-{(number + writer) % 5}") for number in range(5))
            record = run(4 * number + writer)
            history.begun(record, lambda ours: None)
            finish(history, record)
            history.skipped(skip(4 * number + writer))

    for history in histories:
        history._keep = 5
    threads = [threading.Thread(target=work, args=(writer,)) for writer in range(len(histories))]
    with caplog.at_level(logging.WARNING, "django_cronductor"):
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLINE)
        assert all(history.flush(DEADLINE) for history in histories)
    assert DeclaredJob.objects.count() == 5
    assert JobRun.objects.filter(outcome="succeeded").count() <= 5 + 4 * 2
    assert not JobRun.objects.filter(outcome="running").exists()
    assert caplog.records == []
