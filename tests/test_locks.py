"""Locks for any code: held and renewed until they are released."""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pytest
import redis
from django.test import override_settings

from django_cronductor import (
    BackendError,
    ConfigurationError,
    ExclusiveResult,
    HeldLock,
    LeaseLost,
    NotAcquired,
    lock,
    run_exclusive,
    try_lock,
)
from django_cronductor import locks as locks_module
from django_cronductor.backends.base import Acquired, Lease, Release, ReleaseResult, RenewResult, Reply
from django_cronductor.backends.local import LocalBackend
from django_cronductor.backends.redis import RedisBackend

ROOT = Path(__file__).resolve().parent.parent
PATIENCE = 15.0
"""Seconds after which something that should have happened has not."""
SHORT = 0.3
"""A ttl, in seconds, that is over many times while a test waits for it."""
LOCAL = "django_cronductor.backends.local.LocalBackend"


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "It did not come to that."
        threading.Event().wait(0.005)


def work_under(key: str, work: Callable[[HeldLock], object], ttl: float = 60) -> None:
    """Do some work that is handed the lock under which it is done."""
    with lock(key, ttl) as held:
        work(held)


def outlive(seconds: float) -> None:
    """Wait until that much time has passed on the clock by which leases end."""
    end = time.monotonic() + seconds
    eventually(lambda: time.monotonic() >= end)


@pytest.fixture
def shared(prefix: str) -> Iterator[str]:
    """Keep the locks in Redis, under a prefix of the test's own."""
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
        yield prefix


@pytest.fixture(params=["redis", "local"])
def backend(request: pytest.FixtureRequest, prefix: str) -> Iterator[str]:
    """Keep the locks in each of the stores."""
    path = {"redis": "django_cronductor.backends.redis.RedisBackend", "local": LOCAL}[request.param]
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "BACKEND": path}):
        yield request.param


