"""What the soak's recorder saw, judged against what is promised."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from django_cronductor.schedules import Schedule
from tests.soak_faults import Fault

ZONE = "UTC"
TELLS_WITHIN = 2.0
"""Seconds from hearing an answer to having told what it says: who dies within them may not have told."""
SILENCE = 30.0
"""Seconds after a death within which a loss of data, or of an answer, may keep it from being reported."""
WAKE = 5.0
"""Seconds after a fault within which what is due is put to its account."""
AROUND = 3.0
"""Seconds of the journal that are shown around a violation."""
SLACK = 0.1
EARLY = 0.25
"""Seconds by which a run may seem early: far more than clocks slew, far less than those of the replicas are off."""

DIED = "who was to tell died"
NOT_HEARD = "the answer was not heard"
DATA_LOST = "the store lost its data"


@dataclass
class Entry:
    """One line of the journal. `occurrence` is in milliseconds since the epoch, `at` on the monotonic clock."""

    number: int
    event: str
    job: str
    occurrence: int | None
    replica: str
    at: float
    details: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        at = f"{self.at:.3f}"
        return f"{at} {self.replica:>10} {self.event:>10} {self.job} {self.occurrence or ''} {self.details or ''}"


@dataclass
class Call:
    """One call to the store about one job: what was asked, and what of the answer was heard."""

    kind: str
    job: str
    replica: str
    occurrence: Any
    asked: float
    answered: float | None = None
    answer: dict[str, Any] = field(default_factory=dict)

    @property
    def told(self) -> list[tuple[int, int]]:
        """Return which occurrences, as (after, until), the answer gives the asker to report."""
        spans = []
        if self.answer.get("held"):
            spans.append(tuple(self.answer["held"]))
        if self.answer.get("previous") is not None:
            spans.append((self.answer["previous"], self.occurrence - 1))
        if self.answer.get("verdict") in ("missed", "paused"):
            spans.append((self.occurrence - 1, self.occurrence))
        if (dead := self.answer.get("dead")) and dead[0] != "manual":
            spans.append((dead[0] - 1, dead[0]))
        return spans

    def tells_of(self, occurrence: int) -> bool:
        """Tell whether the asker is to report this occurrence."""
        return any(after < occurrence <= until for after, until in self.told)


def read(path: Path) -> list[Entry]:
    """Return the journal in the order of writing."""
    entries = []
    for number, line in enumerate(path.read_text().splitlines()):
        values = json.loads(line)
        known = {name: values.pop(name) for name in ("event", "job", "occurrence", "replica", "at")}
        entries.append(Entry(number, **known, details=values))
    return entries


class Verdict:
    """Everything that was promised and not kept, and everything that was lost as the design says it may be."""

    def __init__(
        self,
        entries: list[Entry],
        faults: list[Fault],
        died: dict[str, float],
        jobs: dict[str, str],
        *,
        history: bool,
        offset: float,
    ) -> None:
        self.violations: list[tuple[str, str, float]] = []
        """What, of which job, when."""
        self.known: list[tuple[str, str, float]] = []
        """What the design says may be lost, by reason and fault; of which job, when."""
        self.rows: list[list[Any]] = []
        self.by_fault: dict[str, Counter[str]] = defaultdict(Counter)
        """For each kind of fault: how often it was made, and what became of what was due in its wake."""
        self.latest = 0.0
        """Seconds by which the latest run was late."""
        self._entries = entries
        self._faults = faults
        self._died = died
        self._history = history
        self._offset = offset
        self._losses = [fault for fault in faults if fault.loses_data]
        self._by_job: dict[str, list[Entry]] = defaultdict(list)
        for entry in entries:
            self._by_job[entry.job].append(entry)
        self._calls: dict[str, list[Call]] = defaultdict(list)
        for call in _calls(entries):
            self._calls[call.job].append(call)
        for fault in faults:
            self.by_fault[fault.kind]["times"] += 1
        for key, expression in jobs.items():
            self._judge(key, Schedule(expression, ZONE))

    def trace(self, job: str, at: float) -> Iterator[str]:
        """Yield what happened to a job, and what was done, around a moment."""
        lines = [(entry.at, str(entry)) for entry in self._by_job[job] if abs(entry.at - at) <= AROUND]
        lines += [
            (call.asked, f"{call.asked:.3f} {call.replica:>10} {call.kind:>10} {job} {call.occurrence} {call.answer}")
            for call in self._calls[job]
            if abs(call.asked - at) <= AROUND
        ]
        lines += [
            (fault.at, f"{fault.at:.3f} *** {fault.kind} {fault.target} until {fault.until:.3f}")
            for fault in self._faults
            if fault.at <= at + AROUND and fault.until >= at - 3 * AROUND
        ]
        yield from (text for _, text in sorted(lines))

    def _judge(self, key: str, schedule: Schedule) -> None:
        starts = self._events(key, "started")
        if not starts:
            self._violated("it never ran", key, 0.0)
            return
        self._judge_earliness(key, starts)
        doubled = self._judge_doubles(key, starts)
        self._judge_tokens(key, starts)
        self._judge_overlaps(key, starts)
        reported = self._reported(key, schedule)
        occurrences, lost = self._judge_losses(key, schedule, starts, reported)
        dead = self._judge_dead(key, starts)
        again = sum(entry.details["trigger"] == "recover" for entry in starts)
        row = [len(occurrences), len(starts) - again, again, len(reported), len(doubled), len(lost), dead]
        self.rows.append([key, schedule.expression, *row])
        ran = {entry.occurrence for entry in starts}
        for instant in occurrences:
            became = {"runs": ran, "reported": reported, "doubled": doubled, "lost": lost}
            words = ["occurrences", *(word for word, instants in became.items() if instant in instants)]
            for kind in self._faults_at(instant / 1000 - self._offset):
                self.by_fault[kind].update(words)

    def _faults_at(self, due: float) -> set[str]:
        """Return in the wake of which kinds of fault an instant lies."""
        return {fault.kind for fault in self._faults if fault.at <= due <= fault.until + WAKE} or {"none"}

    def _events(self, key: str, *events: str) -> list[Entry]:
        return [entry for entry in self._by_job[key] if entry.event in events]

    def _violated(self, what: str, key: str, at: float) -> None:
        self.violations.append((what, key, at))

    def _excused(self, reason: str, key: str, at: float) -> None:
        before = [fault for fault in self._faults if fault.at <= at + 1.0]
        self.known.append((f"{reason}; last fault: {before[-1].kind if before else 'none'}", key, at))

    def _lost_data(self, start: float, end: float) -> bool:
        return any(fault.at - SLACK <= end and fault.until + SLACK >= start for fault in self._losses)

    # Promise 1: once, and not early.

    def _judge_earliness(self, key: str, starts: Sequence[Entry]) -> None:
        for entry in starts:
            assert entry.occurrence is not None
            late = entry.at + self._offset - entry.occurrence / 1000
            self.latest = max(self.latest, late)
            if late < -EARLY:
                self._violated(f"{entry.occurrence} started {-late:.3f} s early", key, entry.at)

    def _judge_doubles(self, key: str, starts: Sequence[Entry]) -> list[int | None]:
        first: dict[tuple[int | None, bool], Entry] = {}
        doubled = []
        for entry in starts:
            slot = (entry.occurrence, entry.details["trigger"] == "recover")
            before = first.setdefault(slot, entry)
            if before is entry:
                continue
            doubled.append(entry.occurrence)
            kept = not self._lost_data(before.at, entry.at)
            barred = self._history and before.details["row"] and entry.details["row"]
            if kept or barred:
                why = "while data was kept" if kept else "although its row was in the history"
                self._violated(f"{entry.occurrence} started twice {why}", key, entry.at)
            else:
                self._excused("started twice: " + DATA_LOST, key, entry.at)
        return doubled

    # Promise 3: tokens rise.

    def _judge_tokens(self, key: str, starts: Sequence[Entry]) -> None:
        highest = 0
        for entry in starts:
            token = entry.details["token"]
            # One that stood still between its win and its start has lost its lease meanwhile, and knows it.
            if token <= highest and not entry.details["lost"]:
                self._violated(f"token {token} began after {highest}", key, entry.at)
            highest = max(highest, token)

    # Promise 2 and 3: no overlap, unless the earlier run is told that it has lost its lease.

    def _judge_overlaps(self, key: str, starts: Sequence[Entry]) -> None:
        ends = {entry.details["token"]: entry for entry in self._events(key, "ended")}
        going: list[Entry] = []
        for entry in starts:
            for earlier in going:
                end = ends.get(earlier.details["token"])
                if end is None or end.at <= entry.at or end.details["lost"] or entry.details["lost"]:
                    continue
                if self._lost_data(earlier.at, entry.at):
                    self._excused("two runs at once: " + DATA_LOST, key, entry.at)
                else:
                    self._violated(f"{entry.occurrence} ran beside {earlier.occurrence}", key, entry.at)
            going = [one for one in [*going, entry] if (end := ends.get(one.details["token"])) and end.at > entry.at]

    # Promise 6: what did not run is reported, once.

    def _reported(self, key: str, schedule: Schedule) -> dict[int, list[float]]:
        """Return when each occurrence was reported."""
        reported: dict[int, list[float]] = defaultdict(list)
        for entry in self._events(key, "missed", "skipped"):
            instant = entry.occurrence
            for _ in range(entry.details["count"]):
                if instant is not None:
                    reported[instant].append(entry.at)
                    instant = schedule.latest_until_ms(instant - 1)
        return reported

    def _judge_losses(
        self, key: str, schedule: Schedule, starts: Sequence[Entry], reported: dict[int, list[float]]
    ) -> tuple[list[int], set[int]]:
        accounts = {instant: list(moments) for instant, moments in reported.items()}
        for entry in self._events(key, "started"):
            if entry.occurrence is not None and entry.details["trigger"] != "recover":
                accounts.setdefault(entry.occurrence, []).append(entry.at)
        for instant, moments in accounts.items():
            if len(moments) < 2 or instant not in reported:
                continue
            if self._lost_data(min(moments), max(moments)):
                self._excused("reported although it ran, or twice: " + DATA_LOST, key, max(moments))
            else:
                self._violated(f"{instant} was reported although it ran, or twice", key, max(moments))
        # A win that was lost, or cut off, before its handler began is told as a run.
        for entry in self._events(key, "abandoned", "finished"):
            if entry.occurrence is not None:
                accounts.setdefault(entry.occurrence, []).append(entry.at)
        known = sorted(accounts)
        occurrences, lost, instant = [known[0]], set(), schedule.next_after_ms(known[0])
        while instant is not None and instant <= known[-1]:
            occurrences.append(instant)
            if instant not in accounts:
                lost.add(instant)
                following = next(one for one in known if one > instant)
                self._explain(key, instant, min(accounts[following]))
            instant = schedule.next_after_ms(instant)
        return occurrences, lost

    def _explain(self, key: str, occurrence: int, decided: float) -> None:
        """Lay a loss to what the design says may lose it, or call it a violation."""
        due = occurrence / 1000 - self._offset
        told, died = self._who_was_told(key, occurrence)
        reason = DIED if died else self._not_heard(key, occurrence, due, decided)
        if reason is None and self._lost_data(due, decided) and (not self._history or self._leased(key, due, decided)):
            reason = DATA_LOST
        if told:
            self._violated(f"{occurrence} is neither run nor reported, although {told} heard of it", key, due)
        elif reason is None:
            self._violated(f"{occurrence} is neither run nor reported", key, due)
        else:
            self._excused("not reported: " + reason, key, due)

    def _who_was_told(self, key: str, occurrence: int) -> tuple[str | None, bool]:
        """Return who should have reported it, if any lived long enough, and whether one of those who heard died."""
        told, died = None, False
        for call in self._calls[key]:
            if call.answered is None or not call.tells_of(occurrence):
                continue
            if self._died.get(call.replica, float("inf")) - call.answered < TELLS_WITHIN:
                died = True
            else:
                told = call.replica
        return told, died

    def _not_heard(self, key: str, occurrence: int, since: float, until: float) -> str | None:
        for call in self._calls[key]:
            if call.answered is None and since - 1.0 <= call.asked <= until + 1.0:
                before = call.occurrence if isinstance(call.occurrence, int) else 0
                if before >= occurrence or call.kind == "release":
                    return NOT_HEARD
        return None

    def _leased(self, key: str, since: float, until: float) -> bool:
        """Tell whether a run was going on in that time: what is then due is known to the store alone."""
        ends = {entry.details["token"]: entry.at for entry in self._events(key, "ended")}
        return any(
            entry.at <= until and ends.get(entry.details["token"], until) >= since - 1.0
            for entry in self._events(key, "started")
        )

    # Promise 5: a dead run is reported by name.

    def _judge_dead(self, key: str, starts: Sequence[Entry]) -> int:
        ended = {entry.details["token"] for entry in self._events(key, "ended")}
        named = Counter((entry.occurrence, entry.details["holder"]) for entry in self._events(key, "abandoned"))
        for (occurrence, holder), count in named.items():
            if count > 1:
                self._violated(f"the dead run of {occurrence} by {holder} was reported {count} times", key, 0.0)
        dead = [entry for entry in starts if entry.details["token"] not in ended]
        for entry in dead:
            died = self._died.get(entry.replica)
            assert entry.occurrence is not None
            if died is None:
                self._violated(f"the run of {entry.occurrence} has no end", key, entry.at)
            elif (entry.occurrence, entry.details["instance"]) not in named:
                self._explain_silence(key, entry.occurrence, entry.at, died)
        return len(dead)

    def _explain_silence(self, key: str, occurrence: int, started: float, died: float) -> None:
        until = died + SILENCE
        told, heir_died = self._who_was_told(key, occurrence)
        reason = DIED if heir_died else self._not_heard(key, occurrence, died, until)
        if reason is None and self._lost_data(started, until):
            reason = DATA_LOST
        if told or reason is None:
            heard = f", although {told} heard of it" if told else ""
            self._violated(f"the dead run of {occurrence} was not reported{heard}", key, died)
        else:
            self._excused("a dead run not reported: " + reason, key, died)


def _calls(entries: Sequence[Entry]) -> Iterator[Call]:
    """Put questions and answers together, a call for each job in them."""
    asked: dict[tuple[str, int], list[Call]] = {}
    for entry in entries:
        if entry.event == "asked":
            questions = entry.details["questions"]
            kind = entry.details["kind"]
            calls = [Call(kind, job, entry.replica, occurrence, entry.at) for job, occurrence in questions]
            asked[entry.replica, entry.details["call"]] = calls
            yield from calls
        elif entry.event == "answered":
            for call, answer in zip(asked[entry.replica, entry.details["call"]], entry.details["answers"], strict=True):
                call.answered, call.answer = entry.at, answer
