"""The page "Testing": its examples are run, as files of a project."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from textwrap import dedent

import pytest

import django_cronductor.testing

PAGE = Path(__file__).resolve().parent.parent / "docs" / "testing.rst"
BLOCK = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.MULTILINE)

AROUND = {
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models

        class Page(models.Model):
            synced = models.BooleanField(default=False)

            def write_report(self, fencing_token): ...
    """,
    "settings.py": """
        SECRET_KEY = "for tests only"
        USE_TZ = True
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        INSTALLED_APPS = ["django_cronductor", "shop"]
    """,
    "pytest.ini": """
        [pytest]
        pythonpath = .
        filterwarnings = error
    """,
}
"""The rest of the project: a usual one, without a Redis."""


def examples() -> dict[str, str]:
    """Return the files that the page shows: each block names its file in its first line."""
    files: dict[str, str] = defaultdict(str)
    for block in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        first, _, code = dedent(block).partition("\n")
        assert first.startswith("# shop/"), first
        files[first.removeprefix("# ")] += code
    return files


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("project")
    for name, text in {**AROUND, **examples()}.items():
        file = directory / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(dedent(text), encoding="utf-8")
    return directory


def run(project: Path, *command: str) -> str:
    arguments = [sys.executable, "-W", "error", "-m", *command]
    environment = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings"}
    done = subprocess.run(
        arguments, cwd=project, env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    output = done.stdout + done.stderr
    assert done.returncode == 0, output
    return output


def test_the_examples_pass_with_djangos_runner(project: Path) -> None:
    output = run(project, "django", "test", f"--pythonpath={project}")
    found = len(re.findall(r"^    def test_", examples()["shop/tests.py"], re.MULTILINE))
    assert f"Ran {found} tests" in output


def test_the_examples_for_pytest_pass(project: Path) -> None:
    found = len(re.findall(r"^def test_", examples()["shop/test_with_pytest.py"], re.MULTILINE))
    assert f"{found} passed" in run(project, "pytest", "shop/test_with_pytest.py")


def test_the_unittest_examples_pass_under_pytest_too(project: Path) -> None:
    assert " passed" in run(project, "pytest", "shop/tests.py")


def test_the_page_names_all_that_is_offered() -> None:
    page = PAGE.read_text(encoding="utf-8")
    unnamed = {name for name in django_cronductor.testing.__all__ if name not in page}
    assert unnamed == {"Event", "ManualContext", "RunResult"}  # What functions return is described there.
