"""What the distributions hold."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import zipfile
from email.message import Message
from email.parser import Parser
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


NOT_FOR_USERS = {"all", "databases", "docs", "lint", "test"}


def metadata_of(wheel: zipfile.ZipFile) -> Message:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    return Parser().parsestr(wheel.read(name).decode())


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
    metadata = metadata_of(wheel)
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


def test_the_extra_all_brings_every_extra_that_is_for_users(wheel: zipfile.ZipFile) -> None:
    metadata = metadata_of(wheel)
    brought: dict[str, set[str]] = {extra: set() for extra in metadata.get_all("Provides-Extra", [])}
    for requirement in map(Requirement, metadata.get_all("Requires-Dist", [])):
        for extra in brought:
            if requirement.marker and requirement.marker.evaluate({"extra": extra}):
                brought[extra].add(str(requirement).partition(";")[0])
    users = [brought[extra] for extra in brought.keys() - NOT_FOR_USERS]
    assert len(users) >= 4
    assert all(users)
    assert brought["all"] == set().union(*users)


def test_every_version_that_is_promised_is_in_an_environment_of_tox(wheel: zipfile.ZipFile) -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "tox.ini")
    tested = set("-".join(parser["tox"]["env_list"].split()).split("-"))
    classifiers = metadata_of(wheel).get_all("Classifier", [])
    pythons = {name.rpartition(" ")[2] for name in classifiers if re.search(r"Python :: 3\.\d+$", name)}
    djangos = {name.rpartition(" ")[2] for name in classifiers if re.search(r"Django :: \d", name)}
    lowest = {"py310", "django52", "redis5", "croniter6"}
    assert parser["testenv:lowest"]["base_python"] == "python3.10"
    wanted = {f"py{name.replace('.', '')}" for name in pythons} | {f"django{name.replace('.', '')}" for name in djangos}
    assert wanted | {"redis5", "redis6", "redis7", "redis8", "croniter6", "croniter7"} <= tested | lowest


def test_what_runs_before_a_merge_runs_every_environment_of_tox_that_is_not_the_newest() -> None:
    parser = configparser.ConfigParser()
    parser.read(ROOT / "tox.ini")
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    assert [name for name in parser["tox"]["env_list"].split()[:-1] if name not in script] == []
