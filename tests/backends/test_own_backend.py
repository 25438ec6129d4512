"""The backend that the documentation shows how to write, taken from there, under the conformance suite."""

from __future__ import annotations

import multiprocessing
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from docutils import nodes
from docutils.core import publish_doctree

from django_cronductor.backends.base import Claim, Declaration, Lease, Release
from django_cronductor.exceptions import BackendError
from django_cronductor.testing.clock import ManualClock
from django_cronductor.testing.conformance import BackendClockConformance, BackendConformance
from tests.backends.conftest import NOON, LocalCase, new_prefix

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "backends.rst"


def example(first_line: str) -> str:
    """Return the example that begins with a line."""
    settings = {"_disable_config": True, "report_level": 5}
    document = publish_doctree(PAGE.read_text(), settings_overrides=settings)
    (found,) = [
        block.astext() for block in document.findall(nodes.literal_block) if block.astext().startswith(first_line)
    ]
    return found


locks: Any = ModuleType("shop.locks")
exec(example("# shop/locks.py"), locks.__dict__)


class FileCase(LocalCase):
    """That backend, on a clock that the test moves."""

    def setup_method(self) -> None:
        self.directory = tempfile.TemporaryDirectory()
        super().setup_method()

    def teardown_method(self) -> None:
        super().teardown_method()
        self.directory.cleanup()

    def make_backend(self) -> Any:
        self.clock = ManualClock(NOON / 1000)
        backend = backend_in(self.directory.name)
        backend._clock = self.clock
        return backend

    def lose(self, backend: Any) -> None:
        backend.store.lock.path.unlink(missing_ok=True)


def backend_in(directory: str, prefix: str | None = None) -> Any:
    kind = type("FileBackend", (locks.FileBackend,), {"directory": Path(directory)})
    return kind(prefix=prefix or new_prefix())


class TestFileBackend(FileCase, BackendConformance):
    """It passes."""


class TestFileBackendClock(FileCase, BackendClockConformance):
    """Its clock set back."""


def win_in_a_process(directory: str, occurrences: list[int]) -> list[int]:
    """Claim occurrences in a process, give each lease back at once, and return those that were won."""
    backend, name, won = backend_in(directory, "shared"), multiprocessing.current_process().name, []
    for occurrence in occurrences:
        token = f"{name}-{occurrence}"
        (answer,) = backend.claim([Claim("job", occurrence, token, 30_000, 10**9)], name).answers
        if answer.verdict == "won":
            won.append(occurrence)
            backend.release([Release(Lease("job", token, answer.fence, 30_000, name, occurrence))])
    return won


def test_of_several_processes_one_wins_an_occurrence(tmp_path: Path) -> None:
    backend = backend_in(str(tmp_path), "shared")
    now = backend.time()
    backend.declare([Declaration("job", "v1", 30_000)])
    occurrences = [now - 1000 + number for number in range(100)]
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        won = pool.starmap(win_in_a_process, [(str(tmp_path), occurrences)] * 2)
    counts = Counter(occurrence for some in won for occurrence in some)
    assert set(counts.values()) == {1}


def test_a_file_that_cannot_be_had_is_an_error_of_the_backend(tmp_path: Path) -> None:
    backend = backend_in(str(tmp_path / "nowhere"))
    for _ in range(2):
        with pytest.raises(BackendError, match="No such file"):
            backend.heartbeat("i")


def test_the_example_of_its_test_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shop.locks", locks)
    names: dict[str, Any] = {"__name__": "test_locks"}
    exec(example("# tests/test_locks.py"), names)
    assert issubclass(names["TestFileBackend"], BackendConformance)
