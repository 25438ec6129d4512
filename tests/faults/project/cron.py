"""The jobs; each replica runs those that its test names."""

from __future__ import annotations

import os
import threading
from pathlib import Path

from django_cronductor import RunContext, cron, registry
from tests.faults.project import journal

HOLD = Path(os.environ["FAULTS_HOLD"])
"""While this file exists, long jobs go on."""

BURST = [f"burst-{number:03}" for number in range(200)]


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

for key in BURST:
    registry.schedule("*/4 * * * * *", record, key=key, takes_context=True)


@cron("* * * * * *", key="brisk", takes_context=True)
def brisk(context: RunContext) -> None:
    """Take a third of the time between two occurrences: a signal may well come during a run."""
    journal.write_run("started", context)
    pause(0.33)


# The lease of the first ends soon after its holder; that of the second outlasts every outage made here.
registry.schedule("* * * * * *", record_and_hold, key="long", ttl=3, takes_context=True)
registry.schedule("* * * * * *", record_and_hold, key="steady", ttl=15, takes_context=True)
registry.schedule("*/10 * * * * *", record_and_hold, key="careful", ttl=2, recover=True, takes_context=True)
