"""The memory of a process that has loaded Django, redis-py and croniter, and does nothing."""

from __future__ import annotations

import json
import os

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.bare_settings"

import croniter  # noqa: F401
import django
import redis  # noqa: F401

from benchmarks.contenders.work import resident

django.setup()
print(json.dumps({"memory": resident()}))