@contextmanager
def child(code: str, prefix: str) -> Iterator[subprocess.Popen[str]]:
    """Run code in another process with the same settings; kill it at the end."""
    preamble = f"""
import sys
import django
from django.conf import settings
from tests import settings as ours
settings.configure(CACHES=ours.CACHES, CRONDUCTOR={{"CACHE": "locks", "PREFIX": {prefix!r}}})
django.setup()
from django_cronductor import NotAcquired, lock, try_lock
"""
    process = subprocess.Popen(
        [sys.executable, "-c", preamble + code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # With what it has forked.
        process.communicate()


def line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


HOLDER = """
with lock("a", ttl={ttl}):
    print("held", flush=True)
    sys.stdin.readline()
print("released", flush=True)
"""


class Failing:
    """Lets calls to a backend fail, with or without effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def reply_lost(self, method: str, times: int = 1) -> list[Any]:
        """Let the first replies of a method be lost; return the arguments of all its calls."""
        real, calls = getattr(RedisBackend, method), list[Any]()

        def call(backend: RedisBackend, *args: Any) -> Any:
            calls.append(args)
            reply = real(backend, *args)
            if len(calls) <= times:
                raise BackendError("The reply was lost.")
            return reply

        self._monkeypatch.setattr(RedisBackend, method, call)
        return calls

    def down(self, method: str) -> None:
        """Let every call fail without any effect."""

        def call(*args: Any) -> Any:
            raise BackendError("The store is down.")

        self._monkeypatch.setattr(RedisBackend, method, call)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Failing:
    return Failing(monkeypatch)


class TestLock:
    def test_it_is_held_in_the_block_and_free_after_it(self, backend: str) -> None:
        with lock("a") as held:
            assert isinstance(held, HeldLock)
            assert held.key == "a"
            assert not held.lost
            held.check()
            assert try_lock("a") is None
        with lock("a"):
            pass

    def test_another_holder_is_named(self, backend: str) -> None:
        with lock("a"), pytest.raises(NotAcquired, match=rf"The lock a is held by \S+:{os.getpid()}:\w+ for [\d.]+ s"):
            lock("a").__enter__()

    def test_locks_of_other_names_may_be_taken_inside(self, backend: str) -> None:
        with lock("a"), lock("b"):
            assert try_lock("a") is None
            assert try_lock("b") is None
        with lock("b"), lock("a"):
            pass

    def test_one_object_cannot_be_entered_twice_at_once(self, backend: str) -> None:
        one = lock("a")
        with one, pytest.raises(NotAcquired, match="this very block"):
            one.__enter__()
        with one:
            assert try_lock("a") is None

    def test_each_call_of_a_decorated_function_holds_it(self, backend: str) -> None:
        @lock("a")
        def work(number: int, *, more: int) -> int:
            """Do something."""
            assert try_lock("a") is None
            return number + more

        assert [work(1, more=2), work(3, more=4)] == [3, 7]
        assert (work.__name__, work.__doc__) == ("work", "Do something.")
        with lock("a"), pytest.raises(NotAcquired):
            work(1, more=1)

    def test_a_decorated_function_that_calls_itself_finds_it_held(self, backend: str) -> None:
        @lock("a")
        def work(depth: int) -> None:
            if depth:
                work(depth - 1)

        work(0)
        with pytest.raises(NotAcquired):
            work(1)
        work(0)

    def test_a_decorated_function_may_be_called_by_threads_of_which_one_gets_it(self, backend: str) -> None:
        @lock("a")
        def work() -> None:
            entered.set()
            assert go_on.wait(PATIENCE)

        entered, go_on = threading.Event(), threading.Event()
        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert entered.wait(PATIENCE)
            with pytest.raises(NotAcquired):
                work()
        finally:
            go_on.set()
            thread.join(PATIENCE)
        work()

    def test_an_error_inside_releases_it_and_goes_on(self, backend: str) -> None:
        with pytest.raises(ValueError, match="inside"), lock("a"):
            raise ValueError("inside")
        with lock("a"):
            pass

    def test_a_decorated_function_that_returns_what_works_on_after_it_fails(self, backend: str) -> None:
        """The lock would be gone before the work begins."""

        async def work() -> None:
            raise AssertionError("nobody awaits this")

        @lock("a")
        def begin() -> Any:
            return work()

        text = r"lock\('a'\): .* is not async but returned coroutine: use a with block inside"
        with pytest.raises(TypeError, match=text):
            begin()
        taken = try_lock("a")
        assert taken is not None
        taken.release()

    def test_a_generator_behind_a_wrapper_is_not_passed_on_after_the_release(self, backend: str) -> None:
        def logged(func: Callable[[], Any]) -> Callable[[], Any]:
            return functools.wraps(func)(lambda: func())

        def generator() -> Iterator[None]:
            yield

        async def async_generator() -> Any:
            yield

        for func in (generator, async_generator, contextmanager(generator)):
            with pytest.raises(TypeError, match=r"lock\('a'\): .* returned .*(?i:generator).*: do without yield"):
                lock("a")(logged(func))()
            with pytest.raises(TypeError, match=r"The function of run_exclusive returned .*: do without yield"):
                run_exclusive("a", logged(func))
        assert run_exclusive("a", lambda: iter([1])).acquired

    def test_what_works_on_after_its_call_cannot_be_decorated(self) -> None:
        async def coroutine() -> None: ...

        def generator() -> Iterator[None]:
            yield

        async def async_generator() -> Any:
            yield

        class Object:
            async def __call__(self) -> None: ...

        for func in (coroutine, generator, async_generator, Object(), functools.partial(generator)):
            with pytest.raises(ConfigurationError, match=r"lock\('a'\) cannot decorate .* works on after its call"):
                lock("a")(func)

    @pytest.mark.parametrize("ttl", [0, -1, "30", float("nan"), 10**9, True])
    @pytest.mark.parametrize(
        "use",
        [lambda ttl: lock("a", ttl), lambda ttl: try_lock("a", ttl), lambda ttl: run_exclusive("a", print, ttl=ttl)],
    )
    def test_a_wrong_ttl_is_refused_before_anything_is_asked(
        self, shared: str, failing: Failing, ttl: Any, use: Callable[[Any], object]
    ) -> None:
        failing.down("acquire")
        with pytest.raises(ConfigurationError, match="ttl of the lock a must be"):
            use(ttl)

    @pytest.mark.parametrize("key", ["", "k" * 201, "a{b}", "a\n", 1, None])
    @pytest.mark.parametrize("use", [lock, try_lock, lambda key: run_exclusive(key, print)])
    def test_a_wrong_key_is_refused_before_anything_is_asked(
        self, shared: str, failing: Failing, key: Any, use: Callable[[Any], object]
    ) -> None:
        failing.down("acquire")
        with pytest.raises(ConfigurationError, match="key of a lock"):
            use(key)

    def test_a_key_that_is_a_member_of_an_enum_is_its_value(self, shared: str) -> None:
        class Keys(str, Enum):
            IMPORT = "shop.import"

        with lock(Keys.IMPORT):
            assert try_lock("shop.import") is None
        held = try_lock(Keys.IMPORT)
        assert held is not None
        assert not run_exclusive("shop.import", print).acquired
        assert not run_exclusive(Keys.IMPORT, print).acquired
        held.release()

    @pytest.mark.parametrize("ttl", [5, 5.0, timedelta(seconds=5)])
    def test_a_ttl_is_seconds_or_a_timedelta(self, shared: str, redis_client: redis.Redis, ttl: Any) -> None:
        with lock("a", ttl):
            assert 4_000 < redis_client.pttl(f"{{{shared}}}:lock:a") <= 5_000

    def test_the_default_ttl_is_that_of_the_settings(self, prefix: str, redis_client: redis.Redis) -> None:
        with (
            override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "DEFAULT_TTL": 7}),
            lock("a"),
        ):
            assert 6_000 < redis_client.pttl(f"{{{prefix}}}:lock:a") <= 7_000

    def test_a_lock_is_no_jobs(self, shared: str, redis_client: redis.Redis) -> None:
        with lock("a"):
            assert redis_client.keys(f"*{shared}*:job:*") == []


class TestTryLock:
    def test_it_gives_the_lock_or_nothing(self, backend: str) -> None:
        held = try_lock("a")
        assert held is not None
        assert try_lock("a") is None
        held.release()
        again = try_lock("a")
        assert again is not None
        again.release()

    def test_what_it_gives_is_released_at_the_end_of_a_block(self, backend: str) -> None:
        held = try_lock("a")
        assert held is not None
        with held as same:
            assert same is held
            assert try_lock("a") is None
        with lock("a"):
            pass

    def test_releasing_twice_is_fine_and_takes_nothing_from_the_next_holder(self, backend: str) -> None:
        held = try_lock("a")
        assert held is not None
        held.release()
        with lock("a"):
            held.release()
            assert try_lock("a") is None

    def test_once_released_another_may_have_it(self, backend: str) -> None:
        held = try_lock("a")
        assert held is not None
        held.check()
        with held:
            with held:
                assert not held.lost
            assert not held.lost
            with pytest.raises(LeaseLost, match=r"The lock a \(fencing token \d+\) is not held here any more"):
                held.check()

    def test_it_can_be_released_by_another_thread(self, backend: str) -> None:
        held = try_lock("a")
        assert held is not None
        thread = threading.Thread(target=held.release)
        thread.start()
        thread.join(PATIENCE)
        with lock("a"):
            pass

    def test_its_repr_names_it(self, backend: str) -> None:
        with lock("a") as held:
            assert repr(held) == f"<HeldLock a, fencing token {held.fencing_token}>"


class TestRunExclusive:
    def test_it_calls_the_function_under_the_lock_and_returns_its_value(self, backend: str) -> None:
        assert run_exclusive("a", lambda: [try_lock("a")]) == ExclusiveResult(True, [None])
        assert run_exclusive("a", lambda: 1, ttl=5) == ExclusiveResult(acquired=True, value=1)

    def test_it_calls_nothing_while_another_holds_the_lock(self, backend: str) -> None:
        calls: list[int] = []
        with lock("a"):
            assert run_exclusive("a", lambda: calls.append(1)) == ExclusiveResult(acquired=False, value=None)
        assert calls == []

    def test_an_error_of_the_function_releases_the_lock_and_goes_on(self, backend: str) -> None:
        def fail() -> None:
            raise ValueError("inside")

        with pytest.raises(ValueError, match="inside"):
            run_exclusive("a", fail)
        with lock("a"):
            pass

    @pytest.mark.parametrize("func", [None, "text", 5, lambda argument: None, dict])
    def test_what_cannot_be_called_is_refused_before_anything_is_acquired(
        self, shared: str, redis_client: redis.Redis, func: Any
    ) -> None:
        with pytest.raises(ConfigurationError, match="The function of run_exclusive"):
            run_exclusive("a", func)
        assert redis_client.keys(f"*{shared}*") == []

    def test_so_is_an_async_function(self, shared: str, redis_client: redis.Redis) -> None:
        async def work() -> None: ...

        with pytest.raises(ConfigurationError, match="must not be async"):
            run_exclusive("a", work)
        assert redis_client.keys(f"*{shared}*") == []

    def test_what_returns_a_coroutine_all_the_same_has_failed_and_the_lock_is_free_again(self, backend: str) -> None:
        async def work() -> None:
            calls.append(1)

        calls: list[int] = []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(TypeError, match="not async but returned coroutine: wrap it in async_to_sync"):
                run_exclusive("a", lambda: work())
            gc.collect()
        with lock("a"):
            assert calls == []


class TestFencingTokens:
    def test_they_rise_over_all_locks_of_a_prefix(self, backend: str) -> None:
        tokens = []
        for key in "abacab":
            with lock(key) as held:
                tokens.append(held.fencing_token)
        assert tokens == sorted(set(tokens))

    def test_they_rise_also_after_the_store_has_lost_its_data(self, shared: str, redis_client: redis.Redis) -> None:
        with lock("a") as before:
            pass
        redis_client.delete(*redis_client.keys(f"*{shared}*"))
        with lock("a") as after:
            assert after.fencing_token > before.fencing_token


class TestHolding:
    def test_a_lock_is_renewed_for_as_long_as_it_is_held(self, backend: str) -> None:
        with lock("a", ttl=SHORT) as held:
            outlive(3 * SHORT)
            assert not held.lost
            assert try_lock("a") is None

    def test_nothing_is_left_behind_but_the_counter(self, shared: str, redis_client: redis.Redis) -> None:
        for key in "abc":
            with lock(key):
                pass
        assert redis_client.keys(f"*{shared}*") == [f"{{{shared}}}:fence"]

    def test_a_lock_that_was_taken_over_is_lost(
        self, shared: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        def work(held: HeldLock) -> None:
            redis_client.hset(f"{{{shared}}}:lock:a", "token", "another's")
            eventually(lambda: held.lost)
            with pytest.raises(LeaseLost, match=rf"The lock a \(fencing token {held.fencing_token}\) is lost"):
                held.check()

        with pytest.raises(LeaseLost, match="was lost before its release"):
            work_under("a", work, SHORT)
        assert [record.levelno for record in caplog.records] == [logging.ERROR]
        assert redis_client.hget(f"{{{shared}}}:lock:a", "token") == "another's"

    def test_a_lock_that_was_taken_over_unnoticed_is_found_lost_at_its_release(
        self, shared: str, redis_client: redis.Redis
    ) -> None:
        def work(held: HeldLock) -> None:
            redis_client.hset(f"{{{shared}}}:lock:a", "token", "another's")
            assert not held.lost

        with pytest.raises(LeaseLost, match="was lost before its release"):
            work_under("a", work)

    def test_a_lock_that_could_not_be_renewed_in_time_is_lost_and_stays_so(
        self, shared: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def work(held: HeldLock) -> None:
            with monkeypatch.context() as patch:
                Failing(patch).down("renew")
                eventually(lambda: held.lost)
            outlive(SHORT)
            assert held.lost

        with pytest.raises(LeaseLost):
            work_under("a", work, SHORT)
        assert "The lock a could not be renewed" in caplog.text
        assert [record.levelno for record in caplog.records].count(logging.ERROR) == 1

    def test_an_error_inside_comes_before_the_loss(
        self, shared: str, redis_client: redis.Redis, caplog: pytest.LogCaptureFixture
    ) -> None:
        def work(held: HeldLock) -> None:
            redis_client.hset(f"{{{shared}}}:lock:a", "token", "another's")
            raise ValueError("inside")

        with pytest.raises(ValueError, match="inside"):
            work_under("a", work)
        assert "could not be released after an error" in caplog.text

    def test_a_lock_that_the_store_lost_is_written_back(self, shared: str, redis_client: redis.Redis) -> None:
        with lock("a", ttl=SHORT) as held:
            redis_client.delete(*redis_client.keys(f"*{shared}*"))
            eventually(lambda: redis_client.exists(f"{{{shared}}}:lock:a"))
            assert try_lock("a") is None
            assert not held.lost


class TestStoreFailures:
    @pytest.mark.parametrize(
        "use", [lambda: lock("a").__enter__(), lambda: try_lock("a"), lambda: run_exclusive("a", lambda: None)]
    )
    def test_a_store_that_is_down_is_an_error_and_not_a_held_lock(self, use: Callable[[], object]) -> None:
        nobody = {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": "redis://127.0.0.1:1/0"}
        with (
            override_settings(CACHES={"default": nobody}, CRONDUCTOR={}),
            pytest.raises(BackendError, match=r"Redis at 127\.0\.0\.1:1, "),
        ):
            use()

    def test_a_lock_whose_reply_was_lost_is_ours_all_the_same(self, shared: str, failing: Failing) -> None:
        calls = failing.reply_lost("acquire")
        with lock("a") as held:
            assert not held.lost
            assert try_lock("a") is None
        assert calls[0] == calls[1]

    def test_its_deadline_counts_from_the_question_that_was_answered(self, shared: str, failing: Failing) -> None:
        failing.reply_lost("acquire")
        with lock("a", ttl=60) as held:
            assert held._held.deadline <= held._holder._clock.monotonic() + 60

    def test_a_store_that_fails_twice_is_an_error(self, shared: str, failing: Failing) -> None:
        calls = failing.reply_lost("acquire", times=2)
        with pytest.raises(BackendError, match="The reply was lost"):
            try_lock("a")
        assert len(calls) == 2

    def test_a_lock_that_has_ended_before_its_reply_was_read_is_not_handed_out(
        self, shared: str, monkeypatch: pytest.MonkeyPatch, redis_client: redis.Redis
    ) -> None:
        real = RedisBackend.acquire

        def slowly(backend: RedisBackend, *args: Any) -> Acquired:
            reply = real(backend, *args)
            outlive(0.05)
            return reply

        monkeypatch.setattr(RedisBackend, "acquire", slowly)
        with pytest.raises(BackendError, match="the lock a was won, but had ended before that was read"):
            try_lock("a", ttl=0.05)
        eventually(lambda: not redis_client.exists(f"{{{shared}}}:lock:a"))

    def test_a_release_whose_reply_was_lost_is_sent_again(self, shared: str, failing: Failing) -> None:
        calls = failing.reply_lost("release")
        with lock("a"):
            pass
        assert len(calls) == 2
        with lock("a"):
            pass

    def test_a_release_that_fails_after_success_is_an_error(self, shared: str, failing: Failing) -> None:
        failing.down("release")
        with pytest.raises(BackendError, match="The store is down"), lock("a"):
            pass
        with pytest.raises(BackendError, match="The store is down"):
            run_exclusive("b", lambda: None)

    def test_a_release_that_fails_after_an_error_lets_the_error_go_on(
        self, shared: str, failing: Failing, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail() -> None:
            raise ValueError("inside")

        failing.down("release")
        with pytest.raises(ValueError, match="inside"), lock("a"):
            fail()
        with pytest.raises(ValueError, match="inside"):
            run_exclusive("b", fail)
        assert caplog.messages == [
            "The lock a could not be released after an error.",
            "The lock b could not be released after an error.",
        ]

    def test_a_lock_that_could_not_be_released_lapses(self, shared: str, monkeypatch: pytest.MonkeyPatch) -> None:
        with monkeypatch.context() as patch:
            Failing(patch).down("release")
            with pytest.raises(BackendError), lock("a", ttl=SHORT):
                pass
        eventually(lambda: run_exclusive("a", lambda: None).acquired)

    def test_a_release_that_is_never_answered_is_an_error(self, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
        def hang(*args: Any) -> Any:
            assert go_on.wait(PATIENCE)
            raise BackendError("The store is down.")

        go_on = threading.Event()
        monkeypatch.setattr(RedisBackend, "release", hang)
        with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "DEFAULT_TTL": 0.06}):
            held = try_lock("a", ttl=60)
            assert held is not None
            try:
                with pytest.raises(BackendError, match=r"Redis at .*: no answer within 1\.08 s"):
                    held.release()
            finally:
                go_on.set()

    def test_short_default_leases_make_for_short_waits(self, prefix: str) -> None:
        with (
            override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "DEFAULT_TTL": 0.9}),
            lock("a") as held,
        ):
            assert held._holder._backend.timeout == pytest.approx(0.3)


class ThirdPartyBackend(LocalBackend):
    """Stand for a backend of a project's own."""

    calls: list[str] = []  # noqa: RUF012

    def acquire(self, key: str, token: str, ttl: int, holder: str) -> Acquired:
        self.calls.append("acquire")
        return super().acquire(key, token, ttl, holder)

    def renew(self, leases: Sequence[Lease]) -> Reply[RenewResult]:
        self.calls.append("renew")
        return super().renew(leases)

    def release(self, releases: Sequence[Release]) -> Reply[ReleaseResult]:
        self.calls.append("release")
        return super().release(releases)

    def close(self) -> None:
        self.calls.append("close")


class TestSettings:
    def test_the_backend_is_that_of_the_settings_and_made_anew_when_they_change(self, shared: str, prefix: str) -> None:
        with lock("a"):
            own = f"{__name__}.ThirdPartyBackend"
            with override_settings(CRONDUCTOR={"BACKEND": own, "PREFIX": prefix}):
                ThirdPartyBackend.calls.clear()
                with lock("a"):
                    pass
                assert ThirdPartyBackend.calls == ["acquire", "release"]
            assert ThirdPartyBackend.calls == ["acquire", "release", "close"]

    def test_a_lock_that_was_taken_before_they_changed_is_still_released(
        self, shared: str, prefix: str, redis_client: redis.Redis
    ) -> None:
        held = try_lock("a")
        assert held is not None
        with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}):
            held.release()
            assert not redis_client.exists(f"{{{shared}}}:lock:a")

    def test_its_loss_is_noticed_at_its_release(self, shared: str, prefix: str, redis_client: redis.Redis) -> None:
        held = try_lock("a")
        assert held is not None
        redis_client.hset(f"{{{shared}}}:lock:a", "token", "another's")
        with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}), pytest.raises(LeaseLost):
            held.release()

    def test_no_thread_is_started_and_nothing_connected_before_a_lock_is_taken(self, shared: str) -> None:
        @lock("a")
        def work() -> None: ...

        assert locks_module._current is None
        assert "cronductor-leases" not in [thread.name for thread in threading.enumerate()]
        work()
        assert "cronductor-leases" in [thread.name for thread in threading.enumerate()]

    def test_wrong_settings_are_an_error_at_the_first_lock(self) -> None:
        with override_settings(CRONDUCTOR={"BACKEND": "nowhere.Backend"}), pytest.raises(ConfigurationError):
            try_lock("a")


