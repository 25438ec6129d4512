"""A large table: what is asked of it, and how it gets smaller."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_cronductor.history import ROWS_PER_QUERY, DatabaseHistory
from django_cronductor.models import JobRun
from django_cronductor.records import DeadRecord
from tests.databases.loop import wait
from tests.history_records import MINUTE, SLOT, end, finish, job, run, skip

ROWS = 200_000
OVER = 5_000
"""Rows of one job that has kept more before; the others have 200 each."""
JOBS = 900

FILL = """
    INSERT INTO django_cronductor_jobrun
        (run_id, job_key, slot, attempt, outcome, {trigger}, started_at, finished_at, lateness, duration, {count},
         holder, fencing_token, error_type, error_message, traceback)
    SELECT {id}, CASE WHEN n <= 5000 THEN 'shop.sync' ELSE {key} END, n, 0, 'succeeded', 'schedule',
        {now}, {now}, 0, 0, 1, '', n, '', '', ''
    FROM {numbers}
"""
DIALECTS = {
    "sqlite": {
        "id": "'row-' || n",
        "key": "'shop.job-' || (n % 900)",
        "now": "'2026-01-05 12:00:00'",
        "numbers": "(WITH RECURSIVE c(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c LIMIT 200000) SELECT n FROM c)",
    },
    "postgresql": {
        "id": "'row-' || n",
        "key": "'shop.job-' || (n % 900)",
        "now": "timestamptz '2026-01-05 12:00:00+00'",
        "numbers": "generate_series(1, 200000) n",
    },
    "mysql": {
        "id": "concat('row-', n)",
        "key": "concat('shop.job-', n % 900)",
        "now": "'2026-01-05 12:00:00'",
        "numbers": "(SELECT seq n FROM seq_1_to_200000) numbers",
    },
}


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=100, inline=True)


@pytest.fixture
def large_table(db: None) -> None:
    quote = connection.ops.quote_name
    text = FILL.format(**DIALECTS[connection.vendor], trigger=quote("trigger"), count=quote("count"))
    with connection.cursor() as cursor:
        cursor.execute(text)
        if connection.vendor != "mysql":  # There it would end the transaction.
            cursor.execute("ANALYZE")  # What a database does by itself, sooner or later.
    assert JobRun.objects.count() == ROWS


def reads_all(sql: str) -> bool:
    """Tell whether the database would go through the whole table for this."""
    explain = "EXPLAIN QUERY PLAN" if connection.vendor == "sqlite" else "EXPLAIN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {sql}".replace("%", "%%"), [])
        names = [column[0] for column in cursor.description]
        plan = [dict(zip(names, row, strict=True)) for row in cursor.fetchall()]
    if connection.vendor == "mysql":
        return any(step["type"] == "ALL" for step in plan)
    scan = "SCAN" if connection.vendor == "sqlite" else "Seq Scan"
    return any(scan in str(step) for step in plan)


def statements(queries: CaptureQueriesContext) -> list[str]:
    """Return what touches rows, without the transactions around."""
    texts = [query["sql"].strip() for query in queries.captured_queries]
    return [text for text in texts if text.startswith(("SELECT", "UPDATE", "DELETE", "INSERT"))]


@pytest.mark.usefixtures("large_table")
class TestWithManyRows:
    def test_what_is_done_for_a_run_goes_by_an_index_and_seeds_take_few_queries(self, history: DatabaseHistory) -> None:
        with CaptureQueriesContext(connection) as queries:
            history.declared([job("shop.job-1")])
            record = run(key="shop.job-1")
            history.begun(record, lambda ours: None)
            finish(history, record)
            history.abandoned(DeadRecord("shop.job-1", SLOT + MINUTE, 0, "host:1:a", 8))
            history.abandoned(DeadRecord("shop.job-1", None, 0, "host:1:a", 9))
            history.skipped(replace(skip(2), key="shop.job-1"))
            history.skipped(replace(skip(3), key="shop.job-1"))
            history.seeds(["shop.job-1"], ["print"], 1.0)
            history._over["shop.job-1"] = None
            history._work()
        asked = [text for text in statements(queries) if "jobrun" in text and not text.startswith("INSERT")]
        assert len(asked) > 9
        assert [text for text in asked if reads_all(text)] == []
        # The seeds of many jobs take a few queries.
        keys = [f"shop.job-{number}" for number in range(JOBS) if number != 1]
        with CaptureQueriesContext(connection) as queries:
            seeds = history.seeds(keys, ["print"] * len(keys), 1.0)
        assert all(one.occurrence == one.fence and one.occurrence > OVER for one in seeds)
        assert len(queries) == 2 * -(-JOBS // ROWS_PER_QUERY)

    def test_a_job_that_has_far_too_many_is_pruned_a_part_at_a_time(self, history: DatabaseHistory) -> None:
        history._over["shop.sync"] = None
        with CaptureQueriesContext(connection) as queries:
            history._write_batch()
        assert JobRun.objects.filter(job_key="shop.sync").count() == OVER - ROWS_PER_QUERY
        assert len(statements(queries)) == 3
        answers: list[bool] = []
        history._batch.begun.append((run(), answers.append))
        history._write_batch()
        assert answers == [True], "a start does not wait until all is pruned"
        history._work()
        assert JobRun.objects.filter(job_key="shop.sync", outcome="succeeded").count() == 100
        assert JobRun.objects.count() == ROWS - OVER + 100 + 1


class Interrupted(DatabaseHistory):
    """A history that is told of a start while it prunes."""

    def __init__(self, interrupt: Callable[[], object]) -> None:
        super().__init__(keep=10)
        self._interrupt: Callable[[], object] | None = interrupt

    def _prune(self, key: str) -> None:
        if self._interrupt is not None:
            self._interrupt()
            self._interrupt = None
        super()._prune(key)


@pytest.mark.django_db(transaction=True)
def test_a_start_does_not_wait_until_all_is_pruned() -> None:
    JobRun.objects.bulk_create(
        JobRun(run_id=f"old-{number}", job_key="shop.sync", slot=number, outcome="succeeded") for number in range(3_000)
    )
    old = JobRun.objects.filter(run_id__startswith="old")
    left: list[int] = []
    history = Interrupted(lambda: history.begun(run(1), lambda ours: left.append(old.count())))
    finish(history, run(0))
    wait("all to be pruned", lambda: old.count() < 10)
    assert history.flush(60)
    end(history)
    assert left[0] > 2_000
