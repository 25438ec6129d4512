"""What every figure is measured with: a private Redis, the contenders' processes, repetition, and rows of results."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from compileall import compile_dir
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import redis

from benchmarks.environments import Environments
from tests.redis_server import RedisServer

ROOT = Path(__file__).resolve().parent.parent
LONGEST = 600.0
"""Seconds that one measurement may take."""

CONTENDERS = {
    "ours": ("ours", "ours"),
    "APScheduler": ("apscheduler", "apscheduler"),
    "django-crontask": ("crontask", "crontask"),
    "celery, RedBeat": ("redbeat", "redbeat"),
    "rq cron": ("rq", "rqcron"),
    "huey": ("huey", "hueys"),
}
"""By the name in the table: the environment, and the module in `benchmarks.contenders`."""

OTHER_WORK = {
    "APScheduler": "takes no lock; without Django",
    "django-crontask": "one lock for the process; no claim",
    "celery, RedBeat": "enqueues only; one lock for the process; without Django",
    "rq cron": "enqueues only; takes no lock; without Django",
    "huey": "looks once a minute; takes no lock; without Django",
}
"""What a contender does less than ours, for the table."""


class MeasurementFailed(Exception):
    """A contender's process ended without a result."""


@dataclass
class Row:
    """One number of one contender in one case: a value for each repetition."""

    figure: str
    case: str
    contender: str
    what: str
    unit: str
    base: str
    """The contender that the others of the case are compared with."""
    values: list[float] = field(default_factory=list)
    note: str = ""

    @property
    def median(self) -> float:
        """Return the middle value."""
        return statistics.median(self.values)


class Rows:
    """The rows of a figure, made as values come."""

    def __init__(self, figure: str, base: str = "ours") -> None:
        self._figure = figure
        self._base = base
        self._rows: dict[tuple[str, str, str], Row] = {}

    def add(self, case: str, contender: str, what: str, unit: str, value: float, note: str = "") -> None:
        """Add a value to its row."""
        row = self._rows.setdefault((case, what, contender), Row(self._figure, case, contender, what, unit, self._base))
        row.values.append(value)
        row.note = note or row.note or OTHER_WORK.get(contender, "")

    def __iter__(self) -> Any:
        """Yield the rows, those that are compared with one another together."""
        return iter(sorted(self._rows.values(), key=lambda row: list(self._order()).index((row.case, row.what))))

    def _order(self) -> dict[tuple[str, str], None]:
        return dict.fromkeys((case, what) for case, what, _ in self._rows)


class Bench:
    """Runs contenders against a private Redis, which is emptied before each."""

    def __init__(
        self, environments: Environments, *, quick: bool = False, repeats: int = 5, peers: bool = True
    ) -> None:
        self.environments = environments
        self.quick = quick
        self.repeats = 1 if quick else repeats
        self._peers = peers
        self.left_out: list[str] = []
        """What could not be measured, and why."""
        self.server = RedisServer()
        self._stack = ExitStack()

    def __enter__(self) -> Bench:
        for package in ("django_cronductor", "benchmarks"):
            compile_dir(ROOT / package, quiet=1)  # As pip does with the peers'.
        self._stack.enter_context(self.server)
        self.redis = redis.Redis.from_url(self.server.url, decode_responses=True)
        self._stack.callback(self.redis.close)
        self.scratch = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="cronductor-benchmark-")))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def run(self, contender: str, *arguments: object, env: Mapping[str, str] | None = None) -> dict[str, Any]:
        """Run a contender's program on an empty Redis and return what it measured."""
        self.redis.flushall()
        return self.result(self.start(contender, *arguments, env=env))

    def start(self, contender: str, *arguments: object, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
        """Start a contender's program."""
        environment, module = CONTENDERS.get(contender, ("ours", contender))
        command = [self.environments.python(environment), "-m", f"benchmarks.contenders.{module}"]
        with (self.scratch / "stderr").open("a") as errors:
            process = subprocess.Popen(
                [*command, *map(str, arguments)],
                cwd=ROOT,
                env={**os.environ, "BENCHMARK_REDIS": self.server.url, **(env or {})},
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self._stack.callback(process.kill)  # Which does nothing to one that has ended.
        return process

    def result(self, process: subprocess.Popen[str]) -> dict[str, Any]:
        """Wait for a program's end and return the last line of what it printed."""
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired:
            process.kill()
            output, _ = process.communicate()
        try:
            found: dict[str, Any] = json.loads(output.splitlines()[-1])
        except (IndexError, ValueError):
            said = (self.scratch / "stderr").read_text(errors="replace")[-2000:]
            raise MeasurementFailed(f"{' '.join(map(str, process.args))} gave no result.\n{said}") from None
        return found

    def rounds(self, contenders: Sequence[str]) -> Iterable[str]:
        """Yield the contenders in turn, as often as everything is repeated: what disturbs, disturbs them all."""
        for _ in range(self.repeats):
            yield from (name for name in contenders if self._peers or name.startswith("ours"))

    def attempt(self, contender: str, measure: Callable[[], object]) -> None:
        """Measure; a peer that fails, or cannot be installed, is left out, and said to be."""
        try:
            measure()
        except (MeasurementFailed, subprocess.CalledProcessError) as error:
            if contender.startswith("ours"):
                raise
            self.leave_out(contender, error)

    def leave_out(self, what: str, reason: Exception) -> None:
        """Note that something is not in the table."""
        text = f"{what} ({str(reason).splitlines()[0]})"
        if text not in self.left_out:
            self.left_out.append(text)
            print(f"Left out: {what}: {reason}", file=sys.stderr)
