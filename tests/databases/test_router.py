"""A history that a router keeps in a database of its own, with a replica for reading that has heard of nothing yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections
from django.test import override_settings
from pytest_django import DjangoDbBlocker

from django_cronductor.backends.base import Seeds
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.history import DatabaseHistory, in_transaction
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.records import DeadRecord
from tests.history_records import MINUTE, NOON, SLOT, finish, job, run, skip

WRITTEN, LAGGING = "history", "lagging"


class Router:
    """Writes the history to one database and reads it from another."""

    def db_for_read(self, model: type, **hints: Any) -> str | None:
        return LAGGING if model in (DeclaredJob, JobRun) else None

    def db_for_write(self, model: type, **hints: Any) -> str | None:
        return WRITTEN if model in (DeclaredJob, JobRun) else None


@pytest.fixture
def routed(
    empty_database: Callable[[str], dict[str, Any]], django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[None]:
    """
    Have two more databases and the router; the tables are missing yet.

    Not by the mark `django_db`, which allows only databases that the settings have.
    """
    added = {alias: empty_database(f"cronductor_{alias}") for alias in (WRITTEN, LAGGING)}
    complete = connections.configure_settings({"default": {}, **added})
    before = connections.settings
    # Another dict, not a change of this one: threads of earlier tests may be going through it.
    connections.settings = before | {alias: complete[alias] for alias in added}
    with django_db_blocker.unblock(), override_settings(DATABASE_ROUTERS=[Router()]):
        yield
        for alias in added:
            connections[alias].close()
            del connections[alias]
        connections.settings = before


@pytest.fixture
def migrated(routed: None) -> None:
    for alias in (WRITTEN, LAGGING):
        call_command("migrate", "django_cronductor", database=alias, verbosity=0)


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=3, inline=True)


@pytest.fixture
def answers() -> list[bool]:
    return []


def rows(alias: str) -> list[str]:
    return list(JobRun.objects.using(alias).order_by("id").values_list("outcome", flat=True))


def test_missing_tables_are_missed_where_the_history_is_written(routed: None, history: DatabaseHistory) -> None:
    with pytest.raises(ConfigurationError, match="run migrate"):
        history.check()


def test_tables_are_looked_for_there(migrated: None, history: DatabaseHistory) -> None:
    history.check()
    assert not in_transaction()


def test_all_is_written_there_and_read_there(migrated: None, history: DatabaseHistory, answers: list[bool]) -> None:
    history.declared([job()])
    history.begun(run(0), answers.append)
    history.begun(run(0, id="again"), answers.append)
    history.begun(run(1), answers.append)
    finish(history, run(0))
    history.abandoned(DeadRecord("shop.sync", SLOT + MINUTE, 0, "host:1:a", 8))
    history.skipped(skip(2))
    history.skipped(skip(3))
    assert answers == [True, False, True]
    assert rows(WRITTEN) == ["succeeded", "abandoned", "held"]
    assert rows(LAGGING) == []


def test_it_is_pruned_there(migrated: None, history: DatabaseHistory, answers: list[bool]) -> None:
    for number in range(20):
        history.begun(run(number), answers.append)
        finish(history, run(number))
    assert len(rows(WRITTEN)) < 6


def test_seeds_are_what_was_written_and_not_what_a_replica_has_heard(
    migrated: None, history: DatabaseHistory, answers: list[bool]
) -> None:
    history.declared([job()])
    history.begun(run(0), answers.append)
    DeclaredJob.objects.using(WRITTEN).update(paused_at=NOON)
    assert history.seeds(["shop.sync"], ["print"], 1.0) == [
        Seeds(occurrence=SLOT, fence=7, paused=True, since=SLOT - 5 * MINUTE)
    ]
