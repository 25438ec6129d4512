"""What the distributions hold."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

import django_cronductor

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "django_cronductor"
IN_THE_WHEEL = re.compile(
    r"django_cronductor/.+\.(py|lua|html|css|po|mo)|django_cronductor/py\.typed|[^/]+\.dist-info/.+"
)


def build(target: str, directory: Path) -> Path:
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(directory)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    [built] = directory.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    with zipfile.ZipFile(build("wheel", tmp_path_factory.mktemp("wheel"))) as archive:
        yield archive


@pytest.fixture(scope="module")
def sdist_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    with tarfile.open(build("sdist", tmp_path_factory.mktemp("sdist"))) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def sources() -> set[str]:
    """Return the package's files, as they are named in a wheel."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(ROOT).as_posix() for path in files}


def test_wheel_holds_every_file_of_the_package(wheel: zipfile.ZipFile) -> None:
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == sources()


def test_wheel_holds_nothing_else(wheel: zipfile.ZipFile) -> None:
    assert [name for name in wheel.namelist() if not IN_THE_WHEEL.fullmatch(name)] == []


def test_wheel_holds_the_type_marker_the_scripts_and_the_licence(wheel: zipfile.ZipFile) -> None:
    names = wheel.namelist()
    assert "django_cronductor/py.typed" in names
    assert [name for name in names if name.startswith("django_cronductor/backends/") and name.endswith(".lua")]
    assert [name for name in names if name.endswith(".dist-info/licenses/LICENSE")]


def test_wheel_metadata_names_the_version_and_the_readme(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(name).decode())
    assert metadata["Version"] == django_cronductor.__version__
    assert metadata["Description-Content-Type"] == "text/x-rst"
    assert metadata.get_payload().strip() == (ROOT / "README.rst").read_text().strip()


def test_sdist_holds_what_is_needed_to_run_the_tests(sdist_names: set[str]) -> None:
    wanted = {
        "README.rst",
        "LICENSE",
        "CHANGELOG.rst",
        "CONTRIBUTING.rst",
        "SECURITY.md",
        "pyproject.toml",
        "runtests.py",
    }
    wanted |= {"tests/conftest.py", "tests/settings.py", "testproject/manage.py", "testproject/demo/cron.py", ".ci/run"}
    assert wanted - sdist_names == set()


def test_sdist_holds_no_caches_databases_or_environments(sdist_names: set[str]) -> None:
    unwanted = re.compile(r"(^|/)(__pycache__|\.cache|\.venv[^/]*|\.[a-z]+_cache|\.hypothesis)(/|$)|\.(pyc|sqlite3)$")
    assert [name for name in sdist_names if unwanted.search(name)] == []
