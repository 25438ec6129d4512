"""A real browser before a live server: Chromium, without a window."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.live_server_helper import LiveServer

from tests.admin_world import World, person, superuser, world
from tests.browser.pages import Browser, start

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
STRICT = "tests.browser.pages.strict_policy"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """Return the browser of the run; where there is none, the tests are left out, but in CI they fail."""
    program = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    driver = shutil.which("chromedriver")
    if program is None or driver is None:
        message = "Chromium and its driver are missing: install chromium and chromium-driver."
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    started = start(program, driver)
    yield started
    started.quit()


@pytest.fixture
def cron(transactional_db: None, settings: Any, prefix: str) -> Iterator[World]:
    """Return jobs, replicas and runs to look at, and make the people who look."""
    settings.CRONDUCTOR = {"CACHE": "locks", "PREFIX": prefix}
    settings.MIDDLEWARE = [STRICT, *settings.MIDDLEWARE]
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]  # The usual one is slow on purpose.
    superuser(password="secret")
    person("viewer", "view_declaredjob", "view_jobrun", password="secret")
    person("outsider", staff=False, password="secret")
    with world() as made:
        yield made


@pytest.fixture
def browser(cron: World, live_server: LiveServer, chromium: Any) -> Iterator[Browser]:
    """Return the browser, logged out; what it complained about fails the test."""
    shown = Browser(chromium, live_server.url)
    shown.forget()
    yield shown
    assert shown.complaints() == []
