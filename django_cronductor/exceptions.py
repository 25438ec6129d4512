"""The errors that django_cronductor raises."""

from __future__ import annotations


class CronductorError(Exception):
    """Base of every error of this package."""


class ConfigurationError(CronductorError, ValueError):
    """A declaration or a setting is wrong: expression, key, TTL, zone, handler, duplicate, setting."""


class JobNotFound(CronductorError, LookupError):
    """No job of that key is declared."""


class NotAcquired(CronductorError):
    """Another holder has the lock."""


class BackendError(CronductorError):
    """The lock store failed, so nothing was won; the driver's error is the cause."""


class BackendRefused(BackendError):
    """The lock store answered and refuses us (password, permission, no scripts): waiting will not help."""


class LeaseLost(CronductorError):
    """The lease of this run or lock has ended or was taken over: stop writing."""


class Stopping(CronductorError):
    """This run was asked to stop: the process is shutting down, or the run's timeout has passed."""
