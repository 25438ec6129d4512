"""The pages in another site than the default one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
from django.contrib import admin
from django.test import Client
from django.urls import path

from django_cronductor.admin import JobAdmin, JobRunAdmin
from django_cronductor.models import DeclaredJob, JobRun
from tests.admin_world import ACTIONS, World, superuser, world

pytestmark = pytest.mark.django_db

staff = admin.AdminSite("staff")
staff.register(DeclaredJob, JobAdmin)
staff.register(JobRun, JobRunAdmin)
support = admin.AdminSite("support")
support.register(JobRun, JobRunAdmin)
# The default site is elsewhere, and has these models, too.
urlpatterns = [path("staff/", staff.urls), path("admin/", admin.site.urls), path("support/", support.urls)]
ROOT = "/staff/django_cronductor/"


@pytest.fixture
def cron(settings: Any, prefix: str) -> Iterator[World]:
    settings.CRONDUCTOR = {"CACHE": "locks", "PREFIX": prefix}
    settings.ROOT_URLCONF = __name__
    with world() as made:
        yield made


def test_every_page_leads_to_pages_of_the_same_site(client: Client, cron: World) -> None:
    client.force_login(superuser())
    cron.job()
    cron.row()
    cron.begins()
    run = cron.run(outcome="failed")
    job = f"{ROOT}declaredjob/shop.sync/"
    pages = [
        f"{ROOT}declaredjob/",
        f"{job}change/",
        f"{job}history/",
        f"{ROOT}jobrun/",
        f"{ROOT}jobrun/{run.pk}/change/",
    ]
    for page in [*pages, *(f"{job}{name}/" for name in ACTIONS)]:
        response = client.get(page)
        assert response.status_code == 200
        found = {unescape(link) for link in re.findall(r'(?:href|action)="(/[^"]+)"', response.content.decode())}
        assert {link for link in found if not link.startswith(("/staff/", "/static/"))} - {"/"} == set()
    assert client.post(f"{job}resume/").headers["Location"] == f"{job}change/"
    assert client.get(f"{ROOT}declaredjob/no.such/change/").headers["Location"] == f"{ROOT}declaredjob/"


def test_a_site_may_have_the_runs_alone(client: Client, cron: World) -> None:
    client.force_login(superuser())
    run = cron.run(outcome="failed")
    for page in ("", f"{run.pk}/change/"):
        response = client.get(f"/support/django_cronductor/jobrun/{page}")
        assert response.status_code == 200
        assert b"shop.sync" in response.content
        assert b"declaredjob" not in response.content
