"""Connections to the Redis (or Valkey) behind a Django cache: as the cache makes its own, but with our timeouts."""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Any

from django.conf import settings
from django.core.cache import caches
from django.core.exceptions import ImproperlyConfigured

from django_cronductor.exceptions import ConfigurationError

CLUSTER_CACHES = "django_valkey.cluster_cache."
"""The module whose caches are clients of a whole cluster, which they connect to when they are made."""
UNREADABLE = (ValueError, TypeError, IndexError, KeyError, ImportError, ImproperlyConfigured)
"""What the makers of a pool raise at an address, or options, that they cannot read."""
BAD_LOCATION = (
    'CACHES[{alias!r}]["LOCATION"] (with the OPTIONS beside it) is no address of a Redis server. Write '
    '"redis://user:password@host:6379/1", with rediss:// for TLS, or "unix:///path/of/socket?db=1", and in a password '
    "%2F for /, %3F for ?, %23 for #, %40 for @, %3A for : and %25 for %."
)
BAD_OPTION = (
    'CACHES[{alias!r}]["OPTIONS"] has {option!r}, which no connection to Redis takes. The cache of Django passes its '
    "OPTIONS on to redis-py, which has the password as 'password' and the database number as 'db'; 'PASSWORD' and "
    "'CONNECTION_POOL_KWARGS' are options of django-redis and django-valkey."
)
BAD_IMPORT = (
    "CACHES[{alias!r}] names something that cannot be imported ({reason}): mend the path, or install its package."
)
NO_POOL = (
    "The cache {alias!r} {reason}: name a cache of Django's RedisCache, django-redis or django-valkey on one server "
    '(or Sentinel) in CRONDUCTOR["CACHE"].'
)


@dataclass(frozen=True, repr=False)
class CachePool:
    """
    The cache's own pool, whose arguments ours are made with; no connection is taken from it.

    `driver` is the package that it is from, redis or valkey; `error` is the class of the driver's errors.
    """

    alias: str
    pool: Any
    driver: ModuleType
    error: type[Exception]

    def new_client(self, timeout: float) -> Any:
        """Return a client with a new pool, which waits so many seconds. Raises ConfigurationError."""
        arguments = self._arguments(self.pool, timeout)
        if hasattr(self.pool, "sentinel_manager"):
            arguments["service_name"] = self.pool.service_name
            arguments["sentinel_manager"] = self._sentinels(self.pool.sentinel_manager, timeout)
        return self._client_like(self.pool, arguments)

    def _client_like(self, pool: Any, arguments: dict[str, Any]) -> Any:
        try:
            fresh = type(pool)(connection_class=pool.connection_class, **arguments)
            pool.connection_class(**fresh.connection_kwargs)  # Which connects to nothing.
        except UNREADABLE as error:
            raise _unreadable(self.alias, error) from None
        driver = self.driver
        return driver.Redis(connection_pool=fresh) if hasattr(driver, "Redis") else driver.Valkey(connection_pool=fresh)

    def _sentinels(self, theirs: Any, timeout: float) -> Any:
        """Return the same sentinels by our timeouts: one that hangs is to keep nobody from asking the next."""
        ours = copy(theirs)
        pools = [sentinel.connection_pool for sentinel in theirs.sentinels]
        ours.sentinels = [self._client_like(pool, self._arguments(pool, timeout)) for pool in pools]
        return ours

    def _arguments(self, pool: Any, timeout: float) -> dict[str, Any]:
        """Return the arguments of a pool's connections, with what we want otherwise."""
        driver = self.driver
        own = ("orig_", "maint_", "maintenance_", "oss_", "himport_", "event_", "connection_pool")
        arguments = {name: value for name, value in pool.connection_kwargs.items() if not name.startswith(own)}
        arguments |= {
            "socket_timeout": timeout,
            "socket_connect_timeout": timeout,
            # A call that is sent again by the driver would hide how old its answer is.
            "retry": import_module(f"{driver.__name__}.retry").Retry(
                import_module(f"{driver.__name__}.backoff").NoBackoff(), 0
            ),
            "retry_on_timeout": False,
            "retry_on_error": [],
            "health_check_interval": 0,
            "decode_responses": True,
            "encoding": "utf-8",
            "encoding_errors": "replace",
        }
        if hasattr(driver, "maint_notifications"):
            # They stretch timeouts while a server is under maintenance: ours are what a lease depends on.
            arguments["maint_notifications_config"] = driver.maint_notifications.MaintNotificationsConfig(enabled=False)
        return arguments


def find_pool(alias: str) -> CachePool:
    """Return the pool of a cache. Raises ConfigurationError if it has none that can be used."""
    try:
        owner: Any = caches[alias]
    except UNREADABLE as error:
        raise _unreadable(alias, error) from None
    if any(cls.__module__.startswith(CLUSTER_CACHES) for cls in type(owner).__mro__):
        reason = "is a client of a cluster, and clusters are not supported"
        raise ConfigurationError(NO_POOL.format(alias=alias, reason=reason))
    try:
        # Always the writer: a reader may not have heard yet that a lease was taken.
        if hasattr(owner, "client"):
            client = owner.client.get_client(write=True)
        else:
            client = owner._cache.get_client(write=True)
        pool = client.connection_pool
    except AttributeError as error:
        reason = "gives no Redis connection pool: it is not a Redis cache"
        raise ConfigurationError(NO_POOL.format(alias=alias, reason=reason)) from error
    except UNREADABLE as error:
        raise _unreadable(alias, error) from None
    driver = _driver(client)
    error_class = getattr(driver.exceptions, "RedisError", None) or driver.exceptions.ValkeyError
    return CachePool(alias, pool, driver, error_class)


def _unreadable(alias: str, error: Exception) -> ConfigurationError:
    """Say which setting cannot be read; never in the driver's words, which may hold a part of the password."""
    if isinstance(error, ImportError):
        return ConfigurationError(BAD_IMPORT.format(alias=alias, reason=error))
    options: Any = settings.CACHES[alias].get("OPTIONS") or {}
    named = [name for name in options if isinstance(error, TypeError) and repr(name) in str(error)]
    text = BAD_OPTION.format(alias=alias, option=named[0]) if named else BAD_LOCATION.format(alias=alias)
    return ConfigurationError(text)


def _driver(client: Any) -> ModuleType:
    """Return the package that the client is from, redis or valkey, also for a subclass of its client."""
    for kind in type(client).__mro__:
        package = kind.__module__.partition(".")[0]
        if package in ("redis", "valkey"):
            return import_module(package)
    raise ConfigurationError(f"{type(client).__name__} is neither a client of redis nor one of valkey.")
