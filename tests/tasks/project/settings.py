"""Its settings: the environment names the database file and the Redis."""

from __future__ import annotations

import os

SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

INSTALLED_APPS = ["django.contrib.contenttypes", "django_tasks_db", "django_cronductor", "tests.tasks.project"]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.environ["PROJECT_DATABASE"],
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode = WAL"},
    }
}
CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": os.environ["CRONDUCTOR_TEST_REDIS_URL"],
    }
}
TASKS = {"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}}
CRONDUCTOR = {"PREFIX": os.environ["PROJECT_PREFIX"]}
