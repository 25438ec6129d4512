"""The CRONDUCTOR setting, and the backend that it asks for."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from enum import Enum
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings as django_settings
from django.core.cache.backends.redis import RedisCache
from django.test import override_settings

from django_cronductor import backends
from django_cronductor.backends.base import LockBackend
from django_cronductor.backends.local import LocalBackend
from django_cronductor.conf import Config, get_config, lenient_config, problems, scheduler_options
from django_cronductor.exceptions import ConfigurationError

LOCMEM = "django.core.cache.backends.locmem.LocMemCache"
CACHES = {"default": {"BACKEND": LOCMEM}, "locks": {"BACKEND": "django.core.cache.backends.redis.RedisCache"}}


def on_error(error: Exception, context: object) -> None:
    """Stand for a project's function."""


async def on_error_async(error: Exception, context: object) -> None:
    """Stand for one that nobody would await."""


def on_error_generator(error: Exception, context: object) -> Iterator[None]:
    """Stand for one that nobody would go through."""
    yield


not_callable = "text"


class PrefixedRedisCache(RedisCache):
    """Stand for a project's own cache class."""


class Backend(LocalBackend):
    """Stand for a third party's backend."""

    shared = True


class FailingBackend(Backend):
    """Stand for a backend that cannot be made here."""

    def __init__(self, **options: str) -> None:
        raise OSError("no route to redis://user:sesame-open@db")


class RefusingBackend(Backend):
    """Stand for a backend that says itself what is wrong in the settings."""

    def __init__(self, **options: str) -> None:
        raise ConfigurationError("Set LOCK_DIRECTORY.")


@pytest.fixture(autouse=True)
def project() -> Iterator[None]:
    """Set what the tests do not speak of."""
    with override_settings(CACHES=CACHES, TIME_ZONE="Europe/Paris"):
        yield


def settings(**keys: Any) -> override_settings:
    return override_settings(CRONDUCTOR=keys)


class TestDefaults:
    @pytest.mark.parametrize("absent", [False, True])
    def test_every_key_is_optional(self, absent: bool) -> None:
        with override_settings(CRONDUCTOR={}):
            if absent:
                del django_settings.CRONDUCTOR
            assert get_config() == Config(
                cache="default",
                backend=None,
                prefix="cronductor",
                default_ttl_ms=30_000,
                default_grace_ms=300_000,
                timezone="Europe/Paris",
                max_workers=8,
                shutdown_timeout=25.0,
                on_error=None,
                history=100,
                autodiscover="cron",
            )

    def test_config_cannot_be_changed(self) -> None:
        with settings(), pytest.raises(AttributeError):
            get_config().prefix = "other"  # type: ignore[misc]


class TestValues:
    @pytest.mark.parametrize("value", [90, 90.0, timedelta(minutes=1, seconds=30)])
    @pytest.mark.parametrize(
        ("key", "field"), [("DEFAULT_TTL", "default_ttl_ms"), ("DEFAULT_GRACE", "default_grace_ms")]
    )
    def test_durations_are_seconds_or_timedeltas(self, key: str, field: str, value: object) -> None:
        with settings(**{key: value}):
            assert getattr(get_config(), field) == 90_000

    @pytest.mark.parametrize(("value", "seconds"), [(0, 0.0), (1.5, 1.5), (timedelta(seconds=3), 3.0)])
    def test_shutdown_timeout_is_in_seconds_and_may_be_nothing(self, value: object, seconds: float) -> None:
        with settings(SHUTDOWN_TIMEOUT=value):
            assert get_config().shutdown_timeout == seconds

    @pytest.mark.parametrize(
        ("key", "value", "field"),
        [
            ("CACHE", "locks", "cache"),
            ("BACKEND", "shop.locks.Backend", "backend"),
            ("BACKEND", None, "backend"),
            ("PREFIX", "shop-production:1", "prefix"),
            ("PREFIX", "x" * 100, "prefix"),
            ("TIMEZONE", "America/New_York", "timezone"),
            ("MAX_WORKERS", 1, "max_workers"),
            ("MAX_WORKERS", 1000, "max_workers"),
            ("HISTORY", 0, "history"),
            ("HISTORY", 10_000, "history"),
            ("AUTODISCOVER", "jobs.periodic", "autodiscover"),
            ("AUTODISCOVER", None, "autodiscover"),
            ("ON_ERROR", None, "on_error"),
            ("ON_ERROR", on_error, "on_error"),
        ],
    )
    def test_value_is_taken_over(self, key: str, value: object, field: str) -> None:
        with settings(**{key: value}):
            assert getattr(get_config(), field) == value
            assert problems() == []

    def test_timezone_none_is_that_of_the_project(self) -> None:
        with settings(TIMEZONE=None):
            assert get_config().timezone == "Europe/Paris"

    def test_timezone_is_utc_where_the_project_has_none(self) -> None:
        with settings(), override_settings(TIME_ZONE=None):
            assert get_config().timezone == "UTC"


