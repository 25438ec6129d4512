"""Settings of our contender: those of a small project, with all of ours but HISTORY as they are by default."""

from __future__ import annotations

import os

SECRET_KEY = "for measuring only"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_cronductor"]

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": os.environ["BENCHMARK_REDIS"],
    }
}
_POSTGRESQL = os.environ.get("BENCHMARK_POSTGRESQL")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": _POSTGRESQL.rpartition(":")[0],
        "PORT": _POSTGRESQL.rpartition(":")[2],
        "NAME": "postgres",
        "USER": "postgres",
    }
    if _POSTGRESQL
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BENCHMARK_SQLITE", ":memory:"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode = WAL"},
    }
}
if os.environ.get("BENCHMARK_QUIET"):
    LOGGING = {"version": 1, "loggers": {"django_cronductor": {"level": "WARNING"}}}
CRONDUCTOR = {
    "HISTORY": 100 if _POSTGRESQL or os.environ.get("BENCHMARK_SQLITE") else 0,
    "MAX_WORKERS": int(os.environ.get("BENCHMARK_WORKERS", "8")),
}
