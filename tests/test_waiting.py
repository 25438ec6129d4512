"""Asking a database that may hang."""

from __future__ import annotations

import threading

import pytest
from django.db import DatabaseError, connections

from django_cronductor.waiting import NoAnswer, within

DEADLINE = 20.0


def test_without_a_limit_it_is_asked_in_this_thread() -> None:
    assert within(None, threading.current_thread) is threading.current_thread()


def test_with_a_limit_it_is_asked_in_another_which_closes_its_connections_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    closed = []
    monkeypatch.setattr(connections, "close_all", lambda: closed.append(threading.current_thread()))
    asked = within(DEADLINE, threading.current_thread)
    assert asked is not threading.current_thread()
    assert closed == [asked]


@pytest.mark.parametrize("seconds", [None, DEADLINE])
def test_what_it_raises_is_raised_here(seconds: float | None) -> None:
    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        within(seconds, fail)


def test_no_answer_is_a_failure_of_the_database() -> None:
    gate = threading.Event()
    with pytest.raises(NoAnswer, match=r"^it has not answered for 0\.01 s$"):
        within(0.01, lambda: gate.wait(DEADLINE))
    gate.set()
    assert issubclass(NoAnswer, DatabaseError)
