"""Log records that all have the same fields, so that a format may name any of them."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

FIELDS = ("job", "scheduled_at", "outcome", "instance", "fencing_token", "duration", "lateness")
"""What every record has; None where it does not apply."""

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class FieldsLogger(Adapter):
    """A logger whose records have all FIELDS: those given with `extra`, the others None."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Complete the fields of a record."""
        kwargs["extra"] = dict.fromkeys(FIELDS) | dict(self.extra or {}) | dict(kwargs.get("extra") or {})
        return msg, kwargs


def get_logger(name: str, **fields: object) -> FieldsLogger:
    """Return the logger of a module; `fields` are the same in all its records."""
    return FieldsLogger(logging.getLogger(name), fields)
