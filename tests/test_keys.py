"""The names of jobs and of plain locks."""

from __future__ import annotations

import pytest

from django_cronductor.exceptions import ConfigurationError
from django_cronductor.keys import check_key


@pytest.mark.parametrize(
    "key", ["a", "shop.sync_users", "daily-report", "two words", "Übersicht:täglich", "日報", "k" * 200]
)
def test_printable_names_are_keys(key: str) -> None:
    check_key(key, "its key")


@pytest.mark.parametrize("key", ["", "k" * 201])
def test_a_key_has_one_to_two_hundred_characters(key: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"its key must have 1 to 200 characters, not {len(key)}\."):
        check_key(key, "its key")


@pytest.mark.parametrize("key", ["a\n", "a\x00b", "tab\there", "\u200b", "\ud800", "a{b", "a}b", "{}", " a", "a ", " "])
def test_a_key_is_printable_without_braces_or_outer_blanks(key: str) -> None:
    with pytest.raises(ConfigurationError, match="must consist of printable characters, without braces"):
        check_key(key, "its key")


@pytest.mark.parametrize("key", [None, 1, b"bytes", ["a"]])
def test_a_key_is_a_string(key: object) -> None:
    with pytest.raises(ConfigurationError, match="The key of a lock must be a string, not "):
        check_key(key, "The key of a lock")
