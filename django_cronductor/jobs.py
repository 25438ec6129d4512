"""Declaring jobs: what a job says of itself, and the registry that keeps them."""

from __future__ import annotations

import difflib
import functools
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from django.apps import apps

from django_cronductor.durations import Duration, milliseconds
from django_cronductor.exceptions import ConfigurationError, JobNotFound, shown
from django_cronductor.handlers import (
    Handler,
    Task,
    app_label_of,
    bare,
    check_handler,
    check_task,
    innermost,
    is_async_handler,
    is_task,
    kind_of,
    qualname_of,
)
from django_cronductor.keys import LONGEST_KEY, check_key, plain
from django_cronductor.schedules import Schedule

F = TypeVar("F", bound="Handler | Task")

NOT_FOR_TASKS = {
    "recover": "it is enqueued, and what then becomes of it is up to the workers of its task backend.",
    "timeout": "it is enqueued, and how long it may take is up to the workers of its task backend.",
    "takes_context": "the context of a run stays in this process, and @task(takes_context=True) passes it another.",
}
"""Options that say nothing of a job whose handler is a task, and why."""

LONGEST_LIST = 300
"""Characters of the keys that an error lists."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Declared:
    """What was declared of a job. None: nothing was said, the settings decide. Lengths are in milliseconds."""

    key: str
    expression: str
    handler: Handler | Task
    timezone: str | None
    ttl_ms: int | None
    grace_ms: int | None
    timeout_ms: int | None
    recover: bool
    when: Handler | None
    enabled: bool
    takes_context: bool
    place: Place

    @property
    def declared_at(self) -> str:
        """Return where the job is declared, as file:line."""
        return str(self.place)

    def lengths(self, default_ttl_ms: int, default_grace_ms: int) -> tuple[int, int]:
        """Return its ttl and its grace, its own or else the defaults; a grace by default is never below the ttl."""
        ttl = self.ttl_ms or default_ttl_ms
        return ttl, self.grace_ms or max(default_grace_ms, ttl)

    @functools.cached_property
    def is_async(self) -> bool:
        """
        Tell whether the handler is a coroutine function, also behind partials, wrappers and callable objects.

        A wrapper that awaits by itself looks the same: what such a handler returns need not be awaitable.
        """
        return is_async_handler(self.handler)

    @property
    def app_label(self) -> str | None:
        """Return the label of the app whose code the handler is; None if it is no app's, or while apps are loading."""
        return app_label_of(getattr(bare(self.handler), "__module__", None)) if apps.apps_ready else None


class Job(Declared):
    """
    A declared job. Registries make them; what was declared of it never changes.

    `stop`, `start` and `destroy` act on this process alone, and do nothing once the job is destroyed.
    """

    def __init__(self, registry: JobRegistry, **declaration: Any) -> None:
        super().__init__(**declaration)
        self.generation = 0
        """Rises whenever the job starts anew: what was due before that is not made up."""
        self._registry = registry
        self._stopped = False
        self._destroyed = False
        self._schedule: Schedule | None = None

    def __repr__(self) -> str:
        return f"<Job {self.key} {self.expression!r} declared at {self.declared_at}>"

    @property
    def active(self) -> bool:
        """Tell whether this process runs the job: it is enabled and neither stopped nor destroyed."""
        return self.enabled and not self._stopped and not self._destroyed

    def schedule(self, default_timezone: str) -> Schedule:
        """Return when the job is due, in its own zone, or else in the given one."""
        timezone = self.timezone or default_timezone
        if self._schedule is None or self._schedule.timezone != timezone:
            self._schedule = Schedule(self.expression, timezone, self.key)
        return self._schedule

    def stop(self) -> None:
        """Run the job no more in this process until `start`. Its key stays taken; a run in progress goes on."""
        with self._registry._changing() as changed:
            if not self._destroyed and not self._stopped:
                self._stopped = True
                changed()

    def start(self) -> None:
        """Run the job again after `stop`, from its next occurrence on."""
        with self._registry._changing() as changed:
            if not self._destroyed and self._stopped:
                self._stopped = False
                self.generation = changed()

    def destroy(self) -> None:
        """Stop the job for good and free its key."""
        self._registry._remove(self)

    def _declares_again(self, other: Job) -> bool:
        """Tell a module that was imported twice, or a line that ran twice, from two jobs with one key."""
        if self._what != other._what:
            return False
        # A module that was changed and reloaded differs; within one execution, what differs is another job: a loop that
        # forgot the key would leave the last one alone.
        return self.place.execution is not other.place.execution or (
            self._lines == other._lines and self._details == other._details
        )

    @property
    def _what(self) -> tuple[object, ...]:
        inner = innermost(self.handler)
        code = getattr(inner, "__code__", None)
        return self.place.file, getattr(code, "co_filename", None), qualname_of(inner)

    @property
    def _details(self) -> tuple[object, ...]:
        handler = self.handler
        filled_in = (handler.args, handler.keywords) if isinstance(handler, functools.partial) else ()
        defaults = getattr(innermost(handler), "__defaults__", None)
        lengths = self.ttl_ms, self.grace_ms, self.timeout_ms
        flags = self.recover, self.enabled, self.takes_context
        return self.expression, self.timezone, lengths, flags, filled_in, defaults

    @property
    def _lines(self) -> tuple[object, ...]:
        code = getattr(innermost(self.handler), "__code__", None)
        return self.place.line, getattr(code, "co_firstlineno", None)


