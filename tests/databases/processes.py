"""Processes of the project beside this."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE = 120.0


def project_environment(database: dict[str, Any]) -> dict[str, str]:
    """Return the environment of processes on a database, given in Django's settings for it."""
    return {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "tests.databases.project.settings",
        "PROJECT_DATABASE": json.dumps(database),
        "PYTHONWARNINGS": "error",
    }


@contextmanager
def start(environment: dict[str, str], *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a Python process whose output is read as one; it does not outlive the block."""
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()  # Where the block failed, nobody else would, and the test would wait for ever.


def outcome(environment: dict[str, str], *arguments: str) -> tuple[int, str]:
    """Return the exit code and the output of a Python process."""
    with start(environment, *arguments) as process:
        said, _ = process.communicate(timeout=DEADLINE)
        return process.returncode, said
