"""The demonstration app."""

from __future__ import annotations

from django.apps import AppConfig


class DemoConfig(AppConfig):
    """An app like any other: that it has a cron.py is all that makes its jobs known."""

    name = "demo"
