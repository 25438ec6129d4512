"""Locks for any code, on the same backend as the jobs: held and renewed until they are released."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Generic, TypeVar, cast

from django.core.signals import setting_changed

from django_cronductor.backends import create_backend
from django_cronductor.backends.base import (
    Acquired,
    Heartbeat,
    Lease,
    Release,
    ReleaseResult,
    new_instance,
    new_token,
)
from django_cronductor.clock import SystemClock
from django_cronductor.conf import get_config
from django_cronductor.durations import Duration, milliseconds
from django_cronductor.exceptions import (
    BackendError,
    ConfigurationError,
    CronductorError,
    LeaseLost,
    NotAcquired,
    shown,
)
from django_cronductor.handlers import check_handler, is_async_handler, is_generator, is_wrapped_in_itself
from django_cronductor.keys import check_key
from django_cronductor.leases import HeldLease, LeaseKeeper, Phase
from django_cronductor.logs import get_logger
from django_cronductor.runner import refuse_unfinished

logger = get_logger(__name__)

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class ExclusiveResult(Generic[T]):
    """Whether the lock was acquired, and what the function returned if so."""

    acquired: bool
    value: T | None = None


class HeldLock:
    """
    A lock that this process holds, renewed until `release`; a context manager that releases it.

    `fencing_token` rises with every lock taken under the same prefix.
    """

    def __init__(self, holder: _Holder, held: HeldLease) -> None:
        self.key = held.lease.key
        self.fencing_token = held.lease.fence
        self._holder = holder
        self._held = held
        self._released = False

    def __repr__(self) -> str:
        return f"<HeldLock {self.key}, fencing token {self.fencing_token}>"

    @property
    def lost(self) -> bool:
        """
        Tell whether it was lost before its release: another may have the lock. Once true, it stays so.

        In a forked child it is true: a child holds none of its parent's.
        """
        return self._held.lost or not self._holder.is_ours

    def check(self) -> None:
        """Raise LeaseLost if another may have the lock by now: it was lost, or released."""
        if self.lost or self._released:
            what = "lost" if self._held.lost else "not held here any more"
            raise LeaseLost(f"The lock {self.key} (fencing token {self.fencing_token}) is {what}: another may have it.")

    def release(self) -> None:
        """Give the lock back; once is enough. Raises LeaseLost if it was lost before, BackendError if that failed."""
        if self._released or not self._holder.is_ours:
            return
        self._released = True
        lost = self._held.lost
        self._holder.release(self._held)
        if lost:
            raise LeaseLost(f"The lock {self.key} (fencing token {self.fencing_token}) was lost before its release.")

    def __enter__(self) -> HeldLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.release()
        except CronductorError:
            if error is None:
                raise
            # What went wrong inside matters more: it goes on.
            logger.warning("The lock %s could not be released after an error.", self.key, exc_info=True)


class lock:  # noqa: N801 - Used like a function.
    """
    Hold a lock in a with block, or for each call of the decorated function.

    `ttl` is a number of seconds or a timedelta, by default DEFAULT_TTL. Entering raises NotAcquired when another holds
    it, BackendError when the store fails. Leaving raises LeaseLost if the lock was lost on the way.
    """

    def __init__(self, key: str, ttl: Duration | None = None) -> None:
        self._key = key = check_key(key, "The key of a lock")
        self._ttl = ttl
        _milliseconds(key, ttl)  # Refused here rather than at the first call of the decorated function.
        self._held: HeldLock | None = None

    def __enter__(self) -> HeldLock:
        if self._held is not None:
            raise NotAcquired(f"The lock {self._key} is held by this very block already.")
        held, answer = _acquire(self._key, self._ttl)
        if held is None:
            raise NotAcquired(f"The lock {self._key} is held by {answer.holder} for {answer.left / 1000:g} s yet.")
        self._held = held
        return held

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, self._held = self._held, None
        if held is not None:
            held.__exit__(kind, error, trace)

    def __call__(self, func: F) -> F:
        """Return `func` so that each call holds the lock."""
        if not callable(func) or isinstance(func, type) or is_wrapped_in_itself(func):
            raise ConfigurationError(f"lock({self._key!r}) decorates functions, not {shown(func)}.")
        if is_async_handler(func) or is_generator(func):
            raise ConfigurationError(
                f"lock({self._key!r}) cannot decorate {shown(func)}, which works on after its call: use it in a with "
                "block inside."
            )

        @functools.wraps(func)
        def held(*args: Any, **kwargs: Any) -> Any:
            with lock(self._key, self._ttl):
                value = func(*args, **kwargs)
                refuse_unfinished(value, f"lock({self._key!r}): {shown(func)}", "use a with block inside")
                return value

        return cast(F, held)


def try_lock(key: str, ttl: Duration | None = None) -> HeldLock | None:
    """Take a lock, or return None when another holds it. Raises BackendError when the store fails."""
    key = check_key(key, "The key of a lock")
    return _acquire(key, ttl)[0]


def run_exclusive(key: str, func: Callable[[], T], *, ttl: Duration | None = None) -> ExclusiveResult[T]:
    """
    Call `func` under a lock, or not at all when another holds it.

    An error of `func` releases the lock and goes on, also if the release fails; a release that fails after it has
    succeeded raises BackendError, or LeaseLost if the lock was lost on the way.
    """
    key = check_key(key, "The key of a lock")
    check_handler(func, "The function of run_exclusive", takes_context=False)
    if is_async_handler(func):
        raise ConfigurationError("The function of run_exclusive must not be async: wrap it in async_to_sync.")
    held, _ = _acquire(key, ttl)
    if held is None:
        return ExclusiveResult(False)
    with held:
        value = func()
        refuse_unfinished(value, "The function of run_exclusive", "wrap it in async_to_sync")
        return ExclusiveResult(True, value)


class _Holder:
    """Holds the locks of this process: a backend, and the thread that renews them. Made when a lock is first taken."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._instance = new_instance()
        self._clock = SystemClock()
        self._backend = create_backend()
        self._backend.timeout = min(self._backend.timeout, get_config().default_ttl_ms / 3000)
        self._keeper = LeaseKeeper(self._backend, self._clock, self)
        self._answers: dict[str, SimpleQueue[ReleaseResult | BackendError]] = {}
        self._keeper.start()

    @property
    def is_ours(self) -> bool:
        """Tell whether this process made it: in a forked child its locks are the parent's, and its thread is absent."""
        return self._pid == os.getpid()

    def acquire(self, key: str, ttl: int) -> tuple[HeldLease | None, Acquired]:
        """Take a lock; where the reply is lost, ask once more under the same token."""
        token = new_token()
        sent = self._clock.monotonic()
        try:
            answer = self._backend.acquire(key, token, ttl, self._instance)
        except BackendError:
            sent = self._clock.monotonic()
            answer = self._backend.acquire(key, token, ttl, self._instance)
        if not answer.fence:
            return None, answer
        held = self._keeper.hold(Lease(key, token, answer.fence, ttl, self._instance), sent)
        if held.lost:
            self._keeper.release(held, "late")
            raise BackendError(
                f"{self._backend.describe()}: the lock {key} was won, but had ended before that was read."
            )
        return held, answer

    def release(self, held: HeldLease) -> None:
        """Release in the keeper's thread, in which no renewal can overtake it, and wait for the answer."""
        if not self._keeper.running:  # The settings have changed since.
            with closing(self._backend):
                self._heed(self._backend.release([Release(held.lease, "released")]).answers[0], held)
            return
        answers = self._answers[held.lease.token] = SimpleQueue()
        self._keeper.release(held, "released")
        try:
            answer = self._answer(answers)
            if isinstance(answer, BackendError):
                answer = self._answer(answers)  # The keeper has sent it once more.
        finally:
            self._keeper.withdraw(held)
            del self._answers[held.lease.token]
        self._heed(answer, held)

    def _heed(self, answer: ReleaseResult | BackendError, held: HeldLease) -> None:
        if isinstance(answer, BackendError):
            raise answer
        if not answer.ok:
            raise LeaseLost(f"The lock {held.lease.key} was lost before its release.")

    def _answer(self, answers: SimpleQueue[ReleaseResult | BackendError]) -> ReleaseResult | BackendError:
        # A pass may renew, and release, before it comes to this one.
        longest = 4 * self._backend.timeout + 1
        try:
            return answers.get(timeout=longest)
        except Empty:
            raise BackendError(f"{self._backend.describe()}: no answer within {longest:g} s.") from None

    def close(self) -> None:
        """Renew nothing any more and close the connections."""
        self._keeper.stop()
        self._backend.close()

    # See leases.Listener.

    def lease_lost(self, held: HeldLease, left: int | None) -> None:
        if not held.told:
            text = "The lock %s (fencing token %d) is lost: another may have it."
            logger.error(text, held.lease.key, held.lease.fence)

    def lease_released(self, held: HeldLease, result: ReleaseResult) -> None:
        self._put(held.lease, result)

    def store_failed(self, phase: Phase, error: BackendError, leases: Sequence[Lease]) -> None:
        for lease in leases:
            self.lease_failed(phase, error, lease)

    def lease_failed(self, phase: Phase, error: BackendError, lease: Lease) -> None:
        if phase == "release":
            self._put(lease, error)
        else:
            logger.warning("The lock %s could not be renewed: %s", lease.key, error)

    def store_answered(self, phase: Phase) -> None:
        pass

    def heart_beaten(self, heartbeat: Heartbeat, sent: float, received: float) -> None:
        pass

    def _put(self, lease: Lease, answer: ReleaseResult | BackendError) -> None:
        answers = self._answers.get(lease.token)
        if answers is not None:
            answers.put(answer)


_current: _Holder | None = None
_current_lock = threading.Lock()


def _acquire(key: str, ttl: Duration | None) -> tuple[HeldLock | None, Acquired]:
    length = _milliseconds(key, ttl) or get_config().default_ttl_ms
    holder = _holder()
    held, answer = holder.acquire(key, length)
    return (None if held is None else HeldLock(holder, held)), answer


def _milliseconds(key: str, ttl: Duration | None) -> int | None:
    return None if ttl is None else milliseconds(ttl, f"The ttl of the lock {key}")


def _holder() -> _Holder:
    """Return this process's holder."""
    global _current
    with _current_lock:
        if _current is None:
            _current = _Holder()
        return _current


def _forget_parents() -> None:
    """Begin anew in a forked child, which has no thread of its parent's, but perhaps the lock that one of them held."""
    global _current, _current_lock
    _current, _current_lock = None, threading.Lock()


def _forget(*, setting: str, **kwargs: object) -> None:
    """Begin anew after a test has overridden the settings."""
    global _current
    if setting in ("CRONDUCTOR", "CACHES", "DEBUG"):
        with _current_lock:
            old, _current = _current, None
        if old is not None:
            old.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_parents)
setting_changed.connect(_forget)
