"""Settings of a replica in the soak; the driver says the rest by environment."""

from __future__ import annotations

import os

SECRET_KEY = "for tests only"
USE_TZ = True
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django_cronductor", "tests.soak_app.SoakConfig"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["SOAK_DATABASE"],
        "OPTIONS": {
            "timeout": 3,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF",
        },
    },
}

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": os.environ["SOAK_REDIS_URL"],
    },
}

CRONDUCTOR = {
    "BACKEND": "tests.soak_app.RecordingBackend",
    "DEFAULT_TTL": 3,
    "DEFAULT_GRACE": 20,
    "HISTORY": int(os.environ["SOAK_HISTORY"]),
    "AUTODISCOVER": "soak_jobs",
}
