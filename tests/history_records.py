"""Records as the loop hands them to the history."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

from django_cronductor.history import DatabaseHistory
from django_cronductor.records import JobRecord, RunRecord, SkipRecord

NOON = datetime(2026, 1, 5, 12, tzinfo=timezone.utc)
SLOT = int(NOON.timestamp() * 1000)
MINUTE = 60_000


def job(key: str = "shop.sync", **changes: Any) -> JobRecord:
    values: dict[str, Any] = {
        "key": key,
        "app_label": "shop",
        "expression": "* * * * *",
        "timezone": "UTC",
        "fingerprint": "print",
        "enabled": True,
        "since": SLOT - 5 * MINUTE,
    }
    return JobRecord(**values | changes)


def run(number: int = 0, **changes: Any) -> RunRecord:
    values: dict[str, Any] = {
        "id": f"run-{number}",
        "key": "shop.sync",
        "slot": SLOT + number * MINUTE,
        "attempt": 0,
        "trigger": "schedule",
        "holder": "host:1:a",
        "fencing_token": 7 + number,
        "lateness": 0.002,
        "started_at": NOON + timedelta(minutes=number, milliseconds=3),
    }
    return RunRecord(**values | changes)


def skip(number: int = 0, reason: str = "held", count: int = 1) -> SkipRecord:
    return SkipRecord("shop.sync", SLOT + number * MINUTE, count, reason, "host:1:a")


def finish(history: DatabaseHistory, record: RunRecord, outcome: str = "succeeded", **changes: Any) -> None:
    history.ended(replace(record, outcome=outcome, duration=1.5, **changes))


def end(history: DatabaseHistory) -> None:
    """Let its thread end, and wait for that: it must outlive no test."""
    history.close()
    if history._thread is not None:
        history._thread.join(60)
        assert not history._thread.is_alive()