WRONG = [
    ("DEFAULT_TTL", 0, "E003"),
    ("DEFAULT_TTL", -1, "E003"),
    ("DEFAULT_TTL", None, "E003"),
    ("DEFAULT_TTL", True, "E003"),
    ("DEFAULT_TTL", "30", "E003"),
    ("DEFAULT_TTL", float("nan"), "E003"),
    ("DEFAULT_TTL", timedelta(0), "E003"),
    ("DEFAULT_TTL", timedelta(days=400), "E003"),
    ("DEFAULT_GRACE", 0, "E003"),
    ("DEFAULT_GRACE", "long", "E003"),
    ("DEFAULT_GRACE", 29.9, "E004"),
    ("SHUTDOWN_TIMEOUT", -1, "E003"),
    ("SHUTDOWN_TIMEOUT", None, "E003"),
    ("PREFIX", "", "E003"),
    ("PREFIX", "x" * 101, "E003"),
    ("PREFIX", "a{b", "E003"),
    ("PREFIX", "a}b", "E003"),
    ("PREFIX", "a b", "E003"),
    ("PREFIX", "a\n", "E003"),
    ("PREFIX", "a\x00", "E003"),
    ("PREFIX", b"shop", "E003"),
    ("PREFIX", None, "E003"),
    ("MAX_WORKERS", 0, "E003"),
    ("MAX_WORKERS", 1001, "E003"),
    ("MAX_WORKERS", 8.0, "E003"),
    ("MAX_WORKERS", True, "E003"),
    ("HISTORY", -1, "E003"),
    ("HISTORY", None, "E003"),
    ("HISTORY", False, "E003"),
    ("AUTODISCOVER", "", "E003"),
    ("AUTODISCOVER", "cron.py/", "E003"),
    ("AUTODISCOVER", "cron.py", "E003"),
    ("AUTODISCOVER", 7, "E003"),
    ("TIMEZONE", "Mars/Olympus", "E005"),
    ("TIMEZONE", "Europe", "E005"),
    ("TIMEZONE", "../UTC", "E005"),
    ("TIMEZONE", '"UTC"', "E005"),
    ("TIMEZONE", "", "E005"),
    ("TIMEZONE", 1, "E005"),
    ("CACHE", "elsewhere", "E006"),
    ("CACHE", None, "E006"),
    ("CACHE", ["locks"], "E006"),
    ("BACKEND", 1, "E007"),
    ("BACKEND", "RedisBackend", "E007"),
    ("BACKEND", "a path/of.sorts", "E007"),
    ("ON_ERROR", 1, "E008"),
    ("ON_ERROR", "report", "E008"),
    ("ON_ERROR", on_error_async, "E008"),
    ("ON_ERROR", on_error_generator, "E008"),
]


