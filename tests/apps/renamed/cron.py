"""The jobs of an app with a label of its own."""

from __future__ import annotations

from django_cronductor.jobs import cron


@cron("0 0 * * *")
def close_month() -> None: ...
