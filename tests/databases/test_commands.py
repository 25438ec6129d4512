"""Commands as processes on a database of their own, empty at first."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests.databases.processes import DEADLINE, outcome, project_environment, start

pytestmark = pytest.mark.faults

# In one process: what a deployment does before there are tables.
BEFORE_MIGRATE = """
import django
from django.core.management import call_command
django.setup()
call_command("check", "--deploy", "--database", "default", "--fail-level", "ERROR")
call_command("collectstatic", interactive=False, dry_run=True)
call_command("makemigrations", check_changes=True, dry_run=True)
call_command("showmigrations", "django_cronductor")
call_command("cron", "next", "project.tick")
"""


@pytest.fixture
def environment(empty_database: Callable[[str], dict[str, Any]]) -> dict[str, str]:
    """Return the environment of processes on an empty database."""
    return project_environment(empty_database("cronductor_project"))


def test_before_migrate_all_else_works_and_runcron_says_what_is_missing_and_after_it_runs(
    environment: dict[str, str],
) -> None:
    code, said = outcome(environment, "-c", BEFORE_MIGRATE)
    assert code == 0, said
    assert "No changes detected" in said
    assert "[ ] 0001_initial" in said
    assert "project.tick" in said

    for arguments in (["runcron"], ["runcron", "--once"]):
        code, said = outcome(environment, "-m", "django", *arguments)
        assert code == 1, said
        assert "run migrate first" in said
        assert "Traceback" not in said

    code, said = outcome(environment, "-m", "django", "migrate", "-v", "0")
    assert code == 0, said

    with start(environment, "-u", "-m", "django", "runcron") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] and lines.count("tick\n") < 2:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=DEADLINE)
    assert process.returncode == 0, "".join(lines) + rest
    assert lines.count("tick\n") == 2, "".join(lines)
    assert "does not take" not in "".join(lines) + rest

    count = "from django_cronductor.models import JobRun; print(JobRun.objects.filter(outcome='succeeded').count())"
    code, said = outcome(environment, "-c", f"import django; django.setup(); {count}")
    assert code == 0, said
    assert int(said) >= 2


def test_without_any_database_runcron_says_how_to_do_without_history(environment: dict[str, str]) -> None:
    code, said = outcome({**environment, "PROJECT_DATABASE": "{}"}, "-m", "django", "runcron")
    assert code == 1
    assert 'CRONDUCTOR["HISTORY"] can be 0' in said
    assert "Traceback" not in said


def test_a_killed_run_of_the_single_instance_backend_is_reported_when_the_process_is_started_again(
    environment: dict[str, str],
) -> None:
    """Its lease was in the memory of that process: its row is all that is left of it."""
    code, said = outcome(environment, "-m", "django", "migrate", "-v", "0")
    assert code == 0, said
    with start({**environment, "PROJECT_HANGS": "1"}, "-u", "-m", "django", "runcron") as process:
        read_until(process, "hangs\n")
        process.kill()
    with start(environment, "-u", "-m", "django", "runcron") as process:
        line = read_until(process, "project.hang: the run of ")
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=DEADLINE)
    assert "was abandoned: it has no lease, and its holder has gone" in line
    # Of a tick in the moment of the kill the same may be said: its end was not written yet.
    assert "project.hang" not in rest

    outcomes = "print(list(JobRun.objects.filter(job_key='project.hang').values_list('outcome', flat=True)))"
    code, said = outcome(
        environment, "-c", f"import django; django.setup(); from django_cronductor.models import JobRun; {outcomes}"
    )
    assert (code, said) == (0, "['abandoned']\n")


def read_until(process: subprocess.Popen[str], wanted: str) -> str:
    """Return the first line of a process's output in which this stands."""
    assert process.stdout is not None
    read = []
    for line in process.stdout:
        read.append(line)
        if wanted in line:
            return line
    raise AssertionError(f"{wanted!r} is not in:\n{''.join(read)}")
