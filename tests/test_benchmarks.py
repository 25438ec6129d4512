"""The benchmarks, as far as they need nothing but a Redis: that they run, and say what they found."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from docutils.core import publish_doctree

from benchmarks.__main__ import FIGURES, ON_REQUEST, main
from benchmarks.bench import Bench, Row, Rows
from benchmarks.environments import Environments
from benchmarks.report import page, table


@pytest.fixture
def rows() -> Rows:
    rows = Rows("burst")
    for value in (30.0, 20.0, 25.0):
        rows.add("10 jobs", "ours", "last start", "ms", value)
        rows.add("10 jobs", "ours", "CPU", "us", 50.0)
        rows.add("10 jobs", "APScheduler", "last start", "ms", value * 4)
    return rows


def test_the_table_has_median_range_and_ratio_and_says_who_does_less(rows: Rows) -> None:
    text = table("A burst", rows)
    assert text.splitlines()[0] == "A burst"
    cells = [line.split("  ") for line in text.splitlines()[4:] if line]
    found = [[cell.strip() for cell in line if cell.strip()] for line in cells]
    assert found == [
        ["10 jobs", "last start", "ours", "25.0", "20.0 - 30.0", "ms"],
        ["10 jobs", "last start", "APScheduler", "100", "80.0 - 120", "ms", "4", "takes no lock"],
        ["10 jobs", "CPU", "ours", "50.0", "50.0 - 50.0", "us"],
    ]


def test_the_page_has_the_same_as_a_table_of_the_documentation() -> None:
    rows = Rows("schedules")
    rows.add("* * * * * in UTC", "ours", "CPU", "%", 0.5)
    text = page({"python": "3.13"}, {"schedules": list(rows)}, {"schedules": "The next occurrence"})
    settings = {"report_level": 1, "halt_level": 1, "_disable_config": True}
    assert "* * * * * in UTC\n\nCPU\n\nours\n\n0.500" in publish_doctree(text, settings_overrides=settings).astext()


def test_a_row_has_the_values_of_all_repetitions(rows: Rows) -> None:
    first: Row = next(iter(rows))
    assert first.values == [30.0, 20.0, 25.0]
    assert first.median == 25.0


def test_every_figure_has_a_module_with_a_title() -> None:
    directory = Path(__file__).parent.parent / "benchmarks" / "figures"
    assert sorted(FIGURES + ON_REQUEST) == sorted(path.stem for path in directory.glob("[!_]*.py"))
    assert all("\nTITLE = " in path.read_text() for path in directory.glob("[!_]*.py"))


def test_a_quick_run_prints_and_writes_what_it_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "results.json"
    assert main(["--quick", "--only", "claim", "imports", "load", "--json", str(path)]) == 0
    printed = capsys.readouterr().out
    assert "One claim and release" in printed
    found = json.loads(path.read_text())
    assert found["machine"]["python"]
    assert {name: bool(rows) for name, rows in found["figures"].items()} == {
        "claim": True,
        "imports": True,
        "load": True,
    }
    assert {row["contender"] for row in found["figures"]["claim"]} == {
        "bare redis-py, set and evalsha",
        "ours, claim of an occurrence",
        "ours, plain lock",
        "redis-py's Lock",
    }


def test_no_program_outlives_the_benchmark(tmp_path: Path) -> None:
    with Bench(Environments(tmp_path), quick=True) as bench:
        process = bench.start("ours", "idle", "--jobs", 1, "--seconds", 100)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
