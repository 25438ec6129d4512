"""The recipes of docs/telling.rst: the code that stands there is what runs here."""

from __future__ import annotations

import importlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from email import message_from_bytes
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from textwrap import dedent
from types import ModuleType
from typing import Any

import pytest
from docutils import nodes
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from django_cronductor.exceptions import Stopping
from django_cronductor.runner import RunContext
from tests.scheduler_world import DEADLINE, SIGNALS, LocalStore, World, at, end_runs, start_runs
from tests.test_docs_pages import files, parse
from tests.test_readme import ROOT

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a directory with the files of the page."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    for name, text in files("telling.rst").items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def load(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Import modules of the page; what they connect to signals goes with the test."""
    monkeypatch.syspath_prepend(str(project))
    before = {name: list(signal.receivers) for name, signal in SIGNALS.items()}
    yield importlib.import_module
    for name, signal in SIGNALS.items():
        signal.receivers = before[name]
        signal.sender_receivers_cache.clear()
    for name in [name for name in sys.modules if name.partition(".")[0] == "shop"]:
        del sys.modules[name]


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline


def fail(context: RunContext) -> None:
    raise ValueError("no such user")


def leave(context: RunContext) -> None:
    raise Stopping("the process is shutting down")


def run(world: World) -> None:
    """Let the jobs run that are declared with five stars."""
    world.replica()
    world.tick()
    world.go(at(12, 1))


# The table of records.


def let_runs_end(world: World) -> None:
    world.job("* * * * *", key="good")
    world.job("* * * * *", key="bad", body=fail)
    world.job("* * * * *", key="picky", when=lambda context: False)
    world.job("* * * * *", key="leaving", body=leave)
    run(world)


def let_occurrences_pass(world: World) -> None:
    world.job("* * * * *", key="late", grace=30)
    world.job("* * * * *", key="resting")
    world.replica()
    world.tick()
    world.backend.pause("resting")
    world.until(at(12, 3, 40))
    world.tick()


def let_a_run_last(world: World) -> None:
    world.slow_job("* * * * *", timeout=10)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica)
    world.go(at(12, 2, 5))
    end_runs(world, replica)


def let_a_replica_die(world: World) -> None:
    world.slow_job("* * * * *", ttl=10)
    dead, survivor = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, dead)
    world.go(at(12, 1, 30), survivor)
    end_runs(world, dead)


def let_the_store_fail(world: World) -> None:
    world.job("* * * * *")
    replica = world.replica()
    world.tick()
    replica.link.broken = {"all"}
    world.go(at(12, 1))
    replica.link.broken = set()
    world.go(at(12, 1, 10))


@pytest.mark.parametrize(
    ("events", "outcomes"),
    [
        (let_runs_end, {"succeeded", "failed", "condition", "interrupted"}),
        (let_occurrences_pass, {"missed", "paused"}),
        (let_a_run_last, {"timed out", "held"}),
        (let_a_replica_die, {"abandoned", "lost", ""}),
        (let_the_store_fail, {""}),
    ],
)
def test_the_table_tells_the_level_and_outcome_of_every_record(
    world: World, caplog: pytest.LogCaptureFixture, events: Callable[[World], None], outcomes: set[str]
) -> None:
    caplog.set_level(logging.INFO, "django_cronductor")
    events(world)
    told = {
        (record.levelname, getattr(record, "outcome", None) or "")
        for record in caplog.records
        if record.name.startswith("django_cronductor")
    }
    assert outcomes <= {outcome for _, outcome in told}
    [table] = [node for node in parse("telling.rst").findall(nodes.table) if "events" in node["classes"]]
    rows = [[entry.astext() for entry in row.children] for row in next(iter(table.findall(nodes.tbody))).children]
    assert told <= {(level, outcome) for level, outcome, _ in rows}


# The settings: in a process of its own, which they set up.

DRIVER = """
    import django

    django.setup()
    from tests.scheduler_world import World, at

    world = World()

    def fail(context):
        raise ValueError("no such user")

    world.job("* * * * *", key="shop.sync")
    world.job("* * * * *", key="shop.bad", body=fail)
    world.replica()
    world.tick()
    world.go(at(12, 3))
    world.close()
"""

