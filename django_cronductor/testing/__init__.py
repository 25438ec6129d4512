"""For the tests of those who use this package or write a backend for it."""

from __future__ import annotations

from django_cronductor.testing.clock import ManualClock
from django_cronductor.testing.conformance import (
    BackendClockConformance,
    BackendConformance,
    BackendDamageConformance,
)
from django_cronductor.testing.locks import local_locks
from django_cronductor.testing.runs import ManualContext, RunResult, make_context, run_job
from django_cronductor.testing.scheduler import Event, ManualScheduler
from django_cronductor.testing.schedules import assert_due, assert_not_due, due_between

__all__ = [
    "BackendClockConformance",
    "BackendConformance",
    "BackendDamageConformance",
    "Event",
    "ManualClock",
    "ManualContext",
    "ManualScheduler",
    "RunResult",
    "assert_due",
    "assert_not_due",
    "due_between",
    "local_locks",
    "make_context",
    "run_job",
]
