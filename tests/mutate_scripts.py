"""
The mutation run: change every line of every Redis script, one change at a time, and see whether the tests notice.

    python -m tests.mutate_scripts                       all mutants, exit code 1 if any survives
    python -m tests.mutate_scripts --sample 100 --seed 7 some of them
    python -m tests.mutate_scripts --part 1/2            every second, the others with 2/2 in another process

A mutant that behaves like the original cannot be killed: EQUIVALENT names each with the reason.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.redis_server import RedisServer

SCRIPTS = Path(__file__).resolve().parent.parent / "django_cronductor" / "backends" / "scripts"

SWAPS = {
    "<=": ("<",),
    ">=": (">",),
    "<": ("<=",),
    ">": (">=",),
    "==": ("~=",),
    "~=": ("==",),
    "+": ("-",),
    "-": ("+",),
    "*": ("/",),
    "/": ("*",),
    "and": ("or",),
    "or": ("and",),
    "not": ("",),
    "true": ("false",),
    "false": ("true",),
}
TOKEN = re.compile(r"'[^']*'|\.\.|[<>=~]=|[<>+*/#=,(){}\[\]-]|\d+|[A-Za-z_][\w.:]*")
CALLS = ("math.max", "math.min", "math.floor", "tonumber")
STOPS = {"if", "then", "return", "=", ",", "and", "or", "do", "in", "local"}

EQUIVALENT: dict[tuple[str, str], str] = {
    ("declare.lua", "if paused == '1' then job.paused = 2 end"): "any value means paused",
    (
        "declare.lua",
        "if job.fingerprint ~= fingerprint then",
    ): "since and fingerprint are written together and go together: without the one there is no other",
    (
        "heartbeat.lua",
        "redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', '(' .. now - ARGV[3])",
    ): "an instance and a request last equally long",
    (
        "job.lua",
        "job.occurrence, job.fence = job.occurrence or -2, job.fence or 0",
    ): "no occurrence is below 0: any number below it is before all",
    ("job.lua", "if job.token == token then return 'ours?' end"): "the callers ask for the other two answers only",
    (
        "lock_acquire.lua",
        "fence = math.max((redis.call('GET', KEYS[2]) or 1) + 1, now)",
    ): "the time is above 2 milliseconds since 1970",
    (
        "lock_renew.lua",
        "if not there and (tonumber(redis.call('GET', counter)) or 1) < tonumber(fence) then",
    ): "every fence is above 1: it is not below the time",
    (
        "lock_renew.lua",
        "local token, fence, ttl, holder = unpack(ARGV, i * 4 - 3, i * 5)",
    ): "what is unpacked beyond the fourth is dropped",
    **{
        (file, "local now = time[1] * 1000 + time[2] / 1000"): "an integer reply cuts the fraction off"
        for file in ("lock_release.lua", "lock_renew.lua")
    },
    ("release.lua", "local retry = token .. ':released?'"): "any text that is nobody's token will do",
}
"""(file, changed line; "delete: ..." where it was deleted) -> why no test can tell it from the original."""


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    file: str
    number: int
    line: str
    changed: str

    @property
    def name(self) -> tuple[str, str]:
        """Return what EQUIVALENT knows it by: no line number, which would move."""
        return self.file, self.changed.strip() or f"delete: {self.line.strip()}"

    def source(self) -> str:
        """Return the whole changed file."""
        lines = (SCRIPTS / self.file).read_text().splitlines()
        lines[self.number] = self.changed
        return "\n".join(lines) + "\n"

    def __str__(self) -> str:
        return f"{self.file}:{self.number + 1}\n    - {self.line.strip()}\n    + {self.changed.strip()}"


def mutants() -> Iterator[Mutant]:
    """Yield every mutant of every script."""
    for path in sorted(SCRIPTS.glob("*.lua")):
        for number, line in enumerate(path.read_text().splitlines()):
            if not line.strip() or line.lstrip().startswith("--"):
                continue
            for changed in dict.fromkeys(["", *changes(line)]):
                if changed != line:
                    yield Mutant(path.name, number, line, changed)


def changes(line: str) -> Iterator[str]:
    """Yield changed forms of one line of Lua."""
    tokens = list(TOKEN.finditer(line))
    words = [token.group() for token in tokens]
    for index, token in enumerate(tokens):
        before, word, after = line[: token.start()], token.group(), line[token.end() :]
        for other in SWAPS.get(word, ()):
            yield before + other + after
        if word.startswith("'"):
            yield f"{before}'{word[1:-1]}?'{after}"
        elif word.isdigit():
            yield f"{before}{int(word) + 1}{after}"
        elif word in CALLS:
            yield from _arguments_instead(line, tokens, index)
        elif word in ("and", "or"):
            left, right = _operands(words, index)
            yield line[: tokens[left].start()] + line[tokens[index + 1].start() :]
            yield line[: tokens[index - 1].end()] + line[tokens[right].end() :]
    yield from _without_each_element(line)
    yield from _without_each_assignment(line)


def _without_each_element(line: str) -> Iterator[str]:
    """Yield the line without one element of a table of names, or one field of a table."""
    if re.search(r"= \{'\w+',", line):
        for element in re.finditer(r"'\w+'(, )?", line):
            yield line[: element.start()] + line[element.end() :]
    for field in re.finditer(r"(?<=[{ ])\w+ = ('?[\w.-]+'?)(, |(?=\}))", line):
        if "{" in line[: field.start()] or line.startswith("    holder"):
            yield line[: field.start()] + line[field.end() :]


def _without_each_assignment(line: str) -> Iterator[str]:
    """Yield a line `a, b = x, y` without one of the names and its value."""
    assignment = re.fullmatch(r"(\s*(?:local )?)([\w., ]+) = ([^{]+)", line)
    if not assignment or ", " not in assignment[2] or "(ARGV" in line or "pcall" in line or "redis." in line:
        return
    names, values = assignment[2].split(", "), re.split(r", (?![^(]*\))", assignment[3])
    for index in range(len(names)):
        kept = [position for position in range(len(names)) if position != index]
        left = ", ".join(names[position] for position in kept)
        yield f"{assignment[1]}{left} = {', '.join(values[position] for position in kept if position < len(values))}"


def _arguments_instead(line: str, tokens: list[re.Match[str]], index: int) -> Iterator[str]:
    """Yield the line with each argument of a call in the call's place."""
    depth, start = 0, tokens[index + 1].end()
    for token in tokens[index + 1 :]:
        if token.group() in "({[":
            depth += 1
        if depth == 1 and token.group() in ",)":
            yield line[: tokens[index].start()] + line[start : token.start()].strip() + line[_end(tokens, index) :]
            start = token.end()
        if token.group() in ")}]":
            depth -= 1
            if depth == 0:
                return


