"""
Replicas of two versions on the same keys, as in a rolling deploy.

`tests/data/scripts_0_1` are the scripts as the replicas of 0.1 have them. They stay as they are: what changes in the
package's own must go on working beside them, or raise FORMAT.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from django_cronductor.backends.redis import OF_JOBS, script_source
from tests.backends.conftest import CLOCK_KEY, NOON, ClockedRedisBackend, ClockedRedisCase, new_prefix
from tests.backends.fuzz import FLUSH, Ledger, Violation, World, shape_for

FIRST_RELEASE = Path(__file__).resolve().parent.parent / "data" / "scripts_0_1"
Source = Callable[[str], str]


def first_release(name: str) -> str:
    """Return a script as the first release has it."""
    source = FIRST_RELEASE.joinpath(f"{name}.lua").read_text()
    return FIRST_RELEASE.joinpath("job.lua").read_text() + source if OF_JOBS.search(source) else source


def later_release(name: str) -> str:
    """Return a script as a later release may have it: with a field more, and more in its answers."""
    changes = {
        "local TEXTS = {": "local TEXTS = {'region', 'reason', ",
        "local LEASE = {": "local LEASE = {'region', ",
        "job.token, job.run, job.attempt, job.holder = token, run, attempt, holder": (
            "job.token, job.run, job.attempt, job.holder, job.region = token, run, attempt, holder, 'north'"
        ),
        "holder = job.holder, fence = job.fence}": "holder = job.holder, fence = job.fence, region = job.region}",
        "  job.asked, job.answer = token, cjson.encode(answer)": (
            "  answer.region, job.reason = job.region, answer.verdict\n"
            "  job.asked, job.answer = token, cjson.encode(answer)"
        ),
    }
    source = script_source(name)
    for old, new in changes.items():
        source = source.replace(old, new)
    return source


def careless_release(name: str) -> str:
    """Return a script as no later release may have it: with another name for what the others go by."""
    return script_source(name).replace("'occurrence'", "'decided'").replace("job.occurrence", "job.decided")


class MixedBackend(ClockedRedisBackend):
    """A backend of several versions: each question is asked by the scripts of one of them."""

    def __init__(self, seed: int, *versions: Source) -> None:
        super().__init__(cache="locks", prefix=new_prefix())
        self._dice, self._versions = random.Random(seed), versions
        self.asked = dict.fromkeys(versions, 0)

    def _script(self, name: str) -> tuple[str, str]:
        version = self._dice.choice(self._versions)
        self.asked[version] += 1
        self._scripts = self.__dict__.setdefault(f"of {version.__name__}", {})
        self._version = version
        return super()._script(name)

    def _source(self, name: str) -> str:
        ours = f"redis.call('HMGET', '{CLOCK_KEY}', 'seconds', 'microseconds')"
        return self._version(name).replace("redis.call('TIME')", ours)


class MixedCase(ClockedRedisCase):
    """Such a backend with the hooks of the conformance suite."""

    def __init__(self, seed: int, versions: tuple[Source, ...]) -> None:
        self.seed, self.versions = seed, versions

    def make_backend(self) -> Any:
        self.backend = MixedBackend(self.seed, *self.versions)
        self.set_clock(NOON)
        return self.backend


def in_turns(seed: int, flush: float, versions: tuple[Source, ...]) -> tuple[Ledger, dict[Source, int]]:
    """Run one world of the fuzz, and return how often each version was asked."""
    case = MixedCase(seed, versions)
    case.setup_method()
    try:
        world = World(
            case.backend, seed, shape_for(seed, flush), advance=case.advance, lose=lambda: case.lose(case.backend)
        )
        return world.run(400), case.backend.asked  # type: ignore[attr-defined]
    finally:
        case.lose(case.backend)
        case.teardown_method()


@pytest.mark.parametrize("flush", [0.0, FLUSH], ids=["", "flushed"])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    "versions",
    [(first_release, script_source), (script_source, later_release), (first_release, script_source, later_release)],
    ids=["first and this", "this and later", "all"],
)
def test_replicas_of_several_versions_lose_and_double_nothing(
    seed: int, flush: float, versions: tuple[Source, ...]
) -> None:
    ledger, asked = in_turns(seed, flush, versions)
    assert ledger.counts["won"]
    assert min(asked.values()) > 100


def test_a_release_that_understands_a_field_otherwise_is_found_out() -> None:
    def violated(seed: int) -> bool:
        try:
            in_turns(seed, 0.0, (script_source, careless_release))
        except Violation:
            return True
        return False

    assert any(violated(seed) for seed in range(5))


def test_the_later_release_differs_in_every_way_that_is_meant() -> None:
    source = later_release("claim")
    assert source.count("region") >= 6
    assert source.count("reason") >= 2
