"""Declaring jobs: what a job says of itself, and the registry that keeps them."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, MethodType
from typing import Any, TypeVar
from zoneinfo import ZoneInfo

from asgiref.sync import iscoroutinefunction
from django.apps import apps

from django_cronductor.durations import Duration, milliseconds
from django_cronductor.exceptions import ConfigurationError, JobNotFound
from django_cronductor.schedules import Schedule

Handler = Callable[..., Any]
F = TypeVar("F", bound=Handler)

LONGEST_KEY = 200

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # An annotation may name what is imported for type checkers only.
    _signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature


@dataclass(frozen=True, eq=False, kw_only=True)
class Declaration:
    """What was declared of a job. None: nothing was said, the settings decide. Lengths are in milliseconds."""

    key: str
    expression: str
    handler: Handler
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

    @functools.cached_property
    def is_async(self) -> bool:
        """
        Tell whether the handler is a coroutine function, also behind partials, wrappers and callable objects.

        A wrapper that awaits by itself looks the same: what such a handler returns need not be awaitable.
        """
        return _is_async(self.handler)

    @property
    def app_label(self) -> str | None:
        """Return the label of the app whose code the handler is; None if it is no app's, or while apps are loading."""
        return _app_label(getattr(_bare(self.handler), "__module__", None)) if apps.apps_ready else None


