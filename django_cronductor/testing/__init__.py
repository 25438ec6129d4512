"""For the tests of those who use this package or write a backend for it."""

from __future__ import annotations

from django_cronductor.testing.clock import ManualClock
from django_cronductor.testing.conformance import (
    BackendClockConformance,
    BackendConformance,
    BackendDamageConformance,
)

__all__ = ["BackendClockConformance", "BackendConformance", "BackendDamageConformance", "ManualClock"]
