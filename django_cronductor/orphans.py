"""Runs that have no end in the history, and nobody left who could write one."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from django_cronductor.backends.base import JobState, LockBackend
from django_cronductor.clock import Clock
from django_cronductor.exceptions import BackendError
from django_cronductor.records import History, OpenRun

LOOK_EVERY = 30.0
"""Seconds from one look to the next."""


class Orphans:
    """
    Looks for runs whose holder has gone without a trace in the store: in a flush, or with the memory that it was.

    A dead run is usually seen by its lease, which the next claim finds. Where that is lost, its row in the history is
    all that is left. It is given up when two looks in a row find neither its lease nor its holder, or at once where
    that cannot be a mistake. `report` is told of each, on one replica only. `post` calls what it is given in the
    loop's thread, in which all else here is called, too.
    """

    def __init__(
        self,
        backend: LockBackend,
        history: History,
        clock: Clock,
        post: Callable[[Callable[[], object]], object],
        report: Callable[[OpenRun], object],
    ) -> None:
        self._backend = backend
        self._history = history
        self._clock = clock
        self._post = post
        self._report = report
        self._suspected: set[str] = set()
        self._look_at = clock.monotonic()
        self._asking = False

    def tick(self) -> None:
        """Look, if it is time to. Whether the history answers, and when, is not waited for."""
        now = self._clock.monotonic()
        if self._look_at <= now and not self._asking:
            self._look_at, self._asking = now + LOOK_EVERY, True
            self._history.open_runs(lambda runs: self._post(partial(self._sift, runs)))

    def _sift(self, runs: list[OpenRun]) -> None:
        self._asking = False
        try:
            orphans = self._without_holder(runs)
        except BackendError:
            return  # Nothing is known now: what was suspected is so still.
        for run in orphans:
            if run.id in self._suspected or self._is_surely_gone(run):
                self._history.give_up(run, partial(self._post, partial(self._report, run)))
        self._suspected = {run.id for run in orphans}

    def _without_holder(self, runs: list[OpenRun]) -> list[OpenRun]:
        """Return those of which the store knows neither a holder who lives nor a lease, not even one that has ended."""
        alive = self._backend.instances() if runs else {}
        missing = [run for run in runs if run.holder not in alive and not self._is_at_work(run)]
        if not missing:
            return []
        keys = sorted({run.key for run in missing})
        states = dict(zip(keys, self._backend.states(keys).answers, strict=True))
        return [run for run in missing if _is_without_lease(run, states[run.key])]

    def _is_at_work(self, run: OpenRun) -> bool:
        """Tell whether it is another process of this machine, of which a store in this one's memory knows nothing."""
        return not self._backend.shared and _holder_lives(run) is True

    def _is_surely_gone(self, run: OpenRun) -> bool:
        return not self._backend.shared and _holder_lives(run) is False


def _is_without_lease(run: OpenRun, state: JobState | BackendError) -> bool:
    """Tell whether the store has no lease of a run; where it fails on that job alone, it may have one."""
    if isinstance(state, BackendError):
        return False
    return state.lease is None or state.lease.token != run.id


def _holder_lives(run: OpenRun) -> bool | None:
    """Tell whether a process of this machine lives that has a run; None: it is another's, or cannot be told."""
    host, _, number = run.holder.rpartition(":")[0].rpartition(":")
    if os.name != "posix" or host != socket.gethostname() or not number.isdecimal():
        return None
    process = int(number)
    if process == os.getpid():
        return False  # Another one that had this number, or its instance would be known here.
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # It is another user's.
    began = _beginning_of(process)
    # Numbers come again: after a restart of the machine, or of a container, many are those of other processes.
    return began is None or run.started_at is None or began <= run.started_at.timestamp() + 1.0


def _beginning_of(process: int) -> float | None:
    """Return when a process began, in seconds since the epoch; None where the system does not tell as Linux does."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, IndexError, ValueError):
        return None
    return time.time() - age
