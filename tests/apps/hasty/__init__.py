"""An app that declares a job while Django is still loading the apps."""

from __future__ import annotations

from django_cronductor.jobs import cron


@cron("0 0 * * *")
def hurry() -> None: ...
