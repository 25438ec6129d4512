"""The results as a table and as JSON, with the machine they are from."""

from __future__ import annotations

import csv
import io
import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.bench import Row

HEADINGS = ("case", "what", "who", "median", "range", "unit", "ratio", "note")


def machine(server: dict[str, Any], repeats: int) -> dict[str, str]:
    """Say what it was measured on, and how often."""
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": f"{platform.system()} {platform.release().partition('-')[0]}",
        "python": platform.python_version(),
        "redis": str(server.get("redis_version", "")),
        "packages": ", ".join(f"{name} {version(name)}" for name in ("django", "redis", "croniter")),
        "hiredis": f"{version('hiredis')}, used where a row says so" if find_spec("hiredis") else "not installed",
        "repeats": str(repeats),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def table(title: str, rows: Iterable[Row]) -> str:
    """Return rows as text: median, range and how it compares with the base of the same case."""
    cells = [HEADINGS, *_cells(list(rows))]
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([title, "=" * len(title), lines[0], "-" * len(lines[0]), *lines[1:], ""])


def page(found: dict[str, str], figures: dict[str, list[Row]], titles: dict[str, str]) -> str:
    """Return everything as tables in reStructuredText."""
    parts = [".. Written by: python -m benchmarks --page FILE", ""]
    parts += [f":{name.capitalize()}: {value}" for name, value in found.items()]
    release = ".".join(found["python"].split(".")[:2])
    for name, rows in figures.items():
        title = f"{titles[name]} (Python {release})"  # A page of the documentation may have those of several.
        parts += ["", title, "-" * len(title), "", ".. csv-table::", "   :header-rows: 1", ""]
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows([HEADINGS, *map(_plain, _cells(rows))])
        parts += [f"   {line}" for line in text.getvalue().splitlines()]
    return "\n".join([*parts, ""])


def _plain(cells: Sequence[str]) -> list[str]:
    """Return cells that nobody reads as markup: a schedule has stars, and a lone % could be the line of a title."""
    return [re.sub(r"([*`|_%])", r"\\\1", cell) for cell in cells]


def _cells(rows: Sequence[Row]) -> list[Sequence[str]]:
    return [
        (
            row.case,
            row.what,
            row.contender,
            _number(row.median),
            f"{_number(min(row.values))} - {_number(max(row.values))}",
            row.unit,
            _ratio(row, rows),
            row.note,
        )
        for row in rows
    ]


def _ratio(row: Row, rows: Sequence[Row]) -> str:
    base = next((one for one in rows if (one.case, one.what, one.contender) == (row.case, row.what, row.base)), None)
    if base is None or base is row or not base.median:
        return ""
    return f"{row.median / base.median:.2g}"


def _number(value: float) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2 if abs(value) >= 1 else 3
    return f"{value:,.{digits}f}"


def write_json(path: Path, found: dict[str, str], figures: dict[str, list[Row]]) -> None:
    """Write everything that was measured."""
    rows = {name: [asdict(row) | {"median": row.median} for row in each] for name, each in figures.items()}
    path.write_text(json.dumps({"machine": found, "figures": rows}, indent=1) + "\n")
