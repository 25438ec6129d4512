"""What Sentry is told: check-ins of monitors, and errors; with its SDK, and a transport that keeps what it is given."""

from __future__ import annotations

import json
import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from django.test import override_settings
from docutils import nodes
from sentry_sdk.envelope import Envelope
from sentry_sdk.integrations.dedupe import DedupeIntegration
from sentry_sdk.integrations.logging import LoggingIntegration
from sentry_sdk.integrations.threading import ThreadingIntegration
from sentry_sdk.transport import Transport

from django_cronductor.contrib.sentry import CronductorIntegration, monitor_config, slug_of
from django_cronductor.exceptions import Stopping
from django_cronductor.jobs import JobRegistry
from django_cronductor.runner import RunContext
from tests.scheduler_world import DEADLINE, LocalStore, World, at, end_runs, start_runs
from tests.test_imports import SOURCES, foreign_imports
from tests.test_readme import ROOT, parse

# Runs close old connections around them, which counts as access to the database.
pytestmark = pytest.mark.django_db


class Recorder(Transport):
    """Keeps what would be sent."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[tuple[str, dict[str, Any]]] = []
        self.flushed = 0

    def capture_envelope(self, envelope: Envelope) -> None:
        self.items += [(item.headers["type"], json.loads(item.get_bytes())) for item in envelope.items]

    def flush(self, timeout: float, callback: Any = None) -> None:
        self.flushed += 1

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [content for one, content in self.items if one == kind]

    @property
    def check_ins(self) -> list[tuple[str, str]]:
        return [(one["monitor_slug"], one["status"]) for one in self.of("check_in")]


def start_sentry(integration: CronductorIntegration, *others: Any) -> Recorder:
    recorder = Recorder()
    integrations = [integration, DedupeIntegration(), ThreadingIntegration(), *others]
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1", transport=recorder, default_integrations=False, integrations=integrations
    )
    return recorder


@pytest.fixture(autouse=True)
def no_client_after() -> Iterator[None]:
    yield
    sentry_sdk.get_client().close()
    sentry_sdk.get_global_scope().set_client(None)


@pytest.fixture
def sentry() -> Recorder:
    return start_sentry(CronductorIntegration(), LoggingIntegration())


@pytest.fixture
def world() -> Iterator[World]:
    world = World(LocalStore())
    yield world
    world.close()


def run(world: World) -> None:
    """Let the jobs run that are declared with five stars, on the one of the replicas that wins."""
    world.tick()
    world.go(at(12, 1))


def fail(context: RunContext) -> None:
    raise ValueError("no such user")


# Check-ins.


def test_only_the_winner_checks_in_at_the_start_and_at_the_end(world: World, sentry: Recorder) -> None:
    world.job("* * * * *", key="shop.sync", body=lambda context: world.clock.advance(2.5))
    world.replica()
    world.replica()
    run(world)
    assert sentry.check_ins == [("shop-sync", "in_progress"), ("shop-sync", "ok")]
    started, ended = sentry.of("check_in")
    assert started["check_in_id"] == ended["check_in_id"]
    assert ended["duration"] == 2.5
    assert started["monitor_config"] == ended["monitor_config"]


def test_each_run_has_a_check_in_of_its_own(world: World, sentry: Recorder) -> None:
    world.job("* * * * *")
    world.replica()
    run(world)
    world.go(at(12, 2))
    world.backend.request_run("job")
    world.go(at(12, 2, 10))
    world.backend.request_run("job")
    world.go(at(12, 2, 20))
    assert len(sentry.check_ins) == 8
    assert len({one["check_in_id"] for one in sentry.of("check_in")}) == 4


def test_a_run_that_fails_checks_in_as_an_error(world: World, sentry: Recorder) -> None:
    world.job("* * * * *", body=fail)
    world.replica()
    run(world)
    assert sentry.check_ins == [("job", "in_progress"), ("job", "error")]


def test_a_timeout_is_an_error_while_the_thread_still_works(world: World, sentry: Recorder) -> None:
    world.slow_job("* * * * *", timeout=10)
    replica = world.replica(inline=False)
    world.tick()
    world.until(at(12, 1))
    start_runs(world, replica)
    world.go(at(12, 1, 11))
    replica.settle()
    assert sentry.check_ins == [("job", "in_progress"), ("job", "error")]
    end_runs(world, replica)
    assert len(sentry.check_ins) == 2


def test_a_dead_run_is_told_under_its_own_check_in_by_the_replica_that_reports_it(
    world: World, sentry: Recorder
) -> None:
    world.slow_job("* * * * *", ttl=10)
    dead, survivor = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, dead)
    world.go(at(12, 1, 30), survivor)
    assert sentry.check_ins == [("job", "in_progress"), ("job", "error")]
    assert len({one["check_in_id"] for one in sentry.of("check_in")}) == 1


def test_the_run_that_recovers_a_dead_one_has_a_check_in_of_its_own(world: World, sentry: Recorder) -> None:
    def wait(context: RunContext) -> None:
        if context.instance == "dead":
            world.gate.wait(DEADLINE)

    world.job("* * * * *", body=wait, ttl=10, recover=True)
    dead, survivor = world.replica(inline=False, instance="dead"), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, dead)
    world.go(at(12, 1, 30), survivor)
    assert [status for _, status in sentry.check_ins] == ["in_progress", "error", "in_progress", "ok"]
    first, ended, second, succeeded = [one["check_in_id"] for one in sentry.of("check_in")]
    assert first == ended
    assert second == succeeded
    assert first != second


def test_a_condition_that_is_not_met_is_no_missing_check_in(world: World, sentry: Recorder) -> None:
    world.job("* * * * *", when=lambda context: False)
    world.replica()
    run(world)
    assert sentry.check_ins == [("job", "ok")]


def test_paused_and_missed_occurrences_check_in_nothing(world: World, sentry: Recorder) -> None:
    world.job("* * * * *", grace=30)
    world.replica()
    world.tick()
    world.backend.pause("job")
    world.go(at(12, 1))
    world.backend.resume("job")
    world.until(at(12, 3, 50))
    world.tick()
    assert world.skipped()
    assert world.missed()
    assert sentry.items == []


def test_what_is_cut_short_is_sent_before_the_process_ends(world: World, sentry: Recorder) -> None:
    def leave(context: RunContext) -> None:
        raise Stopping("the process is shutting down")

    world.job("* * * * *", body=leave)
    world.replica()
    run(world)
    assert sentry.check_ins == [("job", "in_progress"), ("job", "error")]
    assert sentry.flushed == 1
    assert sentry.of("event") == []


# Monitors.


def config_of(expression: str, **options: Any) -> dict[str, Any] | None:
    job = JobRegistry().schedule(expression, lambda: None, key="job", **options)
    config = monitor_config(job)
    return None if config is None else dict(config)


def test_a_monitor_has_the_jobs_schedule_zone_margin_and_runtime() -> None:
    assert config_of("30 2 * * mon-fri", timezone="Europe/Berlin", grace=3600, timeout=1830) == {
        "schedule": {"type": "crontab", "value": "30 2 * * 1,2,3,4,5"},
        "timezone": "Europe/Berlin",
        "checkin_margin": 61,
        "max_runtime": 31,
    }


def test_a_monitor_takes_from_the_settings_what_the_job_does_not_say() -> None:
    with override_settings(CRONDUCTOR={"TIMEZONE": "Asia/Karachi", "DEFAULT_GRACE": 90}):
        config = config_of("@daily")
        assert config is not None
        assert config["schedule"]["value"] == "0 0 * * *"
        assert config["timezone"] == "Asia/Karachi"
        assert config["checkin_margin"] == 3
        assert config["max_runtime"] == 40_320
        longer = config_of("@daily", ttl=600)
        assert longer is not None
        assert longer["checkin_margin"] == 11


def test_no_monitor_has_numbers_that_sentry_refuses() -> None:
    config = config_of("@yearly", grace=90 * 86_400, timeout=90 * 86_400)
    assert config is not None
    assert config["checkin_margin"] == config["max_runtime"] == 40_320


@pytest.mark.parametrize("expression", ["*/10 * * * * *", "0 0 L * *", "0 0 15W * *", "0 0 * * 1#2"])
def test_what_sentry_cannot_express_has_no_monitor(world: World, sentry: Recorder, expression: str) -> None:
    assert config_of(expression) is None
    world.job(expression, key="odd", body=fail)
    world.replica()
    world.tick()
    world.backend.request_run("odd")
    world.go(at(12, 0, 5))
    assert world.outcomes() == ["failed"]
    assert sentry.check_ins == []
    assert len(sentry.of("event")) == 1


def test_which_jobs_have_monitors_and_their_thresholds_can_be_chosen(world: World) -> None:
    chosen = CronductorIntegration(
        monitored=lambda job: job.key == "b", failure_issue_threshold=3, recovery_threshold=2
    )
    sentry = start_sentry(chosen)
    world.job("* * * * *", key="a")
    world.job("* * * * *", key="b")
    world.replica()
    run(world)
    assert sentry.check_ins == [("b", "in_progress"), ("b", "ok")]
    config = sentry.of("check_in")[0]["monitor_config"]
    assert (config["failure_issue_threshold"], config["recovery_threshold"]) == (3, 2)


def test_a_slug_is_the_key_as_far_as_sentry_takes_it() -> None:
    assert slug_of("shop.sync_users") == "shop-sync_users"
    assert slug_of("daily-report") == "daily-report"


@pytest.mark.parametrize("key", ["Shop.sync", "a b", "größe", "日報", "2026", "x" * 51, "-", "a" * 200])
def test_other_keys_have_slugs_of_their_own_that_sentry_takes(key: str) -> None:
    assert re.fullmatch(r"(?!\d+$)[a-z0-9_][a-z0-9_-]{0,49}", slug_of(key))
    assert slug_of(key) != slug_of(key + "x")
    assert slug_of(key) == slug_of(key)


# Errors.


def tags_of(event: dict[str, Any]) -> dict[str, Any]:
    return dict(event["tags"])


def messages(event: dict[str, Any]) -> list[str]:
    return [crumb["message"] for crumb in event.get("breadcrumbs", {}).get("values", [])]


@pytest.mark.parametrize("logging_too", [True, False])
def test_an_error_is_captured_once_with_the_jobs_key(world: World, logging_too: bool) -> None:
    sentry = start_sentry(CronductorIntegration(), *([LoggingIntegration()] if logging_too else []))
    world.job("* * * * *", key="shop.sync", body=fail)
    world.replica()
    run(world)
    [event] = sentry.of("event")
    assert event["exception"]["values"][-1]["value"] == "no such user"
    assert tags_of(event) == {
        "cronductor.job": "shop.sync",
        "cronductor.scheduled_at": "2026-01-05T12:01:00+00:00",
    }


def test_an_error_of_a_condition_is_captured_once_too(world: World, sentry: Recorder) -> None:
    world.job("* * * * *", when=fail)
    world.replica()
    run(world)
    [event] = sentry.of("event")
    assert tags_of(event)["cronductor.job"] == "job"
    assert sentry.check_ins == [("job", "error")]


def test_the_same_error_twice_is_two_events(world: World, sentry: Recorder) -> None:
    error = ValueError("always the same object")

    def raise_it(context: RunContext) -> None:
        raise error.with_traceback(None)

    world.job("* * * * *", body=raise_it)
    world.job("* * * * *", key="other", body=fail)
    world.replica()
    run(world)
    world.go(at(12, 2))
    assert sorted(tags_of(event)["cronductor.job"] for event in sentry.of("event")) == ["job", "job", "other", "other"]


def test_what_a_job_captures_itself_has_its_key(world: World, sentry: Recorder) -> None:
    world.job("* * * * *", body=lambda context: sentry_sdk.capture_message("look at this") and None)
    world.replica()
    run(world)
    sentry_sdk.capture_message("between the runs")
    inside, outside = sentry.of("event")
    assert tags_of(inside)["cronductor.job"] == "job"
    assert "cronductor.job" not in outside.get("tags", {})


def test_breadcrumbs_of_one_run_are_not_those_of_the_next(world: World, sentry: Recorder) -> None:
    def chat(context: RunContext) -> None:
        logging.getLogger("shop").warning("run %d", len(world.runs))
        if len(world.runs) == 2:
            raise ValueError

    world.job("* * * * *", body=chat)
    replica = world.replica(inline=False, max_workers=1)
    world.tick()
    for number in (1, 2):
        world.until(at(12, number))
        start_runs(world, replica, number)
        end_runs(world, replica)
    [event] = sentry.of("event")
    assert [message for message in messages(event) if message.startswith("run")] == ["run 2"]


def test_an_abandoned_run_is_an_event_with_the_jobs_key(world: World, sentry: Recorder) -> None:
    world.slow_job("* * * * *", ttl=10)
    dead, survivor = world.replica(inline=False), world.replica()
    world.tick()
    world.until(at(12, 1))
    start_runs(world, dead)
    world.go(at(12, 1, 30), survivor)
    [event] = sentry.of("event")
    assert "abandoned" in event["logentry"]["message"]
    assert tags_of(event)["cronductor.job"] == "job"


# Whether it is there.


def test_without_the_integration_nothing_is_told(world: World, sentry: Recorder) -> None:
    """Its receivers stay connected: a client without it is left alone."""
    recorder = Recorder()
    integrations = [DedupeIntegration(), LoggingIntegration()]
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1", transport=recorder, default_integrations=False, integrations=integrations
    )
    world.job("* * * * *", body=fail)
    world.replica()
    run(world)
    assert sentry.items == []
    assert recorder.check_ins == []
    assert [tags_of(event) if event.get("tags") else {} for event in recorder.of("event")] == [{}]


def test_nothing_else_in_the_package_needs_the_library() -> None:
    users = {name for name in SOURCES if any("sentry_sdk" in target for target in foreign_imports(name))}
    assert users == {"contrib.sentry"}


PROJECT = """
import json, os, sys
sys.path.insert(0, {root!r})
os.environ["DJANGO_SETTINGS_MODULE"] = "tests.settings"

