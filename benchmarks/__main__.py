"""
Measure this package and its peers on the same work: `python -m benchmarks [--only FIGURE ...] [--json FILE]`.

Starts a private Redis. Each peer has an environment of its own, installed at its first use. All contenders take turns,
and everything is repeated; give the machine nothing else to do.
"""

from __future__ import annotations

import argparse
import sys
from importlib import import_module
from pathlib import Path

from benchmarks.bench import Bench, Row
from benchmarks.environments import DIRECTORY, Environments
from benchmarks.report import machine, page, table, write_json

FIGURES = (
    "lateness",
    "burst",
    "history",
    "replicas",
    "idle",
    "claim",
    "store",
    "load",
    "admin",
    "imports",
    "schedules",
)
ON_REQUEST = ("growth",)
"""Those that take long."""


def read(arguments: list[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure ours and each peer in turn.")
    parser.add_argument("--only", nargs="+", metavar="FIGURE", choices=FIGURES + ON_REQUEST, default=FIGURES)
    parser.add_argument("--growth", action="store_true", help="measure the growth, too, which takes long")
    parser.add_argument("--without-peers", action="store_true", help="measure ours alone: on another Python, say")
    parser.add_argument("--quick", action="store_true", help="little of everything, once: does it work?")
    parser.add_argument("--repeats", type=int, default=5, help="how often everything is measured, 5 by default")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the tables for the documentation there, too")
    parser.add_argument("--venvs", type=Path, default=DIRECTORY, metavar="DIR", help="where the peers are installed")
    parser.add_argument("--plots", type=Path, metavar="DIR", help="write the pictures of the growth there")
    options = parser.parse_args(arguments)
    if options.growth and "growth" not in options.only:
        options.only = [*options.only, "growth"]
    if options.plots and "growth" not in options.only:
        parser.error("--plots draws the growth: ask for it with --growth, or --only growth")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Measure, print and write."""
    options = read(arguments)
    figures: dict[str, list[Row]] = {}
    titles: dict[str, str] = {}
    environments, peers = Environments(options.venvs), not options.without_peers
    with Bench(environments, quick=options.quick, repeats=options.repeats, peers=peers) as bench:
        found = machine(bench.redis.info("server"), bench.repeats)
        for name, value in found.items():
            print(f"{name:<10} {value}")
        print(flush=True)
        for name in options.only:
            figure = import_module(f"benchmarks.figures.{name}")
            figures[name], titles[name] = list(figure.measure(bench)), figure.TITLE
            print(table(figure.TITLE, figures[name]), flush=True)
            found["peers"], found["left out"] = (
                bench.environments.versions or "none",
                "; ".join(bench.left_out) or "none",
            )
            if options.plots and hasattr(figure, "draw"):
                figure.draw(figures[name], options.plots)
            if options.json:
                write_json(options.json, found, figures)
            if options.page:
                options.page.write_text(page(found, figures, titles), encoding="utf-8")
    for path in filter(None, (options.json, options.page)):
        print(f"Written: {path}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
