"""The admin's pages of runs."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from typing import Any

import pytest
from django.contrib import admin
from django.db import OperationalError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from django_cronductor.admin import runs
from django_cronductor.instants import as_stored
from django_cronductor.models import JobRun
from tests.admin_world import WEIRD, World, job_url, person, run_url, runs_url, superuser
from tests.test_admin_jobs import opened, text_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(superuser())
    return client


@pytest.fixture
def cron() -> World:
    made = World()
    made.backend.close()  # Runs are the database's alone.
    return made


def listed(browser: Client, query: str = "") -> list[JobRun]:
    response = browser.get(runs_url() + query)
    assert response.status_code == 200
    return list(response.context["cl"].result_list)


def test_lists_runs_the_newest_first(browser: Client, cron: World) -> None:
    first, second = cron.run(ago=60), cron.run(outcome="missed", attempt=-1, count=3, started_at=None, duration=None)
    assert listed(browser) == [second, first]
    text = opened(browser, runs_url())
    assert "missed (3 occurrences)" in text
    assert re.search(r"succeeded \w{3} [\d-]+ [\d:]+ UTC 1 s 10 ms schedule web-1:7:cafe", text)


def test_opens_where_nothing_ever_ran(browser: Client) -> None:
    assert listed(browser) == []


def test_filters_by_outcome_job_and_replica(browser: Client, cron: World) -> None:
    good, bad = cron.run(), cron.run("shop.other", "failed", holder="web-2:8:beef")
    strange = cron.run(WEIRD, "timed out")
    assert listed(browser, "?outcome__exact=failed") == [bad]
    assert listed(browser, "?outcome__exact=timed+out") == [strange]
    assert listed(browser, "?job=shop.sync") == [good]
    assert listed(browser, "?job=shop") == []
    assert listed(browser, "?replica=web-2") == [bad]
    assert listed(browser, "?replica=web-1%3A7%3Acafe") == [strange, good]
    assert listed(browser, "?replica=web-1&job=shop.other") == []
    assert listed(browser, "?job=%00&replica=%00") == [strange, bad, good]


def test_filters_by_date_in_the_zone_of_the_site(browser: Client, cron: World, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"

    def at(hour: int, **values: Any) -> JobRun:
        instant = as_stored(datetime(2026, 6, 1, hour, tzinfo=timezone.utc))
        return cron.run(**{"scheduled_at": instant, "started_at": instant, **values})

    # 22:00 UTC is midnight in Berlin.
    before, after, skipped = at(21), at(22), at(23, outcome="missed", started_at=None)
    assert listed(browser, "?from=2026-06-02") == [skipped, after]
    assert listed(browser, "?until=2026-06-01") == [before]
    assert listed(browser, "?from=2026-06-01&until=2026-06-02") == [skipped, after, before]
    settings.USE_TZ = False
    assert len(listed(browser, "?from=2026-06-01&until=2026-06-02")) == 3


@pytest.mark.parametrize("given", ["", "yesterday", "2026-13-45", "0001-01-01", "9999-12-31", "%00"])
def test_a_date_that_is_none_filters_nothing(browser: Client, cron: World, given: str) -> None:
    run = cron.run()
    assert listed(browser, f"?from={given}") == [run]
    assert listed(browser, f"?until={given}") == [run]


def test_a_filter_that_is_typed_keeps_the_others_and_can_be_cleared(browser: Client, cron: World) -> None:
    cron.run(WEIRD, "failed")
    response = browser.get(runs_url(), {"job": WEIRD, "outcome__exact": "failed"})
    [job, _replica, _date] = [
        choice for spec in response.context["cl"].filter_specs[1:] for choice in spec.choices(response.context["cl"])
    ]
    assert job["selected"]
    assert job["kept"] == [("outcome__exact", "failed")]
    assert job["inputs"][0]["value"] == WEIRD
    assert job["clear"] == "?outcome__exact=failed"
    assert "<b>a" not in response.content.decode()


def test_shows_a_run_with_its_traceback_and_escapes_it(browser: Client, cron: World) -> None:
    run = cron.run(
        WEIRD,
        "failed",
        error_type="Odd<Error>",
        error_message="<script>alert(1)</script>",
        traceback='Traceback:\n  File "x.py", line 1\n<img src=x onerror=alert(2)>',
    )
    response = browser.get(run_url(run))
    content = response.content.decode()
    assert "<script>alert(1)" not in content
    assert "<img src=x" not in content
    assert "<b>a" not in content
    assert '<pre class="cronductor-text" tabindex="0">Traceback:\n  File &quot;x.py&quot;, line 1\n&lt;img' in content
    text = text_of(response)
    assert "<script>alert(1)</script>" in text
    assert "Odd<Error>" in text
    assert WEIRD in text
    assert "web-1:7:cafe Fencing token: 41" in text


def test_shows_the_digits_of_a_fencing_token_as_they_are(browser: Client, cron: World, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    run = cron.run(fencing_token=1_796_073_526_000)
    assert "Fencing token: 1796073526000" in text_of(browser.get(run_url(run)))


def test_nobody_adds_changes_or_deletes_runs(browser: Client, cron: World) -> None:
    run = cron.run()
    assert browser.get(runs_url() + "add/").status_code == 403
    assert browser.post(run_url(run), {"outcome": "failed"}).status_code == 403
    assert browser.post(run_url(run).replace("change", "delete"), {"post": "yes"}).status_code == 403
    browser.post(runs_url(), {"action": "delete_selected", "_selected_action": [run.pk], "post": "yes"})
    assert JobRun.objects.get().outcome == "succeeded"


def test_only_who_may_view_runs_sees_them(client: Client, cron: World) -> None:
    run = cron.run()
    client.force_login(person("viewer", "view_jobrun"))
    assert client.get(runs_url()).status_code == 200
    assert client.get(run_url(run)).status_code == 200
    client.force_login(person("colleague", "view_declaredjob"))
    assert client.get(runs_url()).status_code == 403
    assert client.get(run_url(run)).status_code == 403


@pytest.mark.parametrize(
    "query", ["", "?outcome__exact=succeeded", "?job=shop.sync", "?replica=web", "?from=2020-01-01"]
)
def test_takes_few_queries_none_of_which_counts_all_rows(browser: Client, cron: World, query: str) -> None:
    for _ in range(120):
        cron.run()
    with CaptureQueriesContext(connection) as queries:
        assert len(listed(browser, query)) == 100
    # The session, the user; a bounded count; a page.
    assert len(queries) == 4
    asked = [query["sql"] for query in queries if "django_cronductor_jobrun" in query["sql"]]
    assert len(asked) == 2
    assert all("LIMIT" in sql for sql in asked)
    assert not any('"traceback"' in sql for sql in asked)


def test_where_nothing_matches_it_looks_for_that_once(browser: Client, cron: World) -> None:
    cron.run()
    with CaptureQueriesContext(connection) as queries:
        assert listed(browser, "?replica=nobody") == []
    assert len([query for query in queries if "django_cronductor_jobrun" in query["sql"]]) == 1


def test_counts_no_more_pages_than_anybody_looks_at(
    browser: Client, cron: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "MOST_COUNTED", 5)
    for _ in range(8):
        cron.run()
    assert browser.get(runs_url()).context["cl"].paginator.count == 5


def test_the_models_are_registered() -> None:
    assert isinstance(admin.site._registry[JobRun], runs.JobRunAdmin)


def test_leads_to_the_job_only_those_who_may_see_it(client: Client, cron: World) -> None:
    cron.job()
    run = cron.run()
    client.force_login(person("reader", "view_jobrun"))
    page = client.get(run_url(run))
    assert "shop.sync" in text_of(page)
    assert job_url() not in page.content.decode()
    client.force_login(person("viewer", "view_jobrun", "view_declaredjob"))
    assert job_url() in client.get(run_url(run)).content.decode()


def test_says_so_where_the_database_cannot_be_read(
    browser: Client, cron: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = cron.run()

    def fail(*args: object, **kwargs: object) -> None:
        raise OperationalError("no connection to host=db password=hunter2")

    monkeypatch.setattr(runs.RunList, "get_results", fail)
    monkeypatch.setattr(runs.JobRunAdmin, "get_object", fail)
    for url in (runs_url(), run_url(run), run_url(run).replace("change", "history")):
        page = browser.get(url)
        assert page.status_code == 503
        assert "The runs cannot be read from the database: no connection to host=db" in text_of(page)
        assert "hunter2" not in page.content.decode()