class TestProcesses:
    def test_two_processes_exclude_each_other(self, shared: str) -> None:
        with child(HOLDER.format(ttl=30), shared) as other:
            assert line_of(other) == "held"
            assert try_lock("a") is None
            with pytest.raises(NotAcquired, match=f":{other.pid}:"):
                lock("a").__enter__()
            assert other.stdin is not None
            other.stdin.write("\n")
            other.stdin.flush()
            assert line_of(other) == "released"
            with lock("a"):
                pass

    def test_the_lock_of_a_process_that_was_killed_lapses(self, shared: str) -> None:
        with child(HOLDER.format(ttl=SHORT), shared) as other:
            assert line_of(other) == "held"
            outlive(2 * SHORT)
            assert try_lock("a") is None
            os.kill(other.pid, signal.SIGKILL)
            eventually(lambda: run_exclusive("a", lambda: None).acquired)

    def test_what_one_process_does_under_the_lock_no_other_does_meanwhile(
        self, shared: str, redis_client: redis.Redis
    ) -> None:
        counter = f"{{{shared}}}:test-counter"
        redis_client.set(counter, 0)
        code = f"""
import redis
client = redis.Redis.from_url(ours.CACHES["locks"]["LOCATION"])
done = 0
while done < 15:
    try:
        with lock("a"):
            value = int(client.get({counter!r}))
            client.set({counter!r}, value + 1)
    except NotAcquired:
        continue
    done += 1
print("done", flush=True)
"""
        with child(code, shared) as first, child(code, shared) as second:
            assert [line_of(first), line_of(second)] == ["done", "done"]
        assert redis_client.get(counter) == "30"


