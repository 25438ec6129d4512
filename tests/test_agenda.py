"""What a replica knows of each job's next step."""

from __future__ import annotations

import pytest

from django_cronductor.agenda import Agenda, Entry
from django_cronductor.exceptions import ConfigurationError
from django_cronductor.jobs import Job, JobRegistry
from django_cronductor.store import StoreClock
from django_cronductor.testing.clock import START, ManualClock

NOON = int(START.timestamp() * 1000)
MINUTE = 60_000


class Desk:
    """An agenda, its clocks and a registry."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = StoreClock(self.clock)
        self.store.learn(NOON, self.clock.monotonic(), self.clock.monotonic())
        self.agenda = Agenda(self.clock, self.store, "UTC", 30_000, 300_000)
        self.registry = JobRegistry()

    def job(self, expression: str, key: str = "job", **options: object) -> Job:
        return self.registry.schedule(expression, lambda: None, key=key, **options)  # type: ignore[arg-type]

    def entry(self, expression: str = "* * * * *", key: str = "job", **options: object) -> Entry:
        """Return a job's entry as it is after it was declared at noon."""
        self.job(expression, key, **options)
        self.agenda.follow(self.registry)
        entry = self.agenda.entries[key]
        entry.since = entry.asked = NOON
        self.agenda.plan(entry)
        return entry

    def ready(self) -> list[str]:
        self.agenda.gather()
        return sorted(entry.job.key for entry in self.agenda.ready)


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_follow_returns_what_is_new_and_forgets_what_is_gone(desk: Desk) -> None:
    first, second = desk.job("* * * * *", "first"), desk.job("* * * * *", "second")
    assert [entry.job for entry in desk.agenda.follow([first, second])] == [first, second]
    gone = desk.agenda.entries["second"]
    assert desk.agenda.follow([first]) == []
    assert list(desk.agenda.entries) == ["first"]
    assert gone.gone


def test_a_job_declared_again_is_new(desk: Desk) -> None:
    old = desk.entry()
    old.job.destroy()
    new = desk.job("0 * * * *")
    (entry,) = desk.agenda.follow([new])
    assert entry.job is new
    assert entry.since == 0
    assert old.gone


@pytest.mark.parametrize(
    ("options", "lengths"),
    [
        ({}, (30_000, 300_000)),
        ({"ttl": 5}, (5_000, 300_000)),
        ({"ttl": 600}, (600_000, 600_000)),
        ({"grace": 60}, (30_000, 60_000)),
        ({"grace": 30}, (30_000, 30_000)),
    ],
)
def test_lengths_are_the_jobs_own_or_the_defaults(
    desk: Desk, options: dict[str, object], lengths: tuple[int, int]
) -> None:
    assert desk.agenda.lengths(desk.job("* * * * *", **options)) == lengths


def test_a_grace_below_the_default_ttl_is_refused(desk: Desk) -> None:
    with pytest.raises(ConfigurationError, match=r"Job job .*grace \(29.5 s\) is shorter than its ttl \(30 s\)"):
        desk.agenda.follow([desk.job("* * * * *", grace=29.5)])


def test_a_job_is_ready_when_it_is_due_and_not_before(desk: Desk) -> None:
    desk.entry()
    desk.clock.advance(59.999)
    assert desk.ready() == []
    desk.clock.advance(0.001)
    assert desk.ready() == ["job"]


def test_the_next_instant_is_the_nearest_of_all_jobs(desk: Desk) -> None:
    assert desk.agenda.next_instant is None
    desk.entry("0 13 * * *", "later")
    desk.entry("* * * * *", "sooner")
    assert desk.agenda.next_instant == NOON + MINUTE


def test_the_question_is_about_the_newest_occurrence_due(desk: Desk) -> None:
    entry = desk.entry(recover=True)
    assert desk.agenda.question(entry) is None
    desk.clock.advance(150)
    question = desk.agenda.question(entry)
    assert question is not None
    assert (question.key, question.occurrence, question.ttl, question.grace, question.recover) == (
        "job",
        NOON + 2 * MINUTE,
        30_000,
        300_000,
        True,
    )


def test_each_question_has_a_token_of_its_own_unless_it_is_in_doubt(desk: Desk) -> None:
    entry = desk.entry()
    desk.clock.advance(60)
    first, second = desk.agenda.question(entry), desk.agenda.question(entry)
    assert first is not None
    assert second is not None
    assert first.token != second.token
    entry.question = first
    desk.clock.advance(60)
    assert desk.agenda.question(entry) is first


