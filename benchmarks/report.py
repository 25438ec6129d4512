"""The results as a table and as JSON, with the machine they are from."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.bench import Row


def machine(server: dict[str, Any]) -> dict[str, str]:
    """Say what it was measured on."""
    return {
        "at": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "processor": f"{_processor()}, {os.cpu_count()} cores",
        "system": platform.platform(),
        "python": platform.python_version(),
        "redis": str(server.get("redis_version", "")),
        "packages": ", ".join(f"{name} {version(name)}" for name in ("django", "redis", "croniter")),
        "hiredis": _version("hiredis"),
        "load": " ".join(f"{load:.1f}" for load in os.getloadavg()),
    }


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _version(name: str) -> str:
    try:
        return version(name)
    except ImportError:
        return "not installed"


def table(title: str, rows: Iterable[Row]) -> str:
    """Return rows as text: median, range and how it compares with the base of the same case."""
    rows = list(rows)
    cells: list[Sequence[str]] = [("case", "what", "who", "median", "range", "unit", "ratio", "")]
    for row in rows:
        span = f"{_number(min(row.values))} - {_number(max(row.values))}"
        cells.append(
            (row.case, row.what, row.contender, _number(row.median), span, row.unit, _ratio(row, rows), row.note)
        )
    widths = [max(len(line[column]) for line in cells) for column in range(len(cells[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([title, "=" * len(title), lines[0], "-" * len(lines[0]), *lines[1:], ""])


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
    print(f"Written: {path}", file=sys.stderr)
