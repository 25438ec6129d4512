"""A small world for tests of the loop: replicas on one store, a clock that stands still, and who was told what."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from datetime import datetime, timedelta, timezone
from typing import Any

import redis
from django.conf import settings

from django_cronductor import signals
from django_cronductor.backends.base import LockBackend, Reply
from django_cronductor.backends.local import LocalBackend, Store
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.exceptions import BackendError
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.runner import ErrorContext, RunContext
from django_cronductor.scheduler import Scheduler
from django_cronductor.testing.clock import START, ManualClock

DEADLINE = 20.0
"""Seconds that a test waits for a thread before it gives up."""

SIGNALS = {
    name: getattr(signals, name)
    for name in ("job_started", "job_finished", "job_skipped", "job_missed", "run_abandoned", "lease_lost")
}


def at(hour: int, minute: int = 0, second: float = 0, day: int = 5) -> datetime:
    """Return an instant of the day on which the world's clock starts (Monday, 5 January 2026, at 12:00 UTC)."""
    return datetime(2026, 1, day, hour, minute, tzinfo=timezone.utc) + timedelta(seconds=second)


class ReplicaClock:
    """One machine's clocks: time passes there as everywhere, but they show what they like."""

    def __init__(self, base: ManualClock, ahead: float = 0.0, uptime: float = 0.0) -> None:
        self._base = base
        self.ahead = ahead
        self._uptime = uptime

    def time(self) -> float:
        return self._base.time() + self.ahead

    def monotonic(self) -> float:
        return self._base.monotonic() + self._uptime


class SharedClock(ManualClock):
    """The clock that all others follow; it says when it is moved."""

    def __init__(self, start: datetime, moved: Callable[[], object]) -> None:
        super().__init__(start)
        self._moved = moved

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._moved()

    def set_time(self, instant: float | datetime) -> None:
        super().set_time(instant)
        self._moved()


class LocalStore:
    """The single-instance backend as a store that can lose its data and whose clock can be set."""

    def __init__(self) -> None:
        self._now = 0.0
        self.backend: LockBackend = LocalBackend(clock=self, store=Store())

    def time(self) -> float:
        return self._now

    def set_clock(self, seconds: float) -> None:
        self._now = seconds

    def lose(self) -> None:
        for name in ("jobs", "locks", "instances"):
            getattr(self.backend.store, name).clear()  # type: ignore[attr-defined]
        self.backend.store.fence = 0  # type: ignore[attr-defined]

    def close(self) -> None:
        self.backend.close()


class MovedRedisBackend(RedisBackend):
    """The Redis backend by a clock that stands in a key, and not by the server's."""

    @property
    def clock(self) -> str:
        return f"{self._base}:time"

    def _source(self, name: str) -> str:
        return super()._source(name).replace("redis.call('TIME')", f"redis.call('LRANGE', '{self.clock}', 0, 1)")

    def time(self) -> int:
        seconds, microseconds = self._call(lambda: self._claims.lrange(self.clock, 0, 1))
        return int(seconds) * 1000 + int(microseconds) // 1000