def test_nothing_is_asked_about_a_job_that_is_not_declared_or_not_active(desk: Desk) -> None:
    entry = desk.entry()
    desk.clock.advance(60)
    entry.since = 0
    assert desk.agenda.question(entry) is None
    entry.since = NOON
    entry.job.stop()
    assert desk.agenda.question(entry) is None
    entry.job.start()
    assert desk.agenda.question(entry) is not None
    entry.gone = True
    assert desk.agenda.question(entry) is None


def test_a_look_asks_again_about_what_was_answered_when_the_lease_has_ended(desk: Desk) -> None:
    entry = desk.entry("0 13 * * *")
    entry.answered(NOON + 60 * MINUTE)
    desk.clock.advance(3600)
    desk.agenda.look_in(entry, 5_000)
    assert desk.ready() == []
    assert desk.agenda.question(entry) is None
    assert desk.agenda.next_moment == pytest.approx(desk.clock.monotonic() + 5)
    desk.clock.advance(5)
    assert desk.ready() == ["job"]
    question = desk.agenda.question(entry)
    assert question is not None
    assert question.occurrence == entry.asked


def test_no_look_is_planned_where_there_is_nothing_to_ask_again(desk: Desk) -> None:
    entry = desk.entry("0 13 * * *")
    desk.agenda.look_in(entry, 5_000)  # As where the lease of a run by hand was taken over.
    desk.clock.advance(6)
    assert desk.ready() == []
    assert desk.agenda.next_moment is None


def test_a_look_is_not_put_off_by_a_later_one(desk: Desk) -> None:
    entry = desk.entry("0 13 * * *")
    moment = desk.clock.monotonic()
    desk.agenda.look_in(entry, 5_000)
    desk.agenda.look_in(entry, 9_000)
    assert entry.look_at == moment + 5
    desk.agenda.look_in(entry, 2_000)
    assert entry.look_at == moment + 2


def test_a_newer_occurrence_is_asked_about_rather_than_the_one_to_look_at(desk: Desk) -> None:
    entry = desk.entry()
    entry.answered(NOON + MINUTE)
    desk.agenda.look_in(entry, 0)
    desk.clock.advance(120)
    question = desk.agenda.question(entry)
    assert question is not None
    assert question.occurrence == NOON + 2 * MINUTE


def test_what_is_to_be_tried_again_is_ready_then(desk: Desk) -> None:
    entry = desk.entry("0 13 * * *")
    desk.agenda.again_in(entry, 0.5)
    desk.clock.advance(0.4)
    assert desk.ready() == []
    desk.clock.advance(0.1)
    assert desk.ready() == ["job"]


def test_what_became_due_while_an_older_one_was_in_doubt_is_due_at_once(desk: Desk) -> None:
    entry = desk.entry()
    desk.clock.advance(150)
    assert desk.ready() == ["job"]
    desk.agenda.ready.clear()
    entry.answered(NOON + MINUTE)
    desk.agenda.plan(entry)
    assert desk.ready() == ["job"]


def test_start_over_asks_about_the_newest_since_the_declaration(desk: Desk) -> None:
    entry = desk.entry()
    desk.clock.advance(150)
    entry.answered(NOON + 2 * MINUTE)
    assert desk.agenda.question(entry) is None
    desk.agenda.start_over()
    assert list(desk.agenda.ready) == [entry]
    question = desk.agenda.question(entry)
    assert question is not None
    assert question.occurrence == NOON + 2 * MINUTE


def test_start_over_makes_up_nothing_from_before_a_start(desk: Desk) -> None:
    entry = desk.entry()
    entry.job.stop()
    desk.agenda.follow(desk.registry)
    desk.clock.advance(150)
    entry.job.start()
    desk.agenda.follow(desk.registry)
    desk.agenda.start_over()
    assert desk.agenda.question(entry) is None
    desk.clock.advance(30)
    assert desk.agenda.question(entry) is not None


def test_a_job_is_planned_once_however_often_it_is_asked_for(desk: Desk) -> None:
    entry = desk.entry()
    for _ in range(5):
        desk.agenda.plan(entry)
    desk.clock.advance(60)
    assert desk.ready() == ["job"]
    desk.agenda.ready.clear()
    assert desk.ready() == []


