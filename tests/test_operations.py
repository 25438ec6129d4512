"""What an operator does: run a job now, pause it, resume it, release its lease, forget it."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from enum import Enum
from functools import partial
from typing import Any

import pytest
import redis
from django.db import OperationalError
from django.test import override_settings

from django_cronductor import operations, signals
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import SILENCE, Claim, DeadRun, Declaration, Lease, LockBackend, Release
from django_cronductor.backends.local import LocalBackend
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.exceptions import BackendError, CronductorError, JobNotFound
from django_cronductor.history import DatabaseHistory
from django_cronductor.instants import as_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.operations import DatabaseFailed, Done, Refused
from tests.history_records import job, run

pytestmark = pytest.mark.django_db

TTL = 30_000
KEY = "shop.sync"


@pytest.fixture(autouse=True)
def _settings(prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
        yield


@pytest.fixture
def without_history(_settings: None, prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "HISTORY": 0}):
        yield


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.schedule("30 2 * * *", print, key=KEY)
    return registry


@pytest.fixture
def shared() -> Iterator[LockBackend]:
    """Return a store that all processes see, which knows the job, and a replica that lives."""
    backend = create_backend()
    declare(backend)
    backend.heartbeat("host:1:a")
    yield backend
    backend.close()


@pytest.fixture
def local(prefix: str) -> LocalBackend:
    """Return the store of this process, while runcron has its own."""
    return LocalBackend(prefix=prefix)


@pytest.fixture
def row() -> DeclaredJob:
    DatabaseHistory(keep=5, inline=True).declared([job()])
    return DeclaredJob.objects.get()


@pytest.fixture
def broken_database(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise OperationalError("it is down: postgres://user:sesame-open@host")

    monkeypatch.setattr(DeclaredJob.objects, "using", fail)
    monkeypatch.setattr(DeclaredJob.objects, "filter", fail)
    monkeypatch.setattr(DeclaredJob.objects, "values_list", fail)


def declare(backend: LockBackend, key: str = KEY) -> int:
    [since] = backend.declare([Declaration(key, "v1", TTL)]).answers
    assert isinstance(since, int)
    return since


def take(backend: LockBackend, key: str = KEY) -> Lease:
    answer = backend.take_request(key, "token", TTL, "host:1:a", unasked=True)
    assert answer.verdict == "won"
    return Lease(key, "token", answer.fence, TTL, "host:1:a", "manual")


def state(backend: LockBackend, key: str = KEY) -> Any:
    return backend.states([key]).answers[0]


def fail(*args: Any, **kwargs: Any) -> Any:
    raise BackendError("the line is cut")


class TestRequest:
    def test_the_replicas_are_asked_once(self, registry: JobRegistry, shared: LockBackend) -> None:
        assert operations.request_run(KEY, backend=shared, by="anna", registry=registry) == Done(KEY)
        operations.request_run(KEY, backend=shared, by="anna", registry=registry)
        assert shared.heartbeat("host:1:a").requests == {KEY}

    def test_what_is_asked_again_under_its_name_is_not_asked(
        self, registry: JobRegistry, shared: LockBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        ask = partial(operations.request_run, KEY, backend=shared, by="anna", registry=registry)
        assert ask(once="first") == Done(KEY)
        taken = shared.take_request(KEY, "token", TTL, "host:1:a")
        shared.release([Release(Lease(KEY, "token", taken.fence, TTL, "host:1:a", "manual"), "succeeded")])
        assert ask(once="first") == Done(KEY, repeated=True)
        assert state(shared).requested is None
        assert caplog.text.count("a run was requested") == 1
        assert ask(once="second") == Done(KEY)
        assert state(shared).requested is not None

    def test_a_key_that_is_a_member_of_an_enum_is_its_value(self, registry: JobRegistry, shared: LockBackend) -> None:
        class Keys(str, Enum):
            SYNC = KEY

        operations.pause(Keys.SYNC, backend=shared, by="anna", registry=registry)
        assert state(shared).paused

    def test_it_is_logged_who_asked(
        self, registry: JobRegistry, shared: LockBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        operations.request_run(KEY, backend=shared, by="anna", registry=registry)
        [record] = [record for record in caplog.records if record.name == "django_cronductor.operations"]
        assert record.getMessage() == "shop.sync: a run was requested by anna."
        assert vars(record)["job"] == KEY

    def test_where_nobody_lives_nobody_is_asked(self, registry: JobRegistry, shared: LockBackend) -> None:
        shared.retire("host:1:a")
        with pytest.raises(Refused, match="No replica is alive"):
            operations.request_run(KEY, backend=shared, by="anna", registry=registry)
        assert state(shared).requested is None

    def test_where_those_who_lived_are_silent_nobody_is_asked(
        self, registry: JobRegistry, shared: LockBackend, redis_client: redis.Redis
    ) -> None:
        assert isinstance(shared, RedisBackend)
        redis_client.zadd(shared._instances, {"host:1:a": shared.time() - SILENCE - 1})
        assert list(shared.instances()) == ["host:1:a"]
        with pytest.raises(Refused, match="No replica is alive"):
            operations.request_run(KEY, backend=shared, by="anna", registry=registry)
        assert state(shared).requested is None

    def test_a_job_that_no_replica_has_declared_is_refused(self, registry: JobRegistry, shared: LockBackend) -> None:
        registry.schedule("* * * * *", print, key="new")
        with pytest.raises(Refused, match="No replica has declared new to the lock store yet"):
            operations.request_run("new", backend=shared, by="anna", registry=registry)

    def test_a_disabled_job_is_refused(self, shared: LockBackend) -> None:
        registry = JobRegistry()
        registry.schedule("* * * * *", print, key=KEY, enabled=False)
        with pytest.raises(Refused, match="is disabled in the code"):
            operations.request_run(KEY, backend=shared, by="anna", registry=registry)

    def test_a_paused_job_can_be_asked_for(self, registry: JobRegistry, shared: LockBackend) -> None:
        shared.pause(KEY)
        operations.request_run(KEY, backend=shared, by="anna", registry=registry)
        assert state(shared).requested is not None

    def test_for_the_single_instance_store_an_order_is_left(
        self, registry: JobRegistry, local: LocalBackend, row: DeclaredJob
    ) -> None:
        done = operations.request_run(KEY, backend=local, by="anna", registry=registry)
        assert done == Done(KEY, ordered=True)
        row.refresh_from_db()
        assert row.run_requested_at is not None
        assert abs(row.run_requested_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
        assert row.release_requested_at is None

    def test_an_order_is_refused_where_no_runcron_was_seen_for_long(
        self, registry: JobRegistry, local: LocalBackend, row: DeclaredJob
    ) -> None:
        DeclaredJob.objects.update(last_seen=as_stored(datetime(2026, 1, 5, 12, tzinfo=timezone.utc)))
        for order in (operations.request_run, operations.release):
            with pytest.raises(
                Refused, match=r"No runcron with shop\.sync has been seen since 2026-01-05 12:00:00 UTC"
            ):
                order(KEY, backend=local, by="anna", registry=registry)
        row.refresh_from_db()
        assert (row.run_requested_at, row.release_requested_at) == (None, None)

    def test_an_order_is_refused_where_no_runcron_was_ever_seen(
        self, registry: JobRegistry, local: LocalBackend
    ) -> None:
        with pytest.raises(Refused, match=r"No runcron with shop\.sync has been seen yet"):
            operations.request_run(KEY, backend=local, by="anna", registry=registry)

    @pytest.mark.usefixtures("without_history")
    def test_without_a_history_there_is_no_way_to_order(self, registry: JobRegistry, local: LocalBackend) -> None:
        for order in (operations.request_run, operations.release, operations.pause, operations.resume):
            with pytest.raises(Refused, match="keep a history, or use a shared lock backend"):
                order(KEY, backend=local, by="anna", registry=registry)


class TestPause:
    def test_the_store_and_the_database_have_it(
        self, registry: JobRegistry, shared: LockBackend, row: DeclaredJob
    ) -> None:
        done = operations.pause(KEY, backend=shared, by="anna", note="broken", registry=registry)
        assert done == Done(KEY)
        assert state(shared).paused
        row.refresh_from_db()
        assert row.paused_at is not None
        assert abs(row.paused_at - datetime.now(timezone.utc)) < timedelta(minutes=1)
        assert (row.paused_by, row.pause_note) == ("anna", "broken")

    def test_it_is_lifted_in_both(self, registry: JobRegistry, shared: LockBackend, row: DeclaredJob) -> None:
        operations.pause(KEY, backend=shared, by="anna", note="broken", registry=registry)
        assert operations.resume(KEY, backend=shared, by="bob", registry=registry) == Done(KEY)
        assert not state(shared).paused
        row.refresh_from_db()
        assert (row.paused_at, row.paused_by, row.pause_note) == (None, "", "")

    @pytest.mark.parametrize("first", [operations.pause, operations.resume])
    def test_the_row_says_what_the_store_has_though_two_act_at_once(
        self,
        first: Callable[..., Done],
        registry: JobRegistry,
        shared: LockBackend,
        row: DeclaredJob,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        second = operations.resume if first is operations.pause else operations.pause
        update, between = operations._update, [second]

        def late(*arguments: Any) -> str | None:
            if between:
                between.pop()(KEY, backend=shared, by="bob", registry=registry)
            return update(*arguments)

        monkeypatch.setattr(operations, "_update", late)
        assert first(KEY, backend=shared, by="anna", registry=registry) == Done(KEY)
        row.refresh_from_db()
        assert state(shared).paused is (second is operations.pause)
        assert (row.paused_at is not None) is state(shared).paused

    def test_what_no_database_can_store_is_stored_otherwise(
        self, registry: JobRegistry, shared: LockBackend, row: DeclaredJob
    ) -> None:
        operations.pause(KEY, backend=shared, by="a" * 300 + "\x00", note="nul \x00", registry=registry)
        row.refresh_from_db()
        assert (row.paused_by, row.pause_note) == ("a" * 200, "nul \\x00")

    def test_a_job_without_a_row_is_paused_and_that_is_said(self, registry: JobRegistry, shared: LockBackend) -> None:
        done = operations.pause(KEY, backend=shared, by="anna", registry=registry)
        assert state(shared).paused
        assert done.unrecorded is not None
        assert "has declared shop.sync yet" in done.unrecorded

    @pytest.mark.usefixtures("without_history")
    def test_without_a_history_it_is_paused_and_that_is_said(self, registry: JobRegistry, shared: LockBackend) -> None:
        for act, paused in ((operations.pause, True), (operations.resume, False)):
            done = act(KEY, backend=shared, by="anna", registry=registry)
            assert state(shared).paused is paused
            assert done.unrecorded is not None
            assert "no history is kept" in done.unrecorded

    @pytest.mark.usefixtures("broken_database")
    def test_without_the_database_it_is_paused_and_that_is_said(
        self, registry: JobRegistry, shared: LockBackend
    ) -> None:
        done = operations.pause(KEY, backend=shared, by="anna", registry=registry)
        assert state(shared).paused
        assert done.unrecorded is not None
        assert "it is down" in done.unrecorded
        assert "sesame" not in done.unrecorded

    def test_without_the_store_nothing_is_noted(
        self, registry: JobRegistry, shared: LockBackend, row: DeclaredJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(shared, "pause", fail)
        with pytest.raises(BackendError):
            operations.pause(KEY, backend=shared, by="anna", registry=registry)
        row.refresh_from_db()
        assert row.paused_at is None

    def test_for_the_single_instance_store_the_row_is_the_order(
        self, registry: JobRegistry, local: LocalBackend, row: DeclaredJob
    ) -> None:
        done = operations.pause(KEY, backend=local, by="anna", note="broken", registry=registry)
        assert done == Done(KEY, ordered=True)
        row.refresh_from_db()
        assert (row.paused_by, row.pause_note) == ("anna", "broken")
        assert operations.resume(KEY, backend=local, by="anna", registry=registry) == Done(KEY, ordered=True)
        row.refresh_from_db()
        assert row.paused_at is None

    @pytest.mark.usefixtures("broken_database")
    def test_for_the_single_instance_store_a_database_that_fails_is_a_failure(
        self, registry: JobRegistry, local: LocalBackend
    ) -> None:
        for act in (operations.pause, operations.resume, operations.request_run, operations.release):
            with pytest.raises(CronductorError, match="it is down") as caught:
                act(KEY, backend=local, by="anna", registry=registry)
            assert "sesame" not in str(caught.value)


class TestRelease:
    def test_the_holder_loses_its_lease_and_its_run_is_reported(
        self, registry: JobRegistry, shared: LockBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        lease = take(shared)
        heard = []

        def hear(**details: Any) -> None:
            heard.append((details["sender"], details["key"], details["scheduled_at"], details["holder"]))

        signals.run_abandoned.connect(hear)
        done = operations.release(KEY, backend=shared, by="anna", registry=registry)
        signals.run_abandoned.disconnect(hear)
        assert done == Done(KEY, run=DeadRun("manual", "host:1:a", 0, lease.fence))
        assert heard == [(registry.get(KEY), KEY, None, "host:1:a")]
        assert state(shared).lease is None
        [renewal] = shared.renew([lease]).answers
        assert not getattr(renewal, "ok", True)
        [record] = [record for record in caplog.records if record.name == "django_cronductor.operations"]
        assert record.getMessage() == "shop.sync: its lease, held by host:1:a, was released by anna."
        assert (vars(record)["outcome"], vars(record)["fencing_token"]) == ("abandoned", lease.fence)
        assert vars(record)["holder"] == "host:1:a"

    def test_a_receiver_that_exits_ends_nobody(self, registry: JobRegistry, shared: LockBackend) -> None:
        lease = take(shared)

        def leave(**details: Any) -> None:
            raise SystemExit(3)

        signals.run_abandoned.connect(leave)
        try:
            done = operations.release(KEY, backend=shared, by="anna", registry=registry)
        finally:
            signals.run_abandoned.disconnect(leave)
        assert done.run == DeadRun("manual", "host:1:a", 0, lease.fence)

    def test_its_row_in_the_history_becomes_abandoned(self, registry: JobRegistry, shared: LockBackend) -> None:
        since = declare(shared)
        while shared.time() < since + 3:
            pass
        [answer] = shared.claim([Claim(KEY, since + 1, "token", TTL, TTL)], "host:1:a").answers
        record = run(slot=since + 1, fencing_token=getattr(answer, "fence", 0))
        DatabaseHistory(keep=5, inline=True).begun(record, lambda ours: None)
        operations.release(KEY, backend=shared, by="anna", registry=registry)
        assert JobRun.objects.get().outcome == "abandoned"

    def test_where_nobody_holds_it_nothing_happens(
        self, registry: JobRegistry, shared: LockBackend, caplog: pytest.LogCaptureFixture
    ) -> None:
        before = state(shared)
        assert operations.release(KEY, backend=shared, by="anna", registry=registry) == Done(KEY)
        assert state(shared) == before
        assert not JobRun.objects.exists()
        assert [record for record in caplog.records if record.name == "django_cronductor.operations"] == []

    def test_a_job_that_is_declared_no_longer_can_be_released(self, shared: LockBackend) -> None:
        take(shared)
        done = operations.release(KEY, backend=shared, by="anna", registry=JobRegistry())
        assert done.run is not None
        assert JobRun.objects.get().outcome == "abandoned"

    @pytest.mark.usefixtures("without_history")
    def test_without_a_history_none_is_written(self, registry: JobRegistry, shared: LockBackend) -> None:
        take(shared)
        assert operations.release(KEY, backend=shared, by="anna", registry=registry).run is not None
        assert not JobRun.objects.exists()

    def test_a_store_that_fails_on_the_job_says_so(
        self, registry: JobRegistry, shared: LockBackend, redis_client: Any, prefix: str
    ) -> None:
        redis_client.delete(f"{{{prefix}}}:job:{KEY}")
        redis_client.lpush(f"{{{prefix}}}:job:{KEY}", "no hash")
        with pytest.raises(BackendError, match="WRONGTYPE"):
            operations.release(KEY, backend=shared, by="anna", registry=registry)

    def test_for_the_single_instance_store_an_order_is_left(
        self, registry: JobRegistry, local: LocalBackend, row: DeclaredJob
    ) -> None:
        assert operations.release(KEY, backend=local, by="anna", registry=registry) == Done(KEY, ordered=True)
        row.refresh_from_db()
        assert row.release_requested_at is not None
        assert row.run_requested_at is None


@pytest.mark.django_db(transaction=True)
class TestHangingDatabase:
    """Without a transaction of the test's: other threads would wait for its end when they are let go."""

    @pytest.fixture(autouse=True)
    def _hang(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        gate = threading.Event()

        def hang(*args: Any, **kwargs: Any) -> Any:
            gate.wait(20)
            raise OperationalError("gone")

        for name in ("using", "filter", "values_list"):
            monkeypatch.setattr(DeclaredJob.objects, name, hang)
        monkeypatch.setattr(DatabaseHistory, "abandoned", hang)
        yield
        gate.set()
        for thread in threading.enumerate():
            if thread.name == "cronductor-asking":
                thread.join(20)

    def test_what_the_store_is_asked_for_is_done_and_that_it_is_not_noted_is_said(
        self, registry: JobRegistry, shared: LockBackend
    ) -> None:
        for act, paused in ((operations.pause, True), (operations.resume, False)):
            done = act(KEY, backend=shared, by="anna", registry=registry, database_wait=0.05)
            assert done.unrecorded == "The database failed: it has not answered for 0.05 s"
            assert state(shared).paused is paused
        take(shared)
        done = operations.release(KEY, backend=shared, by="anna", registry=registry, database_wait=0.05)
        assert done.run is not None

    def test_an_order_fails(self, registry: JobRegistry, local: LocalBackend) -> None:
        for act in (operations.pause, operations.resume, operations.request_run, operations.release):
            with pytest.raises(DatabaseFailed, match=r"it has not answered for 0\.05 s"):
                act(KEY, backend=local, by="anna", registry=registry, database_wait=0.05)

    def test_a_job_that_the_store_knows_is_found(self, shared: LockBackend) -> None:
        done = operations.pause(KEY, backend=shared, by="anna", registry=JobRegistry(), database_wait=0.05)
        assert done.unrecorded is not None


class TestUnknownJobs:
    ACTS = (operations.request_run, operations.pause, operations.resume, operations.release)

    def test_the_nearest_of_all_that_somebody_knows_are_named(
        self, registry: JobRegistry, shared: LockBackend, row: DeclaredJob
    ) -> None:
        DatabaseHistory(keep=5, inline=True).declared([job("shop.gone")])
        for act in self.ACTS:
            with pytest.raises(JobNotFound, match=r"No job 'shop\.gnoe' is declared; did you mean shop\.gone"):
                act("shop.gnoe", backend=shared, by="anna", registry=registry)

    def test_one_in_the_database_alone_is_known(self, registry: JobRegistry, shared: LockBackend) -> None:
        DatabaseHistory(keep=5, inline=True).declared([job("shop.gone")])
        operations.pause("shop.gone", backend=shared, by="anna", registry=registry)
        assert state(shared, "shop.gone").paused

    @pytest.mark.usefixtures("broken_database")
    def test_one_in_the_store_alone_is_known(self, shared: LockBackend) -> None:
        operations.pause(KEY, backend=shared, by="anna", registry=JobRegistry())
        assert state(shared).paused

    @pytest.mark.parametrize("key", ["", "x" * 201, "nul\x00", None, 7])
    def test_what_is_no_key_is_unknown(self, key: Any, registry: JobRegistry, shared: LockBackend) -> None:
        with pytest.raises(JobNotFound):
            operations.pause(key, backend=shared, by="anna", registry=registry)

    def test_where_there_is_no_job_at_all_none_is_named(self, shared: LockBackend) -> None:
        with pytest.raises(JobNotFound, match=r"^No job 'nobody' is declared, nor any other\.$"):
            operations.pause("nobody", backend=shared, by="anna", registry=JobRegistry())


class TestPrune:
    DAY = timedelta(days=1)

    @pytest.fixture
    def gone(self, shared: LockBackend) -> DeclaredJob:
        """Return a job that nobody has declared for two days, with two runs, and known to the store."""
        history = DatabaseHistory(keep=5, inline=True)
        history.declared([job("old")])
        for number in range(2):
            history.begun(run(number, key="old"), lambda ours: None)
        history.begun(run(3), lambda ours: None)
        DeclaredJob.objects.update(last_seen=as_stored(datetime.now(timezone.utc) - timedelta(days=2)))
        shared.pause("old")
        return DeclaredJob.objects.get()

    def test_a_job_that_is_gone_is_deleted_with_its_runs_and_forgotten(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob
    ) -> None:
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        assert (found.key, found.runs, found.kept) == ("old", 2, None)
        assert operations.prune(found, backend=shared, registry=registry)
        assert not DeclaredJob.objects.exists()
        assert [run.job_key for run in JobRun.objects.all()] == [KEY]
        assert not state(shared, "old").paused

    def test_what_is_declared_here_is_not_gone(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob
    ) -> None:
        registry.schedule("* * * * *", print, key="old")
        assert operations.gone_jobs(self.DAY, backend=shared, registry=registry) == []

    def test_what_a_replica_of_another_version_has_declared_lately_is_kept(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob
    ) -> None:
        [found] = operations.gone_jobs(timedelta(days=3), backend=shared, registry=registry)
        assert found.kept == "a replica has declared it in the last 3 days"
        DatabaseHistory(keep=5, inline=True).declared([job("old")])
        [found] = operations.gone_jobs(timedelta(seconds=1), backend=shared, registry=registry)
        assert found.kept == "a replica has declared it in the last 3 minutes"
        with pytest.raises(Refused, match="old is not deleted: a replica"):
            operations.prune(found, backend=shared, registry=registry)

    def test_what_somebody_runs_or_decides_is_kept_though_its_row_is_old(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob
    ) -> None:
        shared.resume("old")
        since = declare(shared, "old")
        while shared.time() < since + 3:
            pass
        shared.claim([Claim("old", since + 1, "t", 1, TTL)], "host:1:a")
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        assert found.kept == "somebody holds its lease, or died with it"
        shared.force_release("old")
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        assert found.kept == "a replica has decided an occurrence of it in the last 1440 minutes"

    def test_what_the_store_fails_on_is_kept(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob, redis_client: Any, prefix: str
    ) -> None:
        redis_client.delete(f"{{{prefix}}}:job:old")
        redis_client.lpush(f"{{{prefix}}}:job:old", "no hash")
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        assert found.kept == "the lock store fails on it"

    def test_what_is_declared_meanwhile_is_left_alone(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob
    ) -> None:
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        DatabaseHistory(keep=5, inline=True).declared([job("old")])
        assert not operations.prune(found, backend=shared, registry=registry)
        assert DeclaredJob.objects.exists()
        assert JobRun.objects.filter(job_key="old").count() == 2

    def test_where_the_store_fails_the_row_stays_to_be_pruned_again(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        monkeypatch.setattr(shared, "forget", fail)
        with pytest.raises(BackendError):
            operations.prune(found, backend=shared, registry=registry)
        assert DeclaredJob.objects.exists()

    def test_many_runs_are_deleted_some_at_a_time(
        self, registry: JobRegistry, shared: LockBackend, gone: DeclaredJob
    ) -> None:
        JobRun.objects.bulk_create([JobRun(run_id=f"r{number}", job_key="old") for number in range(1_200)])
        [found] = operations.gone_jobs(self.DAY, backend=shared, registry=registry)
        assert operations.prune(found, backend=shared, registry=registry)
        assert not JobRun.objects.filter(job_key="old").exists()

    def test_for_the_single_instance_store_the_rows_alone_are_deleted(
        self, registry: JobRegistry, local: LocalBackend, gone: DeclaredJob, caplog: pytest.LogCaptureFixture
    ) -> None:
        [found] = operations.gone_jobs(self.DAY, backend=local, registry=registry)
        with caplog.at_level(logging.WARNING):
            assert operations.prune(found, backend=local, registry=registry)
        assert not DeclaredJob.objects.exists()
        assert [record.getMessage() for record in caplog.records] == [
            "old is no longer declared, and is forgotten with its 2 runs."
        ]
