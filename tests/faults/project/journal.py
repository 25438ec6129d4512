"""What happens in a replica: one line of JSON each, appended to the file that all replicas of a test share."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import datetime
from typing import Any

from django_cronductor import RunContext, signals

PATH = os.environ["FAULTS_JOURNAL"]
REPLICA = os.environ["FAULTS_REPLICA"]

death_told = threading.Event()
"""Set once this replica has told of a dead run."""


def write(event: str, job: str, scheduled_at: datetime | None, **details: object) -> None:
    """Append one line, whole or not at all. `at` is the monotonic clock, which all processes of a machine share."""
    occurrence = None if scheduled_at is None else round(scheduled_at.timestamp() * 1000)
    entry = {"event": event, "job": job, "occurrence": occurrence, "replica": REPLICA, "at": time.monotonic()}
    line = json.dumps({**entry, **details}) + "\n"
    file = os.open(PATH, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


def write_run(event: str, context: RunContext, **details: object) -> None:
    """Append a line about a run."""
    write(
        event,
        context.key,
        context.scheduled_at,
        token=context.fencing_token,
        trigger=context.trigger,
        instance=context.instance,
        **details,
    )


def listen() -> None:
    """Append a line for each signal from now on."""
    signals.job_finished.connect(_finished)
    signals.job_skipped.connect(_skipped)
    signals.job_missed.connect(_missed)
    signals.run_abandoned.connect(_abandoned)
    signals.lease_lost.connect(_lost)


def _finished(context: RunContext, outcome: str, **kwargs: Any) -> None:
    write_run("finished", context, outcome=outcome)


def _skipped(key: str, scheduled_at: datetime, reason: str, count: int, **kwargs: Any) -> None:
    write("skipped", key, scheduled_at, reason=reason, count=count)


def _missed(key: str, scheduled_at: datetime, count: int, **kwargs: Any) -> None:
    write("missed", key, scheduled_at, count=count)


def _abandoned(key: str, scheduled_at: datetime, holder: str, **kwargs: Any) -> None:
    write("abandoned", key, scheduled_at, holder=holder)
    death_told.set()


def _lost(context: RunContext, **kwargs: Any) -> None:
    write_run("lost", context)
