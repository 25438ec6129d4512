"""django-cronductor, by `manage.py runcron`: all its settings are the defaults, and its log goes to stderr."""

from __future__ import annotations

import os
import sys
import time

import django
from django.core.management import call_command, execute_from_command_line

from benchmarks.contenders.work import Work, read_work


def declare(work: Work) -> None:
    """Declare the jobs: those of a burst, or one of every second beside those that are not due."""
    from django_cronductor import registry

    for number in range(work.jobs):
        if work.has_burst:
            expression = f"{work.due.second} {work.due.minute} {work.due.hour} * * *"
        else:
            minute, hour, day, month = work.seldom(number)
            expression = f"{minute} {hour} {day} {month} *"
        registry.schedule(expression, work.run, key=f"job-{number}")
    if work.task == "lateness":
        registry.schedule("* * * * * *", work.run, key="every-second")


def main() -> None:
    """Do the work that the command line names."""
    os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.ours_settings"
    if sys.argv[1] == "migrate":
        django.setup()
        call_command("migrate", verbosity=0)
        print("{}")
        return
    work = read_work()
    django.setup()
    declare(work)

    from django_cronductor.management.commands import runcron

    class Scheduler(runcron.Scheduler):
        """Says when its first pass is over, and how long one took at most after it."""

        def tick(self) -> float:
            """Make a pass."""
            began = time.monotonic()
            wait = super().tick()
            work.longest_pass = max(work.longest_pass, time.monotonic() - began) if work.ready_after else 0.0
            if not work.ready_after:
                work.ready()
            return wait

    runcron.Scheduler = Scheduler  # type: ignore[misc]
    execute_from_command_line(["manage.py", "runcron"])


if __name__ == "__main__":
    main()
