"""Declaring jobs: keys, handlers, options, duplicates, and what stops and starts them."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, MagicMock, Mock, create_autospec
from zoneinfo import ZoneInfo

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.apps import apps
from django.conf import settings
from django.db.transaction import atomic
from django.test import override_settings

from django_cronductor import jobs
from django_cronductor.exceptions import ConfigurationError, CronductorError, JobNotFound
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.schedules import Schedule

EVERY_MINUTE = "* * * * *"
HERE = __file__


@pytest.fixture
def registry() -> JobRegistry:
    return JobRegistry()


@pytest.fixture
def shop() -> Iterator[None]:
    """Install an app, and one inside it, without searching them for jobs."""
    installed = [*settings.INSTALLED_APPS, "tests.apps.shop", "tests.apps.shop.inner", "tests.apps.renamed"]
    with (
        override_settings(CRONDUCTOR={"CACHE": "locks", "AUTODISCOVER": None}),
        override_settings(INSTALLED_APPS=installed),
    ):
        yield


@contextmanager
def refused(*parts: str) -> Iterator[None]:
    """Expect a ConfigurationError that says all of this, and where the declaration is."""
    with pytest.raises(ConfigurationError) as caught:
        yield
    for part in (*parts, f"{HERE}:"):
        assert part in str(caught.value)


def in_module(module: str) -> Callable[[Any], Any]:
    """Make a function look as if it were defined in another module."""

    def move(func: Any) -> Any:
        func.__module__ = module
        return func

    return move


def handler() -> None: ...


def handler_of_one(context: object) -> None: ...


async def async_handler() -> None: ...


def passing_on(func: Any) -> Any:
    @functools.wraps(func)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return func(*args, **kwargs)

    return wrapper


class Thing:
    def __call__(self) -> None: ...

    def method(self) -> None: ...

    async def async_method(self) -> None: ...

    @classmethod
    def on_class(cls) -> None: ...

    @staticmethod
    def on_nothing() -> None: ...


class AsyncThing:
    async def __call__(self) -> None: ...


class WrappedAsyncThing:
    @passing_on
    async def __call__(self) -> None: ...


class TestDecorator:
    def test_function_is_returned_unchanged(self, registry: JobRegistry) -> None:
        def run() -> str:
            return "done"

        decorated = registry.cron(EVERY_MINUTE, key="a")(run)
        assert decorated is run
        assert decorated() == "done"
        assert registry.get("a").handler is run

    def test_default_registry_is_what_cron_declares_in(self) -> None:
        jobs.cron(EVERY_MINUTE, key="test-default-registry")(handler)
        job = jobs.registry.get("test-default-registry")
        job.destroy()
        assert job.handler is handler

    def test_function_decorated_with_two_keys_is_two_jobs(self, registry: JobRegistry) -> None:
        @registry.cron("0 0 * * *", key="nightly")
        @registry.cron("0 12 * * *", key="midday")
        def run() -> None: ...

        assert [(job.key, job.expression) for job in registry] == [("midday", "0 12 * * *"), ("nightly", "0 0 * * *")]

    def test_what_was_not_said_stays_open(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        assert (job.ttl_ms, job.grace_ms, job.timeout_ms, job.timezone, job.when) == (None, None, None, None, None)
        assert (job.recover, job.enabled, job.takes_context) == (False, True, False)

    @pytest.mark.parametrize("way", ["cron", "schedule"])
    def test_options_are_kept(self, registry: JobRegistry, way: str) -> None:
        def when(context: object) -> bool:
            return True

        options: dict[str, Any] = {
            "key": "a",
            "ttl": timedelta(minutes=5),
            "timezone": "Europe/Berlin",
            "grace": 3600,
            "recover": True,
            "timeout": 1.5,
            "when": when,
            "enabled": False,
            "takes_context": True,
        }
        if way == "cron":
            registry.cron("0 0 * * *", **options)(handler_of_one)
        else:
            registry.schedule("0 0 * * *", handler_of_one, **options)
        job = registry.get("a")
        assert (job.expression, job.handler, job.when) == ("0 0 * * *", handler_of_one, when)
        assert (job.ttl_ms, job.grace_ms, job.timeout_ms, job.timezone) == (300_000, 3_600_000, 1500, "Europe/Berlin")
        assert (job.recover, job.enabled, job.takes_context) == (True, False, True)

    def test_unknown_option_is_an_error(self, registry: JobRegistry) -> None:
        with pytest.raises(TypeError, match="grase"):
            registry.cron(EVERY_MINUTE, key="a", grase=3)  # type: ignore[call-arg]

    @pytest.mark.parametrize("way", ["cron", "schedule"])
    def test_declared_at_is_the_file_and_line_of_the_declaration(self, registry: JobRegistry, way: str) -> None:
        line = sys._getframe().f_lineno
        if way == "cron":
            registry.cron(EVERY_MINUTE, key="a")(handler)
            line += 2
        else:
            registry.schedule(EVERY_MINUTE, handler, key="a")
            line += 5
        assert registry.get("a").declared_at == f"{HERE}:{line}"

    def test_declaration_cannot_be_changed(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        for name in ("key", "expression", "handler", "ttl_ms", "enabled", "declared_at", "active"):
            with pytest.raises(AttributeError):
                setattr(job, name, None)
        assert job.key == "a"

    def test_job_shows_what_it_is(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="shop.sync")
        assert repr(job) == f"<Job shop.sync '* * * * *' declared at {job.declared_at}>"


class TestDefaultKey:
    @pytest.fixture(autouse=True)
    def apps(self, shop: None) -> None:
        """Have apps for keys to be made of."""

    @pytest.mark.parametrize(
        ("module", "key"),
        [
            ("tests.apps.shop.cron", "shop.run"),
            ("tests.apps.shop", "shop.run"),
            ("tests.apps.shop.deep.down", "shop.run"),
            ("tests.apps.shop.inner.cron", "inner.run"),
            ("tests.apps.shop.innermost", "shop.run"),
            ("tests.apps.renamed.cron", "billing.run"),
        ],
    )
    def test_key_is_label_of_the_deepest_app_and_function_name(
        self, registry: JobRegistry, module: str, key: str
    ) -> None:
        @registry.cron(EVERY_MINUTE)
        @in_module(module)
        def run() -> None: ...

        [job] = registry
        assert job.key == key
        assert job.app_label == key.split(".")[0]

    @pytest.mark.parametrize("module", ["tests.apps.shopping.cron", "tests.test_jobs", "__main__", None])
    def test_function_of_no_app_needs_a_key(self, registry: JobRegistry, module: Any) -> None:
        run = in_module(module)(passing_on(handler))
        with refused("handler", str(module), "key=", "INSTALLED_APPS"):
            registry.cron(EVERY_MINUTE)(run)
        registry.cron(EVERY_MINUTE, key="named")(run)
        assert registry.get("named").app_label is None

    @pytest.mark.parametrize(
        ("unnamed", "kind"),
        [
            (functools.partial(handler), "a partial"),
            (lambda: None, "a lambda"),
            (Thing(), "a callable object"),
            (Thing().method, "a bound method"),
            (Thing.on_class, "a bound method"),
        ],
        ids=["partial", "lambda", "object", "method", "classmethod"],
    )
    def test_what_has_no_name_of_its_own_needs_a_key(self, registry: JobRegistry, unnamed: Any, kind: str) -> None:
        with refused(kind, "key="):
            registry.cron(EVERY_MINUTE)(unnamed)
        registry.cron(EVERY_MINUTE, key="named")(unnamed)
        assert registry.get("named").handler is unnamed

    def test_wrapped_function_has_the_name_and_app_of_what_it_wraps(self, registry: JobRegistry) -> None:
        @registry.cron(EVERY_MINUTE)
        @passing_on
        @in_module("tests.apps.shop.cron")
        def run() -> None: ...

        assert "shop.run" in registry

    def test_given_key_goes_before_the_default_and_the_app_is_known_all_the_same(self, registry: JobRegistry) -> None:
        partial = functools.partial(in_module("tests.apps.shop.cron")(passing_on(handler)))
        assert registry.schedule(EVERY_MINUTE, partial, key="own").app_label == "shop"
        assert "own" in registry

    def test_name_that_makes_too_long_a_key_is_refused(self, registry: JobRegistry) -> None:
        run = in_module("tests.apps.shop.cron")(passing_on(handler))
        run.__name__ = "x" * 200
        with refused("1 to 200 characters"):
            registry.cron(EVERY_MINUTE)(run)


class TestBeforeAppsAreLoaded:
    @pytest.fixture(autouse=True)
    def loading(self, shop: None, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        """Be in the middle of loading apps."""
        monkeypatch.setattr(apps, "apps_ready", False)
        return monkeypatch

    @pytest.fixture
    def run(self) -> Any:
        return in_module("tests.apps.shop.cron")(passing_on(handler))

    def test_key_is_made_when_the_apps_are_loaded(
        self, registry: JobRegistry, run: Any, loading: pytest.MonkeyPatch
    ) -> None:
        assert registry.cron(EVERY_MINUTE)(run) is run
        loading.setattr(apps, "apps_ready", True)
        assert [job.key for job in registry] == ["shop.handler"]

    def test_asking_too_early_is_refused(self, registry: JobRegistry, run: Any) -> None:
        registry.cron(EVERY_MINUTE)(run)
        for ask in (len, list, lambda r: r.get("a"), lambda r: "a" in r, JobRegistry.settle):
            with pytest.raises(ConfigurationError, match=r"django\.setup\(\)"):
                ask(registry)

    def test_job_with_a_key_needs_no_apps(self, registry: JobRegistry, run: Any) -> None:
        registry.cron(EVERY_MINUTE, key="a")(run)
        assert registry.get("a").app_label is None

    def test_what_is_wrong_besides_is_said_at_once(self, registry: JobRegistry, run: Any) -> None:
        with refused("recover"):
            registry.cron(EVERY_MINUTE, recover=1)(run)  # type: ignore[arg-type]

    def test_app_that_is_missing_is_said_when_the_apps_are_loaded(
        self, registry: JobRegistry, loading: pytest.MonkeyPatch
    ) -> None:
        registry.cron(EVERY_MINUTE)(handler)
        loading.setattr(apps, "apps_ready", True)
        with refused("tests.test_jobs", "key="):
            registry.settle()


class TestKey:
    @pytest.mark.parametrize("key", ["a", "x" * 200, "daily report", "größe", "shop.sync-users:1/2", "日報"])
    def test_printable_key_is_accepted(self, registry: JobRegistry, key: str) -> None:
        assert registry.schedule(EVERY_MINUTE, handler, key=key).key == key

    @pytest.mark.parametrize(
        "key",
        [
            "",
            " ",
            "x" * 201,
            "a{b",
            "a}b",
            "{a}",
            " a",
            "a ",
            "a\n",
            "a\nb",
            "a\tb",
            "\x00",
            "a\x7f",
            "a\u200b",
            "\ud800",
        ],
    )
    def test_other_key_is_refused(self, registry: JobRegistry, key: str) -> None:
        with refused("its key"):
            registry.schedule(EVERY_MINUTE, handler, key=key)
        with refused("its key"):
            registry.cron(EVERY_MINUTE, key=key)(handler)

    @pytest.mark.parametrize("key", [1, b"a", None, ("a",)])
    def test_key_that_is_no_string_is_refused(self, registry: JobRegistry, key: Any) -> None:
        with refused("its key must be a string"):
            registry.schedule(EVERY_MINUTE, handler, key=key)


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


class GeneratorThing:
    def __call__(self) -> Iterator[int]:
        yield 1


class TestHandler:
    @pytest.mark.parametrize(
        ("func", "reason"),
        [
            (None, "must be a function, not None"),
            ("shop.tasks.sync", "must be a function, not 'shop.tasks.sync'"),
            (Thing, "is a class"),
            (generator, "is a generator"),
            (async_generator, "is a generator"),
            (functools.partial(generator), "is a generator"),
            (GeneratorThing(), "is a generator"),
            (GeneratorThing().__call__, "is a generator"),
            (contextmanager(generator), "is a generator"),
            (functools.partial(asynccontextmanager(async_generator)), "is a generator"),
            (atomic(generator), "is a generator"),
            (classmethod(handler), "is a classmethod"),
            (staticmethod(handler), "is a staticmethod"),
            (Thing.method, "Thing.method is a function inside a class"),
            (Thing.on_nothing, "Thing.on_nothing is a function inside a class"),
        ],
    )
    @pytest.mark.parametrize("key", ["a", None])
    def test_what_cannot_run_is_refused_with_the_reason(
        self, registry: JobRegistry, func: Any, reason: str, key: str | None
    ) -> None:
        with refused("its handler", reason):
            registry.cron(EVERY_MINUTE, key=key)(func)
        assert len(registry) == 0

    def test_function_declared_inside_a_class_is_refused(self, registry: JobRegistry) -> None:
        with refused("Jobs.run is a function inside a class"):

            class Jobs:
                @registry.cron(EVERY_MINUTE, key="a")
                def run(self) -> None: ...

    @pytest.mark.parametrize(
        "func",
        [
            handler,
            async_handler,
            passing_on(handler),
            functools.partial(handler_of_one, 1),
            lambda: None,
            lambda x=1: None,
            lambda *args, **kwargs: None,
            Thing(),
            Thing().method,
            Thing.on_class,
            Thing().on_class,
            Mock(),
            MagicMock(),
            print,
            functools.lru_cache(handler),
            atomic(handler),
            async_to_sync(async_handler),
        ],
    )
    def test_what_can_be_called_without_arguments_is_accepted(self, registry: JobRegistry, func: Any) -> None:
        assert registry.schedule(EVERY_MINUTE, func, key="a").handler is func

    def test_function_inside_a_function_is_accepted(self, registry: JobRegistry, shop: None) -> None:
        @registry.cron(EVERY_MINUTE)
        @in_module("tests.apps.shop.cron")
        def inside() -> None: ...

        assert "shop.inside" in registry


class TestSignature:
    @pytest.mark.parametrize(
        "func",
        [
            handler_of_one,
            passing_on(handler_of_one),
            functools.partial(lambda a, b: None, 1),
            functools.lru_cache(handler_of_one),
            lambda *, needed: None,
            create_autospec(handler_of_one),
        ],
    )
    def test_handler_that_needs_arguments_is_refused(self, registry: JobRegistry, func: Any) -> None:
        with refused("its handler cannot be called without arguments: missing a required"):
            registry.schedule(EVERY_MINUTE, func, key="a")

    @pytest.mark.parametrize("func", [handler, passing_on(handler), Thing(), Thing().method, lambda a, b: None])
    def test_handler_that_does_not_take_the_context_alone_is_refused(self, registry: JobRegistry, func: Any) -> None:
        with refused("its handler cannot be called with the context alone"):
            registry.schedule(EVERY_MINUTE, func, key="a", takes_context=True)

    def test_advice_is_to_take_the_context_where_that_fits(self, registry: JobRegistry) -> None:
        with refused("Did you mean takes_context=True?"):
            registry.schedule(EVERY_MINUTE, handler_of_one, key="a")
        with refused("With takes_context=True it is passed the context."):
            registry.schedule(EVERY_MINUTE, handler, key="a", takes_context=True)

    @pytest.mark.parametrize(
        "func",
        [
            handler_of_one,
            passing_on(handler_of_one),
            lambda context, other=1: None,
            lambda *args: None,
            functools.partial(lambda a, b: None, 1),
        ],
    )
    def test_handler_that_takes_the_context_is_accepted(self, registry: JobRegistry, func: Any) -> None:
        assert registry.schedule(EVERY_MINUTE, func, key="a", takes_context=True).takes_context

    def test_wrapper_that_takes_nothing_may_fill_in_what_is_needed(self, registry: JobRegistry) -> None:
        @functools.wraps(handler_of_one)
        def wrapper() -> None:
            handler_of_one(1)

        assert registry.schedule(EVERY_MINUTE, wrapper, key="a").handler is wrapper

    def test_wrapper_that_passes_on_may_state_its_own_signature(self, registry: JobRegistry) -> None:
        import inspect

        wrapper = passing_on(handler_of_one)
        wrapper.__signature__ = inspect.signature(handler)
        assert registry.schedule(EVERY_MINUTE, wrapper, key="a").handler is wrapper

    def test_annotation_for_type_checkers_alone_does_no_harm(self, registry: JobRegistry) -> None:
        def run(context: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821

        assert registry.schedule(EVERY_MINUTE, run, key="a", takes_context=True).takes_context


class TestWhen:
    @pytest.mark.parametrize(
        ("when", "reason"),
        [
            (True, "must be a function, not True"),
            (handler_of_one, "cannot be called without arguments"),
            (generator, "is a generator"),
            (Thing, "is a class"),
        ],
    )
    def test_condition_that_cannot_be_asked_is_refused(self, registry: JobRegistry, when: Any, reason: str) -> None:
        with refused(f"when {reason}"):
            registry.schedule(EVERY_MINUTE, handler, key="a", when=when)

    def test_condition_takes_the_context_if_the_job_does(self, registry: JobRegistry) -> None:
        with refused("when cannot be called with the context alone"):
            registry.schedule(EVERY_MINUTE, handler_of_one, key="a", when=handler, takes_context=True)
        job = registry.schedule(EVERY_MINUTE, handler_of_one, key="a", when=handler_of_one, takes_context=True)
        assert job.when is handler_of_one

    @pytest.mark.parametrize("when", [async_handler, lambda: True, Thing().method, functools.partial(handler)])
    def test_any_function_may_be_the_condition(self, registry: JobRegistry, when: Any) -> None:
        assert registry.schedule(EVERY_MINUTE, handler, key="a", when=when).when is when


class TestOptions:
    @pytest.mark.parametrize("name", ["ttl", "grace", "timeout"])
    @pytest.mark.parametrize("value", [0, -1, True, "60", float("inf"), timedelta(0), timedelta(days=367)])
    def test_duration_that_is_none_is_refused(self, registry: JobRegistry, name: str, value: Any) -> None:
        with refused("Job a", f"{name} must be"):
            registry.schedule(EVERY_MINUTE, handler, key="a", **{name: value})

    def test_grace_shorter_than_ttl_is_refused(self, registry: JobRegistry) -> None:
        with refused("grace (59 s)", "ttl (60 s)"):
            registry.schedule(EVERY_MINUTE, handler, key="a", ttl=60, grace=59)
        assert registry.schedule(EVERY_MINUTE, handler, key="a", ttl=60, grace=60).grace_ms == 60_000

    def test_grace_alone_is_not_judged_without_the_settings(self, registry: JobRegistry) -> None:
        assert registry.schedule(EVERY_MINUTE, handler, key="a", grace=0.5).grace_ms == 500

    @pytest.mark.parametrize("name", ["recover", "enabled", "takes_context"])
    @pytest.mark.parametrize("value", [1, 0, None, "no"])
    def test_flag_that_is_no_bool_is_refused(self, registry: JobRegistry, name: str, value: Any) -> None:
        with refused(f"{name} must be True or False, not {value!r}"):
            registry.schedule(EVERY_MINUTE, handler, key="a", **{name: value})

    def test_zone_may_be_a_name_or_a_zone(self, registry: JobRegistry) -> None:
        for zone in ("Europe/Berlin", ZoneInfo("Europe/Berlin")):
            job = registry.schedule(EVERY_MINUTE, handler, key="a", timezone=zone)
            assert job.timezone == "Europe/Berlin"
            job.destroy()

    @pytest.mark.parametrize("zone", [timezone.utc, 1, b"UTC", ""])
    def test_other_zone_is_refused(self, registry: JobRegistry, zone: Any) -> None:
        with refused("timezone must be the name of a zone"):
            registry.schedule(EVERY_MINUTE, handler, key="a", timezone=zone)

    def test_zone_without_a_name_is_refused(self, registry: JobRegistry) -> None:
        import tzdata

        with (Path(tzdata.__file__).parent / "zoneinfo" / "UTC").open("rb") as file:
            nameless = ZoneInfo.from_file(file)
        with refused("timezone must be the name of a zone"):
            registry.schedule(EVERY_MINUTE, handler, key="a", timezone=nameless)

    @pytest.mark.parametrize(
        ("expression", "zone", "reason"),
        [
            ("not cron", None, "not cron"),
            (None, None, "None"),
            ("0 0 31 2 *", None, "never"),
            (EVERY_MINUTE, "Mars/Olympus", "Mars/Olympus"),
        ],
    )
    def test_schedule_that_cannot_be_is_refused_with_job_and_place(
        self, registry: JobRegistry, expression: Any, zone: str | None, reason: str
    ) -> None:
        with refused("Job shop.sync, declared at", reason):
            registry.schedule(expression, handler, key="shop.sync", timezone=zone)
        with refused("Job shop.sync, declared at", reason):
            registry.cron(expression, key="shop.sync", timezone=zone)(handler)
        assert "shop.sync" not in registry

    def test_error_is_also_a_value_error_without_the_way_to_it(self, registry: JobRegistry) -> None:
        with pytest.raises(ValueError, match="not cron") as caught:
            registry.schedule("not cron", handler, key="a")
        assert isinstance(caught.value, CronductorError)
        assert caught.value.__suppress_context__
        assert caught.value.__cause__ is None


class TestSchedule:
    NOON = datetime(2026, 1, 1, 12, tzinfo=timezone.utc)

    def test_own_zone_goes_before_the_default(self, registry: JobRegistry) -> None:
        job = registry.schedule("0 20 * * *", handler, key="a", timezone="Europe/Berlin")
        assert job.schedule("Asia/Tokyo").next_after(self.NOON) == self.NOON.replace(hour=19)

    def test_default_zone_is_taken_as_it_is_given(self, registry: JobRegistry) -> None:
        job = registry.schedule("0 20 * * *", handler, key="a")
        assert job.schedule("UTC").next_after(self.NOON) == self.NOON.replace(hour=20)
        assert job.schedule("Europe/Berlin").next_after(self.NOON) == self.NOON.replace(hour=19)
        assert job.schedule("UTC") is job.schedule("UTC")

    def test_hashed_fields_are_hashed_by_the_key(self, registry: JobRegistry) -> None:
        hashed = {
            registry.schedule("H H * * *", handler, key=f"job-{n}").schedule("UTC").next_after(self.NOON)
            for n in range(20)
        }
        assert len(hashed) > 1


class TestAsync:
    @pytest.mark.parametrize(
        "func",
        [
            async_handler,
            functools.partial(async_handler),
            functools.partial(functools.partial(async_handler)),
            passing_on(async_handler),
            passing_on(passing_on(async_handler)),
            functools.partial(passing_on(async_handler)),
            passing_on(functools.partial(async_handler)),
            AsyncThing(),
            WrappedAsyncThing(),
            Thing().async_method,
            AsyncMock(),
            sync_to_async(handler),
        ],
    )
    def test_coroutine_function_is_seen_behind_what_wraps_it(self, registry: JobRegistry, func: Any) -> None:
        assert registry.schedule(EVERY_MINUTE, func, key="a").is_async is True

    @pytest.mark.parametrize(
        "func",
        [
            handler,
            functools.partial(handler),
            passing_on(handler),
            Thing(),
            Thing().method,
            Mock(),
            MagicMock(),
            print,
            lambda: async_handler(),
            async_to_sync(async_handler),
        ],
    )
    def test_other_function_is_not(self, registry: JobRegistry, func: Any) -> None:
        assert registry.schedule(EVERY_MINUTE, func, key="a").is_async is False


class TestDuplicates:
    def test_two_functions_with_one_key_are_refused_naming_both_places(self, registry: JobRegistry) -> None:
        first = registry.schedule(EVERY_MINUTE, handler, key="a")
        with refused("'a'", first.declared_at, "another key"):
            registry.schedule(EVERY_MINUTE, handler_of_one, key="a", takes_context=True)
        assert registry.get("a") is first
        assert first.active

    def test_two_functions_of_one_name_in_one_module_are_refused(self, registry: JobRegistry) -> None:
        @registry.cron(EVERY_MINUTE, key="a")
        def run() -> None: ...

        with refused("Two jobs have the key 'a'"):

            @registry.cron(EVERY_MINUTE, key="a")
            def run() -> None: ...

    def test_function_declared_at_two_places_with_one_key_is_refused(self, registry: JobRegistry) -> None:
        registry.schedule(EVERY_MINUTE, handler, key="a")
        with refused("Two jobs have the key 'a'"):
            registry.schedule(EVERY_MINUTE, handler, key="a")

    def test_two_functions_declared_through_one_helper_are_refused(self, registry: JobRegistry) -> None:
        def declare(func: Any) -> None:
            registry.schedule(EVERY_MINUTE, func, key="a")

        declare(lambda: None)
        with refused("Two jobs have the key 'a'"):
            declare(lambda: None)

    def test_line_that_runs_twice_replaces_the_job(self, registry: JobRegistry) -> None:
        def declare() -> Job:
            def run() -> None: ...

            return registry.schedule("0 0 * * *", run, key="a")

        first, second = declare(), declare()
        assert list(registry) == [second]
        assert not first.active
        assert second.active

    def test_loop_that_forgot_to_name_its_jobs_is_refused(self, registry: JobRegistry) -> None:
        def tell(text: str) -> None: ...

        for number, declare in enumerate(
            (
                lambda hour: registry.schedule(f"0 {hour} * * *", handler, key="expression"),
                lambda hour: registry.schedule(EVERY_MINUTE, partial(tell, hour), key="partial"),
                lambda hour: registry.schedule(EVERY_MINUTE, partial(tell, text=hour), key="keyword"),
                lambda hour: registry.schedule(EVERY_MINUTE, lambda hour=hour: tell(hour), key="default"),
                lambda hour: registry.schedule(EVERY_MINUTE, handler, ttl=hour, key="ttl"),
                lambda hour: registry.schedule(EVERY_MINUTE, handler, enabled=hour > 1, key="enabled"),
            ),
            1,
        ):
            declare(1)
            declare(1)
            with refused("Two jobs have the key"):
                declare(2)
            assert len(registry) == number

    def test_key_that_is_a_member_of_an_enum_is_its_value(self, registry: JobRegistry) -> None:
        class Keys(str, Enum):
            SYNC = "shop.sync"
            ZONE = "Europe/Berlin"

        job = registry.schedule(EVERY_MINUTE, handler, key=Keys.SYNC, timezone=Keys.ZONE)
        assert (type(job.key), f"{job.key}") == (str, "shop.sync")
        assert (type(job.timezone), f"{job.timezone}") == (str, "Europe/Berlin")
        assert registry.get(Keys.SYNC) is job
        assert job.schedule("UTC").fingerprint == Schedule(EVERY_MINUTE, "Europe/Berlin").fingerprint

    def test_handle_of_a_replaced_job_does_nothing(self, registry: JobRegistry) -> None:
        first, second = (registry.schedule(EVERY_MINUTE, handler, key="a") for _ in range(2))
        first.stop()
        first.destroy()
        assert list(registry) == [second]
        assert second.active

    def test_replaced_job_goes_on_where_it_was_and_a_stopped_one_starts_anew(self, registry: JobRegistry) -> None:
        def declare() -> Job:
            return registry.schedule(EVERY_MINUTE, handler, key="a")

        first = declare()
        second = declare()
        assert second.generation == first.generation
        second.stop()
        assert declare().generation > second.generation


class TestReloading:
    SOURCE = "@registry.cron('* * * * *', key='a')\ndef run(): return {}\n"

    @pytest.fixture
    def load(self, registry: JobRegistry, tmp_path: Path) -> Callable[..., ModuleType]:
        path = tmp_path / "cron.py"

        def load(source: str, name: str = "cron_of_a_test") -> ModuleType:
            path.write_text(source)
            spec = importlib.util.spec_from_file_location(name, path)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            module.registry = registry  # type: ignore[attr-defined]
            # Compiled here: a cache on the disk could miss a change within one second.
            exec(compile(source, path, "exec"), vars(module))
            return module

        return load

    def test_module_imported_twice_replaces_its_jobs(self, registry: JobRegistry, load: Any) -> None:
        load(self.SOURCE.format(1))
        load(self.SOURCE.format(2), "project.cron_of_a_test")
        assert registry.get("a").handler() == 2

    def test_module_reloaded_after_a_change_replaces_its_jobs(self, registry: JobRegistry, load: Any) -> None:
        load(self.SOURCE.format(1))
        load("# A line more.\n" + self.SOURCE.format(2))
        assert registry.get("a").handler() == 2

    def test_another_function_of_a_reloaded_module_is_a_duplicate(self, registry: JobRegistry, load: Any) -> None:
        load(self.SOURCE.format(1))
        with pytest.raises(ConfigurationError, match="Two jobs"):
            load(self.SOURCE.format(2).replace("run", "walk"))

    def test_same_function_in_another_file_is_a_duplicate(
        self, registry: JobRegistry, load: Any, tmp_path: Path
    ) -> None:
        load(self.SOURCE.format(1))
        with pytest.raises(ConfigurationError, match=r"other\.py:1"):
            exec(compile(self.SOURCE.format(2), tmp_path / "other.py", "exec"), {"registry": registry})


class TestStopping:
    def test_stop_and_start(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        job.stop()
        assert not job.active
        assert "a" in registry
        job.start()
        assert job.active

    def test_stopped_job_keeps_its_key(self, registry: JobRegistry) -> None:
        registry.schedule(EVERY_MINUTE, handler, key="a").stop()
        with pytest.raises(ConfigurationError):
            registry.schedule(EVERY_MINUTE, handler, key="a")

    def test_disabled_job_cannot_be_started(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a", enabled=False)
        job.start()
        assert not job.active

    def test_destroy_frees_the_key(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        job.destroy()
        assert not job.active
        assert "a" not in registry
        assert registry.schedule(EVERY_MINUTE, handler, key="a").active

    def test_destroyed_job_does_nothing_any_more(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        job.destroy()
        other = registry.schedule(EVERY_MINUTE, handler, key="a")
        before = registry.version, job.generation
        for act in (job.stop, job.start, job.destroy, job.destroy):
            act()
        assert (registry.version, job.generation) == before
        assert not job.active
        assert list(registry) == [other]
        assert other.active

    def test_generation_rises_with_each_start_after_a_stop_alone(self, registry: JobRegistry) -> None:
        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        first = job.generation
        job.start()
        job.stop()
        assert job.generation == first
        job.start()
        second = job.generation
        job.start()
        assert first < second == job.generation

    def test_job_declared_after_another_was_destroyed_is_of_a_later_generation(self, registry: JobRegistry) -> None:
        def declare() -> Job:
            return registry.schedule(EVERY_MINUTE, handler, key="a")

        job = declare()
        job.destroy()
        assert declare().generation > job.generation

    def test_version_rises_with_each_change_and_stays_without(self, registry: JobRegistry) -> None:
        versions = [registry.version]

        def note() -> bool:
            versions.append(registry.version)
            return versions[-1] > versions[-2]

        job = registry.schedule(EVERY_MINUTE, handler, key="a")
        assert note()
        for act, changes in [
            (job.start, False),
            (job.stop, True),
            (job.stop, False),
            (job.start, True),
            (job.destroy, True),
            (job.destroy, False),
        ]:
            act()
            assert note() is changes


class TestRegistry:
    def test_jobs_come_in_the_order_of_their_keys(self, registry: JobRegistry) -> None:
        for key in ("b", "c", "a"):
            registry.schedule(EVERY_MINUTE, functools.partial(handler), key=key)
        assert [job.key for job in registry] == ["a", "b", "c"]
        assert len(registry) == 3

    def test_jobs_may_be_destroyed_while_going_through_them(self, registry: JobRegistry) -> None:
        for key in ("a", "b"):
            registry.schedule(EVERY_MINUTE, handler, key=key)
        for job in registry:
            job.destroy()
        assert len(registry) == 0

    def test_registries_do_not_share_jobs(self, registry: JobRegistry) -> None:
        registry.schedule(EVERY_MINUTE, handler, key="a")
        assert "a" not in JobRegistry()

    def test_unknown_job_names_the_nearest_keys(self, registry: JobRegistry) -> None:
        for key in ("shop.sync_users", "shop.sync_user_groups", "billing.close"):
            registry.schedule(EVERY_MINUTE, handler, key=key)
        with pytest.raises(JobNotFound) as caught:
            registry.get("shop.sync_usres")
        assert str(caught.value) == (
            "No job 'shop.sync_usres' is declared; did you mean shop.sync_users or shop.sync_user_groups?"
        )

    def test_unknown_job_like_no_other_is_a_lookup_error(self, registry: JobRegistry) -> None:
        with pytest.raises(LookupError, match=r"No job 'a' is declared, nor any other\."):
            registry.get("a")
        registry.schedule(EVERY_MINUTE, handler, key="billing.close")
        registry.schedule(EVERY_MINUTE, handler, key="shop.sync")
        with pytest.raises(
            LookupError, match=r"No job 'a' is declared\. Those that are: billing\.close, shop\.sync\.$"
        ):
            registry.get("a")

    def test_of_many_jobs_or_long_keys_an_error_lists_the_first(self, registry: JobRegistry) -> None:
        for number in range(100):
            registry.schedule(EVERY_MINUTE, handler, key=f"job-{number:03}")
        with pytest.raises(JobNotFound, match=r"Those that are: job-000, job-001, (job-\d\d\d, )+\.\.\.\.$") as caught:
            registry.get("a")
        assert len(str(caught.value)) < 400

    def test_threads_may_declare_and_destroy_at_once(self, registry: JobRegistry) -> None:
        count, each = 8, 50
        barrier = threading.Barrier(count)
        errors: list[Exception] = []

        def work(number: int) -> None:
            try:
                barrier.wait()
                for turn in range(each):
                    job = registry.schedule(EVERY_MINUTE, handler, key=f"{number}-{turn}")
                    job.stop()
                    job.start()
                    list(registry)
                    if turn % 2:
                        job.destroy()
            except Exception as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(registry) == count * each // 2
        assert registry.version == count * each * 3 + count * each // 2


class TestCallingAsync:
    def test_handler_seen_as_async_can_be_awaited(self, registry: JobRegistry) -> None:
        seen = SimpleNamespace(count=0)

        async def run() -> None:
            seen.count += 1

        job = registry.schedule(EVERY_MINUTE, passing_on(functools.partial(run)), key="a")
        asyncio.run(job.handler())
        assert job.is_async
        assert seen.count == 1


def test_the_decorator_without_a_schedule_is_refused_with_its_place(registry: JobRegistry) -> None:
    with pytest.raises(ConfigurationError, match=r"@cron needs a schedule, as in .*test_jobs\.py:\d+"):

        @registry.cron  # type: ignore[arg-type]
        def job() -> None: ...
