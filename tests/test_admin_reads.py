"""Looking at the admin while jobs run changes nothing, locks nothing and waits for nobody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from tests.admin_world import World, job_url, jobs_url, run_url, runs_url, superuser, world

pytestmark = pytest.mark.django_db


@pytest.fixture
def cron(settings: Any, prefix: str) -> Iterator[World]:
    settings.CRONDUCTOR = {"CACHE": "locks", "PREFIX": prefix}
    with world() as made:
        yield made


def test_every_page_only_selects_while_a_job_runs(client: Client, cron: World) -> None:
    cron.job()
    cron.row()
    cron.declared()
    run = cron.run(outcome="running", duration=None)
    cron.begins()
    before = cron.state()
    client.force_login(superuser())
    pages = [jobs_url(), job_url(), runs_url(), run_url(run), *(job_url(name=name) for name in ("pause", "release"))]
    client.get(pages[0])  # Once before: the session may be written at the first.
    for page in pages:
        with CaptureQueriesContext(connection) as queries:
            assert client.get(page).status_code == 200, page
        texts = [query["sql"].strip().upper() for query in queries.captured_queries]
        assert texts
        assert [text for text in texts if not text.startswith("SELECT") or "FOR UPDATE" in text] == []
    after = cron.state()
    assert (after.lease.holder, after.lease.fence, after.paused) == (
        before.lease.holder,
        before.lease.fence,
        before.paused,
    )
