"""Its jobs."""

from __future__ import annotations

import os
import threading

from django_cronductor import cron


def say(word: str) -> None:
    """Print it in one piece: what another thread logs must not come between it and the end of its line."""
    print(f"{word}\n", end="", flush=True)


@cron("* * * * * *", key="project.tick")
def tick() -> None:
    """Say that it runs."""
    say("tick")


@cron("* * * * * *", key="project.hang", enabled="PROJECT_HANGS" in os.environ)
def hang() -> None:
    """Run until the process ends."""
    say("hangs")
    threading.Event().wait()
