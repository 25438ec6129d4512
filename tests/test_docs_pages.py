"""The pages of the documentation are valid, each is listed, and their examples run. Sphinx builds them in CI."""

from __future__ import annotations

import ast
import os
import re
import shlex
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from django.core.management import call_command
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, directives, roles
from docutils.utils import Reporter

import django_cronductor
from django_cronductor import conf
from django_cronductor.models import JobRun

DOCS = Path(__file__).resolve().parent.parent / "docs"
PAGES = sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.rst") if "_build" not in path.parts)


class SphinxDirective(Directive):
    """Takes what Sphinx alone understands: its content is left to Sphinx."""

    optional_arguments = 1
    final_argument_whitespace = True
    has_content = True
    option_spec = None

    def run(self) -> list[nodes.Node]:
        return []


def sphinx_role(name: str, rawtext: str, text: str, *args: Any, **kwargs: Any) -> tuple[list[nodes.Node], list[Any]]:
    return [nodes.literal(rawtext, text)], []


@pytest.fixture(autouse=True)
def _sphinx_names(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = (
        "autoclass",
        "autodata",
        "autoexception",
        "autofunction",
        "automodule",
        "currentmodule",
        "seealso",
        "toctree",
    )
    monkeypatch.setattr(directives, "_directives", {**directives._directives, **dict.fromkeys(ours, SphinxDirective)})
    names = ("attr", "class", "data", "doc", "exc", "func", "meth", "mod", "ref")
    monkeypatch.setattr(roles, "_roles", {**roles._roles, **dict.fromkeys(names, sphinx_role)})


def parse(name: str) -> nodes.document:
    """Read a page; everything from INFO up ends the test with the place and the reason."""
    settings = {"report_level": Reporter.INFO_LEVEL, "halt_level": Reporter.INFO_LEVEL, "_disable_config": True}
    path = DOCS / name
    return publish_doctree(path.read_text(encoding="utf-8"), source_path=str(path), settings_overrides=settings)


@pytest.mark.parametrize("name", PAGES)
def test_page_parses_without_a_message(name: str) -> None:
    assert parse(name).astext()


def test_every_page_is_in_a_table_of_contents() -> None:
    listed = {"index"}
    for page in PAGES:
        for block in re.findall(r"^\.\. toctree::\n((?:   .*\n|\n)+)", (DOCS / page).read_text(), re.MULTILINE):
            entries = re.findall(r"^   ([a-z_/]+)$", block, re.MULTILINE)
            listed |= {(Path(page).parent / entry).as_posix() for entry in entries}
    assert listed == {page.removesuffix(".rst") for page in PAGES}


# --- The page on settings


def sections(name: str) -> dict[str, dict[str, str]]:
    """Return the field lists of a page by the titles of their sections."""
    return {
        section.next_node(nodes.title).astext(): {
            field[0].astext(): field[1].astext() for field in section.findall(nodes.field)
        }
        for section in parse(name).findall(nodes.section)
    }


def test_every_setting_is_documented_in_order() -> None:
    assert [title for title, fields in sections("settings.rst").items() if "Default" in fields] == list(conf.SETTINGS)


@pytest.mark.parametrize("key", list(conf.SETTINGS))
def test_default_and_check_of_the_setting_are_those_of_the_code(key: str) -> None:
    fields, setting = sections("settings.rst")[key], conf.SETTINGS[key]
    default = None if key == "TIMEZONE" else getattr(conf.Config(), setting.field)
    assert ast.literal_eval(fields["Default"]) == (default / 1000 if setting.field.endswith("_ms") else default)
    assert fields["Check"] == setting.code


def test_every_check_is_documented() -> None:
    package = Path(django_cronductor.__file__).parent
    source = "".join(path.read_text(encoding="utf-8") for path in sorted(package.rglob("*.py")))
    [table] = [table for table in parse("settings.rst").findall(nodes.table) if "checks" in table["classes"]]
    [body] = table.findall(nodes.tbody)
    listed = [row.children[0].astext() for row in body.children]
    assert listed == sorted(set(re.findall(r"\bcronductor\.[EW]\d{3}\b", source)))


# --- The page on running it


def test_whoever_stops_runcron_waits_longer_than_it_does() -> None:
    page = (DOCS / "running.rst").read_text(encoding="utf-8")
    waits = re.findall(r"(?:terminationGracePeriodSeconds: |stop_grace_period: |TimeoutStopSec=)(\d+)", page)
    assert len(waits) == 3
    assert {float(wait) for wait in waits} == {conf.Config().shutdown_timeout + 10}


# --- The page on words


def test_every_outcome_is_explained() -> None:
    words = {term.astext() for term in parse("words.rst").findall(nodes.term)}
    explained = {word for term in words for word in term.split(", ")} | {"succeeded", "enqueued", "failed", "timed out"}
    assert {str(outcome) for outcome in JobRun.Outcome} - explained == {"running"}


# --- The page on the inside


def test_every_module_is_named_and_every_module_that_is_named_exists() -> None:
    tables = [table for table in parse("internals.rst").findall(nodes.table) if "modules" in table["classes"]]
    names = [
        node.astext() for table in tables for row in table.findall(nodes.row) for node in row[0].findall(nodes.literal)
    ]
    package = Path(django_cronductor.__file__).parent
    assert [name for name in names if not (package / name).exists()] == []
    modules = {path.name for path in package.glob("*.py") if path.name != "__init__.py"}
    packages = {path.parent.name for path in package.glob("*/__init__.py")} - {"migrations"}
    assert (modules | packages) - {part for name in names for part in name.split("/")} == set()


def test_every_picture_is_shown_and_can_be_read_aloud() -> None:
    images = [image for page in PAGES for image in parse(page).findall(nodes.image)]
    assert {image["uri"] for image in images} == {f"pictures/{path.name}" for path in (DOCS / "pictures").iterdir()}
    assert all(image["alt"] for image in images)


# --- What commands print


def shown_outputs() -> list[tuple[str, str]]:
    """Return each `cron next` of an expression that a page shows, and what it prints there."""
    text = "".join((DOCS / page).read_text(encoding="utf-8") for page in PAGES)
    return re.findall(r"^    \$ python manage\.py (cron next --expression .*)\n((?:    .+\n)+)", text, re.MULTILINE)


@pytest.mark.parametrize(("command", "shown"), shown_outputs())
def test_cron_next_prints_what_is_shown(
    command: str, shown: str, capsys: pytest.CaptureFixture[str], settings: Any
) -> None:
    settings.TIME_ZONE = "UTC"
    call_command(*shlex.split(command))
    title, *instants = capsys.readouterr().out.splitlines()
    shown_title, *shown_instants = dedent(shown).splitlines()
    assert instants == shown_instants
    assert shown_title.startswith(title.partition("): ")[0])  # Words come from a package that need not be there.


def test_outputs_of_cron_next_are_found() -> None:
    assert len(shown_outputs()) == 2


# --- The examples, as files of a project

BLOCK = re.compile(r"^( *)\.\. code-block:: python\n((?: +:\w+:.*\n)*)\n((?:\1   .*\n|\n)+)", re.MULTILINE)
PROJECTS = {
    "jobs.rst": "",
    "locks.rst": """
        from shop import imports
        assert imports.rebuild() is True
        assert imports.poll() == "polled"
        assert imports.index_size() == 7
        imports.import_prices()
    """,
    "moving/apscheduler.rst": "",
    "moving/celery_beat.rst": """
        from shop import tasks
        assert tasks.sync_stock.sent == [()]
        assert tasks.report.sent == [("daily",)]
    """,
    "moving/cronductor.rst": "",
    "moving/django_cron.rst": "",
    "moving/django_crontab.rst": "",
    "moving/django_crontask.rst": "",
    "moving/iii.rst": "",
    "reference.rst": "",
    "settings.rst": "",
}
"""Pages whose examples are the files of one project, and what must hold there; others are tested elsewhere."""

AROUND = {
    "shop/__init__.py": "",
    "shop/models.py": """
        from django.db import models

        class Page(models.Model):
            synced = models.BooleanField(default=False)
            crawled = models.BooleanField(default=False)

            def crawl(self): ...
    """,
    "shop/calendar.py": """
        def is_business_day(context): ...
    """,
    "shop/reports.py": """
        def write_report(*args): ...
        def build_index(): return 7
        async def fetch(name): ...
    """,
    "shop/stock.py": """
        def sync(): ...
    """,
    "shop/tasks.py": """
        class Task:
            def __init__(self):
                self.sent = []

            def delay(self, *args):
                self.sent.append(args)

        sync_stock, report = Task(), Task()
    """,
    "settings.py": """
        SECRET_KEY = "for the tests alone"
        USE_TZ = True
        DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
        DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
        INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.sessions", "django_cronductor", "shop"]
        CRONDUCTOR = {"BACKEND": "django_cronductor.backends.local.LocalBackend"}
    """,
    "try_it.py": """
        import importlib, sys

        import django
        from django.core.management import call_command

        django.setup()
        from django_cronductor import registry
        from django_cronductor.testing import local_locks, run_job

        call_command("check", fail_level="WARNING")
        call_command("migrate", run_syncdb=True, verbosity=0)
        with local_locks():
            for name in sys.argv[1:]:
                importlib.import_module(name)
            for job in registry:
                result = run_job(job.key, raise_errors=True)
                assert result.outcome in ("succeeded", "enqueued", "condition"), result
            import must_hold
    """,
}


def examples(name: str) -> list[str]:
    """Return the Python examples of a page, but for those of other packages: the class "theirs"."""
    blocks = BLOCK.findall((DOCS / name).read_text(encoding="utf-8"))
    return [dedent(code) for _, options, code in blocks if ":class: theirs" not in options]


def files(name: str) -> dict[str, str]:
    """Return the files that a page shows: each example names its own in its first line."""
    found: dict[str, str] = defaultdict(str)
    for example in examples(name):
        first, _, code = example.partition("\n")
        assert re.fullmatch(r"# \w[\w/.]*\.py", first), f"{name}: {first}"
        found[first.removeprefix("# ")] += code
    return found


@pytest.mark.parametrize("name", [page for page in PAGES if examples(page)])
def test_examples_are_python(name: str) -> None:
    for example in examples(name):
        ast.parse(example)


@pytest.mark.parametrize("name", PROJECTS)
def test_examples_run(name: str, tmp_path: Path) -> None:
    shown = files(name)
    modules = [file.removesuffix(".py").replace("/", ".") for file in shown]
    for file, text in {**AROUND, **shown, "must_hold.py": PROJECTS[name]}.items():
        (tmp_path / file).parent.mkdir(exist_ok=True)
        if file == "settings.py" and file in shown:
            text = dedent(AROUND[file]) + text
        (tmp_path / file).write_text(dedent(text), encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-W", "error", "try_it.py", *modules],
        cwd=tmp_path,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- The quick start, word for word


def test_the_quick_start_leads_to_jobs_that_run(tmp_path: Path) -> None:
    page = (DOCS / "quickstart.rst").read_text(encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"}
    outputs = {}
    todo = examples("quickstart.rst")[:2]  # Without the second settings, which need a Redis.
    commands = [
        line for block in re.findall(r"code-block:: shell\n\n((?:   .*\n)+)", page) for line in block.split("\n")
    ]
    for command in (line.strip() for line in commands if re.match(r" +(django-admin|python manage.py) ", line)):
        words = command.removeprefix("python ").replace("django-admin", "-m django").split()
        line = [sys.executable, "-W", "error", *words]
        if words[-1] == "runcron":
            outputs[command] = first_output(line, tmp_path, environment, "succeeded")
        else:
            done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stdout + done.stderr
            outputs[command] = done.stdout
        if "startapp" in words:
            for code in todo:
                file = tmp_path / code.partition("\n")[0].removeprefix("# ")
                file.write_text((file.read_text() if file.exists() else "") + code, encoding="utf-8")
    assert len(outputs) == 5
    shown = page.split("::\n\n   shop.count_users: ")[1].split("\n")[0]
    assert f"shop.count_users: {shown}" in outputs["python manage.py cron next shop.count_users -n 2"]
    told = outputs["python manage.py runcron"]
    for line in ("Locks: memory of this process (single instance, prefix 'cronductor')", "Jobs: 2", "  next: ", "tick"):
        assert line in told
        assert line in page


def first_output(command: list[str], directory: Path, environment: dict[str, str], until: str) -> str:
    """Return what a program prints until a word comes; it must end well when Ctrl-C is pressed."""
    environment = {**environment, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=directory, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        text = ""
        for line in process.stdout:
            text += line
            if until in line:
                break
        process.send_signal(signal.SIGINT)
        text += process.stdout.read()
        assert process.wait(30) == 0, text
        return text
