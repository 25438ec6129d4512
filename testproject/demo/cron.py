"""Jobs that show what a schedule, an option or an outcome looks like in the log."""

from __future__ import annotations

import asyncio
import logging
import time
from datetime import datetime, timedelta, timezone

from django.contrib.auth import get_user_model

from django_cronductor import RunContext, Stopping, cron

logger = logging.getLogger(__name__)


@cron("*/5 * * * * *", takes_context=True)
def tick(context: RunContext) -> None:
    """Run every five seconds: six fields have the seconds first. The key is "demo.tick"."""
    logger.info("tick of %s", context.scheduled_at)


@cron("* * * * *")
def count_users() -> None:
    """Run every minute, with the ORM: connections are looked after."""
    logger.info("%d users", get_user_model().objects.count())


@cron("*/15 * * * * *", takes_context=True)
async def fetch(context: RunContext) -> None:
    """Run as a coroutine."""
    await asyncio.sleep(0.5)
    logger.info("fetched, fencing token %d", context.fencing_token)


@cron("30 * * * * *")
def fail() -> None:
    """Fail: the traceback is logged, the other jobs and the next occurrence go on."""
    raise RuntimeError("This job fails on purpose.")


@cron("10 * * * * *", ttl=timedelta(seconds=5), takes_context=True)
def crunch(context: RunContext) -> None:
    """
    Take half a minute, with a lease of five seconds that is renewed all the while.

    `check()` is the safe point: it raises when the process is to stop or the lease is lost. Start a second runcron on
    the same Redis and kill this one with SIGKILL: the next minute's run is the other's.
    """
    for step in range(30):
        try:
            context.check()
        except Stopping:
            logger.info("crunch: asked to stop after %d steps", step)
            raise
        time.sleep(1)


def is_even_minute() -> bool:
    """Tell whether the minute of the hour is even."""
    return datetime.now(timezone.utc).minute % 2 == 0


@cron("20 * * * * *", when=is_even_minute)
def every_other_minute() -> None:
    """Run only where the condition holds; else the occurrence is reported as skipped."""
    logger.info("an even minute")


@cron("0 9 * * mon-fri", timezone="Europe/Berlin", grace=timedelta(hours=1), recover=True)
def good_morning() -> None:
    """Run at nine by Berlin's clocks, up to an hour late, and once more if the process dies while it runs."""
    logger.info("Guten Morgen")