MAIL_SETTINGS = """
    import django

    DEBUG = False
    if django.VERSION >= (6, 1):
        MAILERS = {{
            "default": {{
                "BACKEND": "django.core.mail.backends.filebased.EmailBackend", "OPTIONS": {{"file_path": {mails!r}}}
            }}
        }}
    else:
        EMAIL_BACKEND = "django.core.mail.backends.filebased.EmailBackend"
        EMAIL_FILE_PATH = {mails!r}
    if django.VERSION >= (6, 0):
        ADMINS = ["ops@example.com"]
    else:
        ADMINS = [("Ops", "ops@example.com")]
"""


@pytest.fixture
def told(project: Path) -> tuple[list[dict[str, Any]], list[Any]]:
    """Return the lines of the log, read as JSON, and the mails, of a process that ran jobs."""
    mails = project / "mails"
    settings = (project / "settings.py").read_text()
    around = "from tests.settings import *\n" + dedent(MAIL_SETTINGS.format(mails=str(mails)))
    (project / "settings.py").write_text(around + settings)
    (project / "driver.py").write_text(dedent(DRIVER))
    done = subprocess.run(
        [sys.executable, "-W", "error", "driver.py"],
        cwd=project,
        env={"PYTHONPATH": str(ROOT), "DJANGO_SETTINGS_MODULE": "settings", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    # The file backend parts the mails of a file by lines of dashes.
    texts = [text for path in sorted(mails.glob("*.log")) for text in path.read_bytes().split(b"-" * 79 + b"\n")]
    return lines, [message_from_bytes(text) for text in texts if text.strip()]


def test_every_line_of_the_log_is_json_with_the_fields(told: tuple[list[dict[str, Any]], list[Any]]) -> None:
    lines, _ = told
    ended = [line for line in lines if line.get("outcome") == "succeeded"]
    assert len(ended) == 3
    assert ended[0]["message"].startswith("shop.sync for 2026-01-05 12:01:00+00:00 succeeded after")
    assert ended[0]["job"] == "shop.sync"
    assert ended[0]["scheduled_at"] == "2026-01-05 12:01:00+00:00"
    assert ended[0]["level"] == "INFO"
    assert isinstance(ended[0]["fencing_token"], int)
    assert {"time", "logger", "instance", "duration", "lateness"} <= ended[0].keys()
    failed = [line for line in lines if line["level"] == "ERROR"]
    assert [line["outcome"] for line in failed] == ["failed"] * 3
    assert failed[0]["traceback"].endswith("ValueError: no such user")


def test_admins_get_one_mail_of_a_job_that_fails_again_and_again(
    told: tuple[list[dict[str, Any]], list[Any]],
) -> None:
    _, mails = told
    [mail] = mails
    assert mail["To"] == "ops@example.com"
    assert "ERROR: shop.bad for 2026-01-05 12:01:00+00:00 failed after" in mail["Subject"].replace("\n", "")
    assert "no such user" in mail.get_payload(decode=True).decode()


def test_mails_go_again_after_the_pause_and_hold_nobody_up(
    load: Callable[[str], ModuleType], monkeypatch: pytest.MonkeyPatch
) -> None:
    mails = load("shop.mails")
    gate, sent = threading.Event(), []

    def send(self: object, subject: str, *args: Any, **kwargs: Any) -> None:
        gate.wait(DEADLINE)
        sent.append(subject)

    monkeypatch.setattr(mails.AdminEmailHandler, "send_mail", send)
    moments = iter([0.0, 10.0, 20.0, 3600.0])
    monkeypatch.setattr(mails.time, "monotonic", lambda: next(moments))
    handler = mails.JobMails()
    for job in ("a", "a", "b", "a"):
        record = logging.makeLogRecord({"levelname": "ERROR", "msg": job, "job": job})
        handler.handle(record)
    assert sent == []
    monkeypatch.undo()
    gate.set()
    wait_until(lambda: len(sent) == 3)
    assert sorted(sent) == ["ERROR: a", "ERROR: a", "ERROR: b"]


# Pings.


class Service:
    """Notes the pings it gets; it may not answer."""

    def __init__(self) -> None:
        self.pings: list[tuple[str, str]] = []
        self.silent = threading.Event()
        self.close = threading.Event()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"])).decode()
                service.pings.append((self.path, body))
                if service.silent.is_set():
                    service.close.wait(DEADLINE)
                    return
                self.send_response(200)
                self.end_headers()

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def stop(self) -> None:
        self.close.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join(DEADLINE)


@pytest.fixture
def service() -> Iterator[Service]:
    service = Service()
    yield service
    service.stop()


@pytest.fixture
def pings(load: Callable[[str], ModuleType], service: Service) -> Iterator[ModuleType]:
    module = load("shop.pings")
    module.PINGS = {key: f"{service.url}/{key}" for key in ("good", "bad", "async", "dying")}
    yield module
    service.close.set()
    module.pool.shutdown()


def test_start_success_and_failure_are_pinged_in_order(world: World, pings: ModuleType, service: Service) -> None:
    async def work() -> None: ...

    world.job("* * * * *", key="good")
    world.job("* * * * *", key="bad", body=fail)
    world.job("* * * * *", key="unwatched")
    world.registry.schedule("* * * * *", work, key="async")
    run(world)
    wait_until(lambda: len(service.pings) == 6)
    assert {
        key: [ping for ping in service.pings if ping[0].startswith(f"/{key}")] for key in ("good", "bad", "async")
    } == {
        "good": [("/good/start", ""), ("/good", "succeeded after 0.0 s")],
        "bad": [("/bad/start", ""), ("/bad/fail", "failed after 0.0 s")],
        "async": [("/async/start", ""), ("/async", "succeeded after 0.0 s")],
    }


def test_a_dead_run_is_pinged_as_a_failure_by_the_replica_that_reports_it(
    world: World, pings: ModuleType, service: Service
) -> None:
    world.slow_job("* * * * *", key="dying", ttl=10)
    dead, survivor = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, dead)
    world.go(at(12, 1, 30), survivor)
    wait_until(lambda: len(service.pings) == 2)
    assert service.pings == [("/dying/start", ""), ("/dying/fail", "abandoned by replica-1")]


def test_a_service_that_does_not_answer_holds_no_job_up(world: World, pings: ModuleType, service: Service) -> None:
    service.silent.set()
    world.job("* * * * *", key="good")
    before = time.monotonic()
    run(world)
    assert world.outcomes() == ["succeeded"]
    assert time.monotonic() - before < 5


def test_a_ping_that_fails_is_logged_without_its_secret_address(
    world: World, pings: ModuleType, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    service.stop()
    pings.PINGS = {"good": f"{service.url}/secret"}
    world.job("* * * * *", key="good")
    run(world)
    wait_until(lambda: len([record for record in caplog.records if record.name == "shop.pings"]) == 2)
    told = [record.getMessage() for record in caplog.records if record.name == "shop.pings"]
    assert told[0].startswith("good: the ping/start did not get through: ")
    assert "secret" not in "".join(told)


# Traces.


@pytest.fixture(scope="module")
def exporter() -> InMemorySpanExporter:
    """Return what keeps the spans: a process has one provider."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    trace.set_tracer_provider(provider)
    return exporter


@pytest.fixture
def spans(exporter: InMemorySpanExporter, load: Callable[[str], ModuleType]) -> Callable[[], list[ReadableSpan]]:
    exporter.clear()
    load("shop.traces")
    return lambda: list(exporter.get_finished_spans())


def test_a_span_surrounds_each_run_and_what_the_job_traces(
    world: World, spans: Callable[[], list[ReadableSpan]]
) -> None:
    tracer = trace.get_tracer("shop.work")

    def work(context: RunContext) -> None:
        with tracer.start_as_current_span("query"):
            world.clock.advance(1.0)

    async def async_work() -> None:
        with tracer.start_as_current_span("await"):
            pass

    world.job("* * * * *", key="shop.sync", body=work)
    world.registry.schedule("* * * * *", async_work, key="shop.async")
    run(world)
    by_name = {span.name: span for span in spans()}
    assert by_name.keys() == {"cron shop.sync", "query", "cron shop.async", "await"}
    for inner, outer in (("query", "cron shop.sync"), ("await", "cron shop.async")):
        parent, context = by_name[inner].parent, by_name[outer].context
        assert parent is not None
        assert context is not None
        assert parent.span_id == context.span_id
        assert by_name[outer].parent is None
    attributes = dict(by_name["cron shop.sync"].attributes or {})
    assert attributes["cronductor.scheduled_at"] == "2026-01-05T12:01:00+00:00"
    assert attributes["cronductor.outcome"] == "succeeded"
    assert not trace.get_current_span().get_span_context().is_valid


def test_the_span_of_a_run_that_fails_has_its_error(world: World, spans: Callable[[], list[ReadableSpan]]) -> None:
    world.job("* * * * *", key="shop.bad", body=fail)
    world.job("* * * * *", key="shop.never", when=fail)
    run(world)
    [span] = spans()
    assert span.status.status_code is trace.StatusCode.ERROR
    assert span.status.description == "failed"
    [event] = span.events
    assert (event.attributes or {})["exception.message"] == "no such user"
