"""
Sphinx: python -m sphinx -W -n -b html docs docs/_build/html

No network is needed: names of other projects are not linked.
"""

from __future__ import annotations

import django
from django.conf import settings

# The examples, and the docstrings that are shown, need an installed app and no more.
settings.configure(
    SECRET_KEY="for the documentation only",  # noqa: S106
    USE_TZ=True,
    TIME_ZONE="UTC",
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_cronductor"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
    CRONDUCTOR={"BACKEND": "django_cronductor.backends.local.LocalBackend"},
)
django.setup()

import django_cronductor  # noqa: E402

project = "django-cronductor"
author = "The django-cronductor developers"
version = release = django_cronductor.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.doctest"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"django-cronductor {release}"
html_show_copyright = False
default_role = "code"
add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
nitpick_ignore_regex = [
    # Of the standard library and of Django: in no inventory that can be read without a network.
    ("py:.*", r"(datetime|timedelta|ZoneInfo|ModuleType|TracebackType|BaseException|Exception|bool|int|float|str)"),
    ("py:.*", r"(collections|datetime|zoneinfo|types|typing|django|asgiref|concurrent)\..*"),
    # What the annotations name and no page describes.
    ("py:.*", r"(F|T|Handler|Task|Duration|Callable|Any|Literal|Iterator|Collection)"),
    ("py:.*", r"django_cronductor\.(handlers|jobs|locks|runner|leases|clock|records|backends\.base)\..*"),
]
doctest_global_setup = """
from datetime import datetime, timedelta, timezone
from itertools import islice
from zoneinfo import ZoneInfo
"""
