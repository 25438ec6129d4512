"""django-cronductor, by `manage.py runcron`: its settings are the defaults, its log goes to stderr as by default."""

from __future__ import annotations

import os

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.ours_settings"

import django

from benchmarks.contenders.work import Work, leave, read_work


def declare(work: Work) -> None:
    """Declare the jobs: those of a burst, or one of every second beside those that are not due."""
    from django_cronductor import registry

    if work.has_burst:
        expression = f"{work.due.second} {work.due.minute} {work.due.hour} * * *"
        for number in range(work.jobs):
            registry.schedule(expression, work.run, key=f"job-{number}")
        return
    month = (work.due.month + 5) % 12 + 1
    for number in range(work.jobs):
        expression = f"{number % 60} {number // 60 % 24} {number // 1440 % 28 + 1} {month} *"
        registry.schedule(expression, work.run, key=f"job-{number}")
    if work.task == "lateness":
        registry.schedule("* * * * * *", work.run, key="every-second")


def main() -> None:
    """Do the work that the command line names."""
    work = read_work()
    django.setup()
    declare(work)
    from django.core.management import call_command

    from django_cronductor.management.commands import runcron

    class Scheduler(runcron.Scheduler):
        """Says when its first pass is over."""

        def tick(self) -> float:
            """Make a pass."""
            wait = super().tick()
            if not work.ready_after:
                work.ready()
                work.finish(leave)
            return wait

    runcron.Scheduler = Scheduler  # type: ignore[misc]
    call_command("runcron")


if __name__ == "__main__":
    main()
