"""Pictures of runs as SVG: made of plain data, coloured by the stylesheet, told apart by shape as well."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString

Kind = Literal["good", "bad", "running", "skipped"]

SLOT = 4
"""Pixels from one bar of a sparkline to the next."""
BASELINE = 26
TALLEST = 18
LANE = 42
"""Pixels of height for a replica: its name, below it marks, below these what it ran."""
BAR = 12
BELOW_NAME = 28


@dataclass(frozen=True)
class Bar:
    """A run in a sparkline. `duration` in seconds; None: not known."""

    kind: Kind
    duration: float | None = None


@dataclass(frozen=True)
class Span:
    """Something that lasted, in a timeline. `start` and `end` are parts of its width: 0 is its left, 1 its right."""

    start: float
    end: float
    kind: Kind | Literal["overlap", "gap", "unknown"]
    title: str


@dataclass(frozen=True)
class Lane:
    """A line of a timeline with its name."""

    name: str
    spans: Sequence[Span]


@dataclass(frozen=True)
class Timeline:
    """
    What ran where, and when.

    `ticks` are labels of its axis by their place from 0 to 1; `across` are spans of all lanes together.
    """

    title: str
    description: str
    ticks: Sequence[tuple[float, str]]
    lanes: Sequence[Lane]
    across: Sequence[Span] = field(default_factory=list)


def sparkline(bars: Sequence[Bar], name: str, description: str, *, slots: int = 30) -> SafeString:
    """
    Return a picture of runs, oldest first. Their height is the duration, relative to the longest.

    A bar stands for a run that went well, one with a cross for one that did not, a hollow one for one that goes on, a
    dot below the line for an occurrence that was not run. `name` is the id of the picture in the page.
    """
    longest = max((bar.duration or 0.0 for bar in bars), default=0.0)
    paths: dict[Kind, list[str]] = {"good": [], "bad": [], "running": [], "skipped": []}
    for place, bar in enumerate(bars, slots - len(bars)):
        height = max(2, round(TALLEST * (bar.duration or 0.0) / longest)) if longest else 2
        paths[bar.kind].append(_bar(place * SLOT, height, bar.kind))
    return format_html(
        '<svg class="cronductor-sparkline" role="img" aria-labelledby="{name}" viewBox="0 0 {width} 32" '
        'width="{width}" height="32" focusable="false"><title id="{name}">{description}</title>'
        '<path class="line" d="M0 {line}H{width}"/>{paths}</svg>',
        name=name,
        width=slots * SLOT,
        line=BASELINE + 0.5,
        description=description,
        paths=format_html_join(
            "", '<path class="{}" d="{}"/>', ((kind, "".join(drawn)) for kind, drawn in paths.items() if drawn)
        ),
    )


def _bar(left: int, height: int, kind: Kind) -> str:
    """Return the outline of one bar, as path data."""
    if kind == "skipped":
        return f"M{left} 29h3v3h-3z"
    if kind == "running":
        return f"M{left + 0.5} {BASELINE}v-{height}h2v{height}"
    drawn = f"M{left} {BASELINE}v-{height}h3v{height}z"
    if kind == "bad":
        top = BASELINE - height - 5
        drawn += f"M{left} {top}l3 3M{left + 3} {top}l-3 3"
    return drawn


def timeline(picture: Timeline) -> SafeString:
    """Return a picture as wide as its place: only its width is stretched, so that its text can be read on a phone."""
    height = LANE * len(picture.lanes) + 24
    parts = [_axis(picture.ticks, height), *(_across(span, height - 24) for span in picture.across)]
    parts += (_lane(lane, LANE * number) for number, lane in enumerate(picture.lanes))
    return format_html(
        '<svg class="cronductor-timeline" role="img" aria-labelledby="timeline-title timeline-desc" width="100%" '
        'height="{}" focusable="false"><title id="timeline-title">{}</title><desc id="timeline-desc">{}</desc>{}</svg>',
        height,
        picture.title,
        picture.description,
        format_html_join("", "{}", ((part,) for part in parts)),
    )


def _axis(ticks: Iterable[tuple[float, str]], height: int) -> SafeString:
    lines = (
        (_percent(place), height - 20, height - 6, label, "first" if place < 0.03 else "last" if place > 0.97 else "")
        for place, label in ticks
    )
    return format_html_join(
        "",
        '<line class="tick" x1="{0}" x2="{0}" y1="0" y2="{1}"/><text class="tick {4}" x="{0}" y="{2}">{3}</text>',
        lines,
    )


def _lane(lane: Lane, top: int) -> SafeString:
    return format_html(
        '<text x="0" y="{}">{}</text>{}',
        top + 12,
        lane.name,
        format_html_join("", "{}", ((_span(span, top + BELOW_NAME, BAR),) for span in lane.spans)),
    )


def _across(span: Span, height: int) -> SafeString:
    return _span(span, 0, height)


def _span(span: Span, top: int, height: int) -> SafeString:
    """Return a span with its title, and with the mark of its kind above its start."""
    rect = format_html(
        '<rect class="{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>',
        span.kind,
        _percent(span.start),
        top,
        _percent(max(0.0, span.end - span.start)),
        height,
        span.title,
    )
    mark = {"bad": "x", "skipped": "o", "overlap": "!!"}.get(span.kind)
    if mark is None:
        return rect
    text = '<text class="{} mark" x="{}" y="{}" aria-hidden="true">{}</text>'
    return format_html("{}" + text, rect, span.kind, _percent(span.start), max(top - 2, 10), mark)


def _percent(part: float) -> str:
    return f"{min(max(part, 0.0), 1.0) * 100:.3f}%"