# As in a settings module: before Django is set up.
import sentry_sdk
from sentry_sdk.transport import Transport
from django.conf import settings
from django_cronductor.contrib.sentry import CronductorIntegration
assert not settings.configured

class Printer(Transport):
    def capture_envelope(self, envelope):
        for item in envelope.items:
            content = json.loads(item.get_bytes())
            print(item.headers["type"], content.get("status"), content.get("tags"))

sentry_sdk.init(dsn="https://key@sentry.invalid/1", transport=Printer(), integrations=[CronductorIntegration()])

import django
django.setup()
from tests.scheduler_world import World, at
world = World()

def fail(context):
    raise ValueError

world.job("* * * * *", key="shop.sync", body=fail)
world.replica()
world.tick()
world.go(at(12, 1))
world.close()
"""


def test_it_is_one_line_beside_all_that_sentry_does_by_itself() -> None:
    code = PROJECT.format(root=str(ROOT))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told = [line for line in done.stdout.splitlines() if line.startswith(("event", "check_in"))]
    tags = "{'cronductor.job': 'shop.sync', 'cronductor.scheduled_at': '2026-01-05T12:01:00+00:00'}"
    assert told == ["check_in in_progress None", f"event None {tags}", "check_in error None"]


DOCUMENTED = """
import sentry_sdk
exec(compile({code!r}, "sentry.rst", "exec"))
print(sentry_sdk.get_client().get_integration("cronductor").thresholds)
"""


def test_the_documented_settings_switch_it_on() -> None:
    blocks = parse(ROOT / "docs" / "sentry.rst").findall(nodes.literal_block)
    [block] = [block for block in blocks if "sentry-settings" in block["names"]]
    code = DOCUMENTED.format(code=block.astext())
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == "{}\n", done.stderr
