"""The settings of ours, without our app."""

from __future__ import annotations

from benchmarks.contenders.ours_settings import *  # noqa: F403

INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth"]
