#!/usr/bin/env python
"""Django's command line for the test project."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "config.settings")
    try:
        from django.core.management import execute_from_command_line
    except ImportError:
        sys.exit("Django is missing. In the directory above this one: python -m pip install -e .")
    execute_from_command_line(sys.argv)
