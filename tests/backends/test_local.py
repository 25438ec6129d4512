"""What the single-instance backend does beside the contract, which test_conformance.py holds it to."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta, timezone

import pytest

from django_cronductor.backends.base import Claim, Declaration, Seeds
from django_cronductor.backends.local import LocalBackend
from django_cronductor.testing import ManualClock

TTL = 30_000
LOGGER = "django_cronductor.backends.local"


def claim(backend: LocalBackend, occurrence: int, holder: str = "a") -> str:
    """Claim an occurrence of a job and return the verdict."""
    (answer,) = backend.claim([Claim("job", occurrence, f"token-of-{holder}", TTL, TTL)], holder).answers
    return str(getattr(answer, "verdict", answer))


def test_all_who_use_a_prefix_in_a_process_share_its_store(prefix: str) -> None:
    one, two, other = LocalBackend(prefix=prefix), LocalBackend(prefix=prefix), LocalBackend(prefix=f"{prefix}-other")
    one.declare([Declaration("job", "v1", TTL)])
    occurrence = one.time()
    assert claim(one, occurrence, "a") == "won"
    assert claim(two, occurrence, "b") == "taken"
    assert claim(other, occurrence, "c") == "undeclared"


def test_closing_one_user_takes_nothing_from_the_others(prefix: str) -> None:
    one, two = LocalBackend(prefix=prefix), LocalBackend(prefix=prefix)
    one.declare([Declaration("job", "v1", TTL)])
    one.close()
    assert two.states(["job"]).answers[0].since is not None  # type: ignore[union-attr]


def test_a_backend_with_its_own_clock_has_its_own_store_unless_one_is_handed_over(prefix: str) -> None:
    clock = ManualClock()
    one, two = LocalBackend(prefix=prefix, clock=clock), LocalBackend(prefix=prefix, clock=clock)
    three = LocalBackend(prefix=prefix, clock=clock, store=one.store)
    one.declare([Declaration("job", "v1", TTL)])
    occurrence = one.time()
    assert claim(one, occurrence, "a") == "won"
    assert claim(two, occurrence, "b") == "undeclared"
    assert claim(three, occurrence, "c") == "taken"


def test_it_warns_once_per_process_and_prefix_that_other_processes_run_the_jobs_too(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, LOGGER):
        LocalBackend(prefix=prefix).heartbeat("i")
        LocalBackend(prefix=prefix).heartbeat("j")
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelno == logging.WARNING
    assert prefix in record.getMessage()
    assert "every other process would run each job" in record.getMessage()


def test_it_does_not_warn_a_process_that_makes_one_and_runs_no_jobs(
    prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    assert prefix in LocalBackend(prefix=prefix).describe()
    assert not caplog.records


def test_it_does_not_warn_where_a_test_gave_it_a_clock(prefix: str, caplog: pytest.LogCaptureFixture) -> None:
    LocalBackend(prefix=prefix, clock=ManualClock())
    assert not caplog.records


def test_its_time_is_the_wall_clock(prefix: str) -> None:
    before = time.time_ns() // 1_000_000
    assert before <= LocalBackend(prefix=prefix).time() <= time.time_ns() // 1_000_000


def test_no_job_rests_there(prefix: str) -> None:
    backend = LocalBackend(prefix=prefix, clock=ManualClock())
    occurrence = backend.time()
    backend.declare([Declaration("job", "v1", TTL, Seeds(occurrence=occurrence - 1, fence=7))])
    assert claim(backend, occurrence) == "won"


def test_it_is_not_shared_and_says_so(prefix: str) -> None:
    backend = LocalBackend(prefix=prefix)
    assert not backend.shared
    assert "memory of this process" in backend.describe()
    assert LocalBackend.check(cache="default", prefix=prefix, deploy=True) == []


def test_claims_from_many_threads_lose_nothing(prefix: str) -> None:
    backend = LocalBackend(prefix=prefix)
    backend.declare([Declaration("job", "v1", TTL)])
    start, wins, barrier = backend.time() - 500, list[int](), threading.Barrier(4)

    def work(number: int) -> None:
        barrier.wait()
        for occurrence in range(start, start + 500):
            (answer,) = backend.claim([Claim("job", occurrence, f"{number}-{occurrence}", 1, TTL)], "a").answers
            if getattr(answer, "runs", False):
                wins.append(occurrence)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(wins) == len(set(wins))


def test_it_needs_no_redis_package() -> None:
    code = (
        "import sys; sys.modules['redis'] = None\n"
        "from django_cronductor.backends.local import LocalBackend\n"
        "from django_cronductor.testing import ManualClock\n"
        "print(LocalBackend(clock=ManualClock()).time())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout.strip() == "1767614400000", done.stderr


class TestManualClock:
    """The clock that tests move."""

    def test_both_its_clocks_stand_still_until_they_are_moved(self) -> None:
        clock = ManualClock(1_000.5)
        before = clock.monotonic()
        assert (clock.time(), clock.monotonic()) == (1_000.5, before)
        clock.advance(2.25)
        assert (clock.time(), clock.monotonic()) == (1_002.75, before + 2.25)

    def test_the_wall_clock_is_stepped_alone(self) -> None:
        clock = ManualClock()
        before = clock.monotonic()
        clock.set_time(5.0)
        assert (clock.time(), clock.monotonic()) == (5.0, before)

    def test_small_steps_add_up(self) -> None:
        clock = ManualClock(0)
        for _ in range(100_000):
            clock.advance(0.001)
        assert clock.time() == 100.0

    def test_it_takes_aware_datetimes(self) -> None:
        noon = datetime(2030, 1, 1, 12, 0, 0, 1000, tzinfo=timezone(timedelta(hours=1)))
        assert ManualClock(noon).time() == noon.timestamp()
        clock = ManualClock()
        clock.set_time(noon)
        assert clock.time() == noon.timestamp()

    def test_it_refuses_a_naive_datetime(self) -> None:
        with pytest.raises(ValueError, match="aware"):
            ManualClock(datetime(2030, 1, 1))

    def test_it_does_not_advance_backwards(self) -> None:
        with pytest.raises(ValueError, match="set_time"):
            ManualClock().advance(-1)

    def test_every_millisecond_is_read_as_itself_by_the_backend(self) -> None:
        clock = ManualClock(1_767_614_400)
        backend = LocalBackend(clock=clock)
        for expected in range(1_767_614_400_000, 1_767_614_402_000):
            assert backend.time() == expected
            clock.advance(0.001)
