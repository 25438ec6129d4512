"""How long the admin's pages take with many jobs and very many runs, and how many queries they make."""

from __future__ import annotations

import argparse
import json
import os
import time
from datetime import datetime, timedelta, timezone

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.admin_settings"

import django

if __name__ == "__main__":
    django.setup()
from django.contrib import admin
from django.urls import path

urlpatterns = [path("admin/", admin.site.urls)]
JOBS = 1000
DAYS = 4
"""How long ago the first run was: a job of every five minutes has about a thousand in that time."""
PAGES = {
    "list of jobs": "/admin/django_cronductor/declaredjob/",
    "page of a job": "/admin/django_cronductor/declaredjob/job-7/change/",
    "list of runs": "/admin/django_cronductor/jobrun/",
}


def fill(rows: int) -> None:
    """Declare the jobs, and make so many runs of the last days."""
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.db import connection

    from benchmarks.contenders.work import nothing
    from django_cronductor import registry
    from django_cronductor.backends import create_backend
    from django_cronductor.backends.base import Declaration
    from django_cronductor.models import DeclaredJob, JobRun

    call_command("migrate", verbosity=0)
    User.objects.create_superuser("root")
    now = datetime.now(timezone.utc)
    first = now - timedelta(days=DAYS)
    jobs = [registry.schedule("*/5 * * * *", nothing, key=f"job-{number}") for number in range(JOBS)]
    create_backend().declare([Declaration(job.key, "print", 30_000) for job in jobs])
    DeclaredJob.objects.bulk_create(
        DeclaredJob(key=job.key, expression=job.expression, timezone="UTC", fingerprint="print", since=0, last_seen=now)
        for job in jobs
    )
    JobRun.objects.create(
        run_id="first", job_key="job-0", trigger="schedule", outcome="succeeded", scheduled_at=now, started_at=now
    )
    names = [field.column for field in JobRun._meta.local_fields if not field.primary_key]
    made = {
        "run_id": "'run-' || n",
        "job_key": f"'job-' || (n % {JOBS})",
        "slot": "n * 1000",
        "outcome": "CASE n % 50 WHEN 0 THEN 'failed' ELSE 'succeeded' END",
        "started_at": f"datetime('{first:%Y-%m-%d %H:%M:%S}', (n * {DAYS * 86400} / {rows}) || ' seconds')",
    }
    made["scheduled_at"] = made["finished_at"] = made["started_at"]
    values = ", ".join(made.get(name, f"first.{name}") for name in names)
    with connection.cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE numbers(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {rows}) "
            f"INSERT INTO {JobRun._meta.db_table} ({', '.join(names)}) "
            f"SELECT {values} FROM numbers, {JobRun._meta.db_table} AS first WHERE first.run_id = 'first'"
        )
        cursor.execute("ANALYZE")


def main() -> None:
    """Print the seconds of each page, and the queries."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    fill(options.rows)
    from django.contrib.auth.models import User
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    client = Client()
    client.force_login(User.objects.get())
    found: dict[str, dict[str, object]] = {}
    for name, address in PAGES.items():
        assert client.get(address).status_code == 200, address  # The first one loads templates.
        took = []
        for _ in range(options.repeats):
            began = time.perf_counter()
            client.get(address)
            took.append(time.perf_counter() - began)
        with CaptureQueriesContext(connection) as queries:
            client.get(address)
        found[name] = {"took": took, "queries": len(queries)}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
