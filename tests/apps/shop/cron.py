"""Jobs as a project declares them."""

from __future__ import annotations

from django_cronductor.jobs import cron


@cron("*/5 * * * *")
def sync_users() -> str:
    return "synchronised"
