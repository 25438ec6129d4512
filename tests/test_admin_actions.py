"""What operators do to a job in the admin: who may, what is asked, what is done, what is said and written down."""

from __future__ import annotations

from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection
from django.test import Client
from django.urls import reverse

from django_cronductor.backends.base import Lease, Release
from django_cronductor.models import DeclaredJob, JobRun
from tests.admin_world import ACTIONS, WEIRD, World, job_url, jobs_url, person, runs_url, superuser, world
from tests.test_admin_jobs import NOBODY, opened, text_of

pytestmark = pytest.mark.django_db

LOCAL = "django_cronductor.backends.local.LocalBackend"


@pytest.fixture(autouse=True)
def cron(settings: Any, prefix: str) -> Iterator[World]:
    settings.CRONDUCTOR = {"CACHE": "locks", "PREFIX": prefix}
    with world() as made:
        yield made


@pytest.fixture
def browser(client: Client) -> Client:
    client.force_login(superuser())
    return client


def said(response: Any) -> list[str]:
    """Return what was said after an action."""
    return [f"{message.level_tag}: {message}" for message in response.context["messages"]]


def post(browser: Client, action: str, key: str = "shop.sync", **data: str) -> Any:
    return browser.post(job_url(key, action), data, follow=True)


def confirm(browser: Client, action: str, key: str = "shop.sync", **data: str) -> Any:
    """Send the form of the page that asks, as it was shown."""
    shown = browser.get(job_url(key, action))
    return post(browser, action, key, token=shown.context["token"], **data)


