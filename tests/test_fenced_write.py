"""The documented fenced write: a run that was superseded cannot overwrite what the later one wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import connection

import django_cronductor
from django_cronductor import JobRegistry, RunContext, Scheduler, signals
from django_cronductor.backends.local import LocalBackend
from django_cronductor.testing import ManualClock

PAGE = Path(__file__).resolve().parent.parent / "docs" / "fencing.rst"

pytestmark = pytest.mark.django_db


def statement(start: str) -> str:
    """Return an SQL statement of the recipe, as the page has it."""
    [found] = re.findall(rf"^ +({start} [^;\"]+);", PAGE.read_text(), re.MULTILINE)
    return " ".join(found.split())


def recipe() -> str:
    """Return the Python code of the recipe, as the page has it."""
    text = PAGE.read_text()
    [block] = re.findall(r"\.\. code-block:: python\n\n((?:    .*\n|\n)+)", text[text.index("A fenced write") :])
    return "\n".join(line[4:] for line in block.splitlines())


@pytest.fixture(autouse=True)
def table() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute(statement("CREATE TABLE"))
        cursor.execute(statement("INSERT"))
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE report")


def write(total: int, fence: int) -> int:
    """Write as the page says; return how many rows took it."""
    with connection.cursor() as cursor:
        cursor.execute(statement("UPDATE"), [total, fence, "daily", fence])
        return int(cursor.rowcount)


def total() -> int:
    with connection.cursor() as cursor:
        cursor.execute("SELECT total FROM report")
        return int(cursor.fetchone()[0])


def test_a_write_with_an_older_token_changes_nothing() -> None:
    assert write(1, 33) == 1
    assert write(2, 34) == 1
    assert write(3, 33) == 0
    assert total() == 2


def test_a_run_may_write_more_than_once_under_its_token() -> None:
    assert write(1, 33) == 1
    assert write(2, 33) == 1
    assert total() == 2


def test_the_documented_job_gives_way_to_the_run_that_replaced_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    backend = LocalBackend(clock=clock)
    registry = JobRegistry()
    monkeypatch.setattr(django_cronductor, "cron", registry.cron)
    results = iter([1, 2])

    def compute() -> int:
        """Take so long, the first time, that the lease ends and another replica runs the next occurrence."""
        result = next(results)
        if result == 1:
            clock.advance(3600)
            other.tick()
        return result

    exec(compile(recipe(), str(PAGE), "exec"), {"compute": compute})
    ended: list[tuple[str, str]] = []

    def note(sender: object, context: RunContext, outcome: str, error: BaseException | None, **kwargs: object) -> None:
        ended.append((outcome, str(error)))

    signals.job_finished.connect(note)
    try:
        first, other = (Scheduler(registry, backend, clock=clock, inline=True) for _ in range(2))
        first.tick()
        other.tick()
        clock.advance(3600)
        first.tick()
    finally:
        signals.job_finished.disconnect(note)

    assert ended == [("succeeded", "None"), ("lost", "A later run has written already.")]
    assert total() == 2
