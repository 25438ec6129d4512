"""Model fields of our own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django.db import models
from django.db.backends.base.base import BaseDatabaseWrapper

if TYPE_CHECKING:
    CharField = models.CharField[str, str]
else:
    CharField = models.CharField


class KeyField(CharField):
    """
    Text that is the same only where every character is: the default collations of MySQL and MariaDB are not so strict.

    For them "shop.Sync" is "shop.sync", an accent is no difference, and all emoji are one.
    """

    def db_parameters(self, connection: BaseDatabaseWrapper) -> Any:
        """Add the collation where the database would choose a loose one."""
        collation = "utf8mb4_bin" if connection.vendor == "mysql" else self.db_collation
        return {**super().db_parameters(connection), "collation": collation}
