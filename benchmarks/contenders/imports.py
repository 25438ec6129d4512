"""How long a web worker takes to import the package, where Django and redis-py are imported and set up already."""

from __future__ import annotations

import json
import os
import sys
import time

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.bare_settings"

import django
import redis  # noqa: F401

django.setup()
from django.apps import apps

began = time.perf_counter()
import django_cronductor

apps.set_installed_apps(["django.contrib.contenttypes", "django.contrib.auth", "django_cronductor"])
if "--job" in sys.argv:
    django_cronductor.cron("*/5 * * * *", key="job")(lambda: None)
took = time.perf_counter() - began
print(json.dumps({"ms": took * 1000, "croniter": "croniter" in sys.modules}))
