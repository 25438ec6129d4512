"""
The Redis backend: one hash per job, one script per operation, all time from Redis itself.

The connection is that of a Django cache: Django's own RedisCache, django-redis, or django-valkey. The keys are
`<KEY_PREFIX>:{<PREFIX>}:job:<key>` and their siblings, all under one hash tag; the cache's VERSION and KEY_FUNCTION
play no part.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, partial
from itertools import repeat
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from django.core.cache import caches
from django.core.checks import CheckMessage, Error, Warning  # noqa: A004

from django_cronductor.backends.base import (
    INSTANCE_LIFETIME,
    MANUAL,
    REQUEST_LIFETIME,
    Acquired,
    Claim,
    ClaimResult,
    DeadRun,
    Declaration,
    Heartbeat,
    JobState,
    LastLease,
    Lease,
    LockBackend,
    Release,
    ReleaseResult,
    RenewResult,
    Reply,
    rest_of,
)
from django_cronductor.backends.connections import CachePool, find_pool
from django_cronductor.exceptions import BackendError, BackendRefused, ConfigurationError

T = TypeVar("T")

KEYS_PER_SCRIPT = 250
"""The most: a call blocks Redis for everybody. The loop asks about as many at once."""
KEYS_PER_READ = 1000
"""The same for states, which people ask for, and now and then: some 6 ms."""
OF_JOBS = re.compile(r"\b(?:each|read)\(")
"""What a script calls that works on jobs."""
REFUSALS = (
    "NOPERM",
    "NOAUTH",
    "WRONGPASS",
    "MOVED",
    "CROSSSLOT",
    "NoPermissionError",
    "AuthenticationError",
    "AuthorizationError",
    "MovedError",
    "ClusterCrossSlotError",
)
"""The codes of a server that will say the same again, and what a driver that strips them makes of them."""
REFUSED = re.compile(
    rf"""(?x) \b(?:{"|".join(REFUSALS)})\b
        | (?i: \b(?: no\ permission | can't\ run\ this\ command | can't\ access\ at\ least\ one\ of\ the\ keys
        | SELECT\ is\ not\ allowed\ in\ cluster\ mode
        | without\ any\ password\ configured | unknown\ command | DB\ index\ is\ out\ of\ range ) )"""
)
EVERY_KEY = re.compile(r"\b(OOM|READONLY|MISCONF|NOREPLICAS|MASTERDOWN)\b")
"""What a script that met it at one key would have met at any other."""
CLUSTER = re.compile(r"\b(MOVED|CLUSTERDOWN|MovedError|ClusterDownError|SELECT is not allowed in cluster mode)\b")
NO_PASSWORD = re.compile(
    r"HELLO must be called with the client already authenticated|\bNOAUTH\b|Authentication required"
)


@cache
def script_source(name: str) -> str:
    """Return the source of a script, the shared part first where it works on jobs."""
    scripts = Path(__file__).with_name("scripts")
    source = scripts.joinpath(f"{name}.lua").read_text(encoding="utf-8")
    return scripts.joinpath("job.lua").read_text(encoding="utf-8") + source if OF_JOBS.search(source) else source


class RedisBackend(LockBackend):
    """Claims and leases in the Redis (or Valkey) behind a Django cache, for any number of replicas."""

    shared: ClassVar[bool] = True

    @classmethod
    def check(cls, *, cache: str, prefix: str, deploy: bool) -> list[CheckMessage]:
        """Report, for deployment alone, a store that cannot be used (E101), or that may lose the locks (W101, W102)."""
        return _deployment_messages(cls(cache=cache, prefix=prefix)) if deploy else []

    def describe(self) -> str:
        """Say which server and database, never the password."""
        pool, driver = self._cache_pool.pool, self._cache_pool.driver
        arguments = pool.connection_kwargs
        if "path" in arguments:
            place = arguments["path"]
        elif hasattr(pool, "service_name"):
            place = f"service {pool.service_name}"
        else:
            place = f"{arguments.get('host', 'localhost')}:{arguments.get('port', 6379)}"
        if issubclass(pool.connection_class, driver.SSLConnection):
            place += " with TLS"
        return f"Redis at {place}, database {arguments.get('db') or 0} (cache {self.cache!r})"

    def time(self) -> int:
        """Return the server's clock."""
        seconds, microseconds = self._call(lambda: self._claims.time())
        return int(seconds) * 1000 + int(microseconds) // 1000

    def declare(self, declarations: Sequence[Declaration]) -> Reply[int]:
        """Make the jobs known; see the contract."""
        return self._batch(
            "declare",
            [self._job(one.key) for one in declarations],
            [
                (
                    one.fingerprint,
                    rest_of(one.ttl),
                    _known(one.seeds.occurrence),
                    _known(one.seeds.fence),
                    _known(one.seeds.paused),
                    _known(one.seeds.since),
                )
                for one in declarations
            ],
            int,
        )

    def claim(self, claims: Sequence[Claim], holder: str) -> Reply[ClaimResult]:
        """Decide one occurrence of each job; see the contract."""
        return self._batch(
            "claim",
            [self._job(one.key) for one in claims],
            [
                (
                    one.occurrence,
                    one.token,
                    one.ttl,
                    one.grace,
                    int(one.recover),
                    rest_of(one.ttl),
                    holder,
                )
                for one in claims
            ],
            _claim_result,
        )

    def renew(self, leases: Sequence[Lease]) -> Reply[RenewResult]:
        """Move the ends of the leases; see the contract."""
        jobs = [lease for lease in leases if lease.run is not None]
        locks = [lease for lease in leases if lease.run is None]
        return self._mixed(
            leases,
            lambda: self._batch(
                "renew", [self._job(one.key) for one in jobs], map(_owner, jobs), _renew_result, upkeep=True
            ),
            lambda: self._batch(
                "lock_renew",
                [self._lock(one.key) for one in locks],
                [(one.token, one.fence, one.ttl, one.holder) for one in locks],
                _renew_result,
                upkeep=True,
                extra=[self._counter],
            ),
        )

    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        """Give leases back; see the contract."""
        jobs = [one for one in releases if one.lease.run is not None]
        locks = [one.lease for one in releases if one.lease.run is None]
        return self._mixed(
            [one.lease for one in releases],
            lambda: self._batch(
                "release",
                [self._job(one.lease.key) for one in jobs],
                [(*_owner(one.lease), one.outcome) for one in jobs],
                _release_result,
                upkeep=True,
            ),
            lambda: self._batch(
                "lock_release",
                [self._lock(one.key) for one in locks],
                [(one.token,) for one in locks],
                _release_result,
                upkeep=True,
            ),
        )

    def states(self, keys: Sequence[str]) -> Reply[JobState]:
        """Read jobs, changing nothing."""
        return self._states(keys)[0]

    def pause(self, key: str) -> None:
        """Let no scheduled occurrence run."""
        self._call(lambda: self._claims.hset(self._job(key), "paused", 1))

    def resume(self, key: str) -> None:
        """Lift the pause."""
        self._call(lambda: self._claims.hset(self._job(key), "paused", ""))

    def force_release(self, key: str) -> DeadRun | None:
        """Take the lease away and raise the fence."""
        return self._one("force_release", [self._job(key)], [], _dead_run)

    def forget(self, key: str) -> None:
        """Delete the job's hash and its request."""
        self._call(lambda: self._claims.pipeline().delete(self._job(key)).zrem(self._requests, key).execute())

    def request_run(self, key: str) -> bool:
        """Ask the replicas to run the job now."""
        return self._one("request_run", [self._job(key), self._requests], [key], bool)

    def take_request(self, key: str, token: str, ttl: int, holder: str, *, unasked: bool = False) -> ClaimResult:
        """Take a request and the lease in one step; see the contract."""
        arguments = [token, ttl, rest_of(ttl), holder, REQUEST_LIFETIME, int(unasked), key]
        return self._one("take_request", [self._job(key), self._requests], arguments, _claim_result)

    def heartbeat(self, instance: str) -> Heartbeat:
        """Say that the instance lives."""
        keys, lifetimes = [self._instances, self._requests], [INSTANCE_LIFETIME, REQUEST_LIFETIME]
        now, known, requests = self._run("heartbeat", keys, [instance, *lifetimes], upkeep=True)
        return Heartbeat(int(now), known is not None, frozenset(requests))

    def instances(self) -> dict[str, int]:
        """Return the instances heard of in the last minute."""
        return self.survey([])[1]

    def survey(self, keys: Sequence[str]) -> tuple[Reply[JobState], dict[str, int]]:
        """Read jobs and the instances: one call for each thousand jobs."""
        reply, alive = self._states(keys)
        if isinstance(alive, str):
            raise self._failure(alive)
        instances = self._read(lambda: {alive[i]: int(float(alive[i + 1])) for i in range(0, len(alive), 2)})
        if isinstance(instances, BackendError):
            raise instances
        return reply, instances

    def _states(self, keys: Sequence[str]) -> tuple[Reply[JobState], list[str] | str]:
        """Return the states, and each instance and its last heartbeat in turn, or what is wrong with these."""
        now, answers, alive = 0, list[JobState | BackendError](), list[str]()
        for start in range(0, max(1, len(keys)), KEYS_PER_READ):
            chunk = keys[start : start + KEYS_PER_READ]
            reply = self._run("states", [*map(self._job, chunk), self._instances], [INSTANCE_LIFETIME])
            now, alive = int(reply[0]), reply[2]
            answers += self._answers(reply[1], (partial(_state, key, now=now) for key in chunk))
        return Reply(now, answers), alive

    def retire(self, instance: str) -> None:
        """Strike the instance from the list."""
        self._call(lambda: self._upkeep.zrem(self._instances, instance))

    def acquire(self, key: str, token: str, ttl: int, holder: str) -> Acquired:
        """Take a plain lock; see the contract."""
        _, fence, owner, left = self._run("lock_acquire", [self._lock(key), self._counter], [token, ttl, holder])
        return Acquired(int(fence), owner, int(left))

    def warnings(self) -> list[CheckMessage]:
        """Warn of a server that may drop the locks (W101), or that may lose them to another node (W102)."""
        found: list[CheckMessage] = []
        policy, place = self.eviction_policy(), self.describe()
        if policy.startswith("allkeys"):
            text = f"{place} evicts keys when its memory is full (maxmemory-policy {policy}): locks can vanish."
            hint = "Set maxmemory-policy to noeviction. One of volatile-* keeps the jobs, but may evict a lock()'s key."
            found.append(Warning(text, hint=hint, id="cronductor.W101"))
        if self._info("cluster").get("cluster_enabled"):
            text = f"{place} is a node of a cluster: when another node has the locks' slot, no job starts any more."
            hint = "Clusters are not supported: name a server that is not part of one."
            found.append(Warning(text, hint=hint, id="cronductor.W102"))
        return found

    def eviction_policy(self) -> str:
        """Return which keys the server drops when its memory is full, or "" if it has no limit or does not tell."""
        memory = self._info("memory")
        return str(memory.get("maxmemory_policy", "")) if memory.get("maxmemory") else ""

    def _info(self, section: str) -> dict[str, Any]:
        """Return what the server tells of itself; nothing, where we may not ask."""
        try:
            told: dict[str, Any] = self._call(lambda: self._claims.info(section))
        except BackendRefused:
            return {}
        return told

    def close(self) -> None:
        """Close both pools."""
        for name in ("_claims", "_upkeep"):
            client = self.__dict__.pop(name, None)
            if client is not None:
                client.connection_pool.disconnect()
                for sentinel in getattr(getattr(client.connection_pool, "sentinel_manager", None), "sentinels", ()):
                    sentinel.connection_pool.disconnect()

    # Keys.

    @cached_property
    def _base(self) -> str:
        key_prefix = getattr(caches[self.cache], "key_prefix", "")
        return f"{key_prefix}:{{{self.prefix}}}" if key_prefix else f"{{{self.prefix}}}"

    def _job(self, key: str) -> str:
        return f"{self._base}:job:{key}"

    def _lock(self, key: str) -> str:
        return f"{self._base}:lock:{key}"

    @property
    def _counter(self) -> str:
        return f"{self._base}:fence"

    @property
    def _instances(self) -> str:
        return f"{self._base}:instances"

    @property
    def _requests(self) -> str:
        return f"{self._base}:requests"

    # Connections.

    @cached_property
    def _cache_pool(self) -> CachePool:
        return find_pool(self.cache)

    # Two pools, so that a burst of claims never starves renewals: each thread takes a connection of its own.

    @cached_property
    def _claims(self) -> Any:
        return self._cache_pool.new_client(self.timeout)

    @cached_property
    def _upkeep(self) -> Any:
        return self._cache_pool.new_client(self.timeout)

    # Calls.

    def _call(self, send: Callable[[], T]) -> T:
        theirs = self._cache_pool
        try:
            return send()
        except (theirs.error, OSError) as error:
            self._connect_anew()
            failure = self._failure(f"{type(error).__name__}: {error}")
            exceptions = theirs.driver.exceptions
            failure.unanswered = isinstance(error, (exceptions.ConnectionError, exceptions.TimeoutError, OSError))
            raise failure from error

    def _connect_anew(self) -> None:
        """Let the next calls open connections, whichever failed: the address may lead to another server by now."""
        for name in ("_claims", "_upkeep"):
            client = self.__dict__.get(name)
            if client is None:
                continue
            try:
                client.connection_pool.disconnect(inuse_connections=False)
            except TypeError:  # A BlockingConnectionPool of redis-py 5 can only end those of other threads, too.
                self.__dict__.pop(name, None)

    def _failure(self, text: str) -> BackendError:
        password = self._cache_pool.pool.connection_kwargs.get("password")
        if password:
            text = text.replace(str(password), "***")
        if CLUSTER.search(text):
            text += " (this is a node of a cluster: clusters are not supported, name a server that is not part of one)"
        if "DB index is out of range" in text:
            text += " (the server has no database of that number: mend it in the LOCATION or the OPTIONS of the cache)"
        if not password and NO_PASSWORD.search(text):
            text += " (the server wants a password, and the cache has none)"
        kind = BackendRefused if REFUSED.search(text) else BackendError
        return kind(f"{self.describe()}: {text}")

    def _run(self, name: str, keys: list[str], arguments: list[Any], *, upkeep: bool = False) -> list[Any]:
        source, sha = self._script(name)

        def send() -> Any:
            client = self._upkeep if upkeep else self._claims
            try:
                return client.evalsha(sha, len(keys), *keys, *arguments)
            except self._cache_pool.driver.exceptions.NoScriptError:
                return client.eval(source, len(keys), *keys, *arguments)  # Which the server remembers.

        reply: list[Any] = self._call(send)
        return reply

    def _script(self, name: str) -> tuple[str, str]:
        """Return the source of a script, and the name that the server has for it."""
        if name not in self._scripts:
            source = self._source(name)
            self._scripts[name] = source, hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return self._scripts[name]

    @cached_property
    def _scripts(self) -> dict[str, tuple[str, str]]:
        return {}

    def _source(self, name: str) -> str:
        return script_source(name)

    def _one(self, name: str, keys: list[str], arguments: list[Any], parse: Callable[[Any], T]) -> T:
        answer = self._parse(self._run(name, keys, arguments)[1][0], parse)
        if isinstance(answer, BackendError):
            raise answer
        return answer

    def _batch(
        self,
        name: str,
        keys: list[str],
        rows: Iterable[tuple[Any, ...]],
        parse: Callable[[Any], T],
        *,
        upkeep: bool = False,
        extra: Sequence[str] = (),
    ) -> Reply[T]:
        """Run a script over all keys, in chunks; `extra` keys go along with each chunk."""
        rows = list(rows)
        now, answers = 0, list[T | BackendError]()
        for start in range(0, len(keys), KEYS_PER_SCRIPT):
            chunk = slice(start, start + KEYS_PER_SCRIPT)
            arguments = [argument for row in rows[chunk] for argument in row]
            reply = self._run(name, [*keys[chunk], *extra], arguments, upkeep=upkeep)
            now = int(reply[0])
            answers += self._answers(reply[1], repeat(parse))
        return Reply(now, answers)

    def _answers(self, texts: list[str], parsers: Iterable[Callable[[Any], T]]) -> list[T | BackendError]:
        try:
            return [self._parse(text, parse) for text, parse in zip(texts, parsers, strict=False)]
        except BackendError:
            self._connect_anew()
            raise

    def _parse(self, text: str, parse: Callable[[Any], T]) -> T | BackendError:
        def read() -> T | BackendError:
            answer = json.loads(text)
            return self._said(answer["error"]) if isinstance(answer, dict) and "error" in answer else parse(answer)

        return self._read(read)

    def _read(self, read: Callable[[], T]) -> T | BackendError:
        """Return what was read; an error of this key alone if what the store has of it makes no sense."""
        try:
            return read()
        except (ValueError, TypeError, KeyError, IndexError, OverflowError) as error:
            failure = self._failure(f"what is stored cannot be read ({type(error).__name__}: {error})")
            failure.__cause__ = error
            return failure

    def _said(self, text: str) -> BackendError:
        failure = self._failure(text)
        if isinstance(failure, BackendRefused) or EVERY_KEY.search(text):
            raise failure
        return failure

    def _mixed(self, leases: Sequence[Lease], jobs: Callable[[], Reply[T]], locks: Callable[[], Reply[T]]) -> Reply[T]:
        """Ask about the jobs' leases and the plain locks, each if there are any, and put the answers in order."""
        kinds = {lease.run is None for lease in leases}
        of_jobs: Reply[T] = jobs() if False in kinds else Reply(0)
        of_locks: Reply[T] = locks() if True in kinds else Reply(0)
        first, second = iter(of_jobs.answers), iter(of_locks.answers)
        answers = [next(second if lease.run is None else first) for lease in leases]
        return Reply(max(of_jobs.now, of_locks.now), answers)


