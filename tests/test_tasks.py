"""Jobs whose handler is a task: what is declared, what is enqueued, and what is told of it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import django
import pytest
from django.conf import settings
from django.core import checks as django_checks
from django.test import override_settings
from docutils import nodes
from docutils.core import publish_doctree

from django_cronductor import checks
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.handlers import is_task
from django_cronductor.history import DatabaseHistory
from django_cronductor.jobs import Job, JobRegistry, registry
from django_cronductor.models import JobRun
from tests.scheduler_world import LocalStore, World, at

if django.VERSION >= (6, 0):
    from django import tasks
    from django.tasks.backends import dummy
else:
    import django_tasks as tasks
    from django_tasks.backends import dummy

DUMMY = "django.tasks.backends.dummy.DummyBackend"
DUMMY_OF_THE_BACKPORT = "django_tasks.backends.dummy.DummyBackend"
OURS = DUMMY if django.VERSION >= (6, 0) else DUMMY_OF_THE_BACKPORT
PAGE = Path(__file__).resolve().parent.parent / "docs" / "task_queues.rst"
EVERY_MINUTE = "* * * * *"


class FullQueue(dummy.DummyBackend):
    """Take no task."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        raise ConnectionError("The queue is away.")


TASKS = {"default": {"BACKEND": OURS}, "full": {"BACKEND": "tests.test_tasks.FullQueue"}}


@tasks.task
def plain() -> None:
    raise AssertionError("a task is not called here")


@tasks.task
async def asynchronous() -> None: ...


def function() -> None: ...


def with_context(context: Any) -> None: ...


def of_one(user: int) -> None: ...


@pytest.fixture(autouse=True)
def task_settings() -> Iterator[None]:
    with override_settings(TASKS=TASKS):
        yield


@pytest.fixture
def own() -> JobRegistry:
    return JobRegistry()


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


def enqueued() -> list[Any]:
    """Return the results that the task backend of this thread has."""
    results: list[Any] = tasks.task_backends["default"].results
    return results


