"""Handlers that do all that a handler should not do, in a real process."""

from __future__ import annotations

import pytest

from tests.faults.replicas import Replicas

pytestmark = pytest.mark.faults

OUTCOMES = {
    "RuntimeError": "failed",
    "SystemExit": "failed",
    "KeyboardInterrupt": "failed",
    "MemoryError": "failed",
    "not-awaited": "failed",
    "hung-async": "timed out",
    "hung": "timed out",
}


def test_each_costs_its_own_runs_and_neither_the_loop_nor_the_jobs_beside_it(replicas: Replicas) -> None:
    replicas.hold.touch()
    (replica,) = replicas.start("tick", *OUTCOMES)
    journal = replicas.journal
    again = OUTCOMES.keys() - {"hung"}
    for job in again:
        replicas.wait(f"two runs of {job}", lambda job=job: len(journal.entries("finished", job)) >= 2)  # type: ignore[misc]
    replicas.wait("the timeout of the thread", lambda: journal.entries("finished", "hung"))
    replicas.wait_for_starts("tick", 5)
    assert len(journal.starts("hung")) == 1, "never beside the one that hangs"
    replicas.finish()

    outcomes = {
        job: {entry.details["outcome"] for entry in journal.entries("finished", job)[: None if job in again else 1]}
        for job in OUTCOMES
    }
    assert outcomes == {job: {outcome} for job, outcome in OUTCOMES.items()}
    assert {entry.details["reason"] for entry in journal.entries("skipped", "hung")} == {"held"}
    assert journal.entries("missed") == journal.entries("abandoned") == []
    assert "The handler is not async but returned coroutine: declare an async function instead." in replica.log
    assert "never awaited" not in replica.log
