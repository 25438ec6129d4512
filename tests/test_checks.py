"""The system checks: each is tested under its id."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from django.core import checks as django_checks
from django.core.checks import CheckMessage
from django.test import override_settings

from django_cronductor import checks
from django_cronductor.backends import LOCAL_BACKEND
from django_cronductor.backends.base import LockBackend
from django_cronductor.backends.local import LocalBackend
from django_cronductor.conf import Config
from django_cronductor.jobs import JobRegistry, registry

DJANGO_REDIS = "django.core.cache.backends.redis.RedisCache"
DJANGO_REDIS_PACKAGE = "django_redis.cache.RedisCache"
VALKEY = "django_valkey.cache.ValkeyCache"
LOCMEM = {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}


def redis_cache(location: object = "redis://127.0.0.1:1/5", backend: str = DJANGO_REDIS, **options: Any) -> Any:
    return {"BACKEND": backend, "LOCATION": location, "OPTIONS": options}


class SharedBackend(LocalBackend):
    """Stand for a third party's backend, with a check of its own."""

    shared = True

    @classmethod
    def check(cls, *, cache: str, prefix: str, deploy: bool) -> list[CheckMessage]:
        return [django_checks.Warning(f"{cache} {prefix} {deploy}", id="shared.W001")]


class LonelyBackend(SharedBackend):
    """Stand for a backend in process memory."""

    shared = False


class PartOfABackend(LockBackend):
    """Stand for a backend that is begun: nothing of it is there but its place."""

    def describe(self) -> str:
        return "nowhere"


class HeadstrongBackend(SharedBackend):
    """Stand for a backend that is made in a way of its own."""

    def __init__(self, address: str) -> None:
        super().__init__()


SHARED = "tests.test_checks.SharedBackend"
LONELY = "tests.test_checks.LonelyBackend"