def _end(tokens: list[re.Match[str]], index: int) -> int:
    """Return where a call ends."""
    depth = 0
    for token in tokens[index + 1 :]:
        depth += (token.group() in "({[") - (token.group() in ")}]")
        if depth == 0:
            return token.end()
    return tokens[-1].end()


def _operands(words: list[str], index: int) -> tuple[int, int]:
    """Return the first word of the left operand of an `and` or `or`, and the last word of its right one."""
    depth, left = 0, index - 1
    while left >= 0:
        depth += (words[left] in ")}]") - (words[left] in "({[")
        if depth < 0 or (depth == 0 and words[left] in STOPS):
            break
        left -= 1
    depth, right = 0, index + 1
    while right < len(words):
        depth += (words[right] in "({[") - (words[right] in ")}]")
        if depth < 0 or (depth == 0 and words[right] in STOPS):
            break
        right += 1
    return left + 1, right - 1


@dataclass
class Test:
    """One test of the suites, what it takes, and the scripts that it runs."""

    suite: type[Any]
    name: str
    seconds: float = 0.0
    scripts: frozenset[str] = frozenset()
    kills: int = 0

    def passes(self) -> bool:
        """Run it."""
        case = self.suite()
        try:
            case.setup_method()
            getattr(case, self.name)()
        except (Exception, pytest.fail.Exception):
            return False
        finally:
            case.teardown_method()
        return True

    def __str__(self) -> str:
        return f"{self.suite.__name__}.{self.name}"


