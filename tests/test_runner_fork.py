"""Handlers that fork, and whose children come back out of them: in processes of their own, for this one has threads."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 60.0
"""Seconds after which something that should have happened has not."""

PROGRAM = """
import os
import sys

from django.conf import settings

settings.configure(USE_TZ=True)

from django_cronductor.backends.local import LocalBackend
from django_cronductor.jobs import JobRegistry
from django_cronductor.scheduler import Scheduler
from django_cronductor.signals import job_finished, job_skipped

ME = os.getpid()
INLINE, WHERE = {inline!r}, {where!r}


def fails():
    raise ValueError("in the child")


WAYS = {{
    "returns": lambda: sys.stdout.write("printed by the child\\n"),
    "exits": sys.exit,
    "exits 3": lambda: sys.exit(3),
    "exits 256": lambda: sys.exit(256),
    "exits with a text": lambda: sys.exit("told by the child"),
    "fails": fails,
}}


def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # A child has no buffered text of another thread's.


def fork(key):
    if key in begun:  # A later occurrence, on a slow machine.
        return False
    begun.add(key)
    if child := os.fork():
        say(key, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        return False
    WAYS[key]()


async def fork_async(key):
    fork(key)


def declare(key):
    options = {{"when": lambda: fork(key)}} if WHERE == "condition" else {{}}
    async def handler_async():
        await fork_async(key)
    handler = handler_async if WHERE == "async handler" else lambda: fork(key)
    registry.schedule("* * * * * *", handler, key=key, **options)


def hear(sender, outcome=None, reason=None, **details):
    if reason == "held" or sender.key in heard:
        return
    say(sender.key, outcome or reason, "" if os.getpid() == ME else "said by the child")
    sender.stop()
    heard.add(sender.key)
    if len(heard) == len(WAYS):
        scheduler.stop()


begun, heard = set(), set()
registry = JobRegistry()
for key in WAYS:
    declare(key)
job_finished.connect(hear)
job_skipped.connect(hear)
scheduler = Scheduler(registry, LocalBackend(), inline=INLINE, max_workers=2)
sys.exit(scheduler.run())
"""


@pytest.mark.parametrize("where", ["handler", "async handler", "condition"])
@pytest.mark.parametrize("inline", [False, True])
def test_a_forked_child_that_comes_back_ends_there_and_the_run_is_its_parents(inline: bool, where: str) -> None:
    code = PROGRAM.format(inline=inline, where=where)
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"},
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=PATIENCE)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # With what it has forked.
        process.communicate()
    outcome = "condition" if where == "condition" else "succeeded"
    codes = {"returns": 0, "exits": 0, "exits 3": 3, "exits 256": 0, "exits with a text": 1, "fails": 1}
    assert sorted(out.splitlines()) == sorted(
        ["printed by the child"]
        + [f"{key} {code}" for key, code in codes.items()]
        + [f"{key} {outcome} " for key in codes]
    )
    assert process.returncode == 0
    assert err.count("ValueError: in the child") == 1
    assert err.count("Traceback") == 1
    assert err.count("told by the child\n") == 1
