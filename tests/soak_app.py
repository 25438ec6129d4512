"""The app of the soak's replicas, and a backend that writes down what was asked and what was heard."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from django_cronductor.backends.base import Claim, ClaimResult, DeadRun, Release, ReleaseResult, Reply
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.exceptions import BackendError
from tests.faults.project import journal
from tests.faults.project.apps import ProjectConfig

T = TypeVar("T")


class SoakConfig(ProjectConfig):
    """As in the fault tests: write down what the signals tell, and end with the driver."""

    name = "tests"
    label = "soak"


class RecordingBackend(RedisBackend):
    """
    Write down every question that may decide something, and every answer that is heard.

    What nobody told of although it was decided can then be laid to the one who was told, and to what became of him.
    """

    _calls = itertools.count()

    def claim(self, claims: Sequence[Claim], holder: str) -> Reply[ClaimResult]:
        questions = [[one.key, one.occurrence] for one in claims]
        return self._recorded("claim", questions, lambda: super(RecordingBackend, self).claim(claims, holder), _claimed)

    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        questions = [[one.lease.key, one.lease.run] for one in releases]
        return self._recorded("release", questions, lambda: super(RecordingBackend, self).release(releases), _released)

    def _recorded(
        self, kind: str, questions: list[list[Any]], ask: Callable[[], Reply[T]], show: Callable[[Any], dict[str, Any]]
    ) -> Reply[T]:
        number = next(self._calls)
        journal.write("asked", "", None, call=number, kind=kind, questions=questions)
        try:
            reply = ask()
        except BackendError as error:
            journal.write("unanswered", "", None, call=number, error=str(error))
            raise
        answers = [{"failed": str(one)} if isinstance(one, BackendError) else show(one) for one in reply.answers]
        journal.write("answered", "", None, call=number, answers=answers)
        return reply


def _claimed(answer: ClaimResult) -> dict[str, Any]:
    return {"verdict": answer.verdict, "previous": answer.previous, "dead": _dead(answer.dead), "left": answer.left}


def _released(answer: ReleaseResult) -> dict[str, Any]:
    return {"ok": answer.ok, "held": answer.held}


def _dead(dead: DeadRun | None) -> list[Any] | None:
    return None if dead is None else [dead.run, dead.holder, dead.attempt]
