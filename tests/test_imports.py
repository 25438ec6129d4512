"""Who may know what: imports go one way, and loading the package starts nothing."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import django_cronductor

PACKAGE = "django_cronductor"
ROOT = Path(django_cronductor.__file__).parent
TESTS = Path(__file__).resolve().parent

LAYERS = [
    # What knows nothing of the rest of the package.
    {"exceptions", "signals", "clock", "fields", "instants", "logs", "testing.clock"},
    # What is made of these alone.
    {"durations", "keys", "handlers", "schedules", "masking", "models", "migrations"}
    | {"backends.base", "backends.connections", "store", "waiting", "workers"},
    # Declarations; stores; what is done with a lease.
    {"jobs", "records", "conf", "backends.redis", "backends.local", "leases"},
    # One run; what is next; which store.
    {"runner", "agenda", "backends", "history"},
    {"reports", "locks", "orphans", "arguments"},
    {"trouble"},
    {"roster"},
    {"scheduler", "overview"},
    # What operators do.
    {"operations"},
    {"orders"},
    # Pages, made of their parts.
    {"admin.pictures"},
    {"admin.words", "admin.actions"},
    {"admin.cells", "admin.recent"},
    {"admin.day", "admin.runs"},
    {"admin.job_page", "admin.job_list"},
    {"admin.jobs"},
    # The public names, and what is told of all this to people.
    {"", "checks", "admin"},
    # Who puts it together, and who uses it.
    {"apps", "contrib"},
    {"management", "testing"},
]
"""Modules (or packages, for all that is in them): each may import from the layers above it in this list."""

LOOP = {"scheduler", "runner", "leases", "workers", "records", "reports", "store"}
LOOP |= {"agenda", "roster", "trouble", "orphans", "arguments"}
"""They get jobs, backend, clock and history handed to them."""


def name_of(path: Path) -> str:
    """Return the name of a module inside the package; that of the package itself is empty."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


SOURCES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


