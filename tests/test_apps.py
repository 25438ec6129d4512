"""Loading the app: which modules are imported, and what an error in one of them looks like."""

from __future__ import annotations

import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from django.apps import AppConfig, apps
from django.conf import settings
from django.test import override_settings

from django_cronductor.apps import import_jobs
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.jobs import registry


@contextmanager
def install(*names: str, **keys: Any) -> Iterator[None]:
    """Load the apps anew with these demo apps among them."""
    installed = [*settings.INSTALLED_APPS, *(f"tests.apps.{name}" for name in names)]
    # One after the other: a single override loads the apps before its other settings hold.
    with override_settings(CRONDUCTOR={"CACHE": "locks", **keys}), override_settings(INSTALLED_APPS=installed):
        yield


@contextmanager
def an_app(path: Path, files: dict[str, str]) -> Iterator[AppConfig]:
    """Make an app of these files, which is not installed."""
    name = f"app_{uuid4().hex}"
    for file, text in {"__init__.py": "", **files}.items():
        place = path / name / file
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    sys.path.insert(0, str(path))
    try:
        yield AppConfig.create(name)
    finally:
        sys.path.remove(str(path))


def forget_demo_apps() -> None:
    for job in registry:
        if str(job.handler.__module__).startswith("tests.apps"):
            job.destroy()
    for name in [name for name in sys.modules if name.startswith("tests.apps.")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def demo_apps() -> Iterator[None]:
    """Import the demo apps as if for the first time."""
    forget_demo_apps()
    yield
    forget_demo_apps()


def keys() -> list[str]:
    return [job.key for job in registry if str(job.handler.__module__).startswith("tests.apps")]


class TestAutodiscovery:
    def test_jobs_of_an_app_are_found(self) -> None:
        with install("shop"):
            assert keys() == ["shop.sync_users"]

    def test_decorated_function_can_be_called_as_before(self) -> None:
        with install("shop"):
            from tests.apps.shop.cron import sync_users

            assert sync_users() == "synchronised"
            assert registry.get("shop.sync_users").handler is sync_users

    def test_app_without_a_module_of_jobs_is_fine(self) -> None:
        with install("quiet"):
            assert apps.is_installed("tests.apps.quiet")
            assert keys() == []

    def test_equal_names_in_an_app_and_one_inside_it_are_two_jobs(self) -> None:
        with install("shop", "shop.inner"):
            assert keys() == ["inner.sync_users", "shop.sync_users"]

    def test_key_has_the_label_of_an_app_and_not_its_name(self) -> None:
        with install("renamed"):
            assert keys() == ["billing.close_month"]
            assert registry.get("billing.close_month").app_label == "billing"

    def test_label_is_the_same_where_the_app_config_is_installed_by_its_path(self) -> None:
        with install("renamed.apps.RenamedConfig"):
            assert keys() == ["billing.close_month"]

    def test_namespace_package_is_searched_too(self) -> None:
        with install("spacious"):
            assert keys() == ["spacious.tidy"]

    def test_job_declared_while_apps_are_loading_gets_its_key_when_they_are_loaded(self) -> None:
        with install("hasty"):
            assert keys() == ["hasty.hurry"]

    def test_loading_twice_declares_nothing_twice(self) -> None:
        with install("shop"):
            before = registry.version
            apps.get_app_config("django_cronductor").ready()
            assert keys() == ["shop.sync_users"]
            assert registry.version == before


class TestBrokenModules:
    def test_error_in_a_module_of_jobs_is_raised_and_shows_where(self) -> None:
        with pytest.raises(RuntimeError, match="broken on purpose") as caught, install("quiet", "broken"):
            pass
        text = "".join(traceback.format_exception(caught.value))
        assert "apps/broken/cron.py" in text
        if sys.version_info >= (3, 11):
            assert "While the jobs of the app 'broken' were imported from tests.apps.broken.cron." in text

    def test_module_that_needs_a_missing_one_is_not_taken_for_absent(self) -> None:
        with pytest.raises(ModuleNotFoundError, match="nowhere") as caught, install("unready"):
            pass
        assert "apps/unready/cron.py" in "".join(traceback.format_exception(caught.value))

    def test_module_that_leaves_the_program_is_an_error_that_says_so(self, tmp_path: Path) -> None:
        with (
            an_app(tmp_path, {"cron.py": "import sys\nsys.exit(0)\n"}) as app,
            pytest.raises(ConfigurationError, match=rf"{app.name}\.cron leaves the program when it is imported"),
        ):
            import_jobs(app, "cron")

    def test_error_in_a_package_on_the_way_to_the_module_is_raised(self, tmp_path: Path) -> None:
        files = {"tasks/__init__.py": "import nosuch\n", "tasks/cron.py": ""}
        with an_app(tmp_path, files) as app, pytest.raises(ModuleNotFoundError, match="nosuch"):
            import_jobs(app, "tasks.cron")

    def test_package_on_the_way_that_is_not_there_is_none(self, tmp_path: Path) -> None:
        with an_app(tmp_path, {"other.py": ""}) as app:
            import_jobs(app, "tasks.cron")
            import_jobs(app, "other.cron")


class TestSetting:
    def test_another_module_is_looked_for_if_the_setting_names_one(self) -> None:
        with install("shop", "shop.inner", AUTODISCOVER="inner.cron"):
            assert keys() == ["inner.sync_users"]

    def test_none_turns_the_search_off(self) -> None:
        with install("shop", "broken", AUTODISCOVER=None):
            assert keys() == []

    @pytest.mark.parametrize("wrong", [{"AUTODISCOVER": 7}, {"COLOUR": "red"}, {"CACHE": "nowhere"}])
    def test_wrong_setting_leaves_the_default_and_breaks_nothing(self, wrong: dict[str, object]) -> None:
        with install("shop", **wrong):
            assert keys() == ["shop.sync_users"]


class TestConfig:
    def test_app_is_named_for_the_admin(self) -> None:
        config = apps.get_app_config("django_cronductor")
        assert (config.label, config.verbose_name) == ("django_cronductor", "Scheduled jobs")
        assert config.default_auto_field == "django.db.models.BigAutoField"

    def test_package_has_no_module_that_autodiscovery_would_take_for_jobs(self) -> None:
        with install():
            assert "django_cronductor.cron" not in sys.modules

    def test_loading_starts_no_thread_and_no_connection(self) -> None:
        before = threading.active_count()
        with install("shop"):
            assert threading.active_count() == before
        code = (
            "import socket, threading, django\n"
            "from django.conf import settings\n"
            "def refuse(*args): raise AssertionError('a connection was opened')\n"
            "socket.socket.connect = refuse\n"
            "redis = {'BACKEND': 'django.core.cache.backends.redis.RedisCache', 'LOCATION': 'redis://127.0.0.1:1'}\n"
            "settings.configure(INSTALLED_APPS=['django_cronductor', 'tests.apps.shop'], CACHES={'default': redis})\n"
            "django.setup()\n"
            "from django_cronductor.jobs import registry\n"
            "assert [job.key for job in registry] == ['shop.sync_users']\n"
            "assert threading.active_count() == 1\n"
        )
        done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
