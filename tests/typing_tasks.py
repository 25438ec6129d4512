"""Jobs that are tasks of Django 6. Type checkers with stubs for it read this file; nothing runs it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django.tasks import Task, task

from django_cronductor import Job, cron, registry

if TYPE_CHECKING:
    from typing_extensions import assert_type


@cron("*/10 * * * * *")
@task
def heartbeat() -> int:
    return 1


@cron("@daily", key="report", when=lambda: True)
@task(queue_name="reports")
def report(day: str = "today") -> str:
    return day


def tasks() -> None:
    assert_type(heartbeat, Task[[], int])
    heartbeat.enqueue()
    report.enqueue("yesterday")
    report.enqueue(day=1)  # type: ignore[arg-type]
    assert_type(registry.schedule("@daily", heartbeat, key="daily"), Job)
