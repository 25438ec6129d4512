"""Jobs of an app within an app."""

from __future__ import annotations

from django_cronductor.jobs import cron


@cron("0 * * * *")
async def sync_users() -> None: ...