def _deployment_messages(backend: RedisBackend) -> list[CheckMessage]:
    try:
        backend.states([""])
        return backend.warnings()
    except (BackendError, ConfigurationError) as error:
        hint = "No job runs without it: see whether the address, the password and the permissions are right."
        return [Error(f"The lock store cannot be used. {error}", hint=hint, id="cronductor.E101")]
    finally:
        backend.close()


def _known(value: int | None) -> int | str:
    return "" if value is None else int(value)


def _owner(lease: Lease) -> tuple[Any, ...]:
    return (lease.token, lease.fence, lease.run, lease.attempt, lease.ttl, lease.holder)


def _which(run: Any) -> Any:
    return run if run == MANUAL else int(run)


def _dead_run(answer: Any) -> DeadRun | None:
    if not answer:
        return None
    return DeadRun(_which(answer["run"]), answer["holder"], int(answer.get("attempt", 0)), int(answer.get("fence", 0)))


def _claim_result(answer: dict[str, Any]) -> ClaimResult:
    return ClaimResult(
        answer["verdict"],
        left=int(answer.get("left", 0)),
        previous=answer.get("previous"),
        dead=_dead_run(answer.get("dead")),
        holder=answer.get("holder"),
        fence=int(answer.get("fence", 0)),
        attempt=int(answer.get("attempt", 0)),
    )


def _renew_result(answer: dict[str, Any]) -> RenewResult:
    return RenewResult(answer["ok"], answer.get("left"))


def _release_result(answer: dict[str, Any]) -> ReleaseResult:
    held = answer.get("held")
    return ReleaseResult(answer["ok"], answer.get("left"), (held[0], held[1]) if held else None)


def _state(key: str, job: dict[str, Any], *, now: int) -> JobState:
    lease = None
    if "token" in job:
        lease = Lease(key, job["token"], job["fence"], job["ttl"], job["holder"], _which(job["run"]), job["attempt"])
    last = json.loads(job["last"]) if "last" in job else None
    requested = job.get("requested")
    return JobState(
        key,
        since=job.get("since"),
        fingerprint=job.get("fingerprint"),
        occurrence=None if job["occurrence"] < 0 else job["occurrence"],
        paused="paused" in job,
        lease=lease,
        started=job.get("started"),
        expires=job.get("expires"),
        fence=job["fence"],
        pending=job.get("pending"),
        requested=requested if requested is not None and now - requested <= REQUEST_LIFETIME else None,
        last=last
        and LastLease(
            last["holder"], _which(last["run"]), last["fence"], last["started"], last["ended"], last["outcome"]
        ),
    )
