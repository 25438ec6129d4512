"""django-crontask by `manage.py crontask`: it enqueues Django Tasks (run at once here), with one lock per process."""

from __future__ import annotations

import os
import sys

import django
from apscheduler.events import EVENT_SCHEDULER_STARTED
from apscheduler.triggers.cron import CronTrigger
from django.conf import settings
from django.core.management import call_command

from benchmarks.contenders.work import Work, read_work

WORK: Work


def tell() -> None:
    """Be the task."""
    WORK.run()


def main() -> None:
    """Do the work that the command line names."""
    sys.modules["benchmarks.contenders.crontask"] = sys.modules["__main__"]
    global WORK
    work = WORK = read_work()
    settings.configure(
        SECRET_KEY="for measuring only",
        INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "crontask"],
        USE_TZ=True,
        TASKS={"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend"}},
        CRONTASK={"REDIS_URL": os.environ["BENCHMARK_REDIS"]},
    )
    django.setup()
    from crontask import cron, scheduler
    from django.tasks import task

    tell.__module__ = "benchmarks.contenders.crontask"
    job = task(tell)
    for number in range(work.jobs):
        if work.has_burst:
            trigger = CronTrigger(second=work.due.second, minute=work.due.minute, hour=work.due.hour, timezone="UTC")
        else:
            minute, hour, day, month = work.seldom(number)
            trigger = CronTrigger(minute=minute, hour=hour, day=day, month=month, timezone="UTC")
        cron(trigger, sentry_monitor_config=None)(job)
    if work.task == "lateness":
        cron(CronTrigger(second="*", timezone="UTC"), sentry_monitor_config=None)(job)
    scheduler.add_listener(lambda event: work.ready(), EVENT_SCHEDULER_STARTED)
    call_command("crontask")


if __name__ == "__main__":
    main()
