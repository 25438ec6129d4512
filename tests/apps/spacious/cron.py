"""The jobs of an app that is a namespace package."""

from __future__ import annotations

from django_cronductor.jobs import cron


@cron("0 0 * * *")
def tidy() -> None: ...
