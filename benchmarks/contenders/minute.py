"""One minute of the calls of many replicas: each job is due once, each replica asks for all of them and beats."""

from __future__ import annotations

import json
import os
import random
import sys

os.environ["DJANGO_SETTINGS_MODULE"] = "benchmarks.contenders.ours_settings"

import django
import redis

django.setup()
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Claim, ClaimResult, Declaration, Lease, Release, new_token
from django_cronductor.conf import get_config

JOBS, TTL, CHUNK = 1000, 30_000, 250


def main() -> None:
    """Send the calls, and say how many occurrences were won, which is each of them once."""
    replicas = int(sys.argv[1])
    backend = create_backend(get_config())
    keys = [f"job-{number}" for number in range(JOBS)]
    backend.declare([Declaration(key, "fingerprint", TTL) for key in keys])
    occurrence = backend.time()
    won, before = 0, _cpu_of_the_server()
    for replica in range(replicas):
        name = f"host:{replica}:00000000"
        for _ in range(60):
            backend.heartbeat(name)
        random.shuffle(keys)
        for start in range(0, JOBS, CHUNK):
            claims = [Claim(key, occurrence, new_token(), TTL, 300_000) for key in keys[start : start + CHUNK]]
            ours = []
            for claim, answer in zip(claims, backend.claim(claims, name).answers, strict=True):
                if isinstance(answer, ClaimResult) and answer.runs:
                    ours.append(Lease(claim.key, claim.token, answer.fence, TTL, name, occurrence))
            if ours:
                backend.release([Release(lease, "succeeded") for lease in ours])
            won += len(ours)
    assert won == JOBS, won
    print(json.dumps({"won": won, "cpu": _cpu_of_the_server() - before}))


def _cpu_of_the_server() -> float:
    """Return the seconds of CPU that it has used."""
    with redis.Redis.from_url(os.environ["BENCHMARK_REDIS"]) as client:
        used = client.info("cpu")
    return float(used["used_cpu_sys"]) + float(used["used_cpu_user"])


if __name__ == "__main__":
    main()