class JobRegistry:
    """The jobs of a process, by key. Threads may share it."""

    def __init__(self) -> None:
        self.version = 0
        """Rises with every change: a job declared, stopped, started or destroyed."""
        self._lock = threading.RLock()
        self._jobs: dict[str, Job] = {}
        self._waiting: list[Callable[[], object]] = []

    def cron(
        self,
        expression: str,
        *,
        key: str | None = None,
        ttl: Duration | None = None,
        timezone: str | ZoneInfo | None = None,
        grace: Duration | None = None,
        recover: bool = False,
        timeout: Duration | None = None,
        when: Handler | None = None,
        enabled: bool = True,
        takes_context: bool = False,
    ) -> Callable[[F], F]:
        """
        Declare the decorated function as a job, and leave it unchanged. A task of django.tasks is enqueued.

        The default key is "<app label>.<function name>". Raises ConfigurationError for anything that could not run.
        """
        place = _caller()
        if callable(expression):
            raise ConfigurationError(f'@cron needs a schedule, as in @cron("*/5 * * * *"); at {_caller()} it has none.')
        draft = _Draft(place, expression, ttl, timezone, grace, recover, timeout, when, enabled, takes_context)

        def declare(handler: F) -> F:
            self._declare(draft, handler, key)
            return handler

        return declare

    def schedule(
        self,
        expression: str,
        handler: Handler | Task,
        *,
        key: str,
        ttl: Duration | None = None,
        timezone: str | ZoneInfo | None = None,
        grace: Duration | None = None,
        recover: bool = False,
        timeout: Duration | None = None,
        when: Handler | None = None,
        enabled: bool = True,
        takes_context: bool = False,
    ) -> Job:
        """Declare a job without a decorator and return it."""
        place = _caller()
        draft = _Draft(place, expression, ttl, timezone, grace, recover, timeout, when, enabled, takes_context)
        return self._add(draft.job(self, handler, key))

    def get(self, key: str) -> Job:
        """Return the job of that key. Raises JobNotFound, naming the nearest keys."""
        jobs = self._snapshot()
        if isinstance(key, str) and key in jobs:
            return jobs[key]
        raise not_found(key, jobs)

    def __iter__(self) -> Iterator[Job]:
        jobs = self._snapshot()
        return iter([jobs[key] for key in sorted(jobs)])

    def __len__(self) -> int:
        return len(self._snapshot())

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key in self._snapshot()

    def settle(self) -> None:
        """Give their keys to the jobs that were declared before Django had loaded its apps."""
        with self._lock:
            while self._waiting and apps.apps_ready:
                self._waiting.pop(0)()
            if self._waiting:
                raise ConfigurationError(
                    "Jobs without a key were declared before Django has loaded its apps: call django.setup() first, "
                    "or give them a key."
                )

    @contextmanager
    def _changing(self) -> Iterator[Callable[[], int]]:
        """Hold the lock; the caller calls what is yielded once it has changed something, and gets the new version."""
        with self._lock:
            yield self._changed

    def _remove(self, job: Job) -> None:
        """Destroy a job of this registry."""
        with self._lock:
            if not job._destroyed:
                job._destroyed = True
                del self._jobs[job.key]
                self._changed()

    def _declare(self, draft: _Draft, handler: Handler | Task, key: str | None) -> None:
        if key is not None:
            self._add(draft.job(self, handler, key))
        elif apps.apps_ready:
            self._add(draft.job(self, handler, draft.default_key(handler)))
        else:
            # Which app it is cannot be known yet; what is wrong with the rest of it is said at once.
            draft.job(self, handler, getattr(handler, "__name__", type(handler).__name__))
            with self._lock:
                self._waiting.append(functools.partial(self._declare, draft, handler, None))

    def _add(self, job: Job) -> Job:
        with self._lock:
            old = self._jobs.get(job.key)
            if old is not None and not job._declares_again(old):
                raise ConfigurationError(
                    f"Two jobs have the key {job.key!r}: one is declared at {old.declared_at}, the other at "
                    f"{job.declared_at}. Give one of them another key."
                )
            self._jobs[job.key] = job
            version = self._changed()
            # A job that replaces itself goes on where it was.
            job.generation = old.generation if old is not None and old.active else version
            if old is not None:
                old._destroyed = True
        return job

    def _changed(self) -> int:
        self.version += 1
        return self.version

    def _snapshot(self) -> dict[str, Job]:
        with self._lock:
            self.settle()
            return dict(self._jobs)


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is declared. `execution` is another object each time that the module there is executed."""

    file: str
    line: int
    execution: object

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class _Draft:
    """A declaration as it was typed: nothing of it is checked yet."""

    place: Place
    expression: str
    ttl: object
    timezone: object
    grace: object
    recover: bool
    timeout: object
    when: Handler | None
    enabled: bool
    takes_context: bool

    def job(self, registry: JobRegistry, handler: Handler | Task, key: str) -> Job:
        """Check everything and make the job."""
        with self._explained("A job"):
            key = check_key(key, "its key")
        with self._explained(f"Job {key}"):
            self._check_flags()
            self._check_handler(handler)
            if self.when is not None:
                check_handler(self.when, "when", takes_context=self.takes_context)
            ttl, grace, timeout = (self._milliseconds(name) for name in ("ttl", "grace", "timeout"))
            if ttl is not None and grace is not None and grace < ttl:
                raise ConfigurationError(
                    f"grace ({grace / 1000:g} s) must not be shorter than ttl ({ttl / 1000:g} s): the occurrence after "
                    "a crash could never start."
                )
            job = Job(
                registry,
                key=key,
                expression=self.expression,
                handler=handler,
                timezone=self._zone_name(),
                ttl_ms=ttl,
                grace_ms=grace,
                timeout_ms=timeout,
                recover=self.recover,
                when=self.when,
                enabled=self.enabled,
                takes_context=self.takes_context,
                place=self.place,
            )
            job.schedule("UTC")
        return job

    def default_key(self, handler: Handler | Task) -> str:
        """Return the key of a plain function of an app: "<app label>.<function name>"."""
        with self._explained(f"The job {qualname_of(innermost(handler))}"):
            self._check_handler(handler)
            function = bare(handler) if is_task(handler) else handler
            if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
                raise ConfigurationError(f"{kind_of(handler)} has no name to make a key of: give it one with key=.")
            label = app_label_of(function.__module__)
            if label is None:
                raise ConfigurationError(
                    f"the module {function.__module__} is in no installed app: give the job a key with key=, or add "
                    "its app to INSTALLED_APPS."
                )
            return f"{label}.{function.__name__}"

    def _check_handler(self, handler: object) -> None:
        if not is_task(handler):
            check_handler(handler, "its handler", takes_context=self.takes_context)
            return
        check_task(handler, "its handler")
        for option, reason in NOT_FOR_TASKS.items():
            if getattr(self, option) not in (None, False):
                raise ConfigurationError(f"{option} is not for a task: {reason} Leave it out.")

    def _check_flags(self) -> None:
        for name in ("recover", "enabled", "takes_context"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name} must be True or False, not {shown(value)}.")

    def _milliseconds(self, name: str) -> int | None:
        value = getattr(self, name)
        return None if value is None else milliseconds(value, name)

    def _zone_name(self) -> str | None:
        name = self.timezone.key if isinstance(self.timezone, ZoneInfo) else self.timezone
        if name is None and self.timezone is None:
            return None
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f'timezone must be the name of a zone such as "UTC", not {shown(self.timezone)}.')
        return plain(name)

    @contextmanager
    def _explained(self, subject: str) -> Iterator[None]:
        """Say of which job, declared where, an error speaks."""
        try:
            yield
        except ConfigurationError as error:
            # Without the way to it through our own code, which would hide the user's line in a long traceback.
            raise ConfigurationError(f"{subject}, declared at {self.place}: {error}") from None


def not_found(key: object, known: Iterable[str]) -> JobNotFound:
    """Return the error for a key that nobody knows, which names the nearest of those known, or else all."""
    keys = sorted(known)
    nearest = difflib.get_close_matches(key, keys) if isinstance(key, str) and len(key) <= LONGEST_KEY else []
    if nearest:
        hint = f"; did you mean {' or '.join(nearest)}?"
    else:
        hint = f". Those that are: {_listed(keys)}." if keys else ", nor any other."
    return JobNotFound(f"No job {shown(key)} is declared{hint}")


def _listed(keys: list[str]) -> str:
    """Name as many keys as one can read."""
    text = ", ".join(keys)
    return text if len(text) <= LONGEST_LIST else f"{text[:LONGEST_LIST].rpartition(', ')[0]}, ..."


def _caller() -> Place:
    """Return where the function that calls this one was called."""
    frame = sys._getframe(2)
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__spec__"))


registry = JobRegistry()
"""The jobs of this process: what `cron` declares, and what runcron runs."""

cron = registry.cron