def test_run_now_asks_the_replicas_once(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    response = post(browser, "run")
    assert response.redirect_chain == [(job_url(), 302)]
    assert said(response) == [
        "success: The replicas were asked to run shop.sync now: the first that has a worker free does, within a minute."
    ]
    requested = cron.state().requested
    assert requested is not None
    assert "a run is requested" in text_of(response)
    assert cron.backend.take_request("shop.sync", "t1", 30_000, "web-1:7:cafe").verdict == "won"
    assert cron.state().requested is None


def test_a_form_that_is_sent_twice_asks_once(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    once = browser.get(job_url()).context["once"]
    assert said(post(browser, "run", once=once))[0].startswith("success: ")
    taken = cron.backend.take_request("shop.sync", "t1", 30_000, "web-1:7:cafe")
    cron.backend.release([Release(Lease("shop.sync", "t1", taken.fence, 30_000, "web-1:7:cafe", "manual"), "failed")])
    assert said(post(browser, "run", once=once)) == [
        "info: The replicas have been asked to run shop.sync already: the form was sent more than once."
    ]
    assert cron.state().requested is None
    assert LogEntry.objects.count() == 1
    assert browser.get(job_url()).context["once"] != once


@pytest.mark.parametrize("page", ["change", "run"])
def test_every_form_that_runs_a_job_has_a_name_of_its_own(browser: Client, cron: World, page: str) -> None:
    cron.job()
    response = browser.get(job_url(name=page))
    assert f'<input type="hidden" name="once" value="{response.context["once"]}">' in response.content.decode()


def test_a_pause_does_not_take_the_place_of_anothers(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    cron.declared()
    token = browser.get(job_url(name="pause")).context["token"]
    post(browser, "pause", token=token, note="first")
    response = post(browser, "pause", token=token, note="second")
    assert said(response) == []
    assert "As things are, this would do nothing." in text_of(response)
    assert "has changed since you were asked" not in text_of(response)
    assert DeclaredJob.objects.get().pause_note == "first"
    assert LogEntry.objects.count() == 1


def test_pause_with_a_note_and_resume(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    cron.declared()
    response = confirm(browser, "pause", note="  <b>moving</b>\r\nhouse ")
    assert said(response) == ["success: The job shop.sync is paused. A run in progress goes on."]
    assert cron.state().paused
    row = DeclaredJob.objects.get()
    assert (row.paused_by, row.pause_note) == ("root", "<b>moving</b>\nhouse")
    assert b"&lt;b&gt;moving&lt;/b&gt;<br>house" in response.content
    assert said(post(browser, "resume")) == [
        "success: The job shop.sync is resumed, and runs from its next occurrence on."
    ]
    assert not cron.state().paused
    assert DeclaredJob.objects.get().paused_at is None


def test_a_note_may_be_as_long_however_numbers_are_written(browser: Client, cron: World, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    cron.job()
    assert 'maxlength="1000"' in browser.get(job_url(name="pause")).content.decode()


def test_a_pause_of_a_job_that_no_replica_has_declared_is_shown_and_lifted(browser: Client, cron: World) -> None:
    cron.job()
    response = confirm(browser, "pause")
    assert said(response)[0] == "success: The job shop.sync is paused. A run in progress goes on."
    assert {item["action"].name for item in response.context["actions"]} >= {"resume"}
    assert "pause" not in {item["action"].name for item in response.context["actions"]}
    assert "shop.sync" in opened(browser, jobs_url() + "?state=paused")
    assert "would be due" in opened(browser, jobs_url())
    assert said(post(browser, "resume"))[0] == (
        "success: The job shop.sync is resumed, and runs from its next occurrence on."
    )
    assert not cron.state().paused


def test_release_takes_the_lease_away_and_its_run_counts_as_abandoned(browser: Client, cron: World) -> None:
    cron.job()
    cron.row()
    fence = cron.begins()
    cron.run(outcome="running", slot=cron.state().lease.run)
    response = confirm(browser, "release")
    assert said(response) == [
        "success: The lease of shop.sync was taken from web-1:7:cafe; its run counts as abandoned."
    ]
    assert cron.state().lease is None
    assert cron.state().fence > fence
    assert JobRun.objects.get().outcome == "abandoned"
    assert "released by force" in opened(browser, job_url())


def test_a_release_of_nothing_says_so(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    assert "As things are, this would do nothing." in opened(browser, job_url(name="release"))
    assert said(confirm(browser, "release")) == [
        "info: Nobody held the lease of shop.sync any more: nothing was released."
    ]
    assert not LogEntry.objects.exists()


def test_everything_done_is_in_the_log_of_the_admin(browser: Client, cron: World) -> None:
    cron.job(WEIRD)
    cron.row(WEIRD)
    cron.begins(WEIRD)
    confirm(browser, "run", WEIRD)
    confirm(browser, "pause", WEIRD, note="moving")
    confirm(browser, "release", WEIRD)
    post(browser, "resume", WEIRD)
    entries = LogEntry.objects.order_by("pk")
    assert [entry.change_message for entry in entries] == [
        "Run requested.",
        "Paused. moving",
        "Lease released.",
        "Resumed.",
    ]
    assert {entry.object_id for entry in entries} == {WEIRD}
    assert {entry.user.get_username() for entry in entries} == {"root"}
    # The log leads to the job, and the job's page to its log.
    assert browser.get(entries[0].get_admin_url()).status_code == 200
    history = browser.get(job_url(WEIRD, "history"))
    assert "Paused. moving" in text_of(history)
    assert job_url(WEIRD) in unescape(history.content.decode())
    assert job_url(WEIRD, "history") in unescape(browser.get(job_url(WEIRD)).content.decode())
    assert WEIRD in opened(browser, reverse("admin:index"))


@pytest.mark.parametrize("action", ["pause", "release"])
def test_what_is_dangerous_is_asked_before(browser: Client, cron: World, action: str) -> None:
    cron.job()
    cron.begins()
    response = post(browser, action)
    assert response.redirect_chain == []
    assert "No, take me back" in text_of(response)
    assert not cron.state().paused
    assert cron.state().lease is not None


def test_run_now_is_asked_before_where_the_job_runs_or_is_paused(browser: Client, cron: World) -> None:
    cron.job()
    cron.begins()
    assert "It is running." in text_of(post(browser, "run"))
    cron.ends()
    cron.backend.pause("shop.sync")
    assert "It is paused." in text_of(post(browser, "run"))
    assert cron.state().requested is None
    confirm(browser, "run")
    assert cron.state().requested is not None


def test_an_answer_about_another_lease_is_asked_again(browser: Client, cron: World) -> None:
    cron.job()
    cron.begins()
    seen = browser.get(job_url(name="release")).context["token"]
    cron.ends()
    time_of_the_next = cron.backend.time()
    while cron.backend.time() == time_of_the_next:
        pass
    cron.begins()
    response = post(browser, "release", token=seen)
    assert "The lease of this job has changed since you were asked" in text_of(response)
    assert cron.state().lease is not None


@pytest.mark.parametrize("action", ACTIONS)
def test_looking_does_nothing(browser: Client, cron: World, action: str) -> None:
    cron.job()
    cron.begins()
    cron.backend.pause("shop.sync")
    before = cron.state()
    assert browser.get(job_url(name=action)).status_code == 200
    assert browser.head(job_url(name=action)).status_code == 200
    assert browser.put(job_url(name=action)).status_code == 405
    assert browser.delete(job_url(name=action)).status_code == 405
    assert cron.state() == before
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("action", ACTIONS)
def test_each_action_needs_its_own_permission(client: Client, cron: World, action: str) -> None:
    cron.job()
    cron.begins()
    others = [f"{other}_job" for other in ACTIONS if other != action]
    client.force_login(person("colleague", "view_declaredjob", "change_declaredjob", *others))
    assert client.get(job_url(name=action)).status_code == 403
    assert client.post(job_url(name=action)).status_code == 403
    assert job_url(name=action) not in client.get(job_url()).content.decode()
    client.force_login(person("operator", "view_declaredjob", f"{action}_job"))
    assert client.get(job_url(name=action)).status_code == 200
    # Who may not look, may not act.
    client.force_login(person("blind", f"{action}_job"))
    assert client.post(job_url(name=action)).status_code == 403


@pytest.mark.parametrize("action", ACTIONS)
def test_an_outsider_is_sent_to_the_login(client: Client, cron: World, action: str) -> None:
    cron.job()
    client.force_login(person("outsider", "view_declaredjob", f"{action}_job", staff=False))
    response = client.post(job_url(name=action))
    assert response.status_code == 302
    assert "/login/" in response.headers["Location"]


@pytest.mark.parametrize("action", ACTIONS)
def test_a_form_of_another_site_does_nothing(cron: World, action: str) -> None:
    cron.job()
    cron.begins()
    strict = Client(enforce_csrf_checks=True)
    strict.force_login(superuser())
    assert strict.post(job_url(name=action), {"token": "x"}).status_code == 403


def test_a_viewer_sees_no_button(client: Client, cron: World) -> None:
    cron.job()
    cron.begins()
    client.force_login(person("viewer", "view_declaredjob", "view_jobrun"))
    page = client.get(job_url())
    assert page.status_code == 200
    assert page.context["actions"] == []
    assert '<form method="post" action="/admin/django_cronductor' not in page.content.decode()


def test_offers_what_makes_sense(browser: Client, cron: World) -> None:
    def offered(key: str = "shop.sync") -> list[str]:
        return [item["action"].name for item in browser.get(job_url(key)).context["actions"]]

    cron.job()
    cron.declared()
    assert offered() == ["run", "pause"]
    cron.begins()
    assert offered() == ["run", "pause", "release"]
    cron.backend.pause("shop.sync")
    assert offered() == ["run", "resume", "release"]
    cron.job("shop.off", enabled=False)
    assert offered("shop.off") == ["pause"]
    cron.row("shop.gone")
    assert offered("shop.gone") == []


@pytest.mark.parametrize("action", ACTIONS)
def test_says_that_it_is_not_known_what_was_done_where_the_store_is_down(
    browser: Client, cron: World, settings: Any, action: str
) -> None:
    settings.CACHES = {**settings.CACHES, "locks": {**settings.CACHES["locks"], "LOCATION": NOBODY}}
    cron.job()
    cron.row()
    [message] = said(confirm(browser, action))
    assert message.startswith(
        "error: Whether it was done to shop.sync is not known, look again when the store answers: "
    )
    assert "Redis at 127.0.0.1:1" in message
    assert "a-password" not in message
    assert not LogEntry.objects.exists()


@pytest.mark.parametrize("action", ACTIONS)
def test_says_that_nothing_was_done_where_the_store_says_so(browser: Client, cron: World, action: str) -> None:
    cron.job()
    cron.declared()
    cron.row()
    cron.backend.heartbeat("host:1:aa")
    key = cron.backend._job("shop.sync")
    cron.backend._claims.delete(key)
    cron.backend._claims.set(key, "of another")
    [message] = said(confirm(browser, action))
    assert message.startswith("error: Nothing was done to shop.sync: ")


def test_says_that_a_job_was_not_paused(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    assert said(post(browser, "resume")) == ["info: The job shop.sync was not paused: nothing was done."]
    assert not LogEntry.objects.exists()


def test_says_why_a_run_is_refused(browser: Client, cron: World) -> None:
    cron.job()
    assert said(post(browser, "run")) == [
        "error: Nothing was done to shop.sync: No replica is alive that could run it: start runcron."
    ]


def test_says_what_was_done_though_the_database_takes_nothing(browser: Client, cron: World) -> None:
    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith(("INSERT", "UPDATE")):
            raise OperationalError("attempt to write a readonly database")
        return execute(sql, params, many, context)

    cron.job()
    cron.row()
    cron.declared()
    with connection.execute_wrapper(refuse):
        done, unrecorded = said(confirm(browser, "pause"))
    assert done == "success: The job shop.sync is paused. A run in progress goes on."
    assert unrecorded.startswith(
        "warning: The lock store has it, but the database does not: The database failed: attempt"
    )
    assert cron.state().paused


def test_says_that_the_log_of_the_admin_could_not_be_written(browser: Client, cron: World) -> None:
    def refuse(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if sql.startswith("INSERT"):
            raise OperationalError("attempt to write a readonly database")
        return execute(sql, params, many, context)

    cron.job()
    cron.declared()
    with connection.execute_wrapper(refuse):
        done, unrecorded = said(post(browser, "run"))
    assert done.startswith("success: The replicas were asked to run shop.sync")
    assert unrecorded == (
        "warning: The lock store has it, but the database does not: attempt to write a readonly database"
    )


def test_says_that_the_database_could_not_note_it(browser: Client, cron: World) -> None:
    cron.job()
    cron.declared()
    done, unrecorded = said(confirm(browser, "pause"))
    assert done == "success: The job shop.sync is paused. A run in progress goes on."
    assert unrecorded.startswith("warning: The lock store has it, but the database does not: No runcron")


@pytest.mark.parametrize(
    ("action", "told"),
    [
        ("run", "An order to run shop.sync now was left for runcron, which looks for orders every second or two."),
        ("pause", "An order to pause shop.sync was left for runcron, which looks for orders every second or two."),
        ("resume", "An order to resume shop.sync was left for runcron, which looks for orders every second or two."),
        (
            "release",
            (
                "An order to release the lease of shop.sync was left for runcron, "
                "which looks for orders every second or two."
            ),
        ),
    ],
)
def test_leaves_an_order_on_the_single_instance_backend(
    browser: Client, cron: World, settings: Any, action: str, told: str
) -> None:
    settings.CRONDUCTOR = {"BACKEND": LOCAL}
    cron.job()
    cron.row()
    assert said(confirm(browser, action)) == [f"success: {told}"]


def test_is_refused_where_nobody_could_be_told(browser: Client, cron: World, settings: Any) -> None:
    settings.CRONDUCTOR = {"BACKEND": LOCAL, "HISTORY": 0}
    cron.job()
    [message] = said(post(browser, "run"))
    assert "there is no way to tell it anything" in message


@pytest.mark.parametrize("action", ACTIONS)
def test_an_action_on_a_job_that_nobody_knows_is_sent_back(browser: Client, action: str) -> None:
    assert "There is no job no.such" in text_of(post(browser, action, "no.such"))


def test_the_page_of_a_failed_run_leads_to_run_now(client: Client, cron: World) -> None:
    cron.job()
    cron.row()
    failed = cron.run(outcome="failed")
    url = f"{runs_url()}{failed.pk}/change/"
    client.force_login(superuser())
    assert job_url(name="run") in client.get(url).content.decode()
    assert "Run shop.sync now, outside its schedule?" in opened(client, job_url(name="run"))
    client.force_login(person("viewer", "view_jobrun", "view_declaredjob"))
    assert job_url(name="run") not in client.get(url).content.decode()
    client.force_login(person("colleague", "view_jobrun", "run_job"))
    assert job_url(name="run") not in client.get(url).content.decode()
