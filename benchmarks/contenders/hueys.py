"""huey with Redis, eight threads: it looks once a minute and enqueues, its threads run; it takes no lock."""

from __future__ import annotations

import os
import time

from huey import RedisHuey, crontab
from huey.consumer import Scheduler

from benchmarks.contenders.work import read_work


def main() -> None:
    """Do the work that the command line names."""
    work = read_work(whole_minutes=True)
    huey = RedisHuey("benchmark", url=os.environ["BENCHMARK_REDIS"], utc=True)
    for number in range(work.jobs):
        if work.has_burst:
            when = crontab(minute=str(work.due.minute), hour=str(work.due.hour))
        else:
            minute, hour, day, month = map(str, work.seldom(number))
            when = crontab(minute=minute, hour=hour, day=day, month=month)
        huey.periodic_task(when, name=f"job_{number}")(work.run)
    consumer = huey.create_consumer(workers=8, worker_type="thread")
    if work.has_burst:
        # It looks as it starts and every minute from then on: this is the best that can be had of it.
        time.sleep(work.due.timestamp() - time.time())
        work.ready()
    look = Scheduler.enqueue_periodic_tasks

    def look_and_tell(scheduler: Scheduler, now: object) -> None:
        look(scheduler, now)
        if not work.ready_after:
            work.ready()

    Scheduler.enqueue_periodic_tasks = look_and_tell
    consumer.run()


if __name__ == "__main__":
    main()
