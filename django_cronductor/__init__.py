"""Scheduled jobs for Django teams with several replicas: every occurrence runs once."""

from __future__ import annotations

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
from django_cronductor.locks import ExclusiveResult, HeldLock, lock, run_exclusive, try_lock
from django_cronductor.runner import ErrorContext, RunContext
from django_cronductor.scheduler import Scheduler
from django_cronductor.schedules import Schedule

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
