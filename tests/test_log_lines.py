"""The log on stderr of a project that has no logging for us."""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_cronductor.management import log_lines
from django_cronductor.management.log_lines import LineHandler

DEADLINE = 10.0


class Stream(io.StringIO):
    """A stream that waits in a write until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.begun = threading.Event()
        self.go_on = threading.Event()
        self.go_on.set()

    def write(self, text: str) -> int:
        self.begun.set()
        assert self.go_on.wait(DEADLINE)
        self.writes.append(text)
        return len(text)


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Stream:
    stream = Stream()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


@pytest.fixture
def logger(stream: Stream) -> logging.Logger:
    logger = logging.Logger("lines")  # noqa: LOG001 - It is of this test alone.
    handler = LineHandler()
    handler.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(handler)
    return logger


def in_thread(call: Callable[..., object], *args: Any) -> threading.Thread:
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def join(*threads: threading.Thread) -> None:
    for thread in threads:
        thread.join(DEADLINE)
        assert not thread.is_alive()


def stand_still(stream: Stream, logger: logging.Logger) -> threading.Thread:
    """Let a thread stand in the write of a line."""
    stream.go_on.clear()
    stream.begun.clear()
    writer = in_thread(logger.info, "first")
    assert stream.begun.wait(DEADLINE)
    return writer


def test_each_line_is_written_at_once(stream: Stream, logger: logging.Logger) -> None:
    logger.info("%s started.", "shop.sync")
    assert stream.writes == ["INFO shop.sync started.\n"]
    logger.error("second")
    assert stream.writes[1:] == ["ERROR second\n"]


def test_who_logs_while_another_writes_does_not_wait_and_its_line_is_not_lost(
    stream: Stream, logger: logging.Logger
) -> None:
    writer = stand_still(stream, logger)
    join(*[in_thread(logger.info, "line of thread %d", number) for number in range(5)])
    logger.info("last")
    assert stream.writes == []
    stream.go_on.set()
    join(writer)
    first, others = stream.writes
    assert first == "INFO first\n"
    assert sorted(others.splitlines()[:-1]) == [f"INFO line of thread {number}" for number in range(5)]
    assert others.splitlines()[-1] == "INFO last"


def test_who_logs_while_very_many_lines_wait_waits_too(
    stream: Stream, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "MOST_WAITING", 3)
    writer = stand_still(stream, logger)
    for number in range(3):
        logger.info("%d", number)
    one_too_many = in_thread(logger.info, "3")
    one_too_many.join(0.1)
    assert one_too_many.is_alive()
    stream.go_on.set()
    join(writer, one_too_many)
    assert "".join(stream.writes) == "INFO first\nINFO 0\nINFO 1\nINFO 2\nINFO 3\n"


def test_nobody_writes_for_the_others_for_ever(
    stream: Stream, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_lines, "MOST_ROUNDS", 1)
    writer = stand_still(stream, logger)
    other = in_thread(logger.info, "second")
    other.join(0.1)
    assert other.is_alive()
    stream.go_on.set()
    join(writer, other)
    logger.info("third")
    assert "".join(stream.writes) == "INFO first\nINFO second\nINFO third\n"


def test_a_flush_waits_until_all_is_written(stream: Stream, logger: logging.Logger) -> None:
    writer = stand_still(stream, logger)
    logger.info("second")
    flush = in_thread(logger.handlers[0].flush)
    flush.join(0.1)
    assert flush.is_alive()
    stream.go_on.set()
    join(flush)
    assert "".join(stream.writes) == "INFO first\nINFO second\n"
    join(writer)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_a_process_that_is_forked_within_a_write_writes_its_own_lines(stream: Stream, logger: logging.Logger) -> None:
    writer = stand_still(stream, logger)
    logger.info("second")
    reader, end = os.pipe()
    child = os.fork()
    if not child:
        stream.go_on = threading.Event()
        stream.go_on.set()
        logger.info("of the child")
        os.write(end, "".join(stream.writes).encode())
        os._exit(0)
    os.close(end)
    with os.fdopen(reader) as pipe:
        assert pipe.read() == "INFO of the child\n"
    assert os.waitpid(child, 0)[1] == 0
    stream.go_on.set()
    join(writer)
    assert "".join(stream.writes) == "INFO first\nINFO second\n"


@pytest.mark.parametrize("most", [log_lines.MOST_WAITING, -1])
def test_a_line_that_is_logged_within_a_write_follows_it(
    stream: Stream, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(log_lines, "MOST_WAITING", most)
    flushed: list[str] = []

    def flush() -> None:  # As a signal that comes just then.
        if not flushed:
            flushed.append("once")
            logger.warning("within")

    monkeypatch.setattr(stream, "flush", flush)
    logger.info("first")
    assert stream.writes == ["INFO first\n", "WARNING within\n"]


def test_what_cannot_be_written_or_shown_stops_nothing(
    stream: Stream, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed: list[str] = []
    monkeypatch.setattr(logging.Handler, "handleError", lambda self, record: failed.append(str(record.msg)))

    def full(text: str) -> int:
        raise OSError(28, "No space left on device")

    writer = stand_still(stream, logger)
    logger.info("second")
    with monkeypatch.context() as patch:
        patch.setattr(stream, "write", full)
        stream.go_on.set()
        join(writer)
    logger.info("%d", "no number")
    logger.info("shown")
    assert failed == ["second", "%d"]
    assert stream.writes == ["INFO first\n", "INFO shown\n"]


def test_its_filters_are_asked(stream: Stream, logger: logging.Logger) -> None:
    logger.handlers[0].addFilter(lambda record: "quiet" not in record.getMessage())
    logger.info("quiet please")
    logger.info("loud")
    assert stream.writes == ["INFO loud\n"]


@pytest.mark.skipif(sys.version_info < (3, 12), reason="a filter can give another record from Python 3.12 on")
def test_a_filter_may_give_another_record(stream: Stream, logger: logging.Logger) -> None:
    other = logging.makeLogRecord({"levelname": "NOTE", "msg": "another"})
    logger.handlers[0].addFilter(lambda record: other)
    logger.info("one")
    assert stream.writes == ["NOTE another\n"]
