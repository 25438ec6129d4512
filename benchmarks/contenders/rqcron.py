"""rq's CronScheduler: it enqueues, and workers run elsewhere; every scheduler enqueues: it takes no lock."""

from __future__ import annotations

import os

from redis import Redis
from rq.cron import CronJob, CronScheduler

from benchmarks.contenders.work import nothing, read_work


def main() -> None:
    """Do the work that the command line names."""
    work = read_work(whole_minutes=True)
    work.by_interval = True
    enqueue = CronJob.enqueue

    def enqueue_and_tell(job: CronJob, connection: Redis) -> object:
        enqueued = enqueue(job, connection)
        work.run()
        return enqueued

    CronJob.enqueue = enqueue_and_tell

    class Scheduler(CronScheduler):
        """Says when its first pass is over."""

        def enqueue_jobs(self) -> list[CronJob]:
            """Enqueue what is due."""
            enqueued: list[CronJob] = super().enqueue_jobs()
            if not work.ready_after:
                work.ready()
            return enqueued

    scheduler = Scheduler(Redis.from_url(os.environ["BENCHMARK_REDIS"]))
    for number in range(work.jobs):
        if work.has_burst:
            expression = f"{work.due.minute} {work.due.hour} * * *"
        else:
            minute, hour, day, month = work.seldom(number)
            expression = f"{minute} {hour} {day} {month} *"
        scheduler.register(nothing, "default", cron=expression)
    if work.task == "lateness":
        scheduler.register(nothing, "default", interval=1)
    scheduler.start()


if __name__ == "__main__":
    main()
