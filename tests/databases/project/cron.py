"""Its job."""

from __future__ import annotations

from django_cronductor import cron


@cron("* * * * * *", key="project.tick")
def tick() -> None:
    """Say that it runs."""
    print("tick", flush=True)
