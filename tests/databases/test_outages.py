"""A database that hangs, is locked, or goes down: no run waits for it for long, and none is lost."""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection

from django_cronductor.history import DatabaseHistory
from django_cronductor.models import JobRun
from tests.databases.loop import Loop
from tests.databases.observer import Observer
from tests.databases.processes import outcome, project_environment, start
from tests.history_records import end, finish, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.faults]

FAILS = "does not take the history"
WORKS = "takes the history of runs again"
LATEST = 4.0
"""Seconds of lateness that say that nobody waited for the database, on a machine that is busy with other things too."""


class Trouble:
    """Something that befalls a server, and its end."""

    def __init__(self, begin: Callable[[], object], end: Callable[[], object]) -> None:
        self.begin = begin
        self.end = end


@pytest.fixture(params=["hangs", "is locked", "is down"])
def trouble(request: pytest.FixtureRequest, observer: Observer) -> Trouble:
    def revive() -> None:
        observer.server.start()
        observer.reconnect()

    server = observer.server
    return {
        "hangs": Trouble(server.pause, server.resume),
        "is locked": Trouble(lambda: observer.lock("django_cronductor_jobrun"), observer.unlock),
        "is down": Trouble(server.kill, revive),
    }[request.param]


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[Callable[[str], int]]:
    """Return what counts the log lines with a text."""
    with caplog.at_level(logging.INFO, "django_cronductor"):
        yield lambda text: sum(text in record.getMessage() for record in caplog.records)


def outcomes() -> dict[str, int]:
    """Count the rows of runs by their outcomes."""
    connection.close()
    found = list(JobRun.objects.exclude(attempt=-1).values_list("outcome", flat=True))
    connection.close()
    return {outcome: found.count(outcome) for outcome in found}


def test_runs_go_on_and_are_written_when_it_is_over(trouble: Trouble, told: Callable[[str], int]) -> None:
    loop = Loop(workers=2)
    for number in range(6):
        loop.job("*/2 * * * * *", f"shop.job-{number}")
    with loop:
        loop.wait("the first runs", lambda: len(loop.ends) >= 6)
        trouble.begin()
        before = len(loop.starts)
        loop.wait("runs in the outage", lambda: len(loop.starts) >= before + 12)
        trouble.end()
        loop.wait("its end to be told", lambda: told(WORKS))
    assert {outcome for _, outcome in loop.ends} == {"succeeded"}
    assert max(late for _, late in loop.starts) < LATEST
    assert outcomes() == {"succeeded": len(loop.starts)}, "a row for each run, those of the outage too"
    assert len({(context.key, context.scheduled_at) for context, _ in loop.starts}) == len(loop.starts)
    assert (told(FAILS), told(WORKS)) == (1, 1)


def test_a_replica_that_stops_meanwhile_does_not_wait_for_it(observer: Observer, told: Callable[[str], int]) -> None:
    loop = Loop()
    loop.job("* * * * * *", "shop.tick")
    with loop:
        loop.wait("a run", lambda: loop.ends)
        observer.server.pause()
        loop.wait("an outage", lambda: told(FAILS))
        assert loop.stop() < 20, "of which three seconds are for the history"
        observer.server.resume()
    assert told("before all of the history was written") == 1


def test_a_database_that_hangs_at_the_start_is_not_waited_for(observer: Observer, told: Callable[[str], int]) -> None:
    history = DatabaseHistory(keep=10)
    answers: list[bool] = []
    observer.server.pause()
    history.check()
    assert told(FAILS) == 1
    history.begun(run(), answers.append)
    assert answers == [True], "it is known to hang"
    observer.server.resume()
    assert history.flush(60)
    assert told(WORKS) == 1
    end(history)
    assert outcomes() == {"running": 1}


@pytest.mark.parametrize("is_down", [False, True])
def test_the_command_starts_while_the_database_hangs_or_is_down(
    observer: Observer, empty_database: Callable[[str], dict[str, Any]], is_down: bool
) -> None:
    environment = project_environment(empty_database("cronductor_project"))
    assert outcome(environment, "-m", "django", "migrate", "-v", "0") == (0, "")
    if is_down:
        observer.server.kill()
    else:
        observer.server.pause()
    with start(environment, "-u", "-m", "django", "runcron") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline()]
        while lines[-1] and lines.count("tick\n") < 2:
            lines.append(process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        rest, _ = process.communicate(timeout=60)
    if is_down:
        observer.server.start()
        observer.reconnect()
    else:
        observer.server.resume()
    said = "".join(lines) + rest
    assert process.returncode == 0, said
    assert lines.count("tick\n") == 2, said
    assert said.count(FAILS) == 1
    assert "Traceback" not in said


def test_connections_that_were_cut_while_they_were_idle_are_no_outage(
    observer: Observer, told: Callable[[str], int], kept_connections: None
) -> None:
    history = DatabaseHistory(keep=10)
    answers: list[bool] = []
    for number in range(3):
        history.begun(run(number), answers.append)
        finish(history, run(number))
        assert history.flush(60)
        assert observer.cut() == 1
    end(history)
    assert answers == [True] * 3
    assert told(FAILS) == 0
    assert outcomes() == {"succeeded": 3}
