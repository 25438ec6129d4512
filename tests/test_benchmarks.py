"""The benchmarks, as far as they need nothing but a Redis: that they run, and say what they found."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from docutils.core import publish_doctree

from benchmarks.__main__ import FIGURES, ON_REQUEST, main
from benchmarks.bench import Bench, MeasurementFailed, Row, Rows
from benchmarks.environments import Environments
from benchmarks.figures import burst, history, lateness
from benchmarks.report import page, table
from tests.databases.servers import DatabaseUnavailable


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
        ["10 jobs", "last start", "APScheduler", "100", "80.0 - 120", "ms", "4", "takes no lock; without Django"],
        ["10 jobs", "CPU", "ours", "50.0", "50.0 - 50.0", "us"],
    ]


def test_the_page_has_the_same_as_a_table_of_the_documentation() -> None:
    rows = Rows("schedules")
    rows.add("* * * * * in UTC", "ours", "CPU", "%", 0.5)
    text = page({"python": "3.13"}, {"schedules": list(rows)}, {"schedules": "The next occurrence"})
    settings = {"report_level": 1, "halt_level": 1, "_disable_config": True}
    assert "The next occurrence (Python 3.13)\n---" in text
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
    assert found["machine"]["repeats"] == "1"
    assert found["machine"]["left out"] == "none"
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


class Canned(Bench):
    """Has results instead of programs."""

    def __init__(self, path: Path, results: dict[str, Any]) -> None:
        super().__init__(Environments(path), quick=True)
        self._results = results

    def run(self, contender: str, *arguments: object, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Return what is there for the contender, or fail as its program would."""
        result = self._results.get(contender, MeasurementFailed(f"{contender} gave no result.\nTraceback"))
        if isinstance(result, Exception):
            raise result
        return dict(result)


def burst_of(started: int) -> dict[str, Any]:
    return {"started": started, "last": 0.05, "cpu": 0.0001}


def test_who_loses_jobs_of_a_burst_has_no_time_that_could_win(tmp_path: Path) -> None:
    bench = Canned(tmp_path, {"ours": burst_of(100), "APScheduler": burst_of(99), "huey": burst_of(0)})
    found = {(row.contender, row.what): row.values for row in burst.measure(bench)}
    assert found["ours", "last start"] == [50.0]
    assert found["APScheduler", "not started"] == [1]
    assert ("APScheduler", "last start") not in found
    assert {contender for contender, _ in found} >= {"ours, log at WARNING"}
    assert "huey (huey started 0 of 100 jobs)" in bench.left_out
    assert "rq cron (rq cron gave no result.)" in bench.left_out


def test_ours_can_be_measured_alone(tmp_path: Path) -> None:
    bench = Bench(Environments(tmp_path), repeats=2, peers=False)
    assert list(bench.rounds(["ours", "huey", "ours, log at WARNING"])) == ["ours", "ours, log at WARNING"] * 2


def test_ours_may_lose_no_job_of_a_burst(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="ours started 99 of 100 jobs"):
        burst.measure(Canned(tmp_path, {"ours": burst_of(99)}))


def test_who_cannot_be_installed_is_left_out(tmp_path: Path) -> None:
    failed = subprocess.CalledProcessError(1, ["pip", "install", "huey"])
    bench = Canned(tmp_path, {"ours": burst_of(100), "huey": failed})
    burst.measure(bench)
    assert any(text.startswith("huey (Command") for text in bench.left_out)


def test_lateness_is_that_of_all_starts_and_a_second_without_one_is_told(tmp_path: Path) -> None:
    late = [0.001] * 98 + [0.002, 0.5]
    peer = {"lateness": [0.001, 0.003], "missing": 1}
    bench = Canned(tmp_path, {"ours": {"lateness": late, "missing": 0}, "APScheduler": peer, "rq cron": peer})
    found = {(row.contender, row.what): row for row in lateness.measure(bench)}
    assert found["ours", "median"].values == [1.0]
    assert found["ours", "99 % of all within"].values == [2.0]
    assert found["ours", "99 % of all within"].note == "of 100 starts"
    assert found["ours", "worst"].values == [500.0]
    assert found["APScheduler", "worst"].note == "1 seconds without a start"
    assert found["rq cron", "worst, off the interval"].values == [3.0]
    assert any(text.startswith("django-crontask") for text in bench.left_out)


def test_ours_may_miss_no_second(tmp_path: Path) -> None:
    with pytest.raises(MeasurementFailed, match="ours did not start its job every second"):
        lateness.measure(Canned(tmp_path, {"ours": {"lateness": [0.001], "missing": 2}}))


@pytest.mark.parametrize("missing", ["server", "driver"])
def test_where_there_is_no_postgresql_the_others_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    def load(name: str) -> None:
        if missing == "driver":
            raise ModuleNotFoundError(f"no {name}")

    def start(server: object) -> None:
        raise DatabaseUnavailable("there is no initdb")

    monkeypatch.setattr(history, "import_module", load)  # Whatever is installed here.
    monkeypatch.setattr(history.DurablePostgreSQL, "start", start)
    bench = Canned(tmp_path, {"ours": {**burst_of(100), "pass": 0.01}})
    bench.scratch = tmp_path
    assert {row.case for row in history.measure(bench)} == {
        "100 jobs, history: none",
        "100 jobs, history: SQLite",
        "100 jobs, history: SQLite, WAL",
    }
    assert bench.left_out == [f"PostgreSQL ({'no psycopg' if missing == 'driver' else 'there is no initdb'})"]


def test_pictures_are_refused_where_no_growth_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "claim", "--plots", "."])
    assert "--plots draws the growth" in capsys.readouterr().err


def test_no_program_outlives_the_benchmark(tmp_path: Path) -> None:
    with Bench(Environments(tmp_path), quick=True) as bench:
        process = bench.start("ours", "idle", "--jobs", 1, "--seconds", 100)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGKILL
