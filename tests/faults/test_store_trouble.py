"""A store that answers and will not do as asked: for some seconds, in mid-run, and then it will again."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import redis

from django_cronductor.exceptions import BackendRefused
from tests.faults.replicas import assert_each_once_or_told, assert_tokens_rise
from tests.faults.site import LOST_DATA, Site
from tests.redis_server import RedisServer

# Runs close old connections around them, which counts as access to the database.
pytestmark = [pytest.mark.faults, pytest.mark.django_db]

USER, PASSWORD = "app", "hunter2"
ALL = ("on", f">{PASSWORD}", "~*", "&*", "+@all")
Admin = redis.Redis


def acl(*rules: str) -> Callable[[Admin], object]:
    return lambda admin: admin.execute_command("ACL", "SETUSER", USER, *rules)


def setting(name: str, value: str) -> Callable[[Admin], object]:
    return lambda admin: admin.config_set(name, value)


def new_password(value: str) -> Callable[[Admin], object]:
    def change(admin: Admin) -> None:
        admin.execute_command("ACL", "SETUSER", USER, "resetpass", f">{value}")
        # Whoever is connected stays so: as after a restart with the new one.
        admin.execute_command("CLIENT", "KILL", "USER", USER)

    return change


@dataclass(frozen=True)
class Trouble:
    begin: Callable[[Admin], object]
    end: Callable[[Admin], object]
    says: str


TROUBLES = {
    "out of memory": Trouble(setting("maxmemory", "1"), setting("maxmemory", "0"), "OOM|maxmemory"),
    "a replica": Trouble(
        lambda admin: admin.execute_command("REPLICAOF", "127.0.0.1", "1"),
        lambda admin: admin.execute_command("REPLICAOF", "NO", "ONE"),
        "READONLY|read only replica",
    ),
    "a replica that will not serve stale data": Trouble(
        lambda admin: (
            admin.config_set("replica-serve-stale-data", "no"),
            admin.execute_command("REPLICAOF", "127.0.0.1", "1"),
        ),
        lambda admin: admin.execute_command("REPLICAOF", "NO", "ONE"),
        "MASTERDOWN|Link with MASTER is down",
    ),
    "without the replicas it needs": Trouble(
        setting("min-replicas-to-write", "1"), setting("min-replicas-to-write", "0"), "NOREPLICAS|good replicas"
    ),
    "a user who may run no scripts": Trouble(acl("-@scripting"), acl("+@scripting"), "permission"),
    "a user who may write nothing": Trouble(acl("-@write"), acl("+@write"), "can't run this command"),
    "a user of other keys": Trouble(acl("resetkeys", "~other:*"), acl("~*"), "NOPERM|permission|key"),
    "another password": Trouble(new_password("other"), new_password(PASSWORD), "WRONGPASS|password"),
}


def test_while_it_refuses_nothing_starts_and_then_work_resumes_with_one_line_each() -> None:
    with contextlib.ExitStack() as stack:
        sites: dict[str, tuple[Site, Admin]] = {}
        for name in TROUBLES:
            server = stack.enter_context(RedisServer())
            admin = stack.enter_context(redis.Redis.from_url(server.url, decode_responses=True))
            acl(*ALL)(admin)
            site = stack.enter_context(contextlib.closing(Site()))
            site.job()
            site.job("long", holds=True)
            site.start(server.url.replace("redis://", f"redis://{USER}:{PASSWORD}@"))
            sites[name] = site, admin
        for site, _ in sites.values():
            site.wait_for_starts(1)
            site.wait_for_starts(1, "long")
        for name, (_, admin) in sites.items():
            TROUBLES[name].begin(admin)
        for site, _ in sites.values():
            site.wait_for_failure()
        failed = time.monotonic()
        some_site = next(iter(sites.values()))[0]
        some_site.wait("some more of it", lambda: time.monotonic() > failed + 2)
        returned = {}
        for name, (_, admin) in sites.items():
            TROUBLES[name].end(admin)
            returned[name] = time.monotonic()
        for name, (site, _) in sites.items():
            site.wait_for_return(since=returned[name])
        for site, _ in sites.values():
            site.finish()

        for name, (site, _) in sites.items():
            # What was answered just before may have been on its way to a worker.
            assert [one for one in site.starts() if failed + 0.5 < one.at < returned[name]] == [], name
            assert_each_once_or_told(site, "tick")
            assert_tokens_rise(site.starts("tick"))
            assert len(site.starts("long")) == 1, name
            assert site.entries("lost") == [], name
        assert {name: site.loops[0].outages for name, (site, _) in sites.items()} == dict.fromkeys(sites, (1, 1))
        assert {name: site.loops[0].count(LOST_DATA) for name, (site, _) in sites.items()} == dict.fromkeys(sites, 0)
        for name, (site, _) in sites.items():
            (text,) = [line for line in site.loops[0].lines if "failed" in line]
            assert re.search(TROUBLES[name].says, text), (name, text)
            assert PASSWORD not in text


def test_at_the_start_a_refusal_ends_the_loop_with_the_reason_and_what_may_pass_is_waited_for() -> None:
    refusals = {name for name in TROUBLES if name.startswith(("a user", "another"))}
    with contextlib.ExitStack() as stack:
        sites: dict[str, tuple[Site, Admin]] = {}
        for name, trouble in TROUBLES.items():
            server = stack.enter_context(RedisServer())
            admin = stack.enter_context(redis.Redis.from_url(server.url, decode_responses=True))
            acl(*ALL)(admin)
            trouble.begin(admin)
            site = stack.enter_context(contextlib.closing(Site()))
            site.job()
            site.start(server.url.replace("redis://", f"redis://{USER}:{PASSWORD}@"))
            sites[name] = site, admin
        for name in refusals:
            (loop,) = sites[name][0].loops
            assert loop.join() is None, name
            assert isinstance(loop.error, BackendRefused), name
            assert re.search(TROUBLES[name].says, str(loop.error)), (name, loop.error)
            assert PASSWORD not in str(loop.error)
        for name in TROUBLES.keys() - refusals:
            site, admin = sites[name]
            site.wait_for_failure()
            assert site.starts() == []
            TROUBLES[name].end(admin)
        for name in TROUBLES.keys() - refusals:
            site, _ = sites[name]
            site.wait_for_return()
            site.finish()
            assert_each_once_or_told(site, "tick")
            assert site.loops[0].outages == (1, 1), name
