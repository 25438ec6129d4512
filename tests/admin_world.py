"""Jobs, replicas, runs and people for the tests of the admin."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from django.contrib.admin.utils import quote
from django.contrib.auth.models import Permission, User
from django.urls import reverse

from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Claim, Declaration, Lease, LockBackend, Release, new_token
from django_cronductor.instants import as_stored
from django_cronductor.jobs import Job, registry
from django_cronductor.models import DeclaredJob, JobRun

TTL = 30_000
GRACE = 300_000
WEIRD = "night/<b>a & 'b' \"c\" 100% #1? ü \N{SNOWMAN} ;,=+$[]:@"
"""A key of characters that mean something in HTML, in URLs or in the admin's quoting."""
ACTIONS = ("run", "pause", "resume", "release")


def work() -> None:
    """Stand for a handler."""


class World:
    """What the admin looks at: jobs of this process, rows of the database, and the store of the settings."""

    def __init__(self) -> None:
        self._declared: list[Job] = []
        self.backend: LockBackend = create_backend()

    def close(self) -> None:
        """Leave no job behind for the next test."""
        for job in self._declared:
            job.destroy()
        self.backend.close()

    def job(self, key: str = "shop.sync", expression: str = "*/5 * * * *", **options: Any) -> Job:
        """Declare a job in the code, and nowhere else."""
        job = registry.schedule(expression, work, key=key, **options)
        self._declared.append(job)
        return job

    def row(self, key: str = "shop.sync", **values: Any) -> DeclaredJob:
        """Make the row that a runcron writes of a job."""
        defaults: dict[str, Any] = {
            "app_label": "shop",
            "expression": "*/5 * * * *",
            "timezone": "UTC",
            "fingerprint": "print",
            "since": 0,
            "last_seen": as_stored(now()),
        }
        return DeclaredJob.objects.create(key=key, **defaults | values)

    def run(self, key: str = "shop.sync", outcome: str = "succeeded", ago: float = 60.0, **values: Any) -> JobRun:
        """Make a row of a run that began some seconds ago."""
        began = as_stored(now() - timedelta(seconds=ago))
        defaults: dict[str, Any] = {
            "run_id": uuid.uuid4().hex,
            "trigger": "schedule",
            "scheduled_at": began,
            "started_at": began,
            "finished_at": None if outcome == "running" else as_stored(now() - timedelta(seconds=ago - 1)),
            "duration": None if outcome == "running" else 1.0,
            "lateness": 0.01,
            "holder": "web-1:7:cafe",
            "fencing_token": 41,
        }
        return JobRun.objects.create(job_key=key, outcome=outcome, **defaults | values)

    def declared(self, key: str = "shop.sync") -> None:
        """Let a replica live, and declare a job to the store."""
        self.backend.heartbeat("web-1:7:cafe")
        [since] = self.backend.declare([Declaration(key, "print", TTL)]).answers
        assert isinstance(since, int), since

    def begins(self, key: str = "shop.sync") -> int:
        """Let a replica run a job, and return the fencing token of its lease."""
        self.declared(key)
        self._claim = Claim(key, self.backend.time(), new_token(), TTL, GRACE)
        [won] = self.backend.claim([self._claim], "web-1:7:cafe").answers
        assert not isinstance(won, Exception)
        assert won.verdict == "won"
        return won.fence

    def ends(self, key: str = "shop.sync", outcome: str = "failed") -> None:
        """Let the run that has begun last end."""
        fence = self.state(key).fence
        lease = Lease(key, self._claim.token, fence, TTL, "web-1:7:cafe", self._claim.occurrence)
        self.backend.release([Release(lease, outcome)])

    def state(self, key: str = "shop.sync") -> Any:
        """Return what the store knows of a job."""
        [state] = self.backend.states([key]).answers
        return state


@contextmanager
def world() -> Iterator[World]:
    """Make a world, and end it."""
    made = World()
    try:
        yield made
    finally:
        made.close()


def now() -> datetime:
    """Return the time."""
    return datetime.now(timezone.utc)


def person(name: str, *permissions: str, staff: bool = True, password: str | None = None) -> User:
    """Make a user with permissions of this app; without a password, which takes long to hash, for `force_login`."""
    user = User.objects.create_user(name, password=password, is_staff=staff)
    user.user_permissions.set(
        Permission.objects.filter(content_type__app_label="django_cronductor", codename__in=permissions)
    )
    return user


def superuser(name: str = "root", password: str | None = None) -> User:
    """Make a user who may do everything."""
    return User.objects.create_superuser(name, password=password)


def jobs_url() -> str:
    """Return the address of the list of jobs."""
    return reverse("admin:django_cronductor_declaredjob_changelist")


def job_url(key: str = "shop.sync", name: str = "change") -> str:
    """Return the address of a job's page, or of an action on it."""
    return reverse(f"admin:django_cronductor_declaredjob_{name}", args=[quote(key)])


def runs_url() -> str:
    """Return the address of the list of runs."""
    return reverse("admin:django_cronductor_jobrun_changelist")


def run_url(run: JobRun) -> str:
    """Return the address of a run's page."""
    return reverse("admin:django_cronductor_jobrun_change", args=[run.pk])