@pytest.fixture(autouse=True)
def project(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Be a project with locks in Redis, and without a network."""

    def refuse(*args: object) -> None:
        raise AssertionError("a check opened a connection")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    with override_settings(CACHES={"default": LOCMEM, "locks": redis_cache()}, CRONDUCTOR={"CACHE": "locks"}):
        yield


def run(*, deploy: bool = False, **keys: Any) -> list[CheckMessage]:
    """Run this package's checks as `manage.py check` does."""
    with override_settings(CRONDUCTOR={"CACHE": "locks", **keys}):
        return django_checks.run_checks(tags=[checks.TAG], include_deployment_checks=deploy)


def ids(messages: list[CheckMessage]) -> list[str]:
    return [str(message.id).removeprefix("cronductor.") for message in messages]


def job_ids(jobs: JobRegistry, config: Config, *, readable: bool = True) -> list[str]:
    return ids(list(checks.job_messages(jobs, config, readable=readable)))


class TestSettings:
    def test_nothing_is_reported_where_nothing_is_wrong(self) -> None:
        assert run() == []

    @pytest.mark.parametrize("value", [["CACHE"], None])
    def test_e001_setting_is_no_dict(self, value: object) -> None:
        with override_settings(CRONDUCTOR=value):
            messages = django_checks.run_checks(tags=[checks.TAG], include_deployment_checks=True)
        assert ids(messages) == ["E001"]

    def test_e002_unknown_key(self) -> None:
        [message] = run(DEFAULT_TLL=30, deploy=True)
        assert message.id == "cronductor.E002"
        assert message.hint == "Did you mean 'DEFAULT_TTL'?"
        assert message.is_serious()

    @pytest.mark.parametrize(
        ("key", "value"), [("DEFAULT_TTL", 0), ("DEFAULT_GRACE", "5m"), ("MAX_WORKERS", "8"), ("PREFIX", "{a}")]
    )
    def test_e003_wrong_type_or_value(self, key: str, value: object) -> None:
        [message] = run(deploy=True, **{key: value})
        assert message.id == "cronductor.E003"
        assert f'CRONDUCTOR["{key}"]' in message.msg

    def test_e004_default_grace_shorter_than_default_ttl(self) -> None:
        assert ids(run(DEFAULT_TTL=60, DEFAULT_GRACE=59, deploy=True)) == ["E004"]

    def test_e005_unknown_zone(self) -> None:
        assert ids(run(TIMEZONE="Mars/Olympus", deploy=True)) == ["E005"]

    def test_e006_unknown_cache(self) -> None:
        assert ids(run(CACHE="nowhere", deploy=True)) == ["E006"]

    @pytest.mark.parametrize("path", ["nowhere.Backend", "tests.test_checks.run", "Backend", 7])
    def test_e007_backend_that_is_none(self, path: object) -> None:
        assert ids(run(BACKEND=path, deploy=True)) == ["E007"]

    @pytest.mark.parametrize(
        ("path", "lacks"),
        [
            ("django_cronductor.backends.base.LockBackend", "shared, acquire, claim, close, .*, time"),
            ("tests.test_checks.PartOfABackend", "shared, acquire, claim, close, declare, force_release, .*, time"),
            ("tests.test_checks.HeadstrongBackend", "an __init__ that takes cache and prefix by name"),
        ],
    )
    def test_e007_backend_that_lacks_something(self, path: str, lacks: str) -> None:
        [message] = run(BACKEND=path, deploy=True)
        assert message.id == "cronductor.E007"
        assert re.fullmatch(rf"CRONDUCTOR\[\"BACKEND\"\] names '{path}', which lacks {lacks}\.", message.msg)

    @pytest.mark.parametrize("path", ["nowhere.report", "tests.test_checks.SHARED"])
    def test_e008_error_function_that_is_none(self, path: str) -> None:
        assert ids(run(ON_ERROR=path, deploy=True)) == ["E008"]

    def test_w002_default_ttl_below_a_second(self) -> None:
        [message] = run(DEFAULT_TTL=0.5)
        assert message.id == "cronductor.W002"
        assert 'CRONDUCTOR["DEFAULT_TTL"] is 0.5 s' in message.msg
        assert run(DEFAULT_TTL=1) == []


class TestJobs:
    @pytest.fixture
    def jobs(self) -> JobRegistry:
        return JobRegistry()

    def declare(self, jobs: JobRegistry, expression: str = "0 0 * * *", **options: Any) -> None:
        jobs.schedule(expression, print, key="shop.sync", **options)

    def test_default_registry_is_what_is_checked(self) -> None:
        job = registry.schedule("0 0 * * *", print, key="test-checked", ttl=0.5)
        try:
            assert ids(run()) == ["W002"]
        finally:
            job.destroy()

    def test_job_without_fault_is_not_mentioned(self, jobs: JobRegistry) -> None:
        self.declare(jobs, ttl=60, grace=60)
        assert job_ids(jobs, Config()) == []

    def test_w001_schedule_that_is_not_what_it_seems(self, jobs: JobRegistry) -> None:
        self.declare(jobs, "* */4 * * *")
        [message] = checks.job_messages(jobs, Config())
        [job] = jobs
        assert message.id == "cronductor.W001"
        assert message.msg == job.schedule("UTC").warnings[0]
        assert message.obj == f"shop.sync ({job.declared_at})"

    def test_w002_ttl_of_a_job_below_a_second(self, jobs: JobRegistry) -> None:
        self.declare(jobs, ttl=0.999)
        [message] = checks.job_messages(jobs, Config())
        assert message.id == "cronductor.W002"
        assert "shop.sync" in str(message)

    def test_e009_grace_of_a_job_shorter_than_the_default_ttl(self, jobs: JobRegistry) -> None:
        self.declare(jobs, grace=20)
        [message] = checks.job_messages(jobs, Config(default_ttl_ms=30_000))
        assert message.id == "cronductor.E009"
        assert message.is_serious()
        assert "grace (20 s)" in message.msg
        assert "30 s" in message.msg
        assert "shop.sync" in str(message)
        assert job_ids(jobs, Config(default_ttl_ms=20_000)) == []

    def test_e009_grace_is_not_judged_by_settings_that_are_wrong(self, jobs: JobRegistry) -> None:
        self.declare(jobs, grace=20)
        assert job_ids(jobs, Config(), readable=False) == []

    def test_wrong_setting_is_reported_once_and_not_for_each_job(self) -> None:
        job = registry.schedule("0 0 * * *", print, key="test-checked", grace=20)
        try:
            assert ids(run(DEFAULT_TTL=-1)) == ["E003"]
        finally:
            job.destroy()


SAME = [
    ("redis://127.0.0.1:6379/5", "redis://127.0.0.1:6379/5"),
    ("redis://127.0.0.1:6379/5", "redis://localhost/5"),
    ("redis://localhost/5", "redis://[::1]/5"),
    ("redis://redis.example/5", "redis://REDIS.example:6379/5/"),
    ("redis://redis.example/5", "rediss://someone:secret@redis.example/5"),
    ("redis://redis.example/5", "redis://redis.example?db=5"),
    ("redis://redis.example/5", "redis://redis.example/4?db=5"),
    ("redis://redis.example", "redis://redis.example/0"),
    ("redis://redis.example/5", ["redis://redis.example/5", "redis://replica.example/5"]),
    ("redis://redis.example/5", "redis://redis.example/5,redis://replica.example/5"),
    ("redis://redis.example/5", "redis://redis.example/5; redis://replica.example/5"),
    ("unix:///run/redis.sock?db=5", "unix://someone:secret@/run/redis.sock?db=5"),
]
OTHER = [
    ("redis://redis.example/5", "redis://redis.example/4"),
    ("redis://redis.example/5", "redis://redis.example"),
    ("redis://redis.example/5", "redis://other.example/5"),
    ("redis://redis.example/5", "redis://redis.example:6380/5"),
    ("redis://redis.example/5", ["redis://other.example/5", "redis://redis.example/5"]),
    ("unix:///run/redis.sock?db=5", "unix:///run/redis.sock"),
    ("unix:///run/redis.sock", "unix:///run/other.sock"),
    ("redis://redis.example/5", "redis.example:6379:5"),
    ("redis://redis.example/5", "redis://redis.example:port/5"),
    ("redis://redis.example/5", ""),
    ("redis://redis.example/5", None),
    ("redis://redis.example/5", []),
]


class TestSharedDatabase:
    def caches(self, locks: object, other: object) -> override_settings:
        return override_settings(CACHES={"default": LOCMEM, "locks": locks, "pages": other})

    @pytest.mark.parametrize(("locks", "other"), [*SAME, *(pair[::-1] for pair in SAME)])
    def test_w003_another_cache_in_the_same_database(self, locks: object, other: object) -> None:
        with self.caches(redis_cache(locks), redis_cache(other)):
            [message] = run()
        assert message.id == "cronductor.W003"
        assert "'locks'" in message.msg
        assert "the cache 'pages'" in message.msg
        assert not message.is_serious()
        assert "secret" not in f"{message} {message.hint}"

    @pytest.mark.parametrize(("locks", "other"), [*OTHER, *(pair[::-1] for pair in OTHER)])
    def test_another_database_is_fine(self, locks: object, other: object) -> None:
        with self.caches(redis_cache(locks), redis_cache(other)):
            assert run() == []

    @pytest.mark.parametrize(
        "other",
        [
            redis_cache("redis://redis.example", db=5),
            redis_cache("redis://redis.example", DJANGO_REDIS_PACKAGE, CONNECTION_POOL_KWARGS={"db": 5}),
            redis_cache("redis://redis.example/5", DJANGO_REDIS_PACKAGE),
            redis_cache("redis://redis.example/5", VALKEY),
            redis_cache("valkey://redis.example/5", VALKEY),
            redis_cache("redis://redis.example/5", db=4),
        ],
    )
    def test_w003_whatever_names_the_database(self, other: object) -> None:
        with self.caches(redis_cache("redis://redis.example/5"), other):
            assert ids(run()) == ["W003"]

    def test_equal_names_under_other_sentinels_are_other_servers(self) -> None:
        def sentinel(host: str) -> object:
            return redis_cache("redis://main/5", DJANGO_REDIS_PACKAGE, SENTINELS=[(host, 26379)])

        with self.caches(sentinel("a.example"), sentinel("b.example")):
            assert run() == []
        with self.caches(sentinel("a.example"), sentinel("a.example")):
            assert ids(run()) == ["W003"]

    def test_two_other_caches_are_named_in_one_warning(self) -> None:
        with override_settings(CACHES={"default": redis_cache(), "locks": redis_cache(), "pages": redis_cache()}):
            [message] = run()
        assert "the caches 'default', 'pages'" in message.msg

    @pytest.mark.parametrize(
        "other", [LOCMEM, {"BACKEND": "nowhere.Cache", "LOCATION": "redis://127.0.0.1:1/5"}, {"LOCATION": "x"}]
    )
    def test_cache_that_is_not_in_redis_shares_nothing(self, other: object) -> None:
        with self.caches(redis_cache(), other):
            assert run() == []

    def test_cache_that_holds_no_locks_may_share(self) -> None:
        with self.caches(redis_cache(), redis_cache()):
            assert run(BACKEND=LONELY) == []
            assert run(CACHE="default") == []


class TestDeployment:
    def test_e010_no_backend_for_a_cache_that_is_not_in_redis(self) -> None:
        [message] = run(CACHE="default", deploy=True)
        assert message.id == "cronductor.E010"
        assert "'default'" in message.msg

    @pytest.mark.parametrize("debug", [True, False])
    def test_e010_is_never_reported_without_deploy(self, debug: bool) -> None:
        with override_settings(DEBUG=debug):
            assert run(CACHE="default") == []

    def test_w004_backend_in_this_process_alone(self) -> None:
        messages = run(BACKEND=LONELY, deploy=True)
        assert ids(messages) == ["W004", "shared.W001"]
        assert "LonelyBackend" in messages[0].msg
        assert not messages[0].is_serious()
        assert run(BACKEND=LONELY) == []

    def test_w004_the_backend_of_debug_is_such_a_one(self) -> None:
        with override_settings(DEBUG=True):
            assert "W004" in ids(run(CACHE="default", deploy=True))
        assert "W004" in ids(run(BACKEND=LOCAL_BACKEND, deploy=True))

    def test_backend_makes_its_own_checks_under_deploy_alone(self) -> None:
        [message] = run(BACKEND=SHARED, PREFIX="shop", deploy=True)
        assert message.msg == "locks shop True"
        assert run(BACKEND=SHARED, PREFIX="shop") == []


class TestDocumentation:
    def test_every_id_is_in_the_table(self) -> None:
        import inspect

        from django_cronductor import conf

        source = inspect.getsource(checks) + inspect.getsource(conf)
        table = str(checks.__doc__)
        documented = {word for word in table.split() if word.startswith("cronductor.")}
        used = {word for word in source.replace('"', " ").replace(")", " ").split() if word.startswith("cronductor.")}
        assert used == documented
        assert len(documented) == 15
