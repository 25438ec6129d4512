"""The jobs of the soak, short and long, well-behaved and not; all of them write down their runs."""

from __future__ import annotations

import asyncio
import random
import threading
from typing import Any

from asgiref.sync import sync_to_async

from django_cronductor import RunContext, registry
from django_cronductor.models import JobRun
from tests.faults.project import journal
from tests.soak_schedules import JOBS


def pause(seconds: float) -> None:
    """Wait, also under a clock that is moved (there time.sleep fails)."""
    threading.Event().wait(seconds)


def has_row(context: RunContext) -> bool:
    """Tell whether the history has this run already: it is the barrier against a second one after a loss of data."""
    try:
        return JobRun.objects.filter(job_key=context.key, fencing_token=context.fencing_token).exists()
    except Exception:
        return False


def start(context: RunContext) -> None:
    """Write down that the run begins."""
    journal.write_run("started", context, lost=context.lease_lost, missed=context.missed, row=has_row(context))


def end(context: RunContext) -> None:
    """Write down that the handler ends."""
    journal.write_run("ended", context, lost=context.lease_lost)


def declare(key: str, shortest: float, longest: float, **options: Any) -> None:
    """Declare a job that takes some time, and leaves when it is told to."""

    def work(context: RunContext) -> None:
        start(context)
        try:
            for _ in range(int(random.uniform(shortest, longest) / 0.05)):
                context.check()
                pause(0.05)
        finally:
            end(context)

    registry.schedule(JOBS[key], work, key=key, takes_context=True, **options)


def fail(context: RunContext) -> None:
    """Raise, after a start and an end like any other."""
    start(context)
    end(context)
    raise RuntimeError("raised on purpose")


async def wait_politely(context: RunContext) -> None:
    """Wait on the event loop."""
    await sync_to_async(start)(context)
    try:
        await asyncio.sleep(random.uniform(0, 0.5))
    finally:
        end(context)


def now_and_then(context: RunContext) -> bool:
    """Let two of three run."""
    return random.random() < 0.67


declare("tick", 0, 0)
declare("brisk", 0.2, 0.5)
declare("hasty", 0, 0.3, ttl=1, grace=2)
declare("long", 1, 6)
declare("careful", 0, 4, recover=True, ttl=2)
declare("slow", 3, 6, recover=True, grace=60)
declare("limited", 1, 4, timeout=2)
declare("rare", 0, 1, ttl=5, grace=300)
registry.schedule(JOBS["raising"], fail, key="raising", takes_context=True)
registry.schedule(JOBS["async"], wait_politely, key="async", takes_context=True)
declare("choosy", 0, 0.2, when=now_and_then)
