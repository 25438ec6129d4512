"""The admin in other languages: every string can be translated, and all are in German."""

from __future__ import annotations

import ast
import gettext
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import translation
from django.utils.translation.template import templatize

import django_cronductor
from tests.admin_world import ACTIONS, World, job_url, jobs_url, run_url, runs_url, superuser, world
from tests.test_admin_jobs import text_of

PACKAGE = Path(django_cronductor.__file__).parent
CATALOG = PACKAGE / "locale" / "de" / "LC_MESSAGES"
FUNCTIONS = {"gettext": 1, "gettext_lazy": 1, "_": 1, "ngettext": 1, "pgettext": 2}
"""Which argument, counted from one, the string is."""
SAME_IN_GERMAN = {
    "%s ms",
    "%s s",
    "%s min",
    "%s h",
    "in %s",
    "App",
    "Filter",
    "app",
    "Job",
    "job",
    "jobs",
    "traceback",
    "token %d",
}
ENTRY = re.compile(
    r'(?:^msgctxt "(?P<context>.*)"\n)?^msgid "(?P<id>.+)"\n(?:^msgid_plural "(?P<plural>.*)"\n)?'
    r'^msgstr(?:\[0\])? "(?P<text>.*)"\n(?:^msgstr\[1\] "(?P<texts>.*)"\n)?',
    re.MULTILINE,
)


def strings_of_code() -> Iterator[str]:
    """Yield what the package's code has translated."""
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in FUNCTIONS:
                argument = node.args[FUNCTIONS[node.func.id] - 1]
                assert isinstance(argument, ast.Constant), f"{path}:{node.lineno}: only a literal can be translated."
                yield str(argument.value)


def strings_of_templates() -> Iterator[str]:
    """Yield what the package's templates have translated."""
    for path in PACKAGE.rglob("*.html"):
        for literal in re.findall(r"gettext\(u('.*?'|\".*?\")\)", templatize(path.read_text(encoding="utf-8"))):
            yield ast.literal_eval(literal)


def entries() -> list[dict[str, str]]:
    """Return the entries of the catalog as it was written."""
    text = (CATALOG / "django.po").read_text(encoding="utf-8")
    found = [match.groupdict(default="") for match in ENTRY.finditer(text)]
    assert len(found) == len(re.findall(r'^msgid "..*"$', text, re.MULTILINE))
    return [{name: value.replace('\\"', '"').replace("\\n", "\n") for name, value in entry.items()} for entry in found]


def test_the_strings_of_code_and_templates_are_found() -> None:
    assert {"Run now", "%d overlap", "%s ago", "in %s"} <= set(strings_of_code())
    assert {"Next occurrences", "Run <strong>%(key)s</strong> now, outside its schedule?"} <= set(
        strings_of_templates()
    )


def test_every_string_is_in_german() -> None:
    known = {entry["id"] for entry in entries()}
    with translation.override("de"):
        # What Django translates itself is left to it.
        untranslated = {
            text for text in {*strings_of_code(), *strings_of_templates()} - known if translation.gettext(text) == text
        }
    assert untranslated - SAME_IN_GERMAN == set()


def test_the_catalog_has_no_string_that_nothing_uses() -> None:
    used = {*strings_of_code(), *strings_of_templates()}
    assert {entry["id"] for entry in entries()} - used == set()


def test_a_translation_says_something_and_has_the_same_places_to_fill() -> None:
    places = re.compile(r"%(?:\(\w+\))?[sd]|</?\w+>")
    for entry in entries():
        assert entry["text"], entry
        assert sorted(places.findall(entry["text"])) == sorted(places.findall(entry["id"])), entry
        assert sorted(places.findall(entry["texts"])) == sorted(places.findall(entry["plural"])), entry


def test_the_compiled_catalog_is_that_of_the_text() -> None:
    with (CATALOG / "django.mo").open("rb") as file:
        compiled: Any = gettext.GNUTranslations(file)
    for entry in entries():
        if entry["plural"]:
            assert [compiled.ngettext(entry["id"], entry["plural"], n) for n in (1, 2)] == [
                entry["text"],
                entry["texts"],
            ]
        elif entry["context"]:
            assert compiled.pgettext(entry["context"], entry["id"]) == entry["text"]
        else:
            assert compiled.gettext(entry["id"]) == entry["text"]


@pytest.fixture
def cron(settings: Any, prefix: str) -> Iterator[World]:
    settings.CRONDUCTOR = {"CACHE": "locks", "PREFIX": prefix}
    settings.LANGUAGE_CODE = "de"
    with world() as made:
        yield made


@pytest.mark.django_db
def test_every_page_opens_in_german(client: Client, cron: World) -> None:
    client.force_login(superuser())
    cron.job()
    cron.row()
    cron.begins()
    failed = cron.run(outcome="failed", duration=2.5)
    said = {
        jobs_url(): "Lebende Replikate 1",
        job_url(): "Die letzten 24 Stunden 1 fehlgeschlagen, auf 1 Replikat, keine Überschneidungen.",
        runs_url(): "UTC 2,5 s 10 ms Zeitplan",
        run_url(failed): "Diesen Job jetzt ausführen",
        **{job_url(name=name): "Nein, bitte abbrechen" for name in ACTIONS},
    }
    for url, words in said.items():
        response = client.get(url)
        assert response.status_code == 200
        assert words in text_of(response), url


def test_what_is_the_same_in_german_is_known() -> None:
    same = {entry["id"] for entry in entries() if entry["id"] == entry["text"] and not entry["context"]}
    assert same <= SAME_IN_GERMAN
