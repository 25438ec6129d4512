"""Its jobs."""

from __future__ import annotations

import os
from typing import Any

import django

from django_cronductor import cron

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@cron("* * * * * *")
@task
def report() -> int:
    """Return in which process it ran."""
    return os.getpid()


@cron("* * * * * *")
@task(takes_context=True)
async def fetch(context: Any) -> str:
    """Return what its workers call this result."""
    result_id: str = context.task_result.id
    return result_id


@cron("* * * * * *")
@task
def fail() -> None:
    """Fail in the worker."""
    raise RuntimeError("This is the worker's affair.")
