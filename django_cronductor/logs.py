"""Log records that all have the same fields, so that a format may name any of them."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import MutableMapping
from typing import TYPE_CHECKING, Any

FIELDS = ("job", "scheduled_at", "outcome", "instance", "fencing_token", "duration", "lateness")
"""What every record has; None where it does not apply."""
NO_FIELDS: dict[str, Any] = dict.fromkeys(FIELDS)
OUR_FRAME = 2 if sys.version_info >= (3, 11) else 3
"""What makes a record name the line that logs, and not one of this module."""

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter


class FieldsLogger(Adapter):
    """A logger whose records have all FIELDS: those given with `extra`, the others None."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Complete the fields of a record."""
        kwargs["extra"] = {**NO_FIELDS, **(self.extra or {}), **(kwargs.get("extra") or {})}
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log, though a handler or a filter of the project raises: that is to end no loop, no lease and no worker."""
        kwargs.setdefault("stacklevel", OUR_FRAME)
        try:
            super().log(level, msg, *args, **kwargs)
        except Exception:  # noqa: BLE001 - Whatever it is, it is no fault of what was to be logged.
            if logging.raiseExceptions:
                traceback.print_exc()  # As logging does with the errors that it sees itself.


def get_logger(name: str, **fields: object) -> FieldsLogger:
    """Return the logger of a module; `fields` are the same in all its records."""
    return FieldsLogger(logging.getLogger(name), fields)