class TestDeclaration:
    """What of a job can be said where its handler is a task."""

    @pytest.mark.parametrize("task", [plain, asynchronous])
    def test_a_task_is_a_job_and_is_left_unchanged(self, own: JobRegistry, task: Any) -> None:
        assert own.cron(EVERY_MINUTE, key="a", grace=60, ttl=10, when=lambda: True, enabled=False)(task) is task
        assert own.get("a").handler is task
        assert own.schedule(EVERY_MINUTE, task, key="b").handler is task

    def test_a_task_of_the_backport_is_one_beside_djangos_own(self, own: JobRegistry) -> None:
        backport = pytest.importorskip("django_tasks")
        with override_settings(TASKS={"default": {"BACKEND": DUMMY_OF_THE_BACKPORT}}):
            assert own.schedule(EVERY_MINUTE, backport.task(function), key="a").key == "a"

    def test_the_default_key_is_of_the_app_and_the_name_of_the_function(
        self, own: JobRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(function, "__module__", "tests.apps.shop.cron")
        with override_settings(
            INSTALLED_APPS=[*settings.INSTALLED_APPS, "tests.apps.shop"],
            CRONDUCTOR={"CACHE": "locks", "AUTODISCOVER": None},
        ):
            own.cron(EVERY_MINUTE)(tasks.task(function))
            assert [(job.key, job.app_label) for job in own] == [("shop.function", "shop")]

    def test_a_task_of_no_app_needs_a_key(self, own: JobRegistry) -> None:
        with pytest.raises(ConfigurationError, match=r"plain, .*the module tests\.test_tasks is in no installed app"):
            own.cron(EVERY_MINUTE)(plain)

    def test_a_task_that_is_declared_again_from_its_place_replaces_itself(self, own: JobRegistry) -> None:
        jobs = [own.schedule(EVERY_MINUTE, tasks.task(function), key="a") for _ in range(2)]
        assert list(own) == jobs[1:]

    def test_another_task_with_the_same_key_is_refused(self, own: JobRegistry) -> None:
        own.schedule(EVERY_MINUTE, plain, key="a")
        with pytest.raises(ConfigurationError, match="Two jobs have the key 'a'"):
            own.schedule(EVERY_MINUTE, asynchronous, key="a")

    @pytest.mark.parametrize(
        ("option", "reason"),
        [
            ({"recover": True}, "recover is not for a task: .* workers of its task backend"),
            ({"timeout": 5}, "timeout is not for a task: .* workers of its task backend"),
            ({"takes_context": True}, r"takes_context is not for a task: .* @task\(takes_context=True\)"),
        ],
    )
    def test_an_option_that_says_nothing_of_a_task_is_refused(self, own: JobRegistry, option: Any, reason: str) -> None:
        with pytest.raises(ConfigurationError, match=reason):
            own.schedule(EVERY_MINUTE, plain, key="a", **option)
        with pytest.raises(ConfigurationError, match=reason):
            own.cron(EVERY_MINUTE, **option)(plain)

    def test_a_task_that_takes_arguments_is_refused(self, own: JobRegistry) -> None:
        with pytest.raises(ConfigurationError, match=r"without arguments: missing .*'user'.*\.enqueue\(\) with them"):
            own.schedule(EVERY_MINUTE, tasks.task(of_one), key="a")

    def test_a_task_that_takes_its_own_context_is_not(self, own: JobRegistry) -> None:
        own.schedule(EVERY_MINUTE, tasks.task(takes_context=True)(with_context), key="a")

    def test_a_task_is_no_condition(self, own: JobRegistry) -> None:
        with pytest.raises(ConfigurationError, match=r"when is a task: declare a function that calls its \.enqueue"):
            own.schedule(EVERY_MINUTE, plain, key="a", when=plain)  # type: ignore[arg-type]


@pytest.mark.django_db
class TestRun:
    """What becomes of an occurrence."""

    def task_job(self, world: World, task: Any = plain, **options: Any) -> Job:
        return world.registry.schedule(EVERY_MINUTE, task, key="job", **options)

    def test_each_occurrence_is_enqueued_once_across_the_replicas(self, world: World) -> None:
        self.task_job(world)
        world.replica(), world.replica(ahead=0.3)
        world.go(at(12, 2, 1))
        assert [(result.task, result.args, result.kwargs) for result in enqueued()] == [(plain, [], {})] * 2
        assert world.outcomes() == ["enqueued"] * 2

    def test_an_async_task_is_enqueued_as_well(self, world: World) -> None:
        self.task_job(world, asynchronous)
        world.replica()
        world.go(at(12, 1, 1))
        assert [result.task for result in enqueued()] == [asynchronous]

    def test_the_receivers_of_its_end_learn_the_id_of_the_result(self, world: World) -> None:
        self.task_job(world)
        world.replica()
        world.go(at(12, 1, 1))
        (finished,) = world.heard("job_finished")
        (result,) = enqueued()
        assert finished["context"].task_result_id == result.id != ""
        assert finished["error"] is None

    def test_where_the_condition_is_not_met_nothing_is_enqueued(self, world: World) -> None:
        self.task_job(world, when=lambda: False)
        world.replica()
        world.go(at(12, 1, 1))
        assert enqueued() == []
        assert world.skipped() == [("job", at(12, 1), "condition")]

    def test_a_queue_that_fails_is_a_failed_run(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        self.task_job(world, plain.using(backend="full"))
        world.replica()
        world.go(at(12, 1, 1))
        assert world.outcomes() == ["failed"]
        ((error, context),) = world.errors
        assert (str(error), context.phase) == ("The queue is away.", "handler")
        assert "job for 2026-01-05 12:01:00+00:00 failed" in caplog.text

    def test_the_log_tells_of_it_as_of_a_success(self, world: World, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level("INFO", "django_cronductor")
        self.task_job(world)
        world.replica()
        world.go(at(12, 1, 1))
        (record,) = [record for record in caplog.records if getattr(record, "outcome", None) == "enqueued"]
        assert record.levelname == "INFO"
        assert record.getMessage().startswith("job for 2026-01-05 12:01:00+00:00 enqueued after")

    def test_the_history_has_the_outcome_and_the_id_of_the_result(self, world: World) -> None:
        self.task_job(world)
        world.replica(history=DatabaseHistory(keep=50, inline=True))
        world.go(at(12, 1, 1))
        (result,) = enqueued()
        run = JobRun.objects.get()
        assert (run.outcome, run.task_result_id) == ("enqueued", result.id)

    def test_the_run_of_a_function_has_no_result(self, world: World) -> None:
        world.job(EVERY_MINUTE)
        world.replica(history=DatabaseHistory(keep=50, inline=True))
        world.go(at(12, 1, 1))
        run = JobRun.objects.get()
        assert (run.outcome, run.task_result_id) == ("succeeded", "")

    def test_a_manual_run_enqueues_too(self, world: World) -> None:
        job = self.task_job(world)
        replica = world.replica()
        replica.tick()
        assert world.backend.request_run(job.key)
        world.go(at(12, 0, 3))
        assert len(enqueued()) == 1


class TestCheck:
    """W005: the task backend has no workers."""

    @pytest.fixture(autouse=True)
    def job(self) -> Iterator[None]:
        with override_settings(TASKS={"default": {"BACKEND": OURS}, "queue": {"BACKEND": "tests.test_tasks.Queue"}}):
            yield

    def messages(self, *found: Any) -> list[Any]:
        own = JobRegistry()
        for task in found:
            own.schedule(EVERY_MINUTE, task, key=f"shop.{task.name}")
        own.schedule(EVERY_MINUTE, function, key="shop.no_task")
        return list(checks.task_messages(own))

    @pytest.mark.parametrize(
        ("backend", "says"),
        [
            ("immediate.ImmediateBackend", "runs a task at once, in runcron's own thread"),
            ("dummy.DummyBackend", "never runs a task"),
        ],
    )
    @pytest.mark.parametrize("package", ["django.tasks", "django_tasks"])
    def test_w005_djangos_own_backends_have_none(self, backend: str, says: str, package: str) -> None:
        pytest.importorskip(package)
        with override_settings(TASKS={"default": {"BACKEND": f"{package}.backends.{backend}"}}):
            (message,) = self.messages(asynchronous, plain)
        assert message.id == "cronductor.W005"
        assert says in message.msg
        assert message.msg.endswith("enqueued: shop.asynchronous, shop.plain.")
        assert "TASKS['default']" in message.hint

    def test_w005_is_silent_for_a_backend_that_has_workers(self) -> None:
        assert self.messages(plain.using(backend="queue")) == []

    def test_w005_names_a_few_of_many_jobs(self) -> None:
        own = JobRegistry()
        for number in range(9):
            own.schedule(EVERY_MINUTE, plain, key=f"job-{number}")
        (message,) = checks.task_messages(own)
        assert message.msg.endswith("job-0, job-1, job-2, job-3, job-4 and 4 more.")

    def test_w005_is_told_by_manage_check(self) -> None:
        job = registry.schedule(EVERY_MINUTE, plain, key="shop.plain")
        try:
            messages = django_checks.run_checks(tags=[checks.TAG])
        finally:
            job.destroy()
        assert [message.id for message in messages] == ["cronductor.W005"]


class Queue(dummy.DummyBackend.__bases__[0]):  # type: ignore[misc]
    """Stand for a backend whose tasks go to workers elsewhere."""

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        raise NotImplementedError


def examples() -> list[str]:
    """Return the examples of the page about task queues."""
    document = publish_doctree(PAGE.read_text(), settings_overrides={"_disable_config": True})
    return [block.astext() for block in document.findall(nodes.literal_block) if "python" in block["classes"]]


def test_the_examples_of_the_page_are_declared_as_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Here the queues of others are stand-ins: of their tasks it matters that they take any arguments."""
    shop = ModuleType("shop")
    shop.tasks = Mock()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "django.tasks", tasks)
    monkeypatch.setitem(sys.modules, "shop", shop)
    declared: list[tuple[str, bool]] = []
    with override_settings(
        INSTALLED_APPS=[*settings.INSTALLED_APPS, "tests.apps.quiet"],
        CRONDUCTOR={"CACHE": "locks", "AUTODISCOVER": None},
    ):
        others = set(registry)
        names: dict[str, Any] = {"__name__": "tests.apps.quiet.cron"}
        for example in examples():
            exec(example, names)
            for job in (one for one in registry if one not in others):
                declared.append((job.key, is_task(job.handler)))
                job.destroy()
    assert declared == [
        ("quiet.sync_users", True),
        ("quiet.sync_users", True),
        ("quiet.nightly_report", False),
        ("shop.clean_up", False),
        ("shop.make_index", False),
        ("shop.send_mails", False),
        ("shop.sync_stock", False),
        ("shop.report", False),
        ("shop.weekly", False),
    ]
