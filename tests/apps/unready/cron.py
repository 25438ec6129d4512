"""A module that needs one that is missing, and is named like itself."""

from __future__ import annotations

import nowhere.cron  # type: ignore[import-not-found]  # noqa: F401
