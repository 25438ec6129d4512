"""The README is valid, and agrees with the code and with what is run before a merge."""

from __future__ import annotations

import ast
import inspect
from inspect import Parameter
from pathlib import Path

import pytest
from django.core.management.base import BaseCommand
from django.dispatch import Signal
from docutils import nodes
from docutils.core import publish_doctree
from docutils.utils import Reporter

from django_cronductor import conf, cron, signals
from django_cronductor.management.commands import runcron

ROOT = Path(__file__).resolve().parent.parent

RUN_THE_TEST_PROJECT = (
    "python -m pip install -e . && python testproject/manage.py migrate && python testproject/manage.py runcron"
)
RUN_THE_TESTS = 'python -m pip install -e ".[test]" && python runtests.py'

DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix() for pattern in ("*.rst", "testproject/*.rst") for path in ROOT.glob(pattern)
)

NO_DEFAULT_HERE = {"TIMEZONE": None}  # settings.TIME_ZONE takes its place when the settings are read


def parse(path: Path) -> nodes.document:
    # Everything from INFO up ends the test with the place and the reason.
    return publish_doctree(
        path.read_text(),
        source_path=str(path),
        settings_overrides={
            "report_level": Reporter.INFO_LEVEL,
            "halt_level": Reporter.INFO_LEVEL,
            "_disable_config": True,
        },
    )


def rows(name: str) -> list[list[str]]:
    """Return the table of that class, without its header."""
    [table] = [node for node in parse(ROOT / "README.rst").findall(nodes.table) if name in node["classes"]]
    [body] = table.findall(nodes.tbody)
    return [[entry.astext() for entry in row.children] for row in body.children]


def settings_rows() -> dict[str, str]:
    """Return the settings table: key to default."""
    return {key: default for key, default, _ in rows("settings")}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_document_parses_without_a_message(name: str) -> None:
    assert parse(ROOT / name).astext()


def test_settings_table_lists_exactly_the_settings() -> None:
    assert list(settings_rows()) == list(conf.SETTINGS)


@pytest.mark.parametrize("key", list(conf.SETTINGS))
def test_settings_table_gives_the_default(key: str) -> None:
    documented = ast.literal_eval(settings_rows()[key])
    field = conf.SETTINGS[key].field
    default = NO_DEFAULT_HERE[key] if key in NO_DEFAULT_HERE else getattr(conf.Config(), field)
    assert documented == (default / 1000 if field.endswith("_ms") else default)


def test_options_table_lists_exactly_the_options() -> None:
    options = [
        name
        for name, parameter in inspect.signature(cron).parameters.items()
        if parameter.kind is Parameter.KEYWORD_ONLY
    ]
    assert [option for option, _ in rows("options")] == options


def test_signals_are_named() -> None:
    defined = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    literals = {node.astext() for node in parse(ROOT / "README.rst").findall(nodes.literal)}
    assert defined
    assert defined - literals == set()


def test_options_of_runcron_are_named() -> None:
    parser = runcron.Command().create_parser("manage.py", "runcron")
    general = {option for action in BaseCommand().create_parser("", "")._actions for option in action.option_strings}
    own = {option for action in parser._actions for option in action.option_strings} - general
    text = (ROOT / "README.rst").read_text()
    assert own
    assert [option for option in sorted(own) if option not in text] == []


def test_links_lead_to_pages() -> None:
    targets = {node["refuri"] for node in parse(ROOT / "README.rst").findall(nodes.reference) if "refuri" in node}
    assert "docs/index.rst" in targets
    assert [target for target in sorted(targets) if not (ROOT / target).is_file()] == []


def test_the_two_commands_stand_alone_in_literal_blocks() -> None:
    blocks = [block.astext() for block in parse(ROOT / "README.rst").findall(nodes.literal_block)]
    assert RUN_THE_TEST_PROJECT in blocks
    assert RUN_THE_TESTS in blocks


def test_python_examples_are_python() -> None:
    examples = [
        block.astext()
        for block in parse(ROOT / "README.rst").findall(nodes.literal_block)
        if "python" in block["classes"]
    ]
    assert len(examples) == 2
    for example in examples:
        ast.parse(example)


def test_what_runs_before_a_merge_uses_the_two_commands() -> None:
    script = (ROOT / ".ci" / "run").read_text()
    start, run = (
        RUN_THE_TEST_PROJECT.split(" && python testproject/manage.py runcron")[0],
        "testproject/manage.py runcron",
    )
    assert start.removeprefix("python -m pip install -e . && ") in script
    assert run in script
    assert 'python -m pip install -q -e ".[test]"' in script
    assert "python runtests.py" in script
