"""Scheduled jobs for Django teams with several replicas."""

__version__ = "0.1.0"
