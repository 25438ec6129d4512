"""
The system checks. None but those for deployment reaches the network.

==================  ==========================================================================================
id                  what is wrong
==================  ==========================================================================================
cronductor.E001     CRONDUCTOR is not a dict.
cronductor.E002     CRONDUCTOR has an unknown key.
cronductor.E003     A value in CRONDUCTOR has a wrong type or is out of range.
cronductor.E004     DEFAULT_GRACE is shorter than DEFAULT_TTL.
cronductor.E005     TIMEZONE is not the name of a known time zone.
cronductor.E006     CACHE is not an alias of CACHES.
cronductor.E007     BACKEND cannot be imported or is not a whole lock backend.
cronductor.E008     ON_ERROR cannot be imported or called.
cronductor.E009     A job's grace is shorter than the ttl that it has from DEFAULT_TTL.
cronductor.E010     With ``--deploy``: no backend is named, and the cache is not in Redis.
cronductor.W001     A job's schedule means something else than it seems to.
cronductor.W002     A job's ttl, or DEFAULT_TTL, is shorter than a second.
cronductor.W003     The locks share their Redis database with another cache, which would clear them.
cronductor.W004     With ``--deploy``: the backend keeps its locks in this process.
cronductor.W005     Jobs are tasks whose task backend hands them to no worker.
==================  ==========================================================================================

A backend's own checks, with ids of its own, run with ``--deploy``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from django.conf import settings
from django.core.checks import CheckMessage, Error, Warning, register  # noqa: A004

from django_cronductor import conf
from django_cronductor.backends import is_redis_cache, resolve_backend_class
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.handlers import is_task
from django_cronductor.jobs import Job, registry

TAG = "cronductor"
SHORT_TTL_MS = 1000
MOST_NAMED = 5
TASK_BACKENDS_WITHOUT_WORKERS = {
    "immediate.ImmediateBackend": "runs a task at once, in runcron's own thread",
    "dummy.DummyBackend": "never runs a task",
}
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


@register(TAG)
def check_settings(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """Report what is wrong in CRONDUCTOR."""
    messages: list[CheckMessage] = [
        Error(problem.message, hint=problem.hint, id=problem.code) for problem in conf.problems()
    ]
    config = conf.lenient_config()
    if config.backend is not None:
        try:
            resolve_backend_class(config)
        except ConfigurationError as error:
            messages.append(Error(str(error), hint=conf.SETTINGS["BACKEND"].hint, id="cronductor.E007"))
    if config.default_ttl_ms < SHORT_TTL_MS:
        messages.append(_short_ttl('CRONDUCTOR["DEFAULT_TTL"]', config.default_ttl_ms))
    return messages


@register(TAG)
def check_jobs(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """Report what is wrong with the declared jobs, given the settings."""
    return list(job_messages(registry, conf.lenient_config(), readable=not conf.problems()))


@register(TAG)
def check_task_backends(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """Report jobs whose tasks no worker gets."""
    return list(task_messages(registry))


@register(TAG)
def check_shared_database(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """Report other caches in the Redis database that holds the locks."""
    config = conf.lenient_config()
    if conf.problems() or not _in_redis(config):
        return []
    database = redis_database(config.cache)
    others = [alias for alias in settings.CACHES if alias != config.cache and redis_database(alias) == database]
    if database is None or not others:
        return []
    return [
        Warning(
            f"The cache {config.cache!r}, which holds the locks, is in the same Redis database as "
            f"{_listed(others)}: cache.clear() on any of them clears the locks of jobs that are running.",
            hint="Give the locks a cache of their own, with its own database number.",
            id="cronductor.W003",
        )
    ]


@register(TAG, deploy=True)
def check_deployment(app_configs: object, **kwargs: object) -> list[CheckMessage]:
    """Report a backend that is not for several replicas, and what the backend itself finds wrong."""
    config = conf.lenient_config()
    if conf.problems():
        return []
    try:
        backend = resolve_backend_class(config)
    except ConfigurationError as error:
        return [Error(str(error), id="cronductor.E010")] if config.backend is None else []
    messages = backend.check(cache=config.cache, prefix=config.prefix, deploy=True)
    if backend.shared:
        return messages
    alone = Warning(
        f"The backend {backend.__name__} keeps its locks in this process: every other replica runs each job too.",
        hint='Set CRONDUCTOR["CACHE"] to a Redis cache, or silence this if there is only one process.',
        id="cronductor.W004",
    )
    return [alone, *messages]


def job_messages(jobs: Iterable[Job], config: conf.Config, *, readable: bool = True) -> Iterator[CheckMessage]:
    """Yield what is wrong with each job. Not `readable`: the settings are wrong, so do not judge jobs by them."""
    for job in jobs:
        place = f"{job.key} ({job.declared_at})"
        for sentence in job.schedule(config.timezone).warnings:
            yield Warning(sentence, obj=place, id="cronductor.W001")
        if job.ttl_ms is not None and job.ttl_ms < SHORT_TTL_MS:
            yield _short_ttl("ttl", job.ttl_ms, place)
        ttl, grace = job.lengths(config.default_ttl_ms, config.default_grace_ms)
        if readable and grace < ttl:
            yield Error(
                f"grace ({grace / 1000:g} s) is shorter than the job's ttl ({ttl / 1000:g} s, DEFAULT_TTL): the "
                "occurrence after a crash could never start.",
                hint="Give the job a longer grace or a shorter ttl.",
                obj=place,
                id="cronductor.E009",
            )


def task_messages(jobs: Iterable[Job]) -> Iterator[CheckMessage]:
    """Yield a warning for each task backend that has jobs and no workers."""
    found: dict[tuple[str, str], list[str]] = {}
    for job in jobs:
        if is_task(job.handler):
            name = _without_workers(job.handler.get_backend())
            if name is not None:
                found.setdefault((job.handler.backend, name), []).append(job.key)
    for (alias, name), keys in found.items():
        more = f" and {len(keys) - MOST_NAMED} more" if len(keys) > MOST_NAMED else ""
        yield Warning(
            f"The task backend {alias!r} is {name.rpartition('.')[2]}, which {TASK_BACKENDS_WITHOUT_WORKERS[name]}. Of "
            f"these jobs nothing is known but that they were enqueued: {', '.join(keys[:MOST_NAMED])}{more}.",
            hint=f"Name a task backend that has workers in TASKS[{alias!r}], or declare the function without @task.",
            id="cronductor.W005",
        )


def _without_workers(backend: object) -> str | None:
    """Return which of Django's (or the backport's) own task backends it is, if it is one."""
    for cls in type(backend).__mro__:
        package, _, name = f"{cls.__module__}.{cls.__qualname__}".partition(".backends.")
        if package in ("django.tasks", "django_tasks") and name in TASK_BACKENDS_WITHOUT_WORKERS:
            return name
    return None


def redis_database(alias: str) -> tuple[str, ...] | None:
    """Return the server and the database that a cache writes to; None if it is not in Redis or cannot be told."""
    try:
        if not is_redis_cache(alias):
            return None
    except ConfigurationError:
        return None
    cache: dict[str, Any] = dict(settings.CACHES[alias])
    location, options = cache.get("LOCATION"), cache.get("OPTIONS") or {}
    # The first of several is the one that is written to.
    first = re.split("[;,]", location)[0] if isinstance(location, str) else next(iter(location or ()), "")
    try:
        server, number = _server(str(first))
    except ValueError:
        return None
    chosen = {**options, **options.get("CONNECTION_POOL_KWARGS", {})}.get("db") or 0
    return (*server, str(chosen) if number is None else number, str(options.get("SENTINELS", "")))


def _server(url: str) -> tuple[tuple[str, ...], str | None]:
    """Return where a Redis URL leads, and the database number in it. Raises ValueError if it is not one."""
    parts = urlsplit(url.strip())
    path, query = unquote(parts.path), parse_qs(parts.query)
    number = query["db"][0] if "db" in query else None
    if parts.scheme == "unix":
        return ("unix", path), number
    if parts.scheme not in ("redis", "rediss", "valkey", "valkeys"):
        raise ValueError("not a URL of Redis")
    host = (parts.hostname or "localhost").lower()
    digits = path.replace("/", "")
    if number is None and digits.isdigit():
        number = digits
    return ("localhost" if host in LOOPBACK else host, str(parts.port or 6379)), number


def _in_redis(config: conf.Config) -> bool:
    try:
        return resolve_backend_class(config).shared and is_redis_cache(config.cache)
    except ConfigurationError:
        return False


def _short_ttl(name: str, ttl_ms: int, place: str | None = None) -> CheckMessage:
    return Warning(
        f"{name} is {ttl_ms / 1000:g} s: a pause of a third of that can cost a running job its lease.",
        hint="A ttl is how soon a dead replica's job can run elsewhere, not how long a job takes. Prefer 10 s or more.",
        obj=place,
        id="cronductor.W002",
    )


def _listed(aliases: list[str]) -> str:
    return ("the cache " if len(aliases) == 1 else "the caches ") + ", ".join(map(repr, aliases))
