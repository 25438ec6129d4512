"""Scheduled jobs for Django teams with several replicas: every occurrence runs once."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from django_cronductor.exceptions import (
    BackendError,
    BackendRefused,
    ConfigurationError,
    CronductorError,
    JobNotFound,
    LeaseLost,
    NotAcquired,
    Stopping,
)
from django_cronductor.jobs import Job, JobRegistry, cron, registry
from django_cronductor.schedules import Schedule

if TYPE_CHECKING:
    from django_cronductor.locks import ExclusiveResult, HeldLock, lock, run_exclusive, try_lock
    from django_cronductor.runner import ErrorContext, RunContext
    from django_cronductor.scheduler import Scheduler

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "BackendRefused",
    "ConfigurationError",
    "CronductorError",
    "ErrorContext",
    "ExclusiveResult",
    "HeldLock",
    "Job",
    "JobNotFound",
    "JobRegistry",
    "LeaseLost",
    "NotAcquired",
    "RunContext",
    "Schedule",
    "Scheduler",
    "Stopping",
    "cron",
    "lock",
    "registry",
    "run_exclusive",
    "try_lock",
]

_LATER = {
    "ErrorContext": "runner",
    "ExclusiveResult": "locks",
    "HeldLock": "locks",
    "RunContext": "runner",
    "Scheduler": "scheduler",
    "lock": "locks",
    "run_exclusive": "locks",
    "try_lock": "locks",
}
"""Names that are imported when they are asked for, each with its module: declaring jobs needs none of them."""


if not TYPE_CHECKING:  # It would let a checker of types believe in any name.

    def __getattr__(name: str) -> object:
        if name not in _LATER:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{_LATER[name]}"), name)
        return found
