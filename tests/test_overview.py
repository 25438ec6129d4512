"""What is known of all jobs: from the code, the database, and live from the lock store."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from datetime import timedelta, timezone
from typing import Any

import pytest
from django.db import OperationalError, connection, connections
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_cronductor import overview as module
from django_cronductor.backends import create_backend
from django_cronductor.backends.base import Claim, Declaration, Lease, LockBackend, Release
from django_cronductor.backends.local import LocalBackend
from django_cronductor.backends.redis import RedisBackend
from django_cronductor.exceptions import BackendError, ConfigurationError
from django_cronductor.history import DatabaseHistory
from django_cronductor.instants import as_stored
from django_cronductor.jobs import JobRegistry
from django_cronductor.models import DeclaredJob, JobRun
from django_cronductor.overview import JobView, Overview, get_overview
from tests.history_records import MINUTE, NOON, SLOT, finish, job, run, skip

pytestmark = pytest.mark.django_db

TTL = 30_000
LOCAL = "django_cronductor.backends.local.LocalBackend"


@pytest.fixture(autouse=True)
def _settings(prefix: str) -> Iterator[None]:
    with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
        yield


@pytest.fixture
def registry() -> JobRegistry:
    registry = JobRegistry()
    registry.schedule("30 2 * * *", print, key="shop.sync", timezone="Europe/Berlin")
    return registry


@pytest.fixture
def backend() -> Iterator[LockBackend]:
    backend = create_backend()
    yield backend
    backend.close()


@pytest.fixture
def history() -> DatabaseHistory:
    return DatabaseHistory(keep=5, inline=True)


def declare(backend: LockBackend, key: str = "shop.sync", ttl: int = TTL) -> int:
    [since] = backend.declare([Declaration(key, "v1", ttl)]).answers
    assert isinstance(since, int)
    return since


def start_run(backend: LockBackend, key: str = "shop.sync", ttl: int = TTL, holder: str = "host:1:a") -> Lease:
    """Let somebody take the lease."""
    declare(backend, key, ttl)
    answer = backend.take_request(key, "token", ttl, holder, unasked=True)
    assert answer.verdict == "won"
    return Lease(key, "token", answer.fence, ttl, holder, "manual")


def only(overview: Overview) -> JobView:
    [view] = overview.jobs
    return view


class Down(LocalBackend):
    """A shared store that does not answer."""

    shared = True

    def states(self, keys: Any) -> Any:
        raise BackendError("the line is cut")


class TestJobs:
    def test_those_of_the_code_and_of_the_database_are_listed_by_key(
        self, registry: JobRegistry, history: DatabaseHistory
    ) -> None:
        history.declared([job("shop.sync"), job("shop.gone"), job("a.gone")])
        registry.schedule("* * * * *", print, key="b.new")
        views = get_overview(registry=registry).jobs
        assert [(view.key, view.job is None, view.row is None) for view in views] == [
            ("a.gone", True, False),
            ("b.new", False, True),
            ("shop.gone", True, False),
            ("shop.sync", False, False),
        ]

    def test_only_those_asked_for_are_listed(self, registry: JobRegistry, history: DatabaseHistory) -> None:
        history.declared([job("shop.gone"), job("a.gone")])
        registry.schedule("* * * * *", print, key="b.new")
        views = get_overview(["shop.sync", "a.gone", "nobody's"], registry=registry).jobs
        assert [view.key for view in views] == ["a.gone", "shop.sync"]

    def test_the_next_run_is_in_utc_by_the_stores_clock(self, registry: JobRegistry) -> None:
        overview = get_overview(registry=registry)
        view = only(overview)
        assert view.next_run is not None
        assert view.schedule is not None
        assert view.next_run.tzinfo is timezone.utc
        assert view.next_run == view.schedule.next_after(overview.now)

    def test_one_that_runs_nowhere_has_no_next_run(self, history: DatabaseHistory) -> None:
        history.declared([job()])
        view = only(get_overview(registry=JobRegistry()))
        assert (view.status, view.next_run, view.schedule) == ("gone", None, None)

    def test_a_job_without_a_zone_has_that_of_the_settings(self, prefix: str) -> None:
        registry = JobRegistry()
        registry.schedule("* * * * *", print, key="job")
        with override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "TIMEZONE": "Asia/Tokyo"}):
            schedule = only(get_overview(registry=registry)).schedule
        assert schedule is not None
        assert schedule.timezone == "Asia/Tokyo"

    def test_a_wrong_setting_is_named(self, registry: JobRegistry) -> None:
        with override_settings(CRONDUCTOR={"MAX_WORKERS": 0}), pytest.raises(ConfigurationError, match="MAX_WORKERS"):
            get_overview(registry=registry)


class TestStatus:
    def test_a_job_that_never_ran_is_idle(self, registry: JobRegistry) -> None:
        view = only(get_overview(registry=registry))
        assert (view.status, view.holder, view.last_run, view.last_success) == ("idle", None, None, None)

    def test_a_job_that_runs_names_its_holder_and_what_its_lease_has_left(
        self, registry: JobRegistry, backend: LockBackend
    ) -> None:
        lease = start_run(backend)
        overview = get_overview(registry=registry)
        view = only(overview)
        assert view.status == "running"
        assert view.live
        holder = view.holder
        assert holder is not None
        assert (holder.instance, holder.fencing_token, holder.live, holder.ended) == (
            "host:1:a",
            lease.fence,
            True,
            None,
        )
        assert holder.since is not None
        assert holder.left is not None
        assert holder.since.timestamp() + TTL / 1000 == pytest.approx(overview.now.timestamp() + holder.left)

    def test_a_lease_that_has_ended_is_of_a_dead_holder(self, registry: JobRegistry, backend: LockBackend) -> None:
        start_run(backend, ttl=1)
        until_store_passes(backend, 5)
        view = only(get_overview(registry=registry))
        assert view.status == "dead"
        assert view.holder is not None
        assert (view.holder.left, view.holder.live, view.holder.ended) == (0.0, False, None)

    def test_an_idle_job_names_who_held_the_lease_last_and_how_that_ended(
        self, registry: JobRegistry, backend: LockBackend
    ) -> None:
        lease = start_run(backend)
        backend.release([Release(lease, "failed")])
        view = only(get_overview(registry=registry))
        holder = view.holder
        assert view.status == "idle"
        assert holder is not None
        assert (holder.instance, holder.outcome, holder.left) == ("host:1:a", "failed", None)
        assert holder.ended is not None
        assert holder.since is not None
        assert holder.since <= holder.ended

    def test_a_pause_is_as_the_store_has_it(
        self, registry: JobRegistry, backend: LockBackend, history: DatabaseHistory
    ) -> None:
        history.declared([job()])
        DeclaredJob.objects.update(paused_at=NOON)
        declare(backend)
        assert only(get_overview(registry=registry)).status == "idle"
        backend.pause("shop.sync")
        assert only(get_overview(registry=registry)).status == "paused"

    def test_a_pause_is_as_the_database_has_it_where_the_store_knows_nothing(
        self, registry: JobRegistry, history: DatabaseHistory
    ) -> None:
        history.declared([job()])
        DeclaredJob.objects.update(paused_at=NOON)
        assert only(get_overview(registry=registry)).status == "paused"

    def test_a_pause_of_a_job_that_nobody_has_declared_yet_is_as_the_store_has_it(
        self, registry: JobRegistry, backend: LockBackend
    ) -> None:
        backend.pause("shop.sync")
        assert only(get_overview(registry=registry)).status == "paused"
        backend.resume("shop.sync")
        assert only(get_overview(registry=registry)).status == "idle"

    def test_a_disabled_job_is_shown_as_such_with_when_it_would_run(self) -> None:
        registry = JobRegistry()
        registry.schedule("* * * * *", print, key="job", enabled=False)
        view = only(get_overview(registry=registry))
        assert view.status == "disabled"
        assert view.next_run is not None

    def test_what_runs_is_shown_as_running_though_it_is_paused_disabled_or_gone(self, backend: LockBackend) -> None:
        registry = JobRegistry()
        registry.schedule("* * * * *", print, key="job", enabled=False)
        start_run(backend, "job")
        backend.pause("job")
        view = only(get_overview(registry=registry))
        assert (view.status, view.paused) == ("running", True)

    def test_a_request_is_shown_until_it_is_taken(self, registry: JobRegistry, backend: LockBackend) -> None:
        declare(backend)
        backend.request_run("shop.sync")
        assert only(get_overview(registry=registry)).requested_at is not None
        backend.take_request("shop.sync", "token", TTL, "host:1:a")
        assert only(get_overview(registry=registry)).requested_at is None


def until_store_passes(backend: LockBackend, milliseconds: int) -> None:
    end, deadline = backend.time() + milliseconds, time.monotonic() + 10
    while backend.time() < end:
        assert time.monotonic() < deadline


class TestRuns:
    def test_the_newest_run_the_newest_success_and_what_goes_on_are_shown(
        self, registry: JobRegistry, history: DatabaseHistory
    ) -> None:
        history.declared([job()])
        for number, outcome in enumerate(["succeeded", "failed", "lost"]):
            history.begun(run(number), lambda ours: None)
            finish(history, run(number), outcome)
        history.skipped(skip(3))
        view = only(get_overview(registry=registry))
        assert view.last_run is not None
        assert (view.last_run.slot, view.last_run.outcome) == (SLOT + 2 * MINUTE, "lost")
        assert view.last_success is not None
        assert view.last_success.slot == SLOT
        assert view.running is None
        history.begun(run(4), lambda ours: None)
        view = only(get_overview(registry=registry))
        assert view.running is not None
        assert view.running == view.last_run

    @pytest.mark.parametrize("newest", ["succeeded", "enqueued"])
    def test_a_run_that_was_enqueued_is_a_success(
        self, registry: JobRegistry, history: DatabaseHistory, newest: str
    ) -> None:
        history.declared([job()])
        for number, outcome in enumerate([*({"succeeded", "enqueued"} - {newest}), newest]):
            history.begun(run(number), lambda ours: None)
            finish(history, run(number), outcome)
        success = only(get_overview(registry=registry)).last_success
        assert success is not None
        assert success.outcome == newest

    @pytest.mark.parametrize("outcome", ["condition", "missed"])
    def test_an_occurrence_that_was_not_run_is_no_run(
        self, registry: JobRegistry, history: DatabaseHistory, outcome: str
    ) -> None:
        history.declared([job()])
        history.skipped(skip())
        history.begun(run(1), lambda ours: None)
        finish(history, run(1), outcome)
        view = only(get_overview(registry=registry))
        assert (view.last_run, view.last_success) == (None, None)

    def test_runs_are_told_apart_by_job(self, history: DatabaseHistory) -> None:
        history.declared([job("a"), job("A")])
        for number, key in enumerate(["a", "A"]):
            history.begun(run(number, key=key), lambda ours: None)
        views = get_overview(registry=JobRegistry()).jobs
        assert [(view.key, view.running and view.running.job_key) for view in views] == [("A", "A"), ("a", "a")]


class TestWhereSomethingIsMissing:
    def test_without_the_store_holders_are_as_the_history_has_them(
        self, registry: JobRegistry, history: DatabaseHistory
    ) -> None:
        history.declared([job()])
        history.begun(run(), lambda ours: None)
        overview = get_overview(registry=registry, backend=Down())
        view = only(overview)
        assert overview.store_error == "the line is cut"
        assert overview.instances is None
        assert (view.status, view.live, view.state) == ("running", False, None)
        assert view.holder is not None
        assert (view.holder.instance, view.holder.left, view.holder.fencing_token) == ("host:1:a", None, 7)
        finish(history, run())
        view = only(get_overview(registry=registry, backend=Down()))
        assert view.status == "idle"
        assert view.holder is not None
        assert (view.holder.outcome, view.holder.ended) == ("succeeded", NOON + timedelta(seconds=1.503))

    def test_a_store_that_cannot_be_made_is_named(self, registry: JobRegistry) -> None:
        with override_settings(CRONDUCTOR={"BACKEND": "no.such.Backend"}):
            overview = get_overview(registry=registry)
        assert overview.store_error is not None
        assert "no.such.Backend" in overview.store_error
        assert (only(overview).status, overview.backend) == ("idle", "")

    def test_no_password_of_the_store_is_shown(self, registry: JobRegistry, prefix: str) -> None:
        url = "redis://:sesame-open@127.0.0.1:1/0"
        caches = {"locks": {"BACKEND": "django.core.cache.backends.redis.RedisCache", "LOCATION": url}}
        caches["default"] = caches["locks"]
        with override_settings(CACHES=caches, CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix}):
            overview = get_overview(registry=registry)
        assert overview.store_error is not None
        assert "sesame" not in f"{overview.store_error} {overview.backend}"

    def test_a_job_on_which_the_store_fails_says_so_alone(
        self, registry: JobRegistry, backend: LockBackend, redis_client: Any, prefix: str
    ) -> None:
        registry.schedule("* * * * *", print, key="bad")
        redis_client.lpush(f"{{{prefix}}}:job:bad", "no hash")
        bad, good = get_overview(registry=registry).jobs
        assert bad.state_error is not None
        assert "WRONGTYPE" in bad.state_error
        assert (bad.live, good.live, good.state_error) == (False, True, None)

    def test_without_the_database_the_store_is_shown(
        self, registry: JobRegistry, backend: LockBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        start_run(backend)

        def fail(*args: Any) -> Any:
            raise OperationalError("no database at postgres://user:sesame-open@host")

        monkeypatch.setattr(module, "_rows", fail)
        overview = get_overview(registry=registry)
        assert overview.database_error is not None
        assert "no database" in overview.database_error
        assert "sesame" not in overview.database_error
        assert only(overview).status == "running"

    def test_tables_that_are_missing_are_said(self, registry: JobRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(DeclaredJob._meta, "db_table", "not_there")
        with connection.execute_wrapper(lambda *args: (_ for _ in ()).throw(OperationalError("no such table"))):
            overview = get_overview(registry=registry)
        assert overview.database_error == "The database cannot be read: no such table"

    def test_without_a_history_no_database_is_asked(self, registry: JobRegistry, prefix: str) -> None:
        with (
            override_settings(CRONDUCTOR={"CACHE": "locks", "PREFIX": prefix, "HISTORY": 0}),
            CaptureQueriesContext(connection) as queries,
        ):
            overview = get_overview(registry=registry)
        assert not overview.history
        assert len(queries) == 0
        assert only(overview).key == "shop.sync"

    def test_the_single_instance_store_is_not_asked_for_what_is_in_another_process(
        self, registry: JobRegistry, history: DatabaseHistory, prefix: str
    ) -> None:
        history.declared([job()])
        history.begun(run(), lambda ours: None)
        DeclaredJob.objects.update(run_requested_at=NOON)
        with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}):
            overview = get_overview(registry=registry)
        view = only(overview)
        assert (overview.shared, overview.instances, overview.store_error) == (False, None, None)
        assert (view.status, view.live, view.requested_at) == ("running", False, NOON)

    def test_a_database_that_hangs_is_waited_for_no_longer_than_said(
        self, registry: JobRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        gate = threading.Event()

        def hang(*args: Any) -> Any:
            gate.wait(20)
            return module._Records()

        monkeypatch.setattr(module, "_read_database", hang)
        overview = get_overview(registry=registry, database_wait=0.05)
        gate.set()
        assert overview.database_error == "The database cannot be read: it has not answered for 0.05 s."

    def test_what_else_goes_wrong_in_the_waiting_thread_is_raised_here(
        self, registry: JobRegistry, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*args: Any) -> Any:
            raise ZeroDivisionError

        monkeypatch.setattr(module, "_read_database", fail)
        with pytest.raises(ZeroDivisionError):
            get_overview(registry=registry, database_wait=5)


@pytest.mark.django_db(transaction=True)
def test_a_database_that_is_asked_in_a_thread_answers_and_is_left_without_a_connection(
    registry: JobRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    DatabaseHistory(keep=5, inline=True).declared([job()])
    closed, close_all = [], connections.close_all

    def close() -> None:
        closed.append(threading.current_thread().name)
        close_all()

    monkeypatch.setattr(connections, "close_all", close)
    overview = get_overview(registry=registry, database_wait=20)
    assert only(overview).row is not None
    assert closed == ["cronductor-asking"]


class TestReplicas:
    def test_those_alive_are_listed_with_their_last_heartbeats(
        self, registry: JobRegistry, backend: LockBackend
    ) -> None:
        backend.heartbeat("host:1:a")
        overview = get_overview(registry=registry)
        assert overview.instances is not None
        assert list(overview.instances) == ["host:1:a"]
        assert abs(overview.instances["host:1:a"] - overview.now) < timedelta(seconds=10)

    def test_the_time_is_the_stores(self, registry: JobRegistry, backend: LockBackend) -> None:
        before = backend.time()
        now = get_overview(registry=registry).now.timestamp() * 1000
        assert before <= round(now) <= backend.time()

    def test_a_backend_that_is_handed_over_stays_open(self, registry: JobRegistry, backend: LockBackend) -> None:
        closed = []
        backend.close = lambda: closed.append(1)  # type: ignore[method-assign,assignment,func-returns-value]
        get_overview(registry=registry, backend=backend)
        assert closed == []

    def test_where_nothing_is_declared_the_replicas_are_shown(self, backend: LockBackend) -> None:
        backend.heartbeat("host:1:a")
        overview = get_overview(registry=JobRegistry())
        assert overview.jobs == []
        assert list(overview.instances or {}) == ["host:1:a"]


@override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin")
def test_naive_times_of_the_database_are_shown_as_the_instants_they_are(prefix: str) -> None:
    history = DatabaseHistory(keep=5, inline=True)
    history.declared([job()])
    history.begun(run(), lambda ours: None)
    finish(history, run())
    DeclaredJob.objects.update(run_requested_at=as_stored(NOON))
    with override_settings(CRONDUCTOR={"BACKEND": LOCAL, "PREFIX": prefix}):
        view = only(get_overview(registry=JobRegistry()))
    assert view.holder is not None
    assert view.holder.ended == NOON + timedelta(seconds=1.503)
    assert view.requested_at == NOON


class TestManyJobs:
    COUNT = 1_000

    @pytest.fixture
    def many(self, backend: LockBackend, history: DatabaseHistory) -> JobRegistry:
        registry = JobRegistry()
        keys = [f"app{number % 20}.job{number}" for number in range(self.COUNT)]
        for number, key in enumerate(keys):
            registry.schedule(f"{number % 60} {number % 24} * * *", print, key=key, timezone="Europe/Berlin")
        history.declared([job(key) for key in keys])
        backend.declare([Declaration(key, "v1", TTL) for key in keys])
        rows = [
            JobRun(run_id=f"{key}-{number}", job_key=key, slot=SLOT + number, outcome="succeeded", finished_at=NOON)
            for key in keys
            for number in range(20)
        ]
        JobRun.objects.bulk_create(rows, batch_size=5_000)
        return registry

    def test_they_are_read_with_one_call_of_the_store(
        self, many: JobRegistry, backend: LockBackend, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []
        send = RedisBackend._call

        def counted(self: RedisBackend, *args: Any, **kwargs: Any) -> Any:
            calls.append("call")
            return send(self, *args, **kwargs)

        monkeypatch.setattr(RedisBackend, "_call", counted)
        overview = get_overview(registry=many, backend=backend)
        assert len(calls) == 1
        assert len(overview.jobs) == self.COUNT
        assert all(view.last_success is not None and view.live for view in overview.jobs)

    def test_they_take_as_many_queries_as_a_few(self, many: JobRegistry, backend: LockBackend) -> None:
        with CaptureQueriesContext(connection) as few:
            get_overview(["app0.job0", "app1.job1"], registry=many, backend=backend)
        with CaptureQueriesContext(connection) as all_of_them:
            get_overview(registry=many, backend=backend)
        most = connection.features.max_query_params or module.ROWS_PER_QUERY
        assert len(few) == 2
        assert len(all_of_them) == 1 + -(-self.COUNT // most)

    def test_every_subquery_is_a_step_in_an_index(self, many: JobRegistry) -> None:
        if connection.vendor != "sqlite":
            plan = module._rows(None).explain()
            assert plan
            return
        plan = module._rows(None).explain()
        searches = [line for line in plan.splitlines() if "SEARCH" in line]
        assert len(searches) == 4
        assert sum("cronductor_runs_of_job_by_end" in line for line in searches) == 3
        assert not any("TEMP B-TREE" in line and "RIGHT PART" not in line for line in plan.splitlines()[1:])


def test_a_claim_that_is_decided_shows_in_the_state(registry: JobRegistry, backend: LockBackend) -> None:
    since = declare(backend)
    until_store_passes(backend, 3)
    backend.claim([Claim("shop.sync", since + 1, "t", TTL, 60_000)], "host:1:a")
    state = only(get_overview(registry=registry)).state
    assert state is not None
    assert state.occurrence == since + 1
