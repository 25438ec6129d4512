"""Settings of a replica under test; what differs from test to test comes by environment."""

from __future__ import annotations

import os

SECRET_KEY = "for tests only"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django_cronductor", "tests.faults.project"]

DATABASE = os.environ.get("FAULTS_DATABASE", ":memory:")
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": DATABASE, "OPTIONS": {"timeout": 5}}}

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "locks": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": os.environ["FAULTS_REDIS_URL"],
    },
}

# Mostly without history: what is promised here is promised by the lock store alone.
CRONDUCTOR = {
    "BACKEND": "tests.faults.project.backend.FatalBackend",
    "CACHE": "locks",
    "HISTORY": 0 if DATABASE == ":memory:" else 100,
    "SHUTDOWN_TIMEOUT": 20,
}
