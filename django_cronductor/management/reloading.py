"""`runcron --reload`: a child runs the loop, and is replaced when code changes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType

from django.apps import apps
from django.utils import autoreload

CHANGED = 3
"""The exit code of a child that has seen a file change."""
LOOK = 0.5
"""Seconds between two looks at the files while an error is to be mended."""


def is_child() -> bool:
    """Tell whether this process is the one that runs the loop."""
    return os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"


class Reloader:
    """
    Starts the child, again after each change, and after an error as soon as a file has changed.

    Django's own would end with a child that cannot be started: the command is not reached where a module is broken.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._child: subprocess.Popen[bytes] | None = None
        self._told_to_stop = False

    def run(self) -> int:
        """Run until told to stop; return the exit code of the last child."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        while True:
            before = _state_of_files()
            code = self._run_child()
            if self._told_to_stop or code <= 0:
                return code
            if code != CHANGED:
                self._say(f"runcron ended with exit code {code}. It is started again when a file changes.")
                while _state_of_files() == before and not self._told_to_stop:
                    time.sleep(LOOK)
                if self._told_to_stop:
                    return code

    def _run_child(self) -> int:
        environment = {**os.environ, autoreload.DJANGO_AUTORELOAD_ENV: "true"}
        command = autoreload.get_child_arguments()
        with subprocess.Popen(command, env=environment, close_fds=False) as self._child:  # noqa: S603 - Our own command.
            if self._told_to_stop:  # Just before there was a child to hear it.
                self._child.terminate()
            return self._child.wait()

    def _stop(self, number: int, frame: FrameType | None) -> None:
        child, again = self._child, self._told_to_stop
        self._told_to_stop = True
        if child is not None and again:
            child.kill()
        elif child is not None and number == signal.SIGTERM:  # Ctrl-C in a terminal goes to the child as well.
            child.terminate()


def _state_of_files() -> dict[Path, int]:
    """Return when each file of code was changed last, as far as it can be seen."""
    state = {}
    for path in _files():
        with contextlib.suppress(OSError):
            state[path] = path.stat().st_mtime_ns
    return state


def _files() -> Iterator[Path]:
    yield from autoreload.iter_all_python_module_files()
    # A module that could not be imported is in none of those.
    for app in apps.get_app_configs():
        if "site-packages" not in app.path:
            yield from Path(app.path).rglob("*.py")
