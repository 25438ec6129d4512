"""
One program per contender, each run in an environment of its own: `python -m benchmarks.contenders.NAME TASK --jobs N`.

Each declares the jobs, runs its scheduler as its documentation says, and prints one line of JSON. See `work.py` for the
tasks. These modules import nothing of `benchmarks` but `work`, which needs the standard library alone.
"""

from __future__ import annotations

import os
import sys

if "BENCHMARK_REDIS" in os.environ and "BENCHMARK_HIREDIS" not in os.environ:
    # An extra, which not all users have: the environments of the others are without it.
    sys.modules["hiredis"] = None  # type: ignore[assignment]
