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
_PORT = os.environ.get("BENCHMARK_POSTGRESQL")
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "HOST": "127.0.0.1",
        "PORT": _PORT,
        "NAME": "postgres",
        "USER": "tester",
    }
    if _PORT
    else {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ.get("BENCHMARK_SQLITE", ":memory:"),
        "OPTIONS": {"transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode = WAL"}
        if "BENCHMARK_WAL" in os.environ
        else {},
    }
}
if "BENCHMARK_LOG_LEVEL" in os.environ:
    LOGGING = {
        "version": 1,
        "handlers": {"stderr": {"class": "logging.StreamHandler"}},
        "loggers": {"django_cronductor": {"level": os.environ["BENCHMARK_LOG_LEVEL"], "handlers": ["stderr"]}},
    }
CRONDUCTOR = {"HISTORY": 100 if _PORT or "BENCHMARK_SQLITE" in os.environ else 0}
