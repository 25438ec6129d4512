"""The admin in a browser: by mouse and by keyboard alone, as each kind of person, in both themes, on a phone."""

from __future__ import annotations

import pytest
from django.contrib.admin.models import LogEntry

from django_cronductor.models import DeclaredJob
from tests.admin_world import ACTIONS, WEIRD, World, job_url, jobs_url, run_url, runs_url
from tests.browser.pages import PHONE, WIDE, Browser


@pytest.fixture
def shop(cron: World) -> World:
    """Return a world with a job of each kind, some runs of each outcome, and one run in progress."""
    cron.job("shop.sync", "*/10 * * * * *")
    cron.row("shop.sync", expression="*/10 * * * * *")
    cron.declared("shop.sync")
    for number in range(35):
        outcome = "failed" if number % 7 == 3 else "missed" if number % 11 == 5 else "succeeded"
        attempt = -1 if outcome == "missed" else 0
        cron.run("shop.sync", outcome, ago=600 - number * 15, duration=number / 10, attempt=attempt)
    cron.job("shop.report", "30 2 * * *", timezone="Europe/Berlin")
    cron.row("shop.report")
    cron.run("shop.report", "running", ago=40)
    cron.begins("shop.report")
    cron.job("shop.off", enabled=False)
    cron.job(WEIRD)
    cron.row("shop.old")
    cron.run("shop.old", "failed", ago=7200, error_type="ValueError", error_message="<b>no</b>", traceback="line\n" * 9)
    return cron


def pages(cron: World) -> dict[str, str]:
    """Return the address of each page by a name."""
    failed = cron.run("shop.old", "failed", ago=60, error_type="E", error_message="x " * 300, traceback="long " * 300)
    return {
        "jobs": jobs_url(),
        "job": job_url("shop.sync"),
        "running": job_url("shop.report"),
        "weird": job_url(WEIRD),
        "gone": job_url("shop.old"),
        "history": job_url("shop.sync", "history"),
        "runs": runs_url(),
        "one-run": run_url(failed),
        **{name: job_url("shop.report", name) for name in ACTIONS},
    }


def test_a_superuser_looks_runs_pauses_resumes_and_releases(browser: Browser, shop: World) -> None:
    browser.login("root")
    browser.click("Jobs")
    assert browser.path == jobs_url()
    browser.click("shop.sync")
    browser.click("Run now")
    assert browser.says("The replicas were asked to run shop.sync now")
    assert shop.state().requested is not None
    browser.click("Pause…")
    browser.find("#id_note").send_keys("moving house")
    browser.click("Yes, pause it")
    assert browser.says("The job shop.sync is paused.")
    assert "moving house" in browser.text
    assert shop.state().paused
    browser.click("Resume")
    assert browser.says("The job shop.sync is resumed")
    assert not shop.state().paused
    browser.open(job_url("shop.report"))
    browser.click("Release the lease…")
    assert "web-1:7:cafe" in browser.text
    browser.click("Yes, release it")
    assert browser.says("The lease of shop.report was taken from web-1:7:cafe")
    assert shop.state("shop.report").lease is None
    browser.open(job_url("shop.sync"))
    browser.click("HISTORY")
    assert "Paused. moving house" in browser.text
    assert LogEntry.objects.count() == 4


def test_who_has_second_thoughts_goes_back(browser: Browser, shop: World) -> None:
    browser.login("root", then=job_url("shop.report"))
    browser.click("Release the lease…")
    browser.click("No, take me back")
    assert browser.path == job_url("shop.report")
    assert shop.state("shop.report").lease is not None


def test_everything_can_be_done_by_keyboard_alone(browser: Browser, shop: World) -> None:
    browser.open("/admin/")
    browser.press("root", "\ue004", "secret")  # The first field has the focus; Tab leads to the next.
    browser.enter()
    for link in ("Jobs", "shop.sync", "Pause…"):
        browser.tab_to(link)
        browser.enter()
    browser.tab_to("note")
    browser.press("by keys")
    browser.tab_to("Yes, pause it")
    browser.enter()
    assert DeclaredJob.objects.get(key="shop.sync").pause_note == "by keys"
    browser.tab_to("Resume")
    browser.enter()
    assert not shop.state().paused
    browser.tab_to("Run now")
    browser.enter()
    assert shop.state().requested is not None
    browser.tab_to("failed")
    browser.enter()
    assert browser.path.endswith("?outcome=failed#cronductor-runs")
    browser.open(job_url("shop.report"))
    for link in ("Release the lease…", "Yes, release it"):
        browser.tab_to(link)
        browser.enter()
    assert shop.state("shop.report").lease is None


