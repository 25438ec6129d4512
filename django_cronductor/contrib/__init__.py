"""Integrations with other systems: each needs its own extra, and none is loaded unless it is asked for."""