def imports_of(name: str) -> Iterator[str]:
    """Yield the full name of everything that a module imports, wherever in it."""
    for node in ast.walk(ast.parse(SOURCES[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} has a relative import."
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def own_imports(name: str) -> set[str]:
    """Return the modules of the package that a module imports."""
    found = set()
    for target in imports_of(name):
        if target == PACKAGE or target.startswith(f"{PACKAGE}."):
            inner = target[len(PACKAGE) + 1 :]
            # The last part may be a name in a module rather than a module.
            found.add(inner if inner in SOURCES else inner.rpartition(".")[0])
    return found


def foreign_imports(name: str) -> set[str]:
    return {target for target in imports_of(name) if target.partition(".")[0] != PACKAGE}


def layer_of(name: str) -> int | None:
    """Return the place of a module, or that of the package it is in."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        for number, layer in enumerate(LAYERS):
            if ".".join(parts[:length]) in layer:
                return number
    return None


def run_python(code: str) -> None:
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=TESTS.parent, check=False)
    assert done.returncode == 0, done.stderr


def test_the_directions_are_tested_on_all_that_there_is() -> None:
    assert {"", "backends", "backends.base", "management.commands.runcron"} <= SOURCES.keys()
    assert {"scheduler", "runner", "leases", "agenda", "reports", "store", "workers"} <= SOURCES.keys()
    assert {"jobs", "runner", "backends.base"} <= own_imports("scheduler")
    assert "django.dispatch.Signal" in foreign_imports("signals")
    assert own_imports("signals") == set()


@pytest.mark.parametrize("name", SOURCES)
def test_every_module_has_its_place(name: str) -> None:
    assert layer_of(name) is not None, f"Say in LAYERS of tests/test_imports.py who may import {name}."


@pytest.mark.parametrize("name", SOURCES)
def test_imports_go_one_way(name: str) -> None:
    place = layer_of(name)
    assert place is not None
    back = {target for target in own_imports(name) if (layer_of(target) or 0) >= place}
    inside = {
        target for target in back if place == len(LAYERS) - 1 and target.partition(".")[0] == name.partition(".")[0]
    }
    assert back - inside == set(), f"{name} may not import these."


@pytest.mark.parametrize("name", sorted(LOOP & SOURCES.keys()))
def test_the_loop_knows_neither_settings_nor_models_nor_who_puts_it_together(name: str) -> None:
    known = own_imports(name)
    assert known & {"conf", "models", "history", "backends", "locks", "checks", "admin", "apps", ""} == set()
    assert [target for target in foreign_imports(name) if target.startswith(("django.conf", "django.db.models"))] == []
    assert "django.apps.apps" not in foreign_imports(name)


@pytest.mark.parametrize("name", [name for name in SOURCES if name.startswith("backends.")])
def test_backends_know_nothing_of_jobs(name: str) -> None:
    assert own_imports(name) <= {"backends.base", "backends.connections", "exceptions", "logs"}


def test_the_contract_of_backends_knows_no_backend_and_no_cache() -> None:
    assert own_imports("backends.base") == {"exceptions"}
    assert {target for target in foreign_imports("backends.base") if target.startswith("django.")} <= {
        "django.core.checks.CheckMessage"
    }


def test_declaring_jobs_knows_nothing_of_running_them() -> None:
    assert own_imports("jobs") <= {"schedules", "handlers", "durations", "keys", "exceptions"}
    assert own_imports("schedules") <= {"exceptions"}


def test_runs_and_leases_know_nothing_of_schedules_and_registries() -> None:
    assert own_imports("runner") & {"jobs", "schedules", "scheduler"} == set()
    assert own_imports("leases") <= {"backends.base", "clock", "exceptions", "logs"}


def test_schedules_alone_import_croniter() -> None:
    users = {name for name in SOURCES if any(target.startswith("croniter") for target in foreign_imports(name))}
    assert users == {"schedules"}


@pytest.mark.parametrize("package", ["redis", "valkey", "django_redis", "django_valkey"])
def test_no_driver_is_imported_before_the_settings_ask_for_it(package: str) -> None:
    importers = {
        name for name in SOURCES if any(target.partition(".")[0] == package for target in foreign_imports(name))
    }
    assert importers == set()


def test_the_package_has_no_module_that_autodiscovery_would_take_for_jobs() -> None:
    assert "cron" not in SOURCES
    assert not (ROOT / "cron").exists()


NOTHING_HAPPENS = """
import sys, threading
connections = []
sys.addaudithook(lambda event, args: connections.append(args) if event == "socket.connect" else None)

def check():
    assert threading.enumerate() == [threading.main_thread()], threading.enumerate()
    assert connections == [], connections
"""


def test_the_package_can_be_imported_and_jobs_declared_without_settings() -> None:
    run_python(
        NOTHING_HAPPENS
        + """
import django_cronductor
from django.conf import settings
assert [name for name in django_cronductor.__all__ if not hasattr(django_cronductor, name)] == []

@django_cronductor.cron("* * * * *", key="a")
def job(): ...

@django_cronductor.lock("a")
def work(): ...

assert [job.key for job in django_cronductor.registry] == ["a"]
assert not settings.configured
assert "django_cronductor.models" not in sys.modules
check()
"""
    )


def test_a_web_worker_that_loads_the_jobs_has_no_thread_and_no_connection_of_ours() -> None:
    run_python(
        NOTHING_HAPPENS
        + """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"
from django.conf import settings
settings.INSTALLED_APPS = [*settings.INSTALLED_APPS, "tests.apps.shop"]
import django
django.setup()
from django.core.handlers.wsgi import WSGIHandler
WSGIHandler()
import django_cronductor
assert "tests.apps.shop.cron" in sys.modules
assert len(django_cronductor.registry) > 0
check()
"""
    )
