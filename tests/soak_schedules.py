"""When the jobs of the soak are due, for the replicas that run them and for the verdict on them."""

from __future__ import annotations

JOBS = {
    "tick": "* * * * * *",
    "brisk": "* * * * * *",
    "hasty": "* * * * * *",
    "async": "*/2 * * * * *",
    "raising": "*/3 * * * * *",
    "choosy": "*/3 * * * * *",
    "long": "*/2 * * * * *",
    "careful": "*/4 * * * * *",
    "slow": "*/7 * * * * *",
    "limited": "*/9 * * * * *",
    "rare": "*/20 * * * * *",
}
