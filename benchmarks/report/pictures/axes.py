"""Axes of pictures: positions between two ends, and the labels beside them."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto

#: Values below this one are rounding, and are drawn at this level.
FLOOR = 1e-12
#: Approximate number of labels on an axis.
_TICKS = 6


class Scale(Enum):
    """The meaning of a step along an axis."""

    #: Multiplication, for positive values.
    POWERS = auto()
    #: Addition.
    EVEN = auto()


@dataclass(frozen=True)
class Axis:
    """Values between the first and the last tick."""

    scale: Scale
    #: (value, label), ascending.
    ticks: Sequence[tuple[float, str]]
    start: float
    end: float

    @classmethod
    def over(cls, scale: Scale, values: Sequence[float], start: float, end: float) -> "Axis":
        """Build an axis that contains all of `values`, from `start` to `end` of the picture."""
        least, most = min(values), max(values)
        return cls(scale, _powers(least, most) if scale is Scale.POWERS else _steps(least, most), start, end)

    def at(self, value: float) -> float:
        """Return the position of a value in the picture."""
        values = (self.ticks[0][0], self.ticks[-1][0], value)
        first, last, here = (math.log10(max(each, FLOOR)) for each in values) if self.scale is Scale.POWERS else values
        return self.start + (here - first) / (last - first) * (self.end - self.start)


def frame(x: Axis, y: Axis, across: str, upwards: str) -> Iterator[str]:
    """Draw the grid between two axes, with labels and titles."""
    left, right, top, bottom = x.start, x.end, y.end, y.start
    for value, words in x.ticks:
        at = x.at(value)
        yield f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>'
        yield f'<text class="tick" x="{at:.1f}" y="{bottom + 18}">{words}</text>'
    for value, words in y.ticks[:: max(1, len(y.ticks) // 8)]:
        at = y.at(value)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
        yield f'<text class="tick left" x="{left - 8}" y="{at + 4:.1f}">{words}</text>'
    yield f'<text class="axis" x="{(left + right) / 2}" y="{bottom + 40}">{across}</text>'
    middle = (top + bottom) / 2
    yield f'<text class="axis" transform="rotate(-90 16 {middle})" x="16" y="{middle}">{upwards}</text>'


def _powers(least: float, most: float) -> list[tuple[float, str]]:
    first = math.floor(math.log10(max(least, FLOOR)))
    last = max(math.ceil(math.log10(most)), first + 1)
    return [(10.0**power, "≤ " * (10.0**power <= FLOOR) + _power(power)) for power in range(first, last + 1)]


def _power(power: int) -> str:
    if -3 < power < 4:
        return f"{10.0**power:g}"
    return "10" + str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _steps(least: float, most: float) -> list[tuple[float, str]]:
    """Return ticks at steps of 1, 2 or 5 times a power of ten."""
    wanted = (most - least or 1.0) / (_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(wanted))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= wanted)
    first = math.floor(least / step)
    last = max(math.ceil(most / step), first + 1)
    return [(step * place, f"{step * place:g}") for place in range(first, last + 1)]
