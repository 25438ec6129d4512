"""What may be the handler of a job; most of it is tested where jobs are declared."""

from __future__ import annotations

import inspect
import itertools
from types import MethodType
from typing import Any

import pytest

from django_cronductor.exceptions import ConfigurationError
from django_cronductor.handlers import _plainly_fits, check_handler

PARAMETERS = ("a", "a=1", "*", "*args", "b", "b=1", "**more")


def functions() -> dict[str, Any]:
    """Return a function of each signature that Python can read of these."""
    found = {}
    for count in range(4):
        for parameters in itertools.permutations(PARAMETERS, count):
            text = ", ".join(parameters)
            try:
                found[text] = eval(f"lambda {text}: None")
            except SyntaxError:
                continue
    return found


@pytest.mark.parametrize(("text", "function"), functions().items())
@pytest.mark.parametrize("takes_context", [False, True])
def test_what_plainly_fits_can_be_called_so(text: str, function: Any, takes_context: bool) -> None:
    if _plainly_fits(function, takes_context):
        inspect.signature(function).bind(*[None] * takes_context)


@pytest.mark.parametrize(("text", "function"), functions().items())
@pytest.mark.parametrize("takes_context", [False, True])
@pytest.mark.parametrize("bound", [False, True])
def test_what_is_accepted_can_be_called_so_and_nothing_else_is_refused(
    text: str, function: Any, takes_context: bool, bound: bool
) -> None:
    handler = MethodType(function, object()) if bound else function
    try:
        handler(*[None] * takes_context)
    except TypeError:
        with pytest.raises(ConfigurationError, match="cannot be called"):
            check_handler(handler, "its handler", takes_context=takes_context)
    else:
        check_handler(handler, "its handler", takes_context=takes_context)


def test_the_usual_functions_plainly_fit() -> None:
    def plain() -> None: ...

    def with_context(context: object) -> None: ...

    async def with_default(context: object = None, *, count: int = 1) -> None: ...

    class Shop:
        def sync(self) -> None: ...

    assert _plainly_fits(Shop().sync, False)
    assert not _plainly_fits(Shop().sync, True)
    assert _plainly_fits(plain, False)
    assert _plainly_fits(with_context, True)
    assert _plainly_fits(with_default, False)
    assert _plainly_fits(with_default, True)
    assert not _plainly_fits(plain, True)
    assert not _plainly_fits(with_context, False)
