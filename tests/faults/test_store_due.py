"""A store that is away when something is due, and comes back within its grace, or after it."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator
from datetime import datetime, timezone

import pytest

from django_cronductor.backends.base import JobState
from tests.faults.replicas import SECOND
from tests.faults.site import Site
from tests.redis_server import RedisServer

# Runs close old connections around them, which counts as access to the database.
pytestmark = [pytest.mark.faults, pytest.mark.django_db]

AHEAD = 2
"""Seconds ahead of which an occurrence is declared, so that the store can be stopped before it."""
GRACE = 2


@pytest.fixture
def store_options() -> dict[str, str]:
    """Have the data outlive the process."""
    return {"appendonly": "yes"}


@pytest.fixture
def site() -> Iterator[Site]:
    with contextlib.closing(Site()) as site:
        yield site


def stop_before_due(site: Site, store: RedisServer) -> int:
    """Declare two jobs, which differ in their grace, and stop the store before they are due; return when that is."""
    with contextlib.closing(site.backend(store.url)) as backend:
        while True:
            due = math.ceil(time.time()) + AHEAD
            # Not again for a year: what is due when the store is back is this one.
            expression = f"{datetime.fromtimestamp(due, tz=timezone.utc):%S %M %H %d %m} *"
            jobs = [site.job("patient", expression, grace=60), site.job("strict", expression, grace=GRACE, ttl=GRACE)]

            def declared() -> bool:
                states = backend.states(["patient", "strict"]).answers
                return all(isinstance(one, JobState) and one.since for one in states)

            site.wait("the store to know the jobs", declared)
            store.kill()
            if time.time() < due:
                return due * SECOND
            # This machine is busy: once more.
            store.start()
            for job in jobs:
                job.destroy()


def test_what_was_due_while_the_store_was_away_runs_once_within_its_grace_and_is_reported_once_after_it(
    site: Site, store: RedisServer
) -> None:
    for _ in range(2):
        site.start(store.url, timezone="UTC")
    site.job()
    site.wait_for_starts(1)
    due = stop_before_due(site, store)
    site.wait("the end of the shorter grace", lambda: time.time() > due / SECOND + GRACE + 0.2)
    assert site.starts("patient") == site.starts("strict") == []
    store.start()
    site.wait_for_starts(1, "patient")
    site.wait("a report", lambda: site.entries("missed", "strict"))
    site.wait_for_starts(2, after=time.monotonic())
    site.finish()
    (run,) = site.starts("patient")
    assert (run.occurrence, run.details["trigger"]) == (due, "catch-up")
    assert site.starts("strict") == site.entries("missed", "patient") == []
    assert [(entry.occurrence, entry.details["count"]) for entry in site.entries("missed", "strict")] == [(due, 1)]
