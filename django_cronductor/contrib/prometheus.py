"""What happens to the jobs of a process, as Prometheus metrics. Needs the extra `prometheus`."""

from __future__ import annotations

import socket
import sys
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from itertools import accumulate
from socketserver import TCPServer, ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from django.db import connections
from django.db.models import Max
from prometheus_client import REGISTRY, CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from django_cronductor import signals
from django_cronductor.exceptions import ConfigurationError, shown
from django_cronductor.instants import from_stored
from django_cronductor.logs import get_logger
from django_cronductor.masking import mask
from django_cronductor.models import JobRun, for_writing
from django_cronductor.records import SUCCESSES
from django_cronductor.runner import RunContext
from django_cronductor.scheduler import Scheduler

logger = get_logger(__name__)

OUTCOMES = ("succeeded", "failed", "timed out", "lost", "interrupted", "abandoned", "enqueued")
REASONS = ("held", "missed", "paused", "condition")
DURATIONS = (0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
LATENESSES = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 60.0, 300.0, 3600.0)
"""The upper bounds of the histograms' buckets, in seconds."""
ASK_AGAIN_AFTER = 60.0
"""Seconds before the database is asked again for what it knows."""


class _Distribution:
    """How often a value fell into which bucket."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.sum += value

    @property
    def buckets(self) -> list[tuple[str, float]]:
        """Return each upper bound with the count of all that is not above it."""
        names = [*map(str, self._bounds), "+Inf"]
        return [(name, float(count)) for name, count in zip(names, accumulate(self._counts), strict=True)]


@dataclass
class _Numbers:
    """What is counted of one job."""

    outcomes: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(OUTCOMES, 0)))
    reasons: Counter[str] = field(default_factory=lambda: Counter(dict.fromkeys(REASONS, 0)))
    lease_losses: int = 0
    last_success: float = 0.0
    running: set[RunContext] = field(default_factory=set)
    durations: _Distribution = field(default_factory=lambda: _Distribution(DURATIONS))
    latenesses: _Distribution = field(default_factory=lambda: _Distribution(LATENESSES))


class Metrics(Collector):
    """
    Counts what happens in this process to the jobs of a scheduler, from when it is made until `close`.

    Register it in a CollectorRegistry. Every declared job is there from the start, and no other.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._lock = threading.Lock()
        self._jobs: dict[str, _Numbers] = {}
        self._version: int | None = None
        self._receivers: dict[Any, Callable[..., None]] = {
            signals.job_started: self._started,
            signals.job_finished: self._finished,
            signals.job_skipped: self._skipped,
            signals.job_missed: self._missed,
            signals.run_abandoned: self._abandoned,
            signals.lease_lost: self._lost,
        }
        for signal, receiver in self._receivers.items():
            signal.connect(receiver)

    def close(self) -> None:
        """Count no more."""
        for signal, receiver in self._receivers.items():
            signal.disconnect(receiver)

    def learn(self, successes: Mapping[str, float]) -> None:
        """Take over when jobs succeeded last, in seconds since the epoch, where that is later than what is known."""
        for key, instant in successes.items():
            with self._numbers_of(key) as numbers:
                numbers.last_success = max(numbers.last_success, instant)

    def collect(self) -> list[Metric]:
        """Return the metrics as they are now."""
        up = "Whether the lock store answered when it was asked last (1) or not (0): without it nothing starts."
        store = GaugeMetricFamily("cronductor_store_up", up, value=0.0 if self._scheduler.store_failing else 1.0)
        families = _Families()
        with self._lock:
            self._follow_registry()
            jobs = sorted(self._jobs.items())
        for key, numbers in jobs:
            with self._lock:  # Not for all of them at once: runs wait for it.
                families.add(key, numbers)
        return [store, *vars(families).values()]

    def _follow_registry(self) -> None:
        """Keep numbers of the jobs that are declared, whatever keys come and go."""
        registry = self._scheduler.registry
        if self._version != registry.version:
            self._version = registry.version
            self._jobs = {job.key: self._jobs.get(job.key) or _Numbers() for job in registry}

    @contextmanager
    def _numbers_of(self, key: str) -> Iterator[_Numbers]:
        """Give what is counted of a job, for changing it; of one that is not declared, what nobody will see."""
        with self._lock:
            self._follow_registry()
            yield self._jobs.get(key) or _Numbers()

    # What is told, in the threads of the runs and of the reports.

    def _started(self, context: RunContext, **details: object) -> None:
        with self._numbers_of(context.key) as numbers:
            numbers.running.add(context)
            if context.scheduled_at is not None:
                numbers.latenesses.observe(context.lateness)

    def _finished(self, context: RunContext, outcome: str, duration: float, **details: object) -> None:
        with self._numbers_of(context.key) as numbers:
            numbers.running.discard(context)
            numbers.outcomes[outcome] += 1
            numbers.durations.observe(duration)
            if outcome in SUCCESSES:
                numbers.last_success = time.time()

    def _skipped(self, key: str, reason: str, count: int, **details: object) -> None:
        with self._numbers_of(key) as numbers:
            numbers.reasons[reason] += count

    def _missed(self, key: str, count: int, **details: object) -> None:
        self._skipped(key, "missed", count)

    def _abandoned(self, key: str, **details: object) -> None:
        with self._numbers_of(key) as numbers:
            numbers.outcomes["abandoned"] += 1

    def _lost(self, context: RunContext, **details: object) -> None:
        with self._numbers_of(context.key) as numbers:
            numbers.lease_losses += 1


