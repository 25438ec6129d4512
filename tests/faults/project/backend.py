"""A backend in which the process dies at a moment that no signal from outside could hit."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from typing import NoReturn

from django_cronductor.backends.base import Claim, ClaimResult, Release, ReleaseResult, Reply
from django_cronductor.backends.redis import RedisBackend

DIES = os.environ.get("FAULTS_DIES", "")


def die() -> NoReturn:
    """End as by the kernel's hand: nothing more is done, not even a buffer flushed."""
    while True:
        os.kill(os.getpid(), signal.SIGKILL)


class FatalBackend(RedisBackend):
    """Redis, and an end of this process: with a win that nobody heard of yet, before a release, or right after it."""

    def claim(self, claims: Sequence[Claim], holder: str) -> Reply[ClaimResult]:
        reply = super().claim(claims, holder)
        if DIES == "between claim and start" and any(
            isinstance(answer, ClaimResult) and answer.runs for answer in reply.answers
        ):
            die()
        return reply

    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        if DIES == "between end and release":
            die()
        reply = super().release(releases)
        if DIES == "before hearing of its release":
            die()
        return reply
