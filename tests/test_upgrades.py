"""The tables in a rolling deploy: the version before this one goes on writing its rows."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.operations import AddField
from django.utils import timezone

from django_cronductor.exceptions import ConfigurationError
from django_cronductor.history import DatabaseHistory
from django_cronductor.models import DeclaredJob, JobRun

APP = "django_cronductor"
FIRST = (APP, "0001_initial")


def executor() -> MigrationExecutor:
    return MigrationExecutor(connection)


@pytest.mark.django_db
def test_the_first_version_can_write_its_rows_into_the_tables_of_this_one() -> None:
    apps = executor().loader.project_state([FIRST]).apps
    run: Any = apps.get_model(APP, "JobRun")
    run.objects.create(run_id="a", job_key="shop.sync", slot=1, outcome="running")
    job: Any = apps.get_model(APP, "DeclaredJob")
    job.objects.create(
        key="shop.sync", expression="* * * * *", timezone="UTC", fingerprint="f", since=1, last_seen=timezone.now()
    )
    assert JobRun.objects.get().task_result_id == ""
    assert DeclaredJob.objects.get().key == "shop.sync"


@pytest.mark.django_db
def test_every_column_that_was_added_may_be_left_out_by_who_does_not_know_it() -> None:
    added = [
        (name, operation.name, operation.field)
        for (app, name), migration in executor().loader.disk_migrations.items()
        if app == APP
        for operation in migration.operations
        if isinstance(operation, AddField)
    ]
    assert added
    assert [(name, field) for name, field, column in added if not (column.null or column.has_db_default())] == []


@pytest.mark.django_db
def test_a_table_without_a_column_of_this_version_is_said_to_need_migrate(monkeypatch: pytest.MonkeyPatch) -> None:
    history = DatabaseHistory(keep=5, inline=True)
    history.check()
    describe = connection.introspection.get_table_description

    def of_the_version_before(cursor: Any, table: str) -> list[Any]:
        return [column for column in describe(cursor, table) if column.name != "task_result_id"]

    monkeypatch.setattr(connection.introspection, "get_table_description", of_the_version_before)
    with pytest.raises(
        ConfigurationError, match=rf"no column {JobRun._meta.db_table}\.task_result_id: run migrate first"
    ):
        history.check()
