"""The promises over random troubles: late replicas, cut lines, lost and slow replies, long runs, restarts, pauses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from random import Random

import pytest

from django_cronductor.exceptions import BackendError
from django_cronductor.reports import count_occurrences
from django_cronductor.runner import RunContext
from tests.scheduler_world import LocalStore, RedisStore, Replica, World

pytestmark = pytest.mark.django_db

JOBS = {
    "every ten seconds": ("*/10 * * * * *", {"ttl": 6, "grace": 20}),
    "every minute": ("* * * * *", {"ttl": 30}),
    "again": ("*/20 * * * * *", {"ttl": 9, "grace": 40, "recover": True}),
}
STEPS = 150


class Trouble:
    """Replicas that somebody makes trouble for."""

    def __init__(self, world: World, seed: int, *, deaf: bool) -> None:
        self.world = world
        self.random = Random(seed)
        self._deaf = deaf
        self._running: set[str] = set()
        self.calm = False
        for key, (expression, options) in JOBS.items():
            world.job(expression, key, self.work, **options)
        self.replicas = [self.start() for _ in range(3)]
        for replica in self.replicas:
            replica.tick()
        self.since = {key: world.state(key).since for key in JOBS}

    def start(self) -> Replica:
        return self.world.replica(ahead=self.random.uniform(-500, 500), uptime=self.random.uniform(0, 1000))

    def work(self, context: RunContext) -> None:
        """Take some time, in which others go on; now and then more than the lease has."""
        if self.calm or self.random.random() < 0.5:
            return
        self._running.add(context.instance)
        for _ in range(self.random.randint(1, 4)):
            self.world.clock.advance(self.random.choice([0.2, 2, 8]))
            self.tick(self.random.choice(self.replicas))
        self._running.discard(context.instance)

    def tick(self, replica: Replica) -> None:
        if replica.instance in self._running:
            return
        try:
            replica.tick()
        except BackendError:
            assert replica.link.broken or replica.link.deaf, "only where it could not connect"

    def step(self) -> None:
        random, replica = self.random, self.random.choice(self.replicas)
        self.world.clock.advance(random.choice([0.0, 0.001, 0.1, 0.5, 1, 3, 10]))
        trouble = random.random()
        if trouble < 0.08:
            replica.link.broken = set() if replica.link.broken else {random.choice(["all", "claim", "release"])}
        elif trouble < 0.14:
            replica.link.lag[random.choice(["claim", "release", "heartbeat"])] = random.choice([0.1, 2, 7])
        elif trouble < 0.20 and self._deaf:
            replica.link.deaf[random.choice(["claim", "release", "renew"])] = random.randint(1, 2)
        elif trouble < 0.23:
            key = random.choice(list(JOBS))
            (self.world.backend.resume if self.world.state(key).paused else self.world.backend.pause)(key)
        elif trouble < 0.26 and replica.instance not in self._running:
            self.restart(replica)
        self.tick(replica)

    def restart(self, replica: Replica) -> None:
        """End a replica between two passes, in good order as far as its line allows, and start another."""
        replica.link.broken = set()
        replica.link.deaf.clear()
        for _ in range(3):
            self.tick(replica)
            self.world.clock.advance(1)
        self.replicas[self.replicas.index(replica)] = self.start()

    def settle(self) -> None:
        """Make no more trouble, until everything in doubt has been decided."""
        self.calm = True
        for key in JOBS:
            self.world.backend.resume(key)
        for replica in self.replicas:
            replica.link.broken = set()
            replica.link.deaf.clear()
        for _ in range(150):
            self.world.clock.advance(1)
            for replica in self.replicas:
                self.tick(replica)


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


def starts(world: World, key: str) -> Counter[datetime]:
    return Counter(context.scheduled_at for context in world.runs if context.key == key and context.scheduled_at)


def check_starts(world: World) -> None:
    """Check that nothing started twice or early, and that fencing tokens rose."""
    for key, (_, options) in JOBS.items():
        for instant, count in starts(world, key).items():
            assert count <= (2 if options.get("recover") else 1), (key, instant)
        tokens = [context.fencing_token for context in world.runs if context.key == key]
        assert tokens == sorted(set(tokens)), key
    again = Counter(context.scheduled_at for context in world.runs if context.trigger == "recover")
    assert all(count == 1 for count in again.values())
    for context in world.runs:
        assert context.scheduled_at is not None
        assert context.missed >= 0


def check_accounts(world: World, since: dict[str, int]) -> None:
    """Check that every occurrence that was decided ran or was reported, and only once."""
    for key in JOBS:
        schedule = world.registry.get(key).schedule("UTC")
        decided, _ = count_occurrences(schedule, since[key], world.state(key).occurrence)
        ran = starts(world, key)
        reported = sum(one["count"] for one in world.heard("job_missed") if one["key"] == key)
        reported += sum(one["count"] for one in world.heard("job_skipped") if one["key"] == key)
        unheard = {at for name, at, _ in world.abandoned() if name == key and at not in ran}
        assert len(ran) + reported + len(unheard) == decided, key
        assert len(ran) > 1, "something was left to check"


@pytest.mark.parametrize("seed", range(40))
def test_every_occurrence_runs_or_is_reported_and_only_once(world: World, seed: int) -> None:
    trouble = Trouble(world, seed, deaf=False)
    for _ in range(STEPS):
        trouble.step()
    trouble.settle()
    check_starts(world)
    check_accounts(world, trouble.since)


@pytest.mark.parametrize("seed", range(40))
def test_no_occurrence_starts_twice_though_replies_are_lost(world: World, seed: int) -> None:
    trouble = Trouble(world, seed, deaf=True)
    for _ in range(STEPS):
        trouble.step()
    trouble.settle()
    check_starts(world)


@pytest.mark.parametrize("seed", range(40, 46))
@pytest.mark.parametrize("deaf", [False, True])
def test_the_same_holds_on_redis(seed: int, deaf: bool) -> None:
    world = World(RedisStore())
    try:
        trouble = Trouble(world, seed, deaf=deaf)
        for _ in range(STEPS):
            trouble.step()
        trouble.settle()
        check_starts(world)
        if not deaf:
            check_accounts(world, trouble.since)
    finally:
        world.close()
