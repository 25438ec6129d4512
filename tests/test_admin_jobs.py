"""The admin's list of jobs, and the page of each."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from html import unescape
from typing import Any

import pytest
import redis
from django.db import DatabaseError, connection
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from django_cronductor.admin import job_page
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.instants import as_stored
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.overview import JobView
from django_cronductor.schedules import Schedule
from tests.admin_world import WEIRD, World, job_url, jobs_url, now, person, run_url, superuser, world

pytestmark = pytest.mark.django_db

NOBODY = "redis://:a-password@127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def cron(settings: Any, prefix: str) -> Iterator[World]:
    settings.CRONDUCTOR = {"CACHE": "locks", "PREFIX": prefix}
    with world() as made:
        yield made


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(superuser())
    return client


def text_of(response: Any) -> str:
    """Return what a page says, without its tags."""
    content = re.sub(r"<(style|script)\b.*?</\1>", "", response.content.decode(), flags=re.S)
    return " ".join(unescape(re.sub(r"<[^>]*>", " ", content)).split())


def opened(browser: Client, url: str) -> str:
    response = browser.get(url)
    assert response.status_code == 200, response
    return text_of(response)


def listed(browser: Client, query: str = "") -> list[str]:
    """Return the keys in the list."""
    response = browser.get(jobs_url() + query)
    assert response.status_code == 200
    return [row.key for row in response.context["cl"].result_list]


# --- The list


def test_says_that_no_job_is_declared_and_no_replica_alive(browser: Client) -> None:
    text = opened(browser, jobs_url())
    assert "No job is declared" in text
    assert "Replicas alive none : no job runs until manage.py runcron is started." in text


def test_lists_a_job_that_is_in_the_code_alone(browser: Client, cron: World) -> None:
    cron.job(expression="30 2 * * *", timezone="Europe/Berlin")
    text = opened(browser, jobs_url())
    assert "shop.sync State idle".casefold() in text.casefold()
    assert "30 2 * * * Europe/Berlin" in text
    assert "no run yet" in text


def test_says_which_store_and_which_replicas_there_are(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    text = opened(browser, jobs_url())
    assert cron.backend.describe() in text
    assert re.search(r"Replicas alive 1 web-1:7:cafe [\d.]+ m?s ago", text)
    assert "State and lock holder: live, from the lock store." in text


def test_says_which_replicas_are_silent(browser: Client, cron: World, redis_client: redis.Redis) -> None:
    cron.job()
    cron.declared()
    redis_client.zadd(cron.backend._instances, {"web-2:8:beef": cron.backend.time() - 20_000})
    assert re.search(
        r"Replicas alive 1 web-1:7:cafe [\d.]+ m?s ago web-2:8:beef silent 20 s ago", opened(browser, jobs_url())
    )
    cron.backend.retire("web-1:7:cafe")
    text = opened(browser, jobs_url())
    assert "Replicas alive none : no job runs until manage.py runcron is started. web-2:8:beef silent" in text


def test_shows_who_holds_a_lease_as_the_store_has_it(browser: Client, cron: World) -> None:
    cron.job()
    fence = cron.begins()
    text = opened(browser, jobs_url())
    assert re.search(rf"running for .*web-1:7:cafe since \d\d:\d\d:\d\d · (30|29|29\.\d) s left · token {fence}", text)
    assert "from the history" not in text


def test_shows_who_held_the_last_lease_and_how_that_ended(browser: Client, cron: World) -> None:
    cron.job()
    cron.begins()
    cron.ends(outcome="timed out")
    assert re.search(r"idle .*web-1:7:cafe [\d.]+ m?s ago, timed out", opened(browser, jobs_url()))


def test_shows_a_holder_that_died(browser: Client, cron: World, monkeypatch: pytest.MonkeyPatch) -> None:
    cron.job()
    monkeypatch.setattr("tests.admin_world.TTL", 30)
    cron.begins()
    deadline = time.monotonic() + 10
    while cron.state().expires > cron.backend.time() and time.monotonic() < deadline:
        cron.backend.time()
    text = opened(browser, jobs_url())
    assert "holder died" in text
    assert "lease has ended" in text


def test_shows_a_pause_with_who_and_why(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    cron.backend.pause("shop.sync")
    cron.row(paused_at=as_stored(now() - timedelta(hours=2)), paused_by="ada", pause_note="<i>moving</i>")
    text = opened(browser, jobs_url())
    assert "paused 2 h ago by ada <i>moving</i>" in text
    assert "would be due in" in text


def test_shows_what_is_disabled_and_what_is_no_longer_declared(browser: Client, cron: World) -> None:
    cron.job("shop.off", enabled=False)
    cron.row("shop.old", expression="1 2 3 4 *")
    text = opened(browser, jobs_url())
    assert re.search(r"shop\.off state disabled", text)
    assert re.search(r"shop\.old state no longer declared .*1 2 3 4 \*", text)


def test_shows_the_last_outcome_and_draws_the_runs(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    cron.run(ago=300)
    cron.run(outcome="failed", ago=60, duration=2.5)
    response = browser.get(jobs_url())
    assert re.search(r"failed 2\.5 s · \d+ s ago", text_of(response))
    assert b"Last 2: 1 succeeded, 1 failed, longest 2.5 s; the newest failed</title>" in response.content


def test_draws_the_newest_thirty(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    for number in range(40):
        cron.run(outcome="failed" if number < 10 else "succeeded", ago=1000 - number)
    assert b"Last 30: 30 succeeded, longest" in browser.get(jobs_url()).content


def test_opens_and_says_so_when_the_store_is_down(browser: Client, cron: World, settings: Any) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {**settings.CACHES["locks"], "LOCATION": NOBODY}}
    cron.job()
    cron.row()
    cron.run(outcome="running", ago=5)
    text = opened(browser, jobs_url())
    assert "The lock store cannot be asked:" in text
    assert "Replicas alive cannot be told" in text
    assert re.search(r"running for [\d.]+ s from the history .*web-1:7:cafe .*from the history", text)
    assert "Time of this machine" in text
    assert "a-password" not in text
    assert "The lock store cannot be asked:" in opened(browser, job_url())


def test_opens_and_says_so_on_the_single_instance_backend(browser: Client, cron: World, settings: Any) -> None:
    settings.CRONDUCTOR = {"BACKEND": "django_cronductor.backends.local.LocalBackend"}
    cron.job()
    cron.row()
    cron.run(outcome="failed", ago=60)
    text = opened(browser, jobs_url())
    assert "in the memory of the one process that runs the jobs" in text
    assert re.search(r"web-1:7:cafe \d+ s ago, failed from the history", text)
    assert "State, lock holder, outcomes and pictures: the history in the database." in text
    assert "this page cannot see" in opened(browser, job_url())


def test_opens_where_no_history_is_kept(browser: Client, cron: World, settings: Any) -> None:
    settings.CRONDUCTOR = {**settings.CRONDUCTOR, "HISTORY": 0}
    cron.job()
    cron.begins()
    text = opened(browser, jobs_url())
    assert "No history is kept (HISTORY is 0)." in text
    assert "running" in text
    assert "There is no history to show." in opened(browser, job_url())


def test_opens_and_says_so_where_a_setting_is_wrong(browser: Client, settings: Any) -> None:
    settings.CRONDUCTOR = {"PREFIX": "a b"}
    assert 'CRONDUCTOR["PREFIX"] must be' in opened(browser, jobs_url())


def test_opens_and_says_so_where_the_history_cannot_be_read(
    browser: Client, cron: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*args: Any) -> None:
        raise DatabaseError("no such column: since")

    cron.job()
    monkeypatch.setattr("django_cronductor.overview._rows", fail)
    assert "no such column: since" in opened(browser, jobs_url())
    assert "no such column: since" in opened(browser, job_url())


def test_opens_with_naive_times(browser: Client, cron: World, settings: Any) -> None:
    settings.USE_TZ = False
    settings.TIME_ZONE = "Europe/Berlin"
    cron.job()
    cron.row(paused_at=as_stored(now()))
    run = cron.run(ago=30)
    cron.begins()
    assert re.search(r"succeeded 1 s · (29|30|31) s ago", opened(browser, jobs_url()))
    assert "1 succeeded, on 1 replica, no overlaps." in opened(browser, job_url())
    assert "succeeded" in opened(browser, run_url(run))


def test_finds_jobs_by_words_of_key_app_and_schedule(browser: Client, cron: World) -> None:
    cron.job("shop.sync")
    cron.job("shop.report", "0 2 * * *")
    cron.row("old.report", app_label="legacy")
    assert listed(browser, "?q=REPORT") == ["old.report", "shop.report"]
    assert listed(browser, "?q=report+legacy") == ["old.report"]
    assert listed(browser, "?q=0+2+*") == ["shop.report"]
    assert listed(browser, "?q=nothing") == []


def test_filters_by_state_app_and_outcome(browser: Client, cron: World) -> None:
    cron.job("a.runs")
    cron.begins("a.runs")
    cron.backend.pause("a.runs")
    cron.job("a.idle")
    cron.row("b.gone", app_label="b")
    cron.run("b.gone", "failed")
    assert listed(browser, "?state=running") == ["a.runs"]
    assert listed(browser, "?state=paused") == ["a.runs"]
    assert listed(browser, "?state=idle") == ["a.idle"]
    assert listed(browser, "?app=b&state=gone") == ["b.gone"]
    assert listed(browser, "?outcome=failed") == ["b.gone"]
    assert listed(browser, "?outcome=never") == ["a.idle", "a.runs"]
    assert listed(browser) == ["a.idle", "a.runs", "b.gone"]
    assert "No job is like that." in opened(browser, "?state=disabled".join([jobs_url(), ""]))


def test_has_pages(browser: Client, cron: World) -> None:
    for number in range(101):
        cron.job(f"a.{number:03}")
    assert len(listed(browser)) == 100
    assert listed(browser, "?p=2") == ["a.100"]
    assert len(listed(browser, "?all=")) == 101
    assert browser.get(jobs_url() + "?p=3").status_code == 302


def test_links_to_the_page_of_a_job_with_any_key(browser: Client, cron: World) -> None:
    cron.job(WEIRD)
    response = browser.get(jobs_url())
    assert "<b>a" not in response.content.decode()
    [link] = re.findall(r'<th class="field-shown_key"><a href="([^"]+)">', response.content.decode())
    page = browser.get(unescape(link))
    assert page.status_code == 200
    assert WEIRD in text_of(page)
    assert "<b>a" not in page.content.decode()


@pytest.mark.parametrize("count", [2, 1000])
def test_takes_the_same_number_of_queries_and_store_calls_for_any_number_of_jobs(
    browser: Client,
    cron: World,
    django_assert_num_queries: DjangoAssertNumQueries,
    monkeypatch: pytest.MonkeyPatch,
    count: int,
) -> None:
    fill(cron, count, runs=3)
    calls: list[str] = []
    run = RedisBackend._call

    def counted(self: RedisBackend, *args: Any, **kwargs: Any) -> Any:
        calls.append("call")
        return run(self, *args, **kwargs)

    monkeypatch.setattr(RedisBackend, "_call", counted)
    # The session, the user, the jobs, their newest runs (by as many as the database takes at once); then where the
    # newest thirty begin, and these.
    most = connection.features.max_query_params or count
    with django_assert_num_queries(5 - -count // most):
        assert len(listed(browser)) == min(count, 100)
    # The states of all jobs, and the replicas.
    assert len(calls) == 1


def test_opens_in_less_than_a_second_with_a_thousand_jobs(browser: Client, cron: World) -> None:
    fill(cron, 1000, runs=3)
    took = []
    for _ in range(3):
        began = time.perf_counter()
        assert len(listed(browser)) == 100
        took.append(time.perf_counter() - began)
    assert min(took) < 1.0


def fill(cron: World, count: int, runs: int) -> None:
    keys = [f"a.{number:04}" for number in range(count)]
    for key in keys:
        cron.job(key)
    stored = {"expression": "*/5 * * * *", "timezone": "UTC", "since": 0, "last_seen": as_stored(now())}
    DeclaredJob.objects.bulk_create([DeclaredJob(key=key, **stored) for key in keys])
    JobRun.objects.bulk_create(
        JobRun(run_id=f"{key}-{number}", job_key=key, slot=number, outcome="succeeded", duration=1.0)
        for number in range(runs)
        for key in keys
    )


# --- A job


def test_shows_the_settings_of_a_job(browser: Client, cron: World) -> None:
    cron.job(ttl=10, timeout=90, recover=True, when=superuser)
    text = opened(browser, job_url())
    assert "Handler tests.admin_world.work" in text
    assert "Lease (ttl) 10 s Grace 5 min (default) Timeout 1 min 30 s Run again after a crash (recover) yes" in text
    assert "Condition (when) superuser" in text


def test_shows_what_a_schedule_probably_does_not_mean(browser: Client, cron: World) -> None:
    cron.job(expression="* */2 * * *")
    text = opened(browser, job_url())
    assert 'Note "* */2 * * *" runs 60 times in each matching hour; for once, put 0 in the minute field.' in text


def test_shows_the_next_ten_occurrences_in_both_zones_and_marks_clock_changes() -> None:
    schedule = Schedule("30 2 * * *", "Europe/Berlin")
    view = JobView("a", datetime(2026, 3, 27, 12, tzinfo=timezone.utc), schedule=schedule)
    found = job_page._occurrences(view)
    assert len(found) == 10
    # 02:00 CET becomes 03:00 CEST on 29 March 2026.
    assert [one["change"] for one in found[:3]] == [None, "02:30 does not exist this day: runs at 03:00", None]
    assert "Sun 2026-03-29 03:00:00 CEST" in found[1]["when"]
    assert "Sun 2026-03-29 01:00:00 UTC" in found[1]["when"]


def test_shows_no_occurrence_of_a_job_that_is_no_longer_declared(browser: Client, cron: World) -> None:
    cron.row()
    text = opened(browser, job_url())
    assert "no longer declared in the code of this process" in text
    assert "Next occurrences None." in text


def test_shows_the_runs_of_a_job_and_filters_them(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    cron.run(ago=120)
    failed = cron.run(outcome="failed", error_type="ValueError", error_message="<script>alert(1)</script>")
    cron.run("shop.other", "lost")
    response = browser.get(job_url())
    assert [run["row"].outcome for run in response.context["runs"]] == ["failed", "succeeded"]
    assert run_url(failed) in response.content.decode()
    assert "<script>alert(1)" not in response.content.decode()
    assert "ValueError: <script>alert(1)</script>" in text_of(response)
    only = browser.get(job_url() + "?outcome=failed")
    assert [run["row"].outcome for run in only.context["runs"]] == ["failed"]
    assert len(browser.get(job_url() + "?outcome=nonsense").context["runs"]) == 2


def test_says_in_words_what_the_picture_of_the_day_shows(browser: Client, cron: World) -> None:
    cron.job(enabled=False)
    cron.row()
    cron.run(ago=7200)
    cron.run(outcome="failed", ago=3600, holder="web-2:8:beef")
    cron.run(outcome="missed", ago=1800, attempt=-1, started_at=None, duration=None, count=3)
    assert "1 succeeded, 1 failed, 3 missed, on 2 replicas, no overlaps." in opened(browser, job_url())


def test_takes_the_same_number_of_queries_for_any_number_of_runs(
    browser: Client, cron: World, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    cron.job()
    cron.row()
    for number in range(60):
        cron.run(ago=number)
    # The session, the user, the job, its newest runs; the day; the list.
    with django_assert_num_queries(6):
        opened(browser, job_url())


@pytest.mark.parametrize("key", ["no.such", "x" * 300, "a\x00b", "<b>"])
def test_sends_back_who_asks_for_a_job_that_nobody_knows(browser: Client, key: str) -> None:
    response = browser.get(job_url(key), follow=True)
    assert response.redirect_chain == [(jobs_url(), 302)]
    assert f"There is no job {key[:7]}" in text_of(response)


def test_says_what_is_wrong_where_no_job_can_be_found(browser: Client, cron: World, settings: Any) -> None:
    cron.job()
    settings.CRONDUCTOR = {"CACHE": "locks", "DEFAULT_TTL": -1}
    response = browser.get(job_url(), follow=True)
    [message] = response.context["messages"]
    assert str(message).startswith("The job shop.sync cannot be shown: ")
    assert "DEFAULT_TTL" in str(message)


def test_the_old_address_of_an_object_still_leads_to_its_page(browser: Client, cron: World) -> None:
    cron.job()
    response = browser.get(job_url().removesuffix("change/"))
    assert response.status_code == 302
    assert response.headers["Location"] == job_url()


@pytest.mark.parametrize("url", [jobs_url, job_url])
def test_only_who_may_view_jobs_sees_them(client: Client, cron: World, url: Callable[[], str]) -> None:
    cron.job()
    client.force_login(person("viewer", "view_declaredjob"))
    assert client.get(url()).status_code == 200
    client.force_login(person("colleague", "view_jobrun", "run_job"))
    assert client.get(url()).status_code == 403
    client.force_login(person("outsider", "view_declaredjob", staff=False))
    assert client.get(url()).status_code == 302


def test_only_who_may_view_runs_sees_those_of_a_job(client: Client, cron: World) -> None:
    cron.job()
    cron.row()
    cron.run(outcome="failed", error_type="SecretError")
    client.force_login(person("viewer", "view_declaredjob"))
    text = opened(client, job_url())
    assert "1 failed, on 1 replica" in text
    assert "SecretError" not in text
    assert "All runs of this job" not in text
    client.force_login(person("colleague", "view_declaredjob", "view_jobrun"))
    assert "SecretError" in opened(client, job_url())


def test_nobody_adds_changes_or_deletes_jobs(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    assert browser.get(jobs_url() + "add/").status_code == 403
    assert browser.post(job_url(name="delete"), {"post": "yes"}).status_code == 403
    browser.post(job_url(), {"key": "other"})
    assert DeclaredJob.objects.get().key == "shop.sync"