class _Families:
    """The metrics that jobs have."""

    def __init__(self) -> None:
        self.runs = CounterMetricFamily(
            "cronductor_runs", "Runs that are over, by outcome.", labels=["job_key", "outcome"]
        )
        self.skipped = CounterMetricFamily(
            "cronductor_skipped_occurrences", "Occurrences that were not run, by reason.", labels=["job_key", "reason"]
        )
        self.losses = CounterMetricFamily("cronductor_lease_losses", "Runs that lost their lease.", labels=["job_key"])
        self.running = GaugeMetricFamily(
            "cronductor_runs_in_progress", "Runs that go on in this process.", labels=["job_key"]
        )
        self.success = GaugeMetricFamily(
            "cronductor_last_success_timestamp_seconds",
            "When the job succeeded last, as far as this process knows; 0: not known.",
            labels=["job_key"],
        )
        self.durations = HistogramMetricFamily(
            "cronductor_run_duration_seconds", "How long runs took.", labels=["job_key"]
        )
        self.latenesses = HistogramMetricFamily(
            "cronductor_run_lateness_seconds", "How long after their scheduled instants runs began.", labels=["job_key"]
        )

    def add(self, key: str, numbers: _Numbers) -> None:
        """Add what is counted of one job."""
        for outcome, count in numbers.outcomes.items():
            self.runs.add_metric([key, outcome], count)
        for reason, count in numbers.reasons.items():
            self.skipped.add_metric([key, reason], count)
        self.losses.add_metric([key], numbers.lease_losses)
        self.running.add_metric([key], len(numbers.running))
        self.success.add_metric([key], numbers.last_success)
        self.durations.add_metric([key], numbers.durations.buckets, numbers.durations.sum)
        self.latenesses.add_metric([key], numbers.latenesses.buckets, numbers.latenesses.sum)


def last_successes() -> dict[str, float]:
    """Return when each job succeeded last, as the history knows it, in seconds since the epoch."""
    rows = for_writing(JobRun).filter(outcome__in=SUCCESSES, finished_at__isnull=False)
    newest: list[tuple[str, datetime]] = list(
        rows.order_by().values_list("job_key").annotate(newest=Max("finished_at")).values_list("job_key", "newest")
    )
    return {key: from_stored(finished).timestamp() for key, finished in newest}


@contextmanager
def serving(
    scheduler: Scheduler, host: str, port: int, *, history: bool, registry: CollectorRegistry = REGISTRY
) -> Iterator[str]:
    """
    Serve the metrics of a scheduler, with all else in the registry, over HTTP; give the address.

    With `history` what it knows of the time before is read once, in a thread. Raises ConfigurationError if nothing can
    listen there.
    """
    server = _make_server(host, port, registry)
    metrics = Metrics(scheduler)
    registry.register(metrics)
    closed = threading.Event()
    threads = [threading.Thread(target=server.serve_forever, args=(0.1,), name="cronductor-metrics", daemon=True)]
    if history:
        seeding = threading.Thread(target=_seed, args=(metrics, closed), name="cronductor-metrics-seed", daemon=True)
        threads.append(seeding)
    for thread in threads:
        thread.start()
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{server.server_port}/metrics"
    finally:
        closed.set()
        server.shutdown()
        server.server_close()
        registry.unregister(metrics)
        metrics.close()


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    allow_reuse_port = False  # Two processes at one port would be scraped by turns.

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service what this machine is called, which can take long.
        TCPServer.server_bind(self)
        self.server_name, self.server_port = str(self.server_address[0]), int(self.server_address[1])
        self.setup_environ()

    def handle_error(self, request: Any, client_address: Any) -> None:
        logger.debug("A scrape was not answered: %r", sys.exc_info()[1])


class _Handler(WSGIRequestHandler):
    timeout = 10  # Seconds that a client may say nothing.

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - The name is the base class's.
        logger.debug("Metrics: %s", format % args)


def _make_server(host: str, port: int, registry: CollectorRegistry) -> WSGIServer:
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        server_class = type("MetricsServer", (_Server,), {"address_family": family})
        return make_server(host, port, make_wsgi_app(registry), server_class, handler_class=_Handler)
    except (OSError, OverflowError, UnicodeError) as error:
        where, reason = f"port {port} of {shown(host)}", str(error).rstrip(".")
        raise ConfigurationError(
            f"Metrics cannot be served at {where}: {reason}. Choose another port or host."
        ) from error


def _seed(metrics: Metrics, closed: threading.Event) -> None:
    """Learn from the history, however long the database is away."""
    told = False
    while not closed.is_set():
        try:
            metrics.learn(last_successes())
            return
        except Exception as error:  # noqa: BLE001 - Of the database, its driver, or a router of the project's.
            if not told:
                told = True
                logger.warning("The history cannot say when jobs succeeded last: %s", mask(error))
        finally:
            connections.close_all()
        closed.wait(ASK_AGAIN_AFTER)
