"""What may be the handler of a job, and what is behind partials and wrappers."""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
from collections.abc import Callable
from types import FunctionType, MethodType
from typing import Any, Protocol, TypeGuard

from asgiref.sync import iscoroutinefunction
from django.apps import apps

from django_cronductor.exceptions import ConfigurationError, shown

Handler = Callable[..., Any]


class Task(Protocol):
    """A task of Django's tasks framework, or of its backport: it is enqueued, and workers elsewhere run it."""

    @property
    def func(self) -> Callable[..., Any]: ...

    @property
    def backend(self) -> str: ...

    def get_backend(self) -> Any: ...

    def enqueue(self, *args: Any, **kwargs: Any) -> Any: ...


MOST_WRAPPERS = 50

if sys.version_info >= (3, 14):
    from annotationlib import Format

    # An annotation may name what is imported for type checkers only.
    _signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    _signature = inspect.signature


def check_handler(func: object, role: str, *, takes_context: bool) -> None:
    """Refuse what cannot be called as the job will be: with nothing, or with the context."""
    if is_task(func):
        raise ConfigurationError(f"{role} is a task: declare a function that calls its .enqueue() instead.")
    if isinstance(func, (classmethod, staticmethod)):
        raise ConfigurationError(f"{role} is a {type(func).__name__}: declare a function outside the class.")
    if isinstance(func, type):
        raise ConfigurationError(f"{role} is a class, and calling it would only make an object: declare a function.")
    if not callable(func):
        raise ConfigurationError(f"{role} must be a function, not {shown(func)}.")
    if is_wrapped_in_itself(func):
        raise ConfigurationError(f"{role} is wrapped in itself, or in more than {MOST_WRAPPERS} wrappers.")
    if is_generator(func):
        raise ConfigurationError(f"{role} is a generator: calling it would run nothing of it. Do without yield.")
    if isinstance(func, FunctionType) and _in_class(func):
        raise ConfigurationError(
            f"{role} {func.__qualname__} is a function inside a class: declare a function outside it, or a bound "
            "method with schedule()."
        )
    _check_signature(func, role, takes_context=takes_context)


def check_on_error(func: Callable[..., Any], role: str) -> None:
    """Refuse what would only be begun when an error is told: nobody would await it, or go through it."""
    if is_wrapped_in_itself(func):
        raise ConfigurationError(f"{role} is wrapped in itself, or in more than {MOST_WRAPPERS} wrappers.")
    if is_async_handler(func) or is_generator(func):
        raise ConfigurationError(f"{role} is async or a generator, and would tell nothing: use a plain function.")


def check_task(task: Any, role: str) -> None:
    """Refuse a task that cannot be enqueued without arguments."""
    problem = _misfit(_signature_that_counts(task.func), task.takes_context)
    if problem is not None:
        raise ConfigurationError(
            f"{role} is a task that cannot be enqueued without arguments: {problem}. Declare a function that calls its "
            ".enqueue() with them."
        )


def is_task(func: object) -> TypeGuard[Task]:
    """Tell whether it is a task of Django's tasks framework, or of its backport."""
    # Asked of the class: some objects have every attribute that one asks them for.
    kind = type(func)
    return hasattr(kind, "enqueue") and hasattr(kind, "module_path")


def is_generator(func: object) -> bool:
    """Tell whether calling it makes a generator, of which nothing is run by that; also one for a context manager."""
    call = func if inspect.isroutine(func) or isinstance(func, functools.partial) else type(func).__call__
    inner = bare(call)
    # Its wrappers, of contextmanager or of a manager that decorates, call a generator function and go through nothing.
    while isinstance(inner, FunctionType) and inner.__globals__ is vars(contextlib):
        inner = bare(_wrapped(inner))
    return inspect.isgeneratorfunction(inner) or inspect.isasyncgenfunction(inner)


def _check_signature(func: Handler, role: str, *, takes_context: bool) -> None:
    if _plainly_fits(func, takes_context):
        return
    signature = _signature_that_counts(func)
    problem = _misfilled(func) or _misfit(signature, takes_context)
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