def test_seeds_are_what_the_replica_remembers_of_a_declared_job(desk: Desk) -> None:
    entry = desk.entry()
    assert (entry.seeds.occurrence, entry.seeds.since) == (None, NOON)
    entry.answered(NOON + MINUTE)
    assert (entry.seeds.occurrence, entry.seeds.since) == (NOON + MINUTE, NOON)
    entry.since = 0
    assert (entry.seeds.occurrence, entry.seeds.since) == (None, None)


def test_a_disabled_job_is_another_declaration(desk: Desk) -> None:
    on, off = desk.entry(key="on"), desk.entry(key="off", enabled=False)
    assert on.fingerprint != off.fingerprint
    assert desk.agenda.next_instant == NOON + MINUTE
    desk.clock.advance(60)
    assert desk.ready() == ["on"]


def test_a_burst_comes_in_another_order_each_time(desk: Desk) -> None:
    orders = set()
    for number in range(100):
        desk.entry(key=f"job-{number}")
    for _ in range(2):
        desk.clock.advance(60)
        desk.agenda.gather()
        orders.add(tuple(entry.number for entry in desk.agenda.ready))
        for entry in list(desk.agenda.ready):
            entry.asked = desk.store.now()
            desk.agenda.plan(entry)
        desk.agenda.ready.clear()
    assert len(orders) == 2


def test_what_is_remembered_outlives_starting_over_and_a_start_anew(desk: Desk) -> None:
    entry = desk.entry()
    entry.answered(NOON + MINUTE)
    desk.clock.advance(150.5)
    entry.job.stop()
    entry.job.start()
    desk.agenda.follow(desk.registry)
    desk.agenda.start_over()
    assert entry.asked == NOON + 150_500
    assert entry.seeds.occurrence == NOON + MINUTE


def test_a_look_never_asks_about_an_instant_that_is_no_occurrence(desk: Desk) -> None:
    entry = desk.entry()
    desk.clock.advance(61)
    entry.answered(NOON + MINUTE)
    desk.agenda.look_in(entry, 5_000)
    entry.job.stop()
    entry.job.start()
    desk.agenda.follow(desk.registry)
    desk.clock.advance(6)
    question = desk.agenda.question(entry)
    assert question is not None
    assert question.occurrence == NOON + MINUTE


@pytest.mark.parametrize("end", ["stop", "destroy"])
def test_a_job_that_is_stopped_is_asked_about_no_more_though_an_answer_is_missing(desk: Desk, end: str) -> None:
    entry = desk.entry()
    desk.clock.advance(60)
    entry.question = desk.agenda.question(entry)
    assert entry.question is not None
    getattr(entry.job, end)()
    desk.agenda.follow(desk.registry)
    assert desk.agenda.question(entry) is None
    if end == "stop":
        entry.job.start()
        desk.agenda.follow(desk.registry)
        assert desk.agenda.question(entry) is None, "what was due before is not made up"


def test_a_job_declared_anew_after_its_end_makes_up_nothing(desk: Desk) -> None:
    entry = desk.entry()
    expression, handler = entry.job.expression, entry.job.handler
    entry.job.destroy()
    desk.agenda.follow(desk.registry)
    desk.clock.advance(150)
    desk.registry.schedule(expression, handler, key="job", takes_context=entry.job.takes_context)
    [new] = desk.agenda.follow(desk.registry)
    new.since = NOON
    new.start_over()
    assert desk.agenda.question(new) is None


def test_changed_plans_do_not_pile_up(desk: Desk) -> None:
    entry = desk.entry()
    for _ in range(1_000):
        entry.look_at = None
        desk.agenda.look_in(entry, 86_400_000)
        desk.agenda.again_in(entry, 3_600)
        desk.clock.advance(1)
    assert len(desk.agenda._later) < 200
    desk.clock.advance(86_400)
    assert desk.ready() == ["job"], "what is planned still is"


def test_changed_instants_do_not_pile_up(desk: Desk) -> None:
    entry = desk.entry()
    for number in range(1_000):
        entry.asked = NOON + (number % 2) * 3_600_000
        desk.agenda.plan(entry)
    assert len(desk.agenda._due) < 200
    desk.clock.advance(2 * 3_600)
    assert desk.ready() == ["job"], "what is planned still is"
