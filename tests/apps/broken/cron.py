"""A module that cannot be imported."""

from __future__ import annotations

raise RuntimeError("broken on purpose")