class TestWrongValues:
    @pytest.mark.parametrize(("key", "value", "code"), WRONG)
    def test_wrong_value_is_one_problem_that_names_the_setting_and_advises(
        self, key: str, value: object, code: str
    ) -> None:
        with settings(**{key: value}):
            [problem] = problems()
            assert problem.code == f"cronductor.{code}"
            assert problem.message.startswith(f'CRONDUCTOR["{key}"] ')
            assert problem.hint
            with pytest.raises(ConfigurationError) as caught:
                get_config()
        assert problem.message in str(caught.value)
        assert problem.hint in str(caught.value)

    @pytest.mark.parametrize("value", [["CACHE"], "locks", 1, None])
    def test_e001_anything_but_a_dict_is_refused(self, value: object) -> None:
        with override_settings(CRONDUCTOR=value):
            assert [problem.code for problem in problems()] == ["cronductor.E001"]
            with pytest.raises(ConfigurationError, match="CRONDUCTOR must be a dict"):
                get_config()

    @pytest.mark.parametrize("key", ["DEFAULT_TTLS", "default_ttl", "DEFAULT-TTL"])
    def test_e002_unknown_key_names_the_nearest(self, key: str) -> None:
        with override_settings(CRONDUCTOR={key: 30}):
            [problem] = problems()
        assert problem.code == "cronductor.E002"
        assert repr(key) in problem.message
        assert problem.hint == "Did you mean 'DEFAULT_TTL'?"

    @pytest.mark.parametrize("key", ["COLOUR", 7])
    def test_e002_unknown_key_like_no_other_lists_all(self, key: object) -> None:
        with override_settings(CRONDUCTOR={key: 30}):
            [problem] = problems()
        assert "AUTODISCOVER" in problem.hint
        assert "DEFAULT_TTL" in problem.hint

    def test_project_zone_that_is_unknown_is_named_as_such(self) -> None:
        with settings():
            # Set without a signal: Django's own receiver refuses a zone that it does not know.
            django_settings.TIME_ZONE = "Mars/Olympus"
            [problem] = problems()
        assert problem.code == "cronductor.E005"
        assert problem.message.startswith("TIME_ZONE is 'Mars/Olympus'")

    def test_everything_wrong_is_listed_at_once(self) -> None:
        with settings(DEFAULT_TTL=0, HISTORY=-1, COLOUR="red"), pytest.raises(ConfigurationError) as caught:
            get_config()
        for name in ("DEFAULT_TTL", "HISTORY", "COLOUR"):
            assert name in str(caught.value)

    def test_default_grace_is_not_compared_with_a_wrong_ttl(self) -> None:
        with settings(DEFAULT_TTL=0, DEFAULT_GRACE=10):
            assert [problem.code for problem in problems()] == ["cronductor.E003"]

    def test_ttl_above_the_grace_that_nobody_set_is_fine(self) -> None:
        with settings(DEFAULT_TTL=600):
            assert problems() == []
            assert get_config().default_grace_ms == 300_000

    def test_grace_may_equal_the_ttl(self) -> None:
        with settings(DEFAULT_TTL=10, DEFAULT_GRACE=10):
            assert problems() == []

    def test_lenient_config_has_defaults_for_what_is_wrong_alone(self) -> None:
        with settings(DEFAULT_TTL=0, HISTORY=7, AUTODISCOVER=1):
            assert lenient_config() == Config(history=7, timezone="Europe/Paris")