def _plainly_fits(func: Handler, takes_context: bool) -> bool:
    """
    Tell whether a function, or a bound one, surely takes so many arguments.

    Only a signature knows all cases, but it costs more than all else of a declaration.
    """
    function = func.__func__ if isinstance(func, MethodType) else func
    if not isinstance(function, FunctionType) or function.__dict__:
        return False  # What wraps it, or it says of itself, may differ.
    code, defaults = function.__code__, function.__defaults__ or ()
    keywords = code.co_kwonlyargcount - len(function.__kwdefaults__ or ())
    most = code.co_argcount - (function is not func)
    return not keywords and most - len(defaults) <= takes_context <= most


def _misfilled(func: Handler) -> str | None:
    """Say why what a partial or a method fills in does not fit what it calls; it then has no signature to tell."""
    if isinstance(func, functools.partial):
        inner, arguments, keywords = func.func, func.args, func.keywords
    elif isinstance(func, MethodType):
        inner, arguments, keywords = func.__func__, (func.__self__,), {}
    else:
        return None
    signature = _signature_that_counts(inner)
    if signature is not None:
        try:
            signature.bind_partial(*arguments, **keywords)
        except TypeError as error:
            return str(error)
    return None


def _misfit(signature: inspect.Signature | None, takes_context: bool) -> str | None:
    if signature is not None:
        try:
            signature.bind(*[None] * takes_context)
        except TypeError as error:
            return str(error)
    return None


def _signature_that_counts(func: Handler) -> inspect.Signature | None:
    """Return the signature of `func`; of what it wraps, if it passes any arguments on. None: it has none to read."""
    try:
        if isinstance(func, MethodType):
            return _signature(func)
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


def bare(func: object) -> object:
    """Return what a partial, a bound method or a task calls."""
    while (inner := _called_by(func)) is not None:
        func = inner
    return func


def _called_by(func: Any) -> object | None:
    if isinstance(func, functools.partial) or is_task(func):
        return func.func
    return func.__func__ if isinstance(func, MethodType) else None


def innermost(func: object) -> object:
    """Return the function behind partials, bound methods and wrappers, as far as there are not too many."""
    func = bare(func)
    for _ in range(MOST_WRAPPERS):
        wrapped = _wrapped(func)
        if wrapped is None:
            break
        func = bare(wrapped)
    return func


def is_wrapped_in_itself(func: object) -> bool:
    """Tell whether the wrappers around a function have no end, or none within reason."""
    return _wrapped(innermost(func)) is not None


def _wrapped(func: object) -> Handler | None:
    """Return what functools.wraps says that `func` wraps; never asked of objects that make up their attributes."""
    wrapped: Handler | None = getattr(func, "__dict__", {}).get("__wrapped__")
    return wrapped


def is_async_handler(func: object) -> bool:
    """Tell whether calling it gives something to await, also behind partials, wrappers and callable objects."""
    if iscoroutinefunction(func):
        return True
    if isinstance(func, functools.partial):
        return is_async_handler(func.func)
    if (wrapped := _wrapped(func)) is not None:
        return is_async_handler(wrapped)
    return not inspect.isroutine(func) and is_async_handler(type(func).__call__)


def kind_of(func: object) -> str:
    """Say in a word or two what kind of callable it is, for messages."""
    if isinstance(func, functools.partial):
        return "a partial"
    if isinstance(func, MethodType):
        return "a bound method"
    return "a lambda" if isinstance(func, FunctionType) else "a callable object"


def qualname_of(func: object) -> str:
    """Return its name within its module, or its class's."""
    try:
        return str(func.__qualname__)  # type: ignore[attr-defined]
    except Exception:  # noqa: BLE001 - An object may do anything when it is asked for an attribute.
        return type(func).__qualname__


def app_label_of(module: str | None) -> str | None:
    """Return the label of the app that a module belongs to; None if it belongs to none."""
    config = apps.get_containing_app_config(module) if isinstance(module, str) else None
    return config.label if config else None
