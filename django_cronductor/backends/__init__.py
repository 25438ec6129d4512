"""Lock backends: which one the settings ask for."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

from django.conf import settings

from django_cronductor.conf import Config, get_config, import_named
from django_cronductor.exceptions import ConfigurationError, CronductorError

if TYPE_CHECKING:
    from django_cronductor.backends.base import LockBackend

REDIS_BACKEND = "django_cronductor.backends.redis.RedisBackend"
LOCAL_BACKEND = "django_cronductor.backends.local.LocalBackend"

# Known by name: none of these packages need be installed.
REDIS_CACHES = {
    "django.core.cache.backends.redis.RedisCache",
    "django_redis.cache.RedisCache",
    "django_valkey.cache.ValkeyCache",
    # One that the backend refuses, with the reason.
    "django_valkey.cluster_cache.cache.ClusterValkeyCache",
}


def create_backend(config: Config | None = None) -> LockBackend:
    """Return a new lock backend as the settings ask for it. Raises ConfigurationError if there is none, or it fails."""
    config = config or get_config()
    backend = resolve_backend_class(config)
    try:
        return backend(cache=config.cache, prefix=config.prefix)
    except CronductorError:
        raise
    # Whatever it raises, the setting that names it is where to look.
    except Exception as error:
        from django_cronductor.masking import describe  # A web worker, which makes no backend, does not import it.

        said = describe(error)
        raise ConfigurationError(
            f'CRONDUCTOR["BACKEND"]: the lock backend {backend.__module__}.{backend.__qualname__} cannot be made '
            f"({said['error_type']}: {said['error_message']})."
        ) from error


def resolve_backend_class(config: Config | None = None) -> type[LockBackend]:
    """
    Return the class that BACKEND names, or else the one that fits the cache.

    Raises ConfigurationError if it cannot be imported or is not a whole LockBackend, or if none is named and none fits.
    """
    from django_cronductor.backends.base import LockBackend

    config = config or get_config()
    path = config.backend or _fitting_backend(config)
    backend = import_named(path, 'CRONDUCTOR["BACKEND"]')
    if not isinstance(backend, type) or not issubclass(backend, LockBackend):
        raise ConfigurationError(f'CRONDUCTOR["BACKEND"] names {path!r}, which is not a subclass of LockBackend.')
    if missing := _missing(backend):
        raise ConfigurationError(f'CRONDUCTOR["BACKEND"] names {path!r}, which lacks {", ".join(missing)}.')
    return backend


def _missing(backend: type[LockBackend]) -> list[str]:
    """Return what a subclass has to define and does not."""
    missing = sorted(getattr(backend, "__abstractmethods__", ()))
    try:
        inspect.signature(backend).bind(cache="", prefix="")
    except TypeError:
        missing.insert(0, "an __init__ that takes cache and prefix by name")
    return missing if hasattr(backend, "shared") else ["shared", *missing]


def is_redis_cache(alias: str) -> bool:
    """Tell whether a cache is kept in Redis. Imports its class, and connects to nothing."""
    path = settings.CACHES.get(alias, {}).get("BACKEND")
    if not path:
        return False
    backend = import_named(path, f'CACHES["{alias}"]["BACKEND"]')
    return any(
        f"{parent.__module__}.{parent.__qualname__}" in REDIS_CACHES for parent in getattr(backend, "__mro__", ())
    )


def _fitting_backend(config: Config) -> str:
    if is_redis_cache(config.cache):
        return REDIS_BACKEND
    if settings.DEBUG:
        return LOCAL_BACKEND
    raise ConfigurationError(
        f"The cache {config.cache!r} is not in Redis, so there is no place for locks that all replicas share. Set "
        f'CRONDUCTOR["CACHE"] to a Redis cache, or CRONDUCTOR["BACKEND"] to the backend to use: {LOCAL_BACKEND!r} if '
        "this is the only process that runs jobs."
    )
