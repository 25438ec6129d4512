"""Pages of the documentation agree with the code."""

from __future__ import annotations

import dataclasses
import re
import typing
from pathlib import Path

import pytest
from docutils import nodes
from docutils.core import publish_doctree

import django_cronductor
from django_cronductor import runner

DOCS = Path(__file__).resolve().parent.parent / "docs"
SOURCE = "".join(
    path.read_text(encoding="utf-8") for path in sorted(Path(django_cronductor.__file__).parent.rglob("*.py"))
)


def first_column(page: str, name: str) -> list[str]:
    document = publish_doctree((DOCS / page).read_text(), settings_overrides={"_disable_config": True})
    [table] = [table for table in document.findall(nodes.table) if name in table["classes"]]
    [body] = table.findall(nodes.tbody)
    return [row.children[0].astext() for row in body.children]


def test_the_page_on_errors_names_every_field_of_the_context_and_every_phase() -> None:
    assert first_column("errors.rst", "fields") == [field.name for field in dataclasses.fields(runner.ErrorContext)]
    assert sorted(first_column("errors.rst", "phases")) == sorted(typing.get_args(runner.ErrorPhase))


@pytest.mark.parametrize("line", ["Stopping: waiting up to", "Stopped.", "There was nothing to run.", "  next: "])
def test_the_page_on_runcron_quotes_what_it_prints(line: str) -> None:
    assert line in (DOCS / "runcron.rst").read_text()
    assert line in SOURCE


def test_the_page_on_runcron_knows_how_long_runs_have_when_code_changes() -> None:
    from django_cronductor.management.commands.runcron import RELOAD_TIMEOUT

    assert RELOAD_TIMEOUT == 5
    assert re.search(r"have five seconds to finish", (DOCS / "runcron.rst").read_text())