class TestOverriding:
    def test_config_is_read_once(self) -> None:
        with settings():
            assert get_config() is get_config()

    def test_override_of_the_setting_is_seen_and_taken_back(self) -> None:
        with settings(HISTORY=5):
            with settings(HISTORY=6):
                assert get_config().history == 6
            assert get_config().history == 5

    def test_override_of_the_project_zone_is_seen(self) -> None:
        with settings():
            get_config()
            with override_settings(TIME_ZONE="Asia/Tokyo"):
                assert get_config().timezone == "Asia/Tokyo"

    def test_override_of_use_tz_reads_again(self) -> None:
        with settings():
            before = get_config()
            with override_settings(USE_TZ=False):
                assert get_config() is not before

    def test_override_of_the_caches_is_seen(self) -> None:
        with settings(CACHE="locks"):
            get_config()
            with override_settings(CACHES={"default": {"BACKEND": LOCMEM}}), pytest.raises(ConfigurationError):
                get_config()


class TestOnError:
    def test_function_is_returned_as_it_is(self) -> None:
        assert Config(on_error=on_error).resolve_on_error() is on_error

    def test_path_is_imported_when_asked_for(self) -> None:
        assert Config(on_error="tests.test_conf.on_error").resolve_on_error() is on_error

    def test_none_stays_none(self) -> None:
        assert Config().resolve_on_error() is None

    @pytest.mark.parametrize("path", ["nowhere.at_all", "tests.test_conf.nothing", "tests.test_conf.not_callable"])
    def test_e008_path_that_leads_nowhere_is_a_problem_but_found_out_only_when_asked(self, path: str) -> None:
        with settings(ON_ERROR=path):
            config = get_config()
            [problem] = problems()
            assert problem.code == "cronductor.E008"
            with pytest.raises(ConfigurationError, match=re.escape(f'CRONDUCTOR["ON_ERROR"] names {path!r}')):
                config.resolve_on_error()

    @pytest.mark.parametrize("name", ["on_error_async", "on_error_generator"])
    def test_path_of_what_would_tell_nothing_is_refused(self, name: str) -> None:
        with pytest.raises(ConfigurationError, match=f"{name}', which is async or a generator"):
            Config(on_error=f"tests.test_conf.{name}").resolve_on_error()

    def test_module_that_breaks_when_imported_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        class Breaking(ModuleType):
            def __getattr__(self, name: str) -> object:
                raise RuntimeError("half of it is missing")

        monkeypatch.setitem(sys.modules, "breaking", Breaking("breaking"))
        with pytest.raises(ConfigurationError, match="RuntimeError: half of it is missing"):
            Config(on_error="breaking.report").resolve_on_error()


class TestText:
    def test_member_of_an_enum_is_its_value(self) -> None:
        class Names(str, Enum):
            CACHE, PREFIX, MODULE = "locks", "shop", "jobs"
            BACKEND, ZONE = "django_cronductor.backends.redis.RedisBackend", "Europe/Berlin"

        with settings(
            CACHE=Names.CACHE,
            PREFIX=Names.PREFIX,
            AUTODISCOVER=Names.MODULE,
            BACKEND=Names.BACKEND,
            TIMEZONE=Names.ZONE,
        ):
            found = get_config()
        texts = (found.cache, found.prefix, found.autodiscover, found.backend, found.timezone)
        assert [f"{text}" for text in texts] == [
            "locks",
            "shop",
            "jobs",
            "django_cronductor.backends.redis.RedisBackend",
            "Europe/Berlin",
        ]
        assert {type(text) for text in texts} == {str}


class TestSchedulerOptions:
    def test_options_are_those_of_the_scheduler(self) -> None:
        with settings(
            DEFAULT_TTL=7,
            DEFAULT_GRACE=70,
            TIMEZONE="Asia/Tokyo",
            MAX_WORKERS=3,
            SHUTDOWN_TIMEOUT=1,
            ON_ERROR="tests.test_conf.on_error",
        ):
            assert scheduler_options(get_config()) == {
                "default_ttl_ms": 7_000,
                "default_grace_ms": 70_000,
                "timezone": "Asia/Tokyo",
                "max_workers": 3,
                "shutdown_timeout": 1.0,
                "on_error": on_error,
            }


def path_of(backend: type[LockBackend]) -> str:
    return f"{backend.__module__}.{backend.__qualname__}"