FORK = """
import os

def in_child(work):
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if work() else 1)
        finally:
            os._exit(2)
    print("exit code", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class TestFork:
    """In processes of their own, for this one has threads."""

    def test_a_forked_child_takes_locks_of_its_own(self, shared: str) -> None:
        code = """
with lock("a"):
    in_child(lambda: try_lock("a") is None and try_lock("b") is not None)
"""
        with child(FORK + code, shared) as process:
            assert line_of(process) == "exit code 0"

    def test_a_forked_child_keeps_its_lock_alive_by_itself(self, shared: str) -> None:
        code = """
import threading
with lock("a"):
    def work():
        held = try_lock("b", ttl=0.3)
        threading.Event().wait(0.9)
        return not held.lost and try_lock("b") is None
    in_child(work)
"""
        with child(FORK + code, shared) as process:
            assert line_of(process) == "exit code 0"

    def test_a_forked_child_does_not_release_its_parents_lock_nor_waits_for_it(self, shared: str) -> None:
        code = """
with lock("a") as held:
    in_child(lambda: held.release() is None)
    print(try_lock("a"), flush=True)
print("released", flush=True)
"""
        with child(FORK + code, shared) as process:
            started = time.monotonic()
            assert [line_of(process) for _ in range(3)] == ["exit code 0", "None", "released"]
            assert time.monotonic() - started < 5

    def test_a_forked_child_knows_that_it_does_not_hold_its_parents_lock(self, shared: str) -> None:
        code = """
from django_cronductor import LeaseLost
with lock("a") as held:
    def work():
        try:
            held.check()
        except LeaseLost:
            return held.lost
    in_child(work)
    held.check()
    print(held.lost, flush=True)
"""
        with child(FORK + code, shared) as process:
            assert [line_of(process), line_of(process)] == ["exit code 0", "False"]

    def test_a_fork_while_another_thread_is_about_to_take_its_first_lock_leaves_the_child_free(
        self, shared: str
    ) -> None:
        code = """
from django_cronductor import locks
with locks._current_lock:
    in_child(lambda: try_lock("a") is not None)
"""
        with child(FORK + code, shared) as process:
            assert line_of(process) == "exit code 0"
