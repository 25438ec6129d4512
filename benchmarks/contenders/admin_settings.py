"""The settings of ours, with Django's admin."""

from __future__ import annotations

from benchmarks.contenders.ours_settings import *  # noqa: F403
from benchmarks.contenders.ours_settings import INSTALLED_APPS as OURS

INSTALLED_APPS = [*OURS, "django.contrib.admin", "django.contrib.messages", "django.contrib.sessions"]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
            ]
        },
    }
]
ALLOWED_HOSTS = ["testserver"]
ROOT_URLCONF = "benchmarks.contenders.admin_pages"
CRONDUCTOR = {"HISTORY": 1000}
