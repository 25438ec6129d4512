"""An app whose label is not the last part of its name."""

from __future__ import annotations

from django.apps import AppConfig


class RenamedConfig(AppConfig):
    name = "tests.apps.renamed"
    label = "billing"
