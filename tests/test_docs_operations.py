"""The page on looking at jobs and acting on them says what the commands do."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from django_cronductor.management import process
from django_cronductor.management.commands import cron

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "operations.rst").read_text(encoding="utf-8")
COMMANDS = sorted(
    {command.split("|")[0].strip() for command in re.findall(r"manage\.py (cron .*)", PAGE)}
    | {re.sub(r"\[[^]]*\]", "", command) for command in re.findall(r"``(cron [a-z]+[^`]*)``", PAGE)}
    - {"cron run"}  # Which is spoken of in general.
)


def table(name: str) -> list[str]:
    """Return the first cells of a table."""
    body = PAGE[PAGE.index(f":class: {name}") :]
    return re.findall(r"^   \* - (.*)$", body[: body.index("\n\n", body.index("* -"))], re.MULTILINE)[1:]


def test_commands_are_found() -> None:
    assert len(COMMANDS) > 12
    assert "cron prune" in COMMANDS


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_is_one(command: str) -> None:
    words = shlex.split(command.rstrip("`."))[1:]
    parser = cron.Command().create_parser("manage.py", "cron")
    assert parser.parse_args([word for word in words if word]).action == words[0]


def test_every_action_is_listed() -> None:
    listed = {re.sub(r"``cron (\w+).*", r"\1", cell) for cell in table("commands")}
    assert listed == set(cron.ACTIONS)


def test_every_exit_code_is_listed() -> None:
    codes = {0, process.FAILED, process.USAGE, process.HELD, process.UNREACHABLE}
    assert {int(cell) for cell in table("codes")} == codes