def tests() -> list[Test]:
    """Return all tests that a mutant is shown to."""
    from tests.backends import test_conformance, test_scripts

    suites = (
        test_conformance.TestRedis,
        test_conformance.TestRedisClock,
        test_conformance.TestRedisDamage,
        test_scripts.TestScripts,
        test_scripts.TestFullStore,
    )
    return [Test(suite, name) for suite in suites for name in sorted(dir(suite)) if name.startswith("test_")]


def measure(test: Test) -> None:
    """Run a test on the scripts as they are, and note what it takes and which scripts it runs."""
    from django_cronductor.backends.redis import RedisBackend

    used, original = set[str](), RedisBackend._script

    def note(backend: RedisBackend, name: str) -> Any:
        used.add(name)
        return original(backend, name)

    RedisBackend._script = note  # type: ignore[method-assign]
    start = time.monotonic()
    try:
        if not test.passes():
            sys.exit(f"The scripts as they are fail {test}.")
    finally:
        RedisBackend._script = original  # type: ignore[method-assign]
    shared = {"job"} if any((SCRIPTS / f"{name}.lua").read_text().find("each(") >= 0 for name in used) else set()
    test.seconds, test.scripts = time.monotonic() - start, frozenset(used | shared)


def patched_source(mutant: Mutant) -> Callable[[str], str]:
    """Return a `script_source` in which one file is the mutant."""

    def read(file: str) -> str:
        return mutant.source() if file == mutant.file else (SCRIPTS / file).read_text()

    def script_source(name: str) -> str:
        source = read(f"{name}.lua")
        return read("job.lua") + source if "each(" in source else source

    return script_source


def run(chosen: list[Mutant]) -> list[Mutant]:
    """Show each mutant to the tests, and return those that survive."""
    from django_cronductor.backends import redis

    suite, survivors, original = tests(), [], redis.script_source
    for test in suite:
        measure(test)
    for mutant in chosen:
        # Those that noticed most so far first, and of the others the quick ones.
        suite.sort(key=lambda test: (-test.kills, test.seconds))
        redis.script_source = patched_source(mutant)  # type: ignore[assignment]
        try:
            shown = (test for test in suite if mutant.file.removesuffix(".lua") in test.scripts)
            killer = next((test for test in shown if not test.passes()), None)
        finally:
            redis.script_source = original
        if killer:
            killer.kills += 1
        else:
            survivors.append(mutant)
            print(f"survives: {mutant}", flush=True)
    return survivors


def main() -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Change the Redis scripts line by line; the tests must notice.")
    parser.add_argument("--sample", type=int, help="how many mutants to try, chosen at random")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--file", help="only this script, as in claim.lua")
    parser.add_argument(
        "--part", default="1/1", help="of the mutants, as in 1/2 for every second one from the first on"
    )
    options = parser.parse_args()
    every = [mutant for mutant in mutants() if mutant.name not in EQUIVALENT]
    unknown = set(EQUIVALENT) - {mutant.name for mutant in mutants()}
    chosen = [mutant for mutant in every if options.file in (None, mutant.file)]
    if options.sample:
        chosen = random.Random(options.seed).sample(chosen, min(options.sample, len(chosen)))
    part, parts = map(int, options.part.split("/"))
    chosen = chosen[part - 1 :: parts]
    start = time.monotonic()
    with RedisServer() as server:
        os.environ["CRONDUCTOR_TEST_REDIS_URL"] = server.url
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.settings")
        survivors = run(chosen)
    took = time.monotonic() - start
    print(f"{len(chosen)} of {len(every)} mutants in {took:.0f} s: {len(survivors)} survived, {len(EQUIVALENT)} known")
    for name in sorted(unknown):
        print(f"no such mutant any more: {name}")
    return 1 if survivors or unknown else 0


if __name__ == "__main__":
    sys.exit(main())
