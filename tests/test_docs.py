"""The pages in docs: valid, listed, and in agreement with the code. Sphinx builds them in CI."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from docutils import nodes
from docutils.core import publish_doctree
from docutils.parsers.rst import Directive, directives, roles
from docutils.utils import Reporter

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
    ours = ("autoclass", "autodata", "autoexception", "autofunction", "automodule", "currentmodule", "seealso", "toctree")
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
