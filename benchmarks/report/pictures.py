"""Pictures of the report, as SVG that takes its colours from the page."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

#: Distances below this one are rounding, and drawn on one line.
_FLOOR = 1e-12
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 680, 380, 74, 18, 16, 50


@dataclass(frozen=True)
class Point:
    """One method."""

    number: int
    name: str
    #: Of the style sheet: which colour.
    family: str
    #: Time as a ratio to Lethe's update, and distance to retraining.
    time: float
    distance: float


def distance_against_time(points: Sequence[Point], title: str) -> str:
    """A point for each method, both axes by powers of ten; "" for no points."""
    if not points:
        return ""
    x = _Axis.over([point.time for point in points], _LEFT, _WIDTH - _RIGHT)
    y = _Axis.over([max(point.distance, _FLOOR) for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
    ]
    for power in x.powers:
        at = x.at(10.0**power)
        parts.append(f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}"/>')
        parts.append(f'<text class="tick" x="{at:.1f}" y="{_HEIGHT - _BOTTOM + 18}">{_power(power)}</text>')
    for power in y.powers[:: max(1, len(y.powers) // 8)]:
        at = y.at(10.0**power)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        words = f"≤ {_power(power)}" if 10.0**power <= _FLOOR else _power(power)
        parts.append(f'<text class="tick left" x="{_LEFT - 8}" y="{at + 4:.1f}">{words}</text>')
    middle = (_LEFT + _WIDTH - _RIGHT) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{_HEIGHT - 10}">time, as a ratio to Lethe’s projection</text>')
    height = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text class="axis" transform="rotate(-90 16 {height})" x="16" y="{height}">distance to retraining</text>'
    )
    for point in points:
        across, down = x.at(point.time), y.at(max(point.distance, _FLOOR))
        parts.append(
            f'<g class="point {point.family}"><title>{escape(point.name)}</title>'
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="9"/>'
            f'<text x="{across:.1f}" y="{down + 3.5:.1f}">{point.number}</text></g>'
        )
    return "".join([*parts, "</svg>"])


@dataclass(frozen=True)
class _Axis:
    """Powers of ten between two ends, and where each value lies."""

    first: int
    last: int
    start: float
    end: float

    @classmethod
    def over(cls, values: Sequence[float], start: float, end: float) -> "_Axis":
        first = math.floor(math.log10(min(values)))
        return cls(first, max(math.ceil(math.log10(max(values))), first + 1), start, end)

    @property
    def powers(self) -> range:
        return range(self.first, self.last + 1)

    def at(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return self.start + share * (self.end - self.start)


def _power(power: int) -> str:
    if -3 < power < 4:
        return f"{10.0**power:g}"
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
