"""What is told to the history of runs; `history.py` writes it to the database."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from django_cronductor.backends.base import Seeds

SUCCESSES = ("succeeded", "enqueued")
"""The outcomes of runs that went well."""


@dataclass(frozen=True)
class JobRecord:
    """A job as it was declared to the store. `since` is in milliseconds since the epoch."""

    key: str
    app_label: str
    expression: str
    timezone: str
    fingerprint: str
    enabled: bool
    since: int


@dataclass
class RunRecord:
    """
    A run, from its win to its end. `id` is its claim's token.

    `slot` is the occurrence in milliseconds since the epoch, None for a manual run; lengths of time are in seconds.
    """

    id: str
    key: str
    slot: int | None
    attempt: int
    trigger: str
    holder: str
    fencing_token: int
    lateness: float
    started_at: datetime
    outcome: str = ""
    duration: float = 0.0
    error: BaseException | None = None
    task_result_id: str = ""


@dataclass(frozen=True)
class SkipRecord:
    """Occurrences that were not run: the newest, how many, and why."""

    key: str
    slot: int
    count: int
    reason: str
    holder: str


@dataclass(frozen=True)
class DeadRecord:
    """A run whose holder died. `slot` None: a manual run."""

    key: str
    slot: int | None
    attempt: int
    holder: str
    fencing_token: int


@dataclass(frozen=True)
class OpenRun:
    """A run that has no end in the history. `id` is its claim's token; `slot` None: a manual run."""

    id: str
    key: str
    slot: int | None
    attempt: int
    holder: str
    fencing_token: int
    started_at: datetime | None = None


class History(Protocol):
    """Where runs are recorded. Nothing here waits for a database, except where it says so."""

    def seeds(self, keys: Sequence[str], fingerprints: Sequence[str], timeout: float) -> list[Seeds]:
        """Return what is known of each job, waiting up to `timeout` seconds; empty seeds where it cannot be told."""

    def declared(self, jobs: Iterable[JobRecord]) -> None:
        """Note the jobs that this replica has declared."""

    def dropped(self, keys: Iterable[str]) -> None:
        """Note jobs that this replica has no longer."""

    def begun(self, run: RunRecord, answer: Callable[[bool], object]) -> None:
        """Note a run that is about to start; `answer(False)` if another run has its slot, `answer(True)` otherwise."""

    def overdue(self) -> None:
        """Note that a run has started without an answer, which did not come in time."""

    def ended(self, run: RunRecord) -> None:
        """Note how a run ended."""

    def skipped(self, skip: SkipRecord) -> None:
        """Note occurrences that were not run."""

    def abandoned(self, dead: DeadRecord) -> None:
        """Note a run whose holder died."""

    def open_runs(self, answer: Callable[[list[OpenRun]], object]) -> None:
        """Answer which runs have no end yet, the oldest first and not all of many, when that can be told."""

    def give_up(self, run: OpenRun, answer: Callable[[], object]) -> None:
        """Note that a run was abandoned, and answer if it had no end until now: once, whoever else notes the same."""

    def flush(self, timeout: float) -> bool:
        """Wait until all is written; tell whether it came to that within `timeout` seconds."""

    def close(self) -> None:
        """Write no more."""
