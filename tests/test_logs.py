"""Log records, for formats and shippers that name their fields."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from django_cronductor.logs import FIELDS, get_logger
from tests.scheduler_world import LocalStore, World, at, end_runs, start_runs


def test_the_fields_are_those_that_are_documented() -> None:
    assert set(FIELDS) == {"job", "scheduled_at", "outcome", "instance", "fencing_token", "duration", "lateness"}


def test_fields_that_do_not_apply_are_none(caplog: pytest.LogCaptureFixture) -> None:
    get_logger("django_cronductor.some", instance="host:1").warning("It is so.", extra={"job": "shop.sync", "count": 3})
    [record] = caplog.records
    assert (record.job, record.instance, record.outcome, record.count) == ("shop.sync", "host:1", None, 3)  # type: ignore[attr-defined]
    assert record.name == "django_cronductor.some"


def test_a_record_names_the_line_that_logs(caplog: pytest.LogCaptureFixture) -> None:
    logger = get_logger("django_cronductor.some")
    logger.warning("one")
    logger.log(logging.ERROR, "two")
    try:
        raise ValueError("three")
    except ValueError:
        logger.exception("three")
    name = "test_a_record_names_the_line_that_logs"
    assert [(record.filename, record.funcName) for record in caplog.records] == [("test_logs.py", name)] * 3


class Broken(logging.Handler):
    """A handler that raises, which none should do."""

    def emit(self, record: logging.LogRecord) -> None:
        raise OSError("no log")


@pytest.fixture
def broken_log() -> Iterator[None]:
    logger, handler = logging.getLogger("django_cronductor"), Broken()
    logger.addHandler(handler)
    yield
    logger.removeHandler(handler)


@pytest.mark.usefixtures("broken_log")
def test_a_handler_that_raises_is_shown_and_ends_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    get_logger("django_cronductor.some").error("It is so.")
    assert "OSError: no log" in capsys.readouterr().err


@pytest.mark.django_db
@pytest.mark.usefixtures("broken_log")
def test_jobs_run_on_though_nothing_can_be_logged() -> None:
    world = World(LocalStore())
    try:
        world.job("* * * * *", body=lambda context: 1 / 0)
        replica = world.replica(inline=False, max_workers=1)
        world.tick()
        for minute in range(1, 4):
            world.until(at(12, minute))
            start_runs(world, replica, minute)
            end_runs(world, replica)
        assert world.outcomes() == ["failed"] * 3
    finally:
        world.close()


@pytest.mark.django_db
def test_every_record_of_the_loop_can_be_shown_by_a_format_that_names_all_fields(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG, "django_cronductor")
    world = World(LocalStore())
    try:
        world.job("* * * * *", grace=30, ttl=10)
        world.job("* * * * *", key="failing", body=lambda context: 1 / 0)
        replica = world.replica(ahead=300.0)
        world.replica()
        world.tick()
        world.go(at(12, 2))
        replica.link.broken = {"all"}
        world.go(at(12, 2, 30))
        replica.link.broken = set()
        world.go(at(12, 3, 30))
        world.flush()
        world.go(at(12, 4))
        world.step_store(-600)
        world.go(at(12, 4, 10))
    finally:
        world.close()
    form = logging.Formatter(" ".join(f"%({field})s" for field in FIELDS))
    records = [record for record in caplog.records if record.name.startswith("django_cronductor")]
    texts = " ".join(record.getMessage() for record in records)
    for told in ("started", "failed after", "store failed", "is back", "lost its data", "clock went back", "ahead of"):
        assert told in texts
    assert all(form.format(record) for record in records)
    assert {"replica-1", "replica-2"} <= {record.instance for record in records}  # type: ignore[attr-defined]
