"""Its settings."""

from __future__ import annotations

import json
import os

SECRET_KEY = "for tests only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "/static/"
STATIC_ROOT = "/nowhere"

INSTALLED_APPS = [
    "django.contrib.contenttypes",
    "django.contrib.staticfiles",
    "django_cronductor",
    "tests.databases.project",
]

DATABASES = {"default": json.loads(os.environ["PROJECT_DATABASE"])}
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache"}}
CRONDUCTOR = {"BACKEND": "django_cronductor.backends.local.LocalBackend"}
