"""Its jobs."""

from __future__ import annotations

import os
import threading

from django_cronductor import cron


@cron("* * * * * *", key="project.tick")
def tick() -> None:
    """Say that it runs."""
    print("tick", flush=True)


@cron("* * * * * *", key="project.hang", enabled="PROJECT_HANGS" in os.environ)
def hang() -> None:
    """Run until the process ends."""
    print("hangs", flush=True)
    threading.Event().wait()
