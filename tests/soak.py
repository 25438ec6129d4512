"""
A soak: replicas on a private Redis under random faults, judged by an independent record of what they did.

    python -m tests.soak --minutes 30 [--seed N] [--replicas 5] [--no-history]

Prints what ran and what was lost; exits with 1, and shows the trace, if any promise was broken.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.faults.replicas import Replica
    from tests.soak_verdict import Verdict

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
CALM_RUNS = 3
"""How often each job is to run after the last fault before all is said to be well again."""
UNEXPECTED = ("A pass over the leases failed", "could not be written and is left out", "Exception in thread")
"""What no replica should ever log."""
HEADINGS = ["job", "schedule", "occurrences", "runs", "again", "reported", "doubled", "lost", "died"]
COUNTS = ["times", "occurrences", "runs", "reported", "doubled", "lost"]
"""What is counted by fault: of the occurrences that were due in its wake (of several faults, in that of each)."""


def main(arguments: list[str] | None = None) -> int:
    """Run the soak and return the exit code."""
    options = _read(arguments)
    import django

    django.setup()
    from tests.soak_faults import Soak
    from tests.soak_verdict import Verdict, read

    directory = Path(tempfile.mkdtemp(prefix="cronductor-soak-"))
    print(f"Seed {options.seed}, {options.replicas} replicas, history {options.history}, {directory}", flush=True)
    soak = Soak(directory, options.seed, options.replicas, options.history, skew=_can_skew())
    jobs = _jobs()
    offset = time.time() - time.monotonic()
    soak.run(options.minutes * 60, _calm(soak.journal, jobs))
    verdict = Verdict(read(soak.journal), soak.faults, soak.died, jobs, history=bool(options.history), offset=offset)
    _print_table([HEADINGS, *verdict.rows])
    _print_table([["fault", *COUNTS], *_rows_by_fault(verdict)])
    print(f"The latest run began {verdict.latest:.1f} s after its instant.")
    for reason, count in sorted(Counter(reason for reason, _, _ in verdict.known).items()):
        print(f"Known, {count} times: {reason}")
    for reason, job, at in verdict.known if options.trace_known else []:
        _print_trace(f"{job}: {reason}", verdict.trace(job, at))
    bad = soak.bad_ends + _unexpected_lines(soak.retired)
    for line in bad:
        print(f"VIOLATION: {line}")
    for what, job, at in verdict.violations[:10]:
        _print_trace(f"VIOLATION: {job}: {what}", verdict.trace(job, at))
    _print_sums(verdict)
    if bad or verdict.violations:
        print(
            f"{len(bad) + len(verdict.violations)} violations. Seed {options.seed}; all that was recorded: {directory}"
        )
        return 1
    print("No violation.")
    shutil.rmtree(directory)
    return 0


def _read(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description="Run replicas under random faults.")
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to make trouble, 30 by default")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="what the faults are drawn from")
    parser.add_argument("--replicas", type=int, default=5, help="5 by default")
    parser.add_argument("--trace-known", action="store_true", help="show what led to losses that are known to happen")
    parser.add_argument("--no-history", dest="history", action="store_const", const=0, default=100)
    return parser.parse_args(arguments)


def _jobs() -> dict[str, str]:
    from tests.soak_schedules import JOBS

    return JOBS


def _can_skew() -> bool:
    from tests.faults.replicas import find_faketime

    with contextlib.suppress(pytest.fail.Exception, pytest.skip.Exception):
        return bool(find_faketime())
    print("Without libfaketime all replicas have the same clock.")
    return False


def _calm(journal: Path, jobs: dict[str, str]) -> Callable[[float], bool]:
    """Return what tells whether every job has run a few times since a moment."""
    from tests.soak_verdict import read

    def is_calm(since: float) -> bool:
        runs = Counter(entry.job for entry in read(journal) if entry.event == "started" and entry.at > since)
        return all(runs[key] >= (1 if key == "rare" else CALM_RUNS) for key in jobs)

    return is_calm


def _unexpected_lines(replicas: list[Replica]) -> list[str]:
    return [
        f"{replica.name} logged: {line}"
        for replica in replicas
        for line in replica.log.splitlines()
        if any(text in line for text in UNEXPECTED)
    ]


def _rows_by_fault(verdict: Verdict) -> list[list[object]]:
    return [[kind, *(counts[name] for name in COUNTS)] for kind, counts in sorted(verdict.by_fault.items())]


def _print_sums(verdict: Verdict) -> None:
    occurrences, runs, again = (sum(row[column] for row in verdict.rows) for column in (2, 3, 4))
    print(f"Occurrences: {occurrences}. Runs: {runs}, and {again} once more after a crash.")
    for name, pattern in (("Duplicates", "started twice"), ("Unreported losses", "no[rt] reported")):
        bad, known = (
            sum(bool(re.search(pattern, one[0])) for one in all_) for all_ in (verdict.violations, verdict.known)
        )
        print(f"{name}: {bad}. (Of the kinds that are known to happen: {known}.)")


def _print_trace(title: str, lines: Iterable[str]) -> None:
    print(title)
    for line in lines:
        print(f"    {line}")


def _print_table(rows: list[list[object]]) -> None:
    widths = [max(len(str(row[column])) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(str(cell).ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main())