def test_a_viewer_sees_all_and_can_do_nothing(browser: Browser, shop: World) -> None:
    browser.login("viewer", then=jobs_url())
    for name, url in pages(shop).items():
        browser.open(url)
        if name in ACTIONS:
            assert "403 Forbidden" in browser.text
            continue
        assert "403 Forbidden" not in browser.text
        assert not browser.has(".cronductor-actions")
        assert not browser.has("input[value='Run now'], input[value=Resume]")


def test_an_outsider_is_kept_out(browser: Browser, shop: World) -> None:
    browser.login("outsider", then=jobs_url())
    assert "/login/" in browser.path
    for url in pages(shop).values():
        browser.open(url)
        assert "/login/" in browser.path


def test_finds_and_filters_jobs_and_runs(browser: Browser, shop: World) -> None:
    browser.login("root", then=jobs_url())
    browser.find("#searchbar").send_keys("REPORT")
    browser.click("Search")
    assert [cell.text for cell in browser.driver.find_elements("css selector", "#result_list th a")] == ["shop.report"]
    browser.open(runs_url())
    browser.find("#filter-job").send_keys("shop.old")
    browser._leave(browser.find("#filter-job").submit)
    assert browser.path == f"{runs_url()}?job=shop.old"
    browser.click("shop.old")
    browser.click("RUN THIS JOB NOW")
    assert browser.path == job_url("shop.old", "run")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [WIDE, PHONE])
def test_every_page_fits_its_window_in_both_themes(browser: Browser, shop: World, theme: str, width: int) -> None:
    browser.login("root")
    browser.theme(theme)
    browser.resize(width)
    for name, url in pages(shop).items():
        browser.open(url)
        assert browser.find("html").get_attribute("data-theme") == theme
        browser.photograph(f"{name}-{theme}-{width}")
        assert browser.overflow() <= 0, name
        assert len(browser.driver.find_elements("css selector", "h1")) in (1, 2), name


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_has_a_colour_can_be_told_from_its_ground(browser: Browser, shop: World, theme: str) -> None:
    browser.login("root")
    browser.theme(theme)
    words: dict[str, float] = {}
    shapes: dict[str, float] = {}
    for url in (jobs_url(), job_url("shop.sync"), job_url("shop.report"), runs_url()):
        browser.open(url)
        words |= browser.contrasts(".cronductor-outcome, .cronductor-state, .cronductor-warning")
        shapes |= browser.contrasts(
            ".cronductor-sparkline path:not(.line), .cronductor-timeline rect:not(.unknown, .skipped)"
        )
    assert {"cronductor-outcome bad", "cronductor-outcome good", "cronductor-state running"} <= words.keys()
    assert {"good", "bad", "running", "skipped"} <= shapes.keys()
    # WCAG AA: 4.5 to 1 for words, 3 to 1 for parts of pictures.
    assert {name: contrast for name, contrast in words.items() if contrast < 4.5} == {}
    assert {name: contrast for name, contrast in shapes.items() if contrast < 3} == {}


def test_each_card_of_a_phone_names_what_it_shows(browser: Browser, shop: World) -> None:
    browser.login("root", then=jobs_url())
    assert not browser.find(".cronductor-label").is_displayed()
    browser.resize(PHONE)
    browser.open(jobs_url())
    shown = {label.text for label in browser.driver.find_elements("css selector", ".cronductor-label")}
    assert shown == {"state", "last lock holder", "last outcome and runs", "schedule, next run"}


def test_all_columns_of_the_list_fit_a_common_screen_with_the_bar_of_models_open(browser: Browser, shop: World) -> None:
    browser.login("root", then=jobs_url())
    browser.resize(WIDE)
    browser.photograph("list-with-bar")
    table = browser.find("#changelist .results")
    assert browser.find("#nav-sidebar").is_displayed()
    assert table.get_property("scrollWidth") <= table.get_property("clientWidth")