class Job(Declaration):
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
        self._schedules: dict[str, Schedule] = {}

    def __repr__(self) -> str:
        return f"<Job {self.key} {self.expression!r} declared at {self.declared_at}>"

    @property
    def active(self) -> bool:
        """Tell whether this process runs the job: it is enabled and neither stopped nor destroyed."""
        return self.enabled and not self._stopped and not self._destroyed

    def schedule(self, default_timezone: str) -> Schedule:
        """Return when the job is due, in its own zone, or else in the given one."""
        timezone = self.timezone or default_timezone
        if timezone not in self._schedules:
            self._schedules[timezone] = Schedule(self.expression, timezone, self.key)
        return self._schedules[timezone]

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
        # A module that was changed and reloaded has other lines; within one execution, other lines are another job.
        return self._lines == other._lines or self.place.execution is not other.place.execution

    @property
    def _what(self) -> tuple[object, ...]:
        inner = _innermost(self.handler)
        code = getattr(inner, "__code__", None)
        return self.place.file, getattr(code, "co_filename", None), _qualname(inner)

    @property
    def _lines(self) -> tuple[object, ...]:
        code = getattr(_innermost(self.handler), "__code__", None)
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
        Declare the decorated function as a job, and leave it unchanged.

        The default key is "<app label>.<function name>". Raises ConfigurationError for anything that could not run.
        """
        place = _caller()
        draft = _Draft(place, expression, ttl, timezone, grace, recover, timeout, when, enabled, takes_context)

        def declare(handler: F) -> F:
            self._declare(draft, handler, key)
            return handler

        return declare

    def schedule(
        self,
        expression: str,
        handler: Handler,
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
        if key in jobs:
            return jobs[key]
        nearest = difflib.get_close_matches(str(key), jobs)
        hint = f"; did you mean {' or '.join(nearest)}?" if nearest else "." if jobs else ", nor any other."
        raise JobNotFound(f"No job {key!r} is declared{hint}")

    def __iter__(self) -> Iterator[Job]:
        jobs = self._snapshot()
        return iter([jobs[key] for key in sorted(jobs)])

    def __len__(self) -> int:
        return len(self._snapshot())

    def __contains__(self, key: object) -> bool:
        return key in self._snapshot()

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

    def _declare(self, draft: _Draft, handler: Handler, key: str | None) -> None:
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


@dataclass(frozen=True)
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

    def job(self, registry: JobRegistry, handler: Handler, key: str) -> Job:
        """Check everything and make the job."""
        with self._explained(f"Job {key}" if isinstance(key, str) else "A job"):
            _check_key(key)
            self._check_flags()
            _check_callable(handler, "its handler", takes_context=self.takes_context)
            if self.when is not None:
                _check_callable(self.when, "when", takes_context=self.takes_context)
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

    def default_key(self, handler: Handler) -> str:
        """Return the key of a plain function of an app: "<app label>.<function name>"."""
        with self._explained(f"The job {_qualname(_innermost(handler))}"):
            _check_callable(handler, "its handler", takes_context=self.takes_context)
            if not isinstance(handler, FunctionType) or handler.__name__ == "<lambda>":
                raise ConfigurationError(f"{_kind(handler)} has no name to make a key of: give it one with key=.")
            label = _app_label(handler.__module__)
            if label is None:
                raise ConfigurationError(
                    f"the module {handler.__module__} is in no installed app: give the job a key with key=, or add its "
                    "app to INSTALLED_APPS."
                )
            return f"{label}.{handler.__name__}"

    def _check_flags(self) -> None:
        for name in ("recover", "enabled", "takes_context"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigurationError(f"{name} must be True or False, not {value!r}.")

    def _milliseconds(self, name: str) -> int | None:
        value = getattr(self, name)
        return None if value is None else milliseconds(value, name)

    def _zone_name(self) -> str | None:
        name = self.timezone.key if isinstance(self.timezone, ZoneInfo) else self.timezone
        if name is None and self.timezone is None:
            return None
        if not isinstance(name, str) or not name:
            raise ConfigurationError(f'timezone must be the name of a zone such as "UTC", not {self.timezone!r}.')
        return name

    @contextmanager
    def _explained(self, subject: str) -> Iterator[None]:
        """Say of which job, declared where, an error speaks."""
        try:
            yield
        except ConfigurationError as error:
            raise ConfigurationError(f"{subject}, declared at {self.place}: {error}") from error


def _caller() -> Place:
    """Return where the function that calls this one was called."""
    frame = sys._getframe(2)
    return Place(frame.f_code.co_filename, frame.f_lineno, frame.f_globals.get("__spec__"))


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise ConfigurationError(f"its key must be a string, not {key!r}.")
    if not 1 <= len(key) <= LONGEST_KEY:
        raise ConfigurationError(f"its key must have 1 to {LONGEST_KEY} characters, not {len(key)}.")
    if not key.isprintable() or "{" in key or "}" in key or key != key.strip():
        raise ConfigurationError(
            f"its key {key!r} must consist of printable characters, without braces and without blanks at its ends."
        )


def _check_callable(func: object, role: str, *, takes_context: bool) -> None:
    """Refuse what cannot be called as the job will be: with nothing, or with the context."""
    # Asked of the class: some objects have every attribute that one asks them for.
    if hasattr(type(func), "enqueue"):
        raise ConfigurationError(f"{role} is a task: declare a function that calls its .enqueue() instead.")
    if isinstance(func, (classmethod, staticmethod)):
        raise ConfigurationError(f"{role} is a {type(func).__name__}: declare a function outside the class.")
    if isinstance(func, type):
        raise ConfigurationError(f"{role} is a class, and calling it would only make an object: declare a function.")
    if not callable(func):
        raise ConfigurationError(f"{role} must be a function, not {func!r}.")
    call = func if inspect.isroutine(func) or isinstance(func, functools.partial) else type(func).__call__
    if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
        raise ConfigurationError(f"{role} is a generator: calling it would run nothing of it. Do without yield.")
    if isinstance(func, FunctionType) and _in_class(func):
        raise ConfigurationError(
            f"{role} {func.__qualname__} is a function inside a class: declare a function outside it, or a bound "
            "method with schedule()."
        )
    _check_signature(func, role, takes_context=takes_context)


def _check_signature(func: Handler, role: str, *, takes_context: bool) -> None:
    signature = _signature_that_counts(func)
    problem = _misfit(signature, takes_context)
    if problem is None:
        return
    if _misfit(signature, not takes_context) is not None:
        advice = "A wrapper that fills in arguments can say so in its __signature__."
    elif takes_context:
        advice = "With takes_context=True it is passed the context."
    else:
        advice = "Did you mean takes_context=True?"
    called = "with the context alone" if takes_context else "without arguments"
    raise ConfigurationError(f"{role} cannot be called {called}: {problem}. {advice}")


def _misfit(signature: inspect.Signature | None, takes_context: bool) -> str | None:
    if signature is not None:
        try:
            signature.bind(*[None] * takes_context)
        except TypeError as error:
            return str(error)
    return None


def _signature_that_counts(func: Handler) -> inspect.Signature | None:
    """Return the signature of `func`; of what it wraps, if it passes any arguments on. None: it has none to read."""
    if isinstance(func, MethodType):
        return _signature(func)
    try:
        signature = _signature(func, follow_wrapped=False)
    except (TypeError, ValueError):
        signature = None
    wrapped = _wrapped(func)
    if wrapped is not None and (signature is None or _passes_on(signature)):
        return _signature_that_counts(wrapped)
    return signature


def _passes_on(signature: inspect.Signature) -> bool:
    return any(parameter.kind is parameter.VAR_POSITIONAL for parameter in signature.parameters.values())


def _in_class(func: FunctionType) -> bool:
    return func.__name__ != "<lambda>" and "." in func.__qualname__.rpartition("<locals>.")[2]


def _bare(func: object) -> object:
    """Return what a partial or a bound method calls."""
    while isinstance(func, (functools.partial, MethodType)):
        func = func.func if isinstance(func, functools.partial) else func.__func__
    return func


def _innermost(func: object) -> object:
    """Return the function behind partials, bound methods and wrappers."""
    func = _bare(func)
    while (wrapped := _wrapped(func)) is not None:
        func = _bare(wrapped)
    return func


def _wrapped(func: object) -> Handler | None:
    """Return what functools.wraps says that `func` wraps; never asked of objects that make up their attributes."""
    wrapped: Handler | None = getattr(func, "__dict__", {}).get("__wrapped__")
    return wrapped


def _is_async(func: object) -> bool:
    if iscoroutinefunction(func):
        return True
    if isinstance(func, functools.partial):
        return _is_async(func.func)
    if (wrapped := _wrapped(func)) is not None:
        return _is_async(wrapped)
    return not inspect.isroutine(func) and _is_async(type(func).__call__)


def _kind(func: object) -> str:
    if isinstance(func, functools.partial):
        return "a partial"
    if isinstance(func, MethodType):
        return "a bound method"
    return "a lambda" if isinstance(func, FunctionType) else "a callable object"


def _qualname(func: object) -> str:
    return str(getattr(func, "__qualname__", type(func).__qualname__))


def _app_label(module: str | None) -> str | None:
    config = apps.get_containing_app_config(module) if module else None
    return config.label if config else None


registry = JobRegistry()
"""The jobs of this process: what `cron` declares, and what runcron runs."""

cron = registry.cron
