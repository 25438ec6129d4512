"""
One program per contender, each run in an environment of its own: `python -m benchmarks.contenders.NAME TASK --jobs N`.

Each declares the jobs, runs its scheduler as its documentation says, and prints one line of JSON. See `work.py` for the
tasks. These modules import nothing of `benchmarks` but `work`, which needs the standard library alone.
"""
