"""APScheduler 3, its blocking scheduler with jobs in memory and ten threads; it takes no lock."""

from __future__ import annotations

from apscheduler.events import EVENT_SCHEDULER_STARTED
from apscheduler.schedulers.blocking import BlockingScheduler
from apscheduler.triggers.cron import CronTrigger

from benchmarks.contenders.work import read_work


def main() -> None:
    """Do the work that the command line names."""
    work = read_work()
    # As long a grace as ours: by default it drops what is a second late.
    scheduler = BlockingScheduler(timezone="UTC", job_defaults={"misfire_grace_time": 300})
    for number in range(work.jobs):
        if work.has_burst:
            due = work.due
            trigger = CronTrigger(second=due.second, minute=due.minute, hour=due.hour, timezone="UTC")
        else:
            minute, hour, day, month = work.seldom(number)
            trigger = CronTrigger(minute=minute, hour=hour, day=day, month=month, timezone="UTC")
        scheduler.add_job(work.run, trigger, id=f"job-{number}")
    if work.task == "lateness":
        scheduler.add_job(work.run, CronTrigger(second="*", timezone="UTC"), id="every-second")
    scheduler.add_listener(lambda event: work.ready(), EVENT_SCHEDULER_STARTED)
    scheduler.start()


if __name__ == "__main__":
    main()