class TestBackend:
    @pytest.mark.parametrize(
        "cache",
        [
            "django.core.cache.backends.redis.RedisCache",
            "django_redis.cache.RedisCache",
            "django_valkey.cache.ValkeyCache",
            "tests.test_conf.PrefixedRedisCache",
        ],
    )
    @pytest.mark.parametrize("debug", [True, False])
    def test_redis_cache_asks_for_the_redis_backend(self, cache: str, debug: bool) -> None:
        caches = {**CACHES, "locks": {"BACKEND": cache, "LOCATION": "redis://127.0.0.1:1"}}
        with settings(CACHE="locks"), override_settings(CACHES=caches, DEBUG=debug):
            assert path_of(backends.resolve_backend_class()) == backends.REDIS_BACKEND

    def test_other_cache_asks_for_the_local_backend_in_debug(self) -> None:
        with settings(), override_settings(DEBUG=True):
            assert path_of(backends.resolve_backend_class()) == backends.LOCAL_BACKEND

    def test_other_cache_without_debug_is_refused_with_what_to_set(self) -> None:
        with settings(), pytest.raises(ConfigurationError) as caught:
            backends.resolve_backend_class()
        assert "'default'" in str(caught.value)
        assert 'CRONDUCTOR["CACHE"]' in str(caught.value)
        assert backends.LOCAL_BACKEND in str(caught.value)

    def test_named_backend_is_taken_whatever_the_cache(self) -> None:
        with settings(BACKEND="tests.test_conf.Backend"):
            assert backends.resolve_backend_class() is Backend

    @pytest.mark.parametrize(
        "path", ["nowhere.Backend", "tests.test_conf.Nothing", "tests.test_conf.on_error", "tests.test_conf.Config"]
    )
    def test_e007_path_that_leads_to_no_backend_is_refused(self, path: str) -> None:
        with settings(BACKEND=path), pytest.raises(ConfigurationError) as caught:
            backends.resolve_backend_class()
        assert 'CRONDUCTOR["BACKEND"]' in str(caught.value)
        assert path in str(caught.value)

    def test_given_config_goes_before_the_settings(self) -> None:
        with settings():
            assert backends.resolve_backend_class(Config(backend="tests.test_conf.Backend")) is Backend

    def test_cache_whose_class_is_missing_is_named(self) -> None:
        with (
            settings(),
            override_settings(CACHES={"default": {"BACKEND": "nowhere.Cache"}}),
            pytest.raises(ConfigurationError, match=r'CACHES\["default"\]'),
        ):
            backends.resolve_backend_class()

    def test_backend_is_made_with_cache_and_prefix(self) -> None:
        with settings(PREFIX="shop", CACHE="locks"), override_settings(DEBUG=True):
            backend = backends.create_backend(Config(cache="locks", prefix="shop", backend=backends.LOCAL_BACKEND))
        assert (backend.cache, backend.prefix) == ("locks", "shop")

    def test_importing_the_package_imports_no_driver(self) -> None:
        code = "import sys, django_cronductor.backends; sys.exit('redis' in sys.modules)"
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

    def test_a_backend_that_cannot_be_made_is_named_with_the_reason_and_without_passwords(self) -> None:
        with (
            settings(BACKEND="tests.test_conf.FailingBackend"),
            pytest.raises(ConfigurationError, match=r'CRONDUCTOR\["BACKEND"\]') as caught,
        ):
            backends.create_backend()
        assert "tests.test_conf.FailingBackend cannot be made (OSError: no route to redis://" in str(caught.value)
        assert "sesame-open" not in str(caught.value)

    def test_what_a_backend_says_itself_of_the_settings_is_said(self) -> None:
        with (
            settings(BACKEND="tests.test_conf.RefusingBackend"),
            pytest.raises(ConfigurationError, match=r"^Set LOCK_DIRECTORY\.$"),
        ):
            backends.create_backend()
