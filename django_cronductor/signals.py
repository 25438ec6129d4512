"""
What happens to jobs, for receivers. The sender is the Job (None: of a dead run whose job is declared no longer); every
signal is sent with `send_robust`.

`job_skipped`, `job_missed` and `run_abandoned` are sent once across all replicas, by the one who reports.
"""

from __future__ import annotations

from django.dispatch import Signal

job_started = Signal()
"""A run begins: `context` (RunContext). Sent in the run's own thread."""
job_finished = Signal()
"""A run is over: `context`, `outcome`, `duration` (seconds), `error` (an exception or None)."""
job_skipped = Signal()
"""An occurrence was not run: `key`, `scheduled_at`, `reason` (held, paused, condition), `holder`, `count`."""
job_missed = Signal()
"""Occurrences could not start within their grace: `key`, `scheduled_at` (the newest), `count` (at most 1,000)."""
run_abandoned = Signal()
"""A holder died in a run: `key`, `scheduled_at` (None: a manual run), `holder`."""
lease_lost = Signal()
"""A run has lost its lease and was told: `context`."""
