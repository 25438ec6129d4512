"""What is known of all jobs: from the code, the database, and live from the lock store."""

from __future__ import annotations

import pytest

from django_cronductor.backends.local import LocalBackend
from django_cronductor.jobs import JobRegistry
from django_cronductor.overview import get_overview

pytestmark = pytest.mark.django_db


def test_nothing_at_all_is_shown_where_nothing_is() -> None:
    overview = get_overview(registry=JobRegistry(), backend=LocalBackend(prefix="x"))
    assert overview.jobs == []
    assert not overview.shared


def test_a_declared_job_that_never_ran_is_idle() -> None:
    registry = JobRegistry()
    registry.schedule("* * * * *", print, key="a")
    [view] = get_overview(registry=registry).jobs
    assert view.status == "idle"
