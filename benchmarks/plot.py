"""Small pictures of how one thing grows with another: SVG, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 480, 280, 64, 36, 36, 36
INK, PALE = "#1f6f8b", "#dddddd"


@dataclass(frozen=True)
class Line:
    """Points that belong together, by a name; all of them above zero."""

    name: str
    points: Sequence[tuple[float, float]]


def plot(title: str, lines: Sequence[Line]) -> str:
    """Return the picture as the text of an SVG file."""
    points = [point for line in lines for point in line.points]
    across, up = _Axis([x for x, _ in points], LEFT, WIDTH - RIGHT), _Axis([y for _, y in points], HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}"',
        ' font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="20" font-size="14">{escape(title)}</text>',
    ]
    for value in across.ticks():
        x = across.at(value)
        parts.append(f'<path d="M{x:.1f} {TOP}V{HEIGHT - BOTTOM}" stroke="{PALE}"/>')
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{value:,g}</text>')
    for value in up.ticks():
        y = up.at(value)
        parts.append(f'<path d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}" stroke="{PALE}"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{value:,g}</text>')
    for line in lines:
        places = [(across.at(x), up.at(y)) for x, y in line.points]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{INK}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{INK}"/>' for x, y in places]
        if line.name:
            parts.append(f'<text x="{places[-1][0]:.1f}" y="{places[-1][1] - 8:.1f}">{escape(line.name)}</text>')
    return "\n".join([*parts, "</svg>", ""])


class _Axis:
    """Whole powers of ten that hold all values, from one place of the picture to another."""

    def __init__(self, values: Sequence[float], start: float, end: float) -> None:
        self._low = math.floor(math.log10(min(values)))
        self._high = max(self._low + 1, math.ceil(math.log10(max(values))))
        self._start, self._end = start, end

    def at(self, value: float) -> float:
        share = (math.log10(value) - self._low) / (self._high - self._low)
        return self._start + share * (self._end - self._start)

    def ticks(self) -> list[float]:
        return [10.0**power for power in range(self._low, self._high + 1)]