class RedisStore:
    """The Redis backend as such a store."""

    def __init__(self) -> None:
        self._client = redis.Redis.from_url(settings.CACHES["locks"]["LOCATION"], decode_responses=True)
        self.backend = MovedRedisBackend(cache="locks", prefix=f"test-{uuid.uuid4().hex[:12]}")

    def set_clock(self, seconds: float) -> None:
        microseconds = round(seconds * 1_000_000)
        time = self._client.pipeline().delete(self.backend.clock)
        time.rpush(self.backend.clock, microseconds // 1_000_000, microseconds % 1_000_000).execute()

    def lose(self) -> None:
        for key in self._client.scan_iter(match=f"{self.backend._base}:*", count=1000):
            if key != self.backend.clock:
                self._client.delete(key)

    def close(self) -> None:
        self.lose()
        self._client.delete(self.backend.clock)
        self._client.close()
        self.backend.close()


class Link(LockBackend):
    """One replica's way to the store: it can be cut, lose replies, be slow; and it knows what was asked."""

    shared = True

    def __init__(self, inner: LockBackend, pass_time: Callable[[float], object]) -> None:
        super().__init__()
        self.inner = inner
        self.calls: list[tuple[str, Any]] = []
        self.broken: set[str] = set()
        """Operations that fail; "all": every one."""
        self.spoiled: set[str] = set()
        """Keys of jobs that the store cannot work on."""
        self.lag: dict[str, float] = {}
        """Seconds that the next reply of an operation takes."""
        self.deaf: dict[str, int] = {}
        """How many of the next replies of an operation are lost."""
        self.meanwhile: dict[str, Callable[[], object]] = {}
        """What happens between the next answer of an operation and its arrival."""
        self._pass_time = pass_time

    def count(self, name: str) -> int:
        return sum(called == name for called, _ in self.calls)

    def asked(self, name: str) -> list[Any]:
        """Return the first arguments of all calls of an operation."""
        return [argument for called, argument in self.calls if called == name]

    def _send(self, name: str, *arguments: Any, **options: Any) -> Any:
        self.calls.append((name, arguments[0] if arguments else None))
        if self.broken & {name, "all"}:
            raise BackendError("the line is cut")
        answer = getattr(self.inner, name)(*arguments, **options)
        self.meanwhile.pop(name, lambda: None)()
        self._pass_time(self.lag.pop(name, 0.0))
        if self.deaf.get(name):
            self.deaf[name] -= 1
            raise BackendError("the reply was lost")
        return self._spoil(answer, arguments[0]) if isinstance(answer, Reply) else answer

    def _spoil(self, reply: Reply[Any], questions: Iterable[Any]) -> Reply[Any]:
        keys = [key_of(question) for question in questions]
        pairs = zip(keys, reply.answers, strict=True)
        return Reply(reply.now, [BackendError("a bad key") if key in self.spoiled else one for key, one in pairs])

    def describe(self) -> str:
        return "a link"

    def time(self) -> Any:
        return self._send("time")

    def declare(self, declarations: Any) -> Any:
        return self._send("declare", declarations)

    def claim(self, claims: Any, holder: str) -> Any:
        return self._send("claim", claims, holder)

    def renew(self, leases: Any) -> Any:
        return self._send("renew", leases)

    def release(self, releases: Any) -> Any:
        return self._send("release", releases)

    def states(self, keys: Any) -> Any:
        return self._send("states", keys)

    def pause(self, key: str) -> None:
        self._send("pause", key)

    def resume(self, key: str) -> None:
        self._send("resume", key)

    def force_release(self, key: str) -> Any:
        return self._send("force_release", key)

    def forget(self, key: str) -> None:
        self._send("forget", key)

    def request_run(self, key: str) -> Any:
        return self._send("request_run", key)

    def take_request(self, key: str, token: str, ttl: int, holder: str, *, unasked: bool = False) -> Any:
        return self._send("take_request", key, token, ttl, holder, unasked=unasked)

    def heartbeat(self, instance: str) -> Any:
        return self._send("heartbeat", instance)

    def instances(self) -> Any:
        return self._send("instances")

    def retire(self, instance: str) -> None:
        self._send("retire", instance)

    def acquire(self, key: str, token: str, ttl: int, holder: str) -> Any:
        return self._send("acquire", key, token, ttl, holder)

    def close(self) -> None:
        self.inner.close()


def key_of(question: Any) -> str:
    """Return which job one question of a batch is about."""
    return question if isinstance(question, str) else getattr(question, "key", None) or question.lease.key


class Replica(Scheduler):
    """A scheduler whose way to the store, and whose clocks, are in the test's hands."""

    backend: Link
    clocks: ReplicaClock

    @property
    def link(self) -> Link:
        return self.backend

    def settle(self) -> None:
        """Wait until all that is to be told has been told."""
        assert self._reporter.wait_idle(DEADLINE)

    def wait_for_workers(self) -> None:
        """Wait until no handler runs here."""
        assert self._workers.wait_idle(DEADLINE)


class World:
    """Jobs, replicas and a store on one clock; close it at the end."""

    def __init__(self, store: LocalStore | RedisStore | None = None, start: datetime = START) -> None:
        self.store = store or LocalStore()
        self.backend: LockBackend = self.store.backend
        self.store_ahead = 0.0
        self.clock = SharedClock(start, self._set_store_clock)
        self._set_store_clock()
        self.registry = JobRegistry()
        self.runs: list[RunContext] = []
        self.told: list[tuple[str, dict[str, Any]]] = []
        self.errors: list[tuple[BaseException, ErrorContext]] = []
        self.replicas: list[Replica] = []
        self.gate = threading.Event()
        self._changed = threading.Condition()
        self._stack = ExitStack()
        for name, signal in SIGNALS.items():
            self._listen(name, signal)

    def _set_store_clock(self) -> None:
        self.store.set_clock(self.clock.time() + self.store_ahead)

    def _listen(self, name: str, signal: Any) -> None:
        def hear(sender: Job, **details: Any) -> None:
            details.pop("signal")
            self._note(self.told, (name, {"job": sender, **details}))

        signal.connect(hear, weak=False)
        self._stack.callback(signal.disconnect, hear)

    def _note(self, notes: list[Any], note: Any) -> None:
        with self._changed:
            notes.append(note)
            self._changed.notify_all()

    def close(self) -> None:
        self.gate.set()
        for replica in self.replicas:
            replica.wait_for_workers()
            replica._workers.close()
            replica._reporter.close()
        self._stack.close()
        self.store.close()

    # Building.

    def job(
        self, expression: str, key: str = "job", body: Callable[[RunContext], object] | None = None, **options: Any
    ) -> Job:
        """Declare a job that notes its runs, and does `body` then."""
        registry: JobRegistry = options.pop("registry", self.registry)

        def handler(context: RunContext) -> None:
            self._note(self.runs, context)
            if body is not None:
                body(context)

        return registry.schedule(expression, handler, key=key, takes_context=True, **options)

    def slow_job(self, expression: str, key: str = "job", **options: Any) -> Job:
        """Declare a job that runs until the gate is opened: for replicas that are not inline."""

        def wait(context: RunContext) -> None:
            self.gate.wait(DEADLINE)

        return self.job(expression, key, wait, **options)

    def replica(self, *, ahead: float = 0.0, uptime: float = 0.0, **options: Any) -> Replica:
        """Make a replica; by default its handlers run inline."""
        clocks = ReplicaClock(self.clock, ahead, uptime)
        options.setdefault("inline", True)
        options.setdefault("instance", f"replica-{len(self.replicas) + 1}")
        options.setdefault("on_error", lambda error, context: self._note(self.errors, (error, context)))
        registry = options.pop("registry", self.registry)
        replica = Replica(registry, Link(self.backend, self.clock.advance), clock=clocks, **options)
        replica.clocks = clocks
        self.replicas.append(replica)
        return replica

    # Passing time.

    def until(self, instant: datetime) -> None:
        """Move the clock, and tick nobody."""
        self.clock.advance(instant.timestamp() - self.clock.time())

    def tick(self, *replicas: Replica) -> None:
        """Let replicas make a pass, in this order; all of them by default."""
        for replica in replicas or self.replicas:
            replica.tick()

    def go(self, instant: datetime, *replicas: Replica, step: float = 1.0) -> None:
        """Let time pass until an instant, with a pass of the replicas at each step."""
        while (left := instant.timestamp() - self.clock.time()) > 0:
            self.clock.advance(min(step, left))
            self.tick(*replicas)

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait until something that was noted makes the condition true."""
        with self._changed:
            assert self._changed.wait_for(condition, DEADLINE), (self.runs, self.told)

    # Looking.

    def ran(self, key: str = "job") -> list[datetime | None]:
        """Return for which instants the job ran, in the order of its runs."""
        return [context.scheduled_at for context in self.runs if context.key == key]

    def heard(self, name: str) -> list[dict[str, Any]]:
        """Return the details of all signals of a name."""
        return [details for signal, details in self.told if signal == name]

    def missed(self) -> list[tuple[str, datetime, int]]:
        return [(one["key"], one["scheduled_at"], one["count"]) for one in self.heard("job_missed")]

    def skipped(self) -> list[tuple[str, datetime | None, str]]:
        return [(one["key"], one["scheduled_at"], one["reason"]) for one in self.heard("job_skipped")]

    def abandoned(self) -> list[tuple[str, datetime | None, str]]:
        return [(one["key"], one["scheduled_at"], one["holder"]) for one in self.heard("run_abandoned")]

    def outcomes(self) -> list[str]:
        return [one["outcome"] for one in self.heard("job_finished")]

    def state(self, key: str = "job") -> Any:
        """Return what the store knows of a job."""
        return self.backend.states([key]).answers[0]

    def flush(self) -> None:
        """Let the store lose everything."""
        self.store.lose()

    def step_store(self, seconds: float) -> None:
        """Step the store's clock, as an operator would."""
        self.store_ahead += seconds
        self._set_store_clock()


def start_runs(world: World, replica: Replica, runs: int = 1) -> None:
    """Let a replica that is not inline claim what is due, and wait until so many runs have begun in all."""
    replica.tick()
    world.wait(lambda: len(world.runs) >= runs)


def end_runs(world: World, *replicas: Replica) -> None:
    """Let the handlers end, and the loops give their leases back and tell."""
    world.gate.set()
    for replica in replicas:
        replica.wait_for_workers()
        replica.tick()
        replica.settle()


class Passes:
    """Counts the passes of a loop, and can be waited for."""

    def __init__(self) -> None:
        self.count = 0
        self._changed = threading.Condition()

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.count >= count, DEADLINE)
