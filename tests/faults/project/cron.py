"""The jobs; each replica runs those that its test names."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

from django_cronductor import RunContext, cron, registry
from tests.faults.project import journal
from tests.faults.project.backend import die

HOLD = Path(os.environ["FAULTS_HOLD"])
"""While this file exists, long jobs go on."""

DUE = os.environ.get("FAULTS_DUE", "0 0 0 1 1 *")
"""When the jobs are due of which a test needs one occurrence and no more."""

BURST = [f"burst-{number:03}" for number in range(500)]


def pause(seconds: float) -> None:
    """Wait, also under a clock that is moved (there time.sleep fails)."""
    threading.Event().wait(seconds)


def record(context: RunContext) -> None:
    """Write down the start and do nothing more."""
    journal.write_run("started", context)


def record_and_hold(context: RunContext) -> None:
    """Write down the start and go on until the test lets go, or until the run is told to leave."""
    journal.write_run("started", context)
    while HOLD.exists():
        pause(0.02)
        context.check()


for key in ("tick", "ahead", "behind"):
    registry.schedule("* * * * * *", record, key=key, takes_context=True)


def record_and_hang(context: RunContext) -> None:
    """Write down the start and go on until the test lets go, whatever the run is told."""
    journal.write_run("started", context)
    while HOLD.exists():
        pause(0.02)


def record_and_die(context: RunContext) -> None:
    """Write down the start and take the whole process along."""
    journal.write_run("started", context)
    if context.trigger == "recover":
        journal.death_told.wait()  # Signals are sent by a thread of their own, which is not to die before it could.
    die()


for key in BURST:
    registry.schedule("*/4 * * * * *", record, key=key, takes_context=True)


@cron("* * * * * *", key="brisk", takes_context=True)
def brisk(context: RunContext) -> None:
    """Take a third of the time between two occurrences: a signal may well come during a run."""
    journal.write_run("started", context)
    pause(0.33)


for key in ("frail", "tough-at-start", "tough-at-end", "tough-after"):
    recover = key.startswith("tough")
    registry.schedule(DUE, record, key=key, ttl=2, recover=recover, takes_context=True)
registry.schedule("*/15 * * * * *", record_and_die, key="deadly", ttl=2, recover=True, takes_context=True)
registry.schedule("* * * * * *", record_and_hang, key="deaf", ttl=3, takes_context=True)


def raises(error: type[BaseException]) -> Callable[[], None]:
    """Return a handler that does no more than to raise."""

    def handler() -> None:
        raise error("on purpose")

    return handler


async def wait_for_ever() -> None:
    """Wait until cancelled."""
    await asyncio.Event().wait()


for error in (RuntimeError, SystemExit, KeyboardInterrupt, MemoryError):
    registry.schedule("*/2 * * * * *", raises(error), key=error.__name__)
registry.schedule("*/2 * * * * *", lambda: wait_for_ever(), key="not-awaited")
registry.schedule("*/2 * * * * *", wait_for_ever, key="hung-async", timeout=1)
registry.schedule("*/2 * * * * *", record_and_hang, key="hung", timeout=1, takes_context=True)

# The lease of the first ends soon after its holder; that of the second outlasts every outage made here.
registry.schedule("* * * * * *", record_and_hold, key="long", ttl=3, takes_context=True)
registry.schedule("* * * * * *", record_and_hold, key="steady", ttl=45, takes_context=True)
registry.schedule("*/10 * * * * *", record_and_hold, key="careful", ttl=2, recover=True, takes_context=True)
