"""Replicas that enqueue, and workers elsewhere that run what was enqueued."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.databases.processes import DEADLINE, outcome, start

pytestmark = pytest.mark.faults

ENOUGH = 9
"""Tasks of three jobs that are due every second."""
LOOK = """
import django, json
django.setup()
from django_cronductor.models import JobRun
from django_tasks_db.models import DBTaskResult
print(json.dumps({
    "runs": list(JobRun.objects.values("job_key", "slot", "outcome", "task_result_id", "holder")),
    "results": [
        {"id": str(one.id), "status": str(one.status), "returned": one.return_value}
        for one in DBTaskResult.objects.all()
    ],
}))
"""


@pytest.fixture
def environment(tmp_path: Path, redis_url: str, prefix: str) -> dict[str, str]:
    """Return the environment of processes of the project, with a database that has its tables."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.tasks.project.settings",
        "PROJECT_DATABASE": str(tmp_path / "project.sqlite3"),
        "PROJECT_PREFIX": prefix,
        "CRONDUCTOR_TEST_REDIS_URL": redis_url,
    }
    code, said = outcome(environment, "-m", "django", "migrate", "-v", "0")
    assert code == 0, said
    return environment


def look(environment: dict[str, str]) -> dict[str, Any]:
    """Return the runs and the results of tasks that the database has."""
    code, said = outcome(environment, "-c", LOOK)
    assert code == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


def end(process: subprocess.Popen[str]) -> str:
    """Stop a replica in an orderly way and return what it said."""
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, said
    return said


def test_each_occurrence_is_enqueued_by_one_replica_and_run_by_a_worker(environment: dict[str, str]) -> None:
    with ExitStack() as stack:
        replicas = [stack.enter_context(start(environment, "-m", "django", "runcron")) for _ in range(2)]
        deadline = time.monotonic() + DEADLINE
        while len(look(environment)["runs"]) < ENOUGH:
            assert time.monotonic() < deadline
        said = [end(replica) for replica in replicas]
    assert "Traceback" not in "".join(said)
    before = look(environment)
    assert {result["status"] for result in before["results"]} == {"READY"}

    # The worker's log tells of the task that fails.
    code, worked = outcome(
        environment, "-m", "django", "db_worker", "--batch", "--no-startup-delay", "--worker-id", "worker"
    )
    assert code == 0, worked
    after = look(environment)

    runs = after["runs"]
    assert {run["outcome"] for run in runs} == {"enqueued"}
    assert set(Counter((run["job_key"], run["slot"]) for run in runs).values()) == {1}
    results = {result["id"]: result for result in after["results"]}
    # One result for each run, and no other.
    assert sorted(results) == sorted(run["task_result_id"] for run in runs)
    for run in runs:
        result = results[run["task_result_id"]]
        assert result["status"] == ("FAILED" if run["job_key"] == "project.fail" else "SUCCESSFUL")
        if run["job_key"] == "project.fetch":
            assert result["returned"] == run["task_result_id"]
        if run["job_key"] == "project.report":
            assert result["returned"] not in {replica.pid for replica in replicas}
