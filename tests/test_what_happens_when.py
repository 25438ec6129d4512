"""The page "What happens when" quotes what the package logs, sends and records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.dispatch import Signal
from docutils import nodes
from docutils.core import publish_doctree
from docutils.utils import Reporter

import django_cronductor
from django_cronductor import signals
from django_cronductor.models import JobRun

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGE = DOCS / "what_happens_when.rst"
SOURCE = "".join(
    path.read_text(encoding="utf-8") for path in sorted(Path(django_cronductor.__file__).parent.rglob("*.py"))
)
SEEN = 1
"""The column that says what one sees."""


def seen() -> list[str]:
    """Return every literal in the second column of the page's tables."""
    settings = {"_disable_config": True, "report_level": Reporter.SEVERE_LEVEL}  # Roles are Sphinx's to judge.
    document = publish_doctree(PAGE.read_text(), source_path=str(PAGE), settings_overrides=settings)
    return [
        " ".join(literal.astext().split())
        for body in document.findall(nodes.tbody)
        for row in body.findall(nodes.row)
        for literal in list(row.findall(nodes.entry))[SEEN].findall(nodes.literal)
    ]


@pytest.mark.parametrize("line", sorted({text for text in seen() if " " in text and not text.startswith("check ")}))
def test_every_quoted_log_line_is_logged(line: str) -> None:
    if line in {str(outcome) for outcome in JobRun.Outcome}:
        return
    assert line in SOURCE


def test_every_signal_is_named() -> None:
    names = {name for name, value in vars(signals).items() if isinstance(value, Signal)} - {
        "job_started",
        "job_finished",
    }
    assert names <= set(seen())


def test_every_outcome_that_is_not_a_success_is_named() -> None:
    page = PAGE.read_text()
    unnamed = {str(outcome) for outcome in JobRun.Outcome if not re.search(rf"``{outcome}``", page)}
    assert unnamed == {"running", "succeeded", "enqueued", "missed"}
