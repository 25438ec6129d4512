"""
Settings of the test run.

Importing them starts nothing (mypy imports them too): conftest.py starts a private Redis and writes its address into
CACHES and, for the processes that tests start, into CRONDUCTOR_TEST_REDIS_URL. The database is SQLite, unless
CRONDUCTOR_TEST_DATABASE is `postgresql` or `mariadb`: conftest.py then starts a server and writes it into DATABASES.
"""

from __future__ import annotations

import os

SECRET_KEY = "for tests only"
USE_TZ = True
TIME_ZONE = "UTC"
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"

INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_cronductor",
]

MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        # In a test run conftest.py names a file instead, so that threads can have connections of their own.
        "NAME": ":memory:",
        "OPTIONS": {
            "timeout": 20,
            "transaction_mode": "IMMEDIATE",
            "init_command": "PRAGMA journal_mode = WAL; PRAGMA synchronous = OFF",
        },
    },
}

CACHES = {
    "default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"},
    "locks": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        # Nobody listens on port 1: a process that was not told the address fails, and finds no stranger's server.
        "LOCATION": os.environ.get("CRONDUCTOR_TEST_REDIS_URL", "redis://127.0.0.1:1/0"),
    },
}

CRONDUCTOR = {"CACHE": "locks"}
