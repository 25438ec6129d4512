"""Celery's beat with RedBeat: jobs are kept in Redis, one beat holds a lock; it enqueues, and workers run elsewhere."""

from __future__ import annotations

import os

from celery import Celery
from celery.beat import Service
from celery.schedules import crontab, schedule
from celery.signals import after_task_publish
from redbeat import RedBeatScheduler

from benchmarks.contenders.work import read_work


def main() -> None:
    """Do the work that the command line names."""
    work = read_work(whole_minutes=True)
    work.by_interval = True
    app = Celery("benchmark", broker=os.environ["BENCHMARK_REDIS"])
    entries = {}
    for number in range(work.jobs):
        if work.has_burst:
            when = crontab(minute=str(work.due.minute), hour=str(work.due.hour))
        else:
            minute, hour, day, month = map(str, work.seldom(number))
            when = crontab(minute=minute, hour=hour, day_of_month=day, month_of_year=month)
        entries[f"job-{number}"] = {"task": "job", "schedule": when}
    if work.task == "lateness":
        entries["every-second"] = {"task": "job", "schedule": schedule(1.0)}
    app.conf.beat_schedule = entries
    after_task_publish.connect(lambda **details: work.run(), weak=False)

    class Scheduler(RedBeatScheduler):
        """Says when its first pass is over."""

        def tick(self) -> float:
            """Send what is due."""
            wait: float = super().tick()
            if not work.ready_after:
                work.ready()
            return wait

    Service(app, scheduler_cls=Scheduler).start()


if __name__ == "__main__":
    main()
