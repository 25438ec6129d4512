"""The metrics of a process, as Prometheus reads them."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
import typing
import urllib.request
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from typing import Any

import pytest
from django.core.management import CommandError
from docutils import nodes
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from django_cronductor import contrib
from django_cronductor.contrib import prometheus
from django_cronductor.contrib.prometheus import Metrics
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.jobs import JobRegistry
from django_cronductor.management.commands.runcron import Command
from django_cronductor.models import JobRun
from django_cronductor.runner import Outcome, RunContext
from tests.scheduler_world import DEADLINE, LocalStore, Replica, World, at, end_runs, start_runs
from tests.test_imports import SOURCES, foreign_imports
from tests.test_readme import ROOT, parse
from tests.test_runcron import Called, StoppingJob, in_memory, on_redis, registry, stopping

__all__ = ("in_memory", "on_redis", "registry", "stopping")

METRICS = parse(ROOT / "docs" / "metrics.rst")

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


class Scrapes:
    """Metrics in a registry of their own."""

    def __init__(self, replica: Replica) -> None:
        self.registry = CollectorRegistry()
        self.metrics = Metrics(replica)
        self.registry.register(self.metrics)

    def value(self, name: str, job: str = "job", **labels: str) -> float | None:
        return self.registry.get_sample_value(f"cronductor_{name}", {"job_key": job, **labels})

    def jobs(self) -> set[str]:
        text = generate_latest(self.registry).decode()
        samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
        return {sample.labels["job_key"] for sample in samples if "job_key" in sample.labels}


@pytest.fixture
def scrapes(world: World) -> Iterator[Scrapes]:
    scrapes = Scrapes(world.replica())
    yield scrapes
    scrapes.metrics.close()


def run(world: World) -> None:
    """Let the jobs run that are declared with five stars."""
    world.tick()
    world.go(at(12, 1))


# What is counted.


def test_every_job_is_there_at_0_from_the_start(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *")
    for outcome in prometheus.OUTCOMES:
        assert scrapes.value("runs_total", outcome=outcome) == 0
    for reason in prometheus.REASONS:
        assert scrapes.value("skipped_occurrences_total", reason=reason) == 0
    names = ("lease_losses_total", "runs_in_progress", "last_success_timestamp_seconds")
    histograms = ("run_duration_seconds", "run_lateness_seconds")
    assert [scrapes.value(name) for name in names] == [0, 0, 0]
    assert [scrapes.value(f"{name}_{part}") for name in histograms for part in ("count", "sum")] == [0, 0, 0, 0]


def test_every_outcome_of_a_run_has_its_place() -> None:
    assert set(typing.get_args(Outcome)) - {"condition", "missed"} <= set(prometheus.OUTCOMES)


def test_a_run_that_succeeded_is_counted_with_its_time(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *", body=lambda context: world.clock.advance(3.0))
    before = time.time()
    run(world)
    assert scrapes.value("runs_total", outcome="succeeded") == 1
    assert before <= (scrapes.value("last_success_timestamp_seconds") or 0) <= time.time()
    assert scrapes.value("run_duration_seconds_sum") == 3.0
    assert scrapes.value("run_duration_seconds_bucket", le="1.0") == 0
    assert scrapes.value("run_duration_seconds_bucket", le="5.0") == 1
    assert scrapes.value("run_duration_seconds_bucket", le="+Inf") == 1
    assert scrapes.value("runs_in_progress") == 0


def test_a_bucket_holds_its_upper_bound(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *", body=lambda context: world.clock.advance(5.0))
    run(world)
    assert scrapes.value("run_duration_seconds_bucket", le="5.0") == 1


def test_a_run_that_failed_is_no_success(world: World, scrapes: Scrapes) -> None:
    def fail(context: RunContext) -> None:
        raise ValueError

    world.job("* * * * *", body=fail)
    run(world)
    assert scrapes.value("runs_total", outcome="failed") == 1
    assert scrapes.value("runs_total", outcome="succeeded") == 0
    assert scrapes.value("last_success_timestamp_seconds") == 0


def test_lateness_is_by_the_clock_of_the_store(world: World) -> None:
    world.job("* * * * *")
    scrapes = Scrapes(world.replica(ahead=500.0))
    world.tick()
    world.until(at(12, 1, 4))
    world.tick()
    assert scrapes.value("run_lateness_seconds_sum") == pytest.approx(4.0)


def test_a_requested_run_is_not_late(world: World, scrapes: Scrapes) -> None:
    world.job("0 0 1 1 *")
    world.tick()
    world.backend.request_run("job")
    world.go(at(12, 0, 10))
    assert scrapes.value("runs_total", outcome="succeeded") == 1
    assert scrapes.value("run_lateness_seconds_count") == 0


def test_a_run_in_progress_is_seen(world: World) -> None:
    replica = world.replica(inline=False)
    scrapes = Scrapes(replica)
    world.slow_job("* * * * *")
    replica.tick()
    world.until(at(12, 1))
    start_runs(world, replica)
    assert scrapes.value("runs_in_progress") == 1
    assert scrapes.value("runs_total", outcome="succeeded") == 0
    end_runs(world, replica)
    assert scrapes.value("runs_in_progress") == 0


def test_missed_occurrences_are_counted_by_number(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *", grace=30)
    world.tick()
    world.until(at(12, 5, 50))
    world.tick()
    assert scrapes.value("skipped_occurrences_total", reason="missed") == 5


def test_paused_and_unwanted_occurrences_are_counted_by_reason(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *")
    world.job("* * * * *", key="picky", when=lambda context: False)
    world.tick()
    world.backend.pause("job")
    world.go(at(12, 2))
    assert scrapes.value("skipped_occurrences_total", reason="paused") == 2
    assert scrapes.value("skipped_occurrences_total", job="picky", reason="condition") == 2
    assert scrapes.value("runs_total", job="picky", outcome="succeeded") == 0


def test_a_run_that_died_elsewhere_is_counted_by_the_replica_that_reports_it(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *", ttl=10)
    [survivor] = world.replicas
    dead = world.replica(inline=False)
    world.slow_job("* * * * *", key="slow", ttl=10)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, dead, 2)
    world.go(at(12, 1, 30), survivor)
    assert scrapes.value("runs_total", job="slow", outcome="abandoned") == 1


def test_a_lost_lease_is_counted(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *", body=lambda context: world.clock.advance(45.0))
    run(world)
    world.tick()
    assert scrapes.value("lease_losses_total") == 1
    assert scrapes.value("runs_total", outcome="lost") == 1


def test_an_outage_of_the_store_is_seen_as_long_as_it_lasts(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *")
    [replica] = world.replicas
    world.tick()
    assert scrapes.registry.get_sample_value("cronductor_store_up") == 1
    replica.link.broken = {"all"}
    world.go(at(12, 1))
    assert scrapes.registry.get_sample_value("cronductor_store_up") == 0
    replica.link.broken = set()
    world.go(at(12, 1, 10))
    assert scrapes.registry.get_sample_value("cronductor_store_up") == 1


# Which jobs there are.


def test_jobs_that_are_declared_no_longer_leave_the_metrics_and_new_ones_come(world: World, scrapes: Scrapes) -> None:
    for number in range(20):
        job = world.job("* * * * *", key=f"passing-{number}")
        assert scrapes.jobs() == {job.key}
        job.destroy()
    assert scrapes.jobs() == set()
    world.job("* * * * *")
    assert scrapes.jobs() == {"job"}


def test_a_job_that_is_declared_again_keeps_its_numbers(world: World, scrapes: Scrapes) -> None:
    for _ in range(2):
        world.job("* * * * *")
        run(world)
    assert scrapes.value("runs_total", outcome="succeeded") == 1


def test_jobs_of_another_registry_are_not_counted(world: World, scrapes: Scrapes) -> None:
    other = JobRegistry()
    world.job("* * * * *", key="theirs", registry=other)
    world.job("* * * * *")
    world.replica(registry=other)
    run(world)
    assert world.ran("theirs")
    assert scrapes.jobs() == {"job"}


def test_metrics_of_two_schedulers_live_side_by_side(world: World, scrapes: Scrapes) -> None:
    other = JobRegistry()
    world.job("* * * * *", key="theirs", registry=other)
    theirs = Scrapes(world.replica(registry=other))
    world.job("* * * * *")
    run(world)
    assert scrapes.value("runs_total", outcome="succeeded") == 1
    assert theirs.value("runs_total", job="theirs", outcome="succeeded") == 1
    assert theirs.jobs() == {"theirs"}
    theirs.metrics.close()


def test_closed_metrics_count_no_more(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *")
    scrapes.metrics.close()
    run(world)
    assert world.ran()
    assert scrapes.value("runs_total", outcome="succeeded") == 0


# The last success.


def add_run(key: str, finished: datetime, outcome: str = "succeeded") -> None:
    number = JobRun.objects.count()
    JobRun.objects.create(run_id=f"run-{number}", job_key=key, slot=number, outcome=outcome, finished_at=finished)


def test_the_history_knows_when_jobs_succeeded_last(world: World) -> None:
    noon, later = datetime(2026, 1, 5, 12, tzinfo=timezone.utc), datetime(2026, 1, 5, 13, tzinfo=timezone.utc)
    add_run("job", later)
    add_run("job", noon)
    add_run("task", noon, "enqueued")
    add_run("unlucky", noon, "failed")
    assert prometheus.last_successes() == {"job": later.timestamp(), "task": noon.timestamp()}


def test_what_the_history_knows_does_not_hide_a_later_success(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *")
    run(world)
    seen = scrapes.value("last_success_timestamp_seconds")
    scrapes.metrics.learn({"job": 1_000.0, "gone": 5.0})
    assert scrapes.value("last_success_timestamp_seconds") == seen
    assert scrapes.jobs() == {"job"}
    scrapes.metrics.learn({"job": 1e12})
    assert scrapes.value("last_success_timestamp_seconds") == 1e12


# Serving them.


def wait_until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + DEADLINE
    while not condition():
        assert time.monotonic() < deadline


def fetch(address: str) -> str:
    with urllib.request.urlopen(address, timeout=DEADLINE) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=")
        return str(answer.read().decode())


def test_metrics_are_served_over_http_until_the_end(world: World) -> None:
    world.job("* * * * *")
    registry = CollectorRegistry()
    with prometheus.serving(world.replica(), "127.0.0.1", 0, history=False, registry=registry) as address:
        text = fetch(address)
        [thread] = [one for one in threading.enumerate() if one.name == "cronductor-metrics"]
        assert thread.daemon
        [metrics] = registry._collector_to_names
    assert 'cronductor_runs_total{job_key="job",outcome="succeeded"} 0.0' in text
    with pytest.raises(OSError, match="refused"):
        fetch(address)
    assert generate_latest(registry) == b""
    wait_until(lambda: not thread.is_alive())
    run(world)
    assert world.ran()
    registry.register(metrics)
    assert registry.get_sample_value("cronductor_runs_total", {"job_key": "job", "outcome": "succeeded"}) == 0


def test_an_ipv6_address_can_be_served_at(world: World) -> None:
    with prometheus.serving(world.replica(), "::1", 0, history=False, registry=CollectorRegistry()) as address:
        assert address.startswith("http://[::1]:")
        assert "cronductor_store_up 1.0" in fetch(address)


def test_a_port_in_use_is_refused_with_its_name(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with (
            pytest.raises(ConfigurationError, match=f"port {port} of '127.0.0.1': .*in use"),
            prometheus.serving(world.replica(), "127.0.0.1", port, history=False, registry=CollectorRegistry()),
        ):
            pass


@pytest.mark.parametrize(
    ("host", "port"), [("127.0.0.1", 70_000), ("127.0.0.1", -1), ("no such host", 0), ("a" * 80, 0)]
)
def test_an_impossible_address_is_refused(world: World, host: str, port: int) -> None:
    registry = CollectorRegistry()
    with (
        pytest.raises(ConfigurationError, match=f"Metrics cannot be served at port {port} of "),
        prometheus.serving(world.replica(), host, port, history=False, registry=registry),
    ):
        pass
    assert generate_latest(registry) == b""


def test_a_history_that_does_not_answer_is_asked_again(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    world.job("* * * * *")
    answers: list[Any] = [OSError("the database is away"), OSError("still"), {"job": 1234.0}]

    def ask() -> dict[str, float]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return typing.cast("dict[str, float]", answer)

    monkeypatch.setattr(prometheus, "last_successes", ask)
    monkeypatch.setattr(prometheus, "ASK_AGAIN_AFTER", 0.01)
    registry = CollectorRegistry()
    name = "cronductor_last_success_timestamp_seconds"
    with prometheus.serving(world.replica(), "127.0.0.1", 0, history=True, registry=registry):
        wait_until(lambda: registry.get_sample_value(name, {"job_key": "job"}) == 1234.0)
    told = [record.getMessage() for record in caplog.records if "succeeded last" in record.getMessage()]
    assert told == ["The history cannot say when jobs succeeded last: the database is away"]


# The command.


@pytest.mark.usefixtures("in_memory")
def test_runcron_serves_metrics_where_it_says(registry: JobRegistry, stopping: StoppingJob) -> None:
    scraped = []

    def scrape() -> None:
        [server] = [one for one in threading.enumerate() if one.name == "cronductor-metrics"]
        scraped.append(fetch(f"http://127.0.0.1:{server._target.__self__.server_port}/metrics"))  # type: ignore[attr-defined]
        stopping()

    registry.schedule("* * * * * *", scrape, key="scrape")
    registry.get("shop.stopping").stop()
    said = Called(metrics_port=0)
    assert "Metrics: http://127.0.0.1:" in said.out
    assert 'cronductor_runs_in_progress{job_key="scrape"} 1.0' in scraped[0]
    assert "process_start_time_seconds" in scraped[0]


@pytest.mark.usefixtures("in_memory", "stopping")
def test_runcron_ends_where_the_port_is_in_use() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CommandError, match=rf"port {port} of '127\.0\.0\.1': .*in use\. Choose another port"):
            Called(metrics_port=port)


@pytest.mark.parametrize("text", ["65536", "-1", "http", "1.5", ""])
def test_what_is_no_port_is_refused_before_anything_is_begun(text: str) -> None:
    parser = Command().create_parser("manage.py", "runcron")
    with pytest.raises(CommandError, match=re.escape(f"{text!r} is no port: give a number from 0 to 65535.")):
        parser.parse_args([f"--metrics-port={text}"])
    assert parser.parse_args(["--metrics-port=0"]).metrics_port == 0


@pytest.mark.usefixtures("on_redis", "stopping")
def test_metrics_are_refused_with_once() -> None:
    with pytest.raises(CommandError, match="--metrics-port is for a runcron that stays"):
        Called(metrics_port=0, once=True)


@pytest.mark.usefixtures("in_memory", "stopping")
def test_an_address_without_a_port_is_refused() -> None:
    with pytest.raises(CommandError, match="--metrics-host goes with --metrics-port"):
        Called(metrics_host="0.0.0.0")


@pytest.mark.usefixtures("in_memory", "stopping")
def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "django_cronductor.contrib.prometheus")
    monkeypatch.delattr(contrib, "prometheus")
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(CommandError, match=r"django-cronductor\[prometheus\]"):
        Called(metrics_port=0)


# The documentation.


def documented(name: str) -> str:
    [block] = [node for node in METRICS.findall(nodes.literal_block) if name in node["names"]]
    return block.astext()


def test_the_page_lists_exactly_the_metrics_and_their_labels(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *")
    [table] = [node for node in METRICS.findall(nodes.table) if "metrics" in node["classes"]]
    [body] = table.findall(nodes.tbody)
    rows = [[entry.astext() for entry in row.children] for row in body.children]
    served = {
        family.name + ("_total" if family.type == "counter" else ""): ", ".join(
            name for name in family.samples[0].labels if name != "le"
        )
        for family in scrapes.metrics.collect()
    }
    assert {name: labels for name, labels, _ in rows} == served


def test_the_rules_ask_for_what_there_is(world: World, scrapes: Scrapes) -> None:
    world.job("* * * * *", key="shop.nightly_report")
    samples = {sample.name: sample.labels.keys() for family in scrapes.metrics.collect() for sample in family.samples}
    rules = documented("alert-rules")
    asked = re.findall(r"(cronductor_\w+)(?:{(\w+)=~?\"([^\"]*)\"})?", rules)
    assert len(asked) >= 6
    for name, label, values in asked:
        assert name in samples
        assert not label or label in samples[name]
        assert set(values.split("|")) <= {"", "shop.nightly_report", *prometheus.OUTCOMES, *prometheus.REASONS}
    assert set(re.findall(r"by \((.*?)\)", rules)) <= {"job_key", "job_key, outcome", "job_key, reason", "le"}


def test_the_example_for_other_programs_works(world: World) -> None:
    world.job("* * * * *")
    names: dict[str, Any] = {}
    exec(compile(documented("own-registry"), "metrics.rst", "exec"), names)
    registry = names["metrics_of"](world.replica())
    run(world)
    assert registry.get_sample_value("cronductor_runs_total", {"job_key": "job", "outcome": "succeeded"}) == 1


def test_nothing_else_in_the_package_needs_the_library() -> None:
    users = {name for name in SOURCES if any("prometheus_client" in target for target in foreign_imports(name))}
    assert users == {"contrib.prometheus"}
