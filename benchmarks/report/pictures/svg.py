"""Pictures of points and lines, as SVG. The report's take their colours from the page; others bring their own."""

import cmath
import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from benchmarks.report.pictures.axes import Axis, Scale, frame

_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 680, 380, 74, 18, 16, 50
#: Radius of a point's number.
_RADIUS = 9
#: In pictures of lines: the distance between names, and the number of colours.
_LINE, _COLOURS = 17, 6
_STYLE = (
    "svg{--page:#fff;--muted:#525d69;--line:#d9dcdf;"
    "--c0:#17212b;--c1:#0b6e77;--c2:#b4552d;--c3:#6b4f9e;--c4:#7d6a00;--c5:#a3201a}"
    "@media (prefers-color-scheme:dark){svg{--page:#12181f;--muted:#a7b1bb;--line:#303a44;"
    "--c0:#e5e9ed;--c1:#5cc4cb;--c2:#ee9a6b;--c3:#b89df0;--c4:#d8c458;--c5:#f59a92}}"
    ".page{fill:var(--page)}.grid{stroke:var(--line)}polyline{fill:none;stroke-width:1.8}.dashed{stroke-dasharray:5 3}"
    'text{font:12px system-ui,"DejaVu Sans",sans-serif;fill:var(--muted);text-anchor:middle}'
    ".left{text-anchor:end}.name{text-anchor:start}"
) + "".join(
    f"polyline.colour{n}{{stroke:var(--c{n})}}circle.colour{n},text.colour{n}{{fill:var(--c{n})}}"
    for n in range(_COLOURS)
)


@dataclass(frozen=True)
class Point:
    """One method."""

    number: int
    name: str
    #: Colour class in the style sheet.
    family: str
    #: Time as a ratio to Lethe's update, and distance to retraining.
    time: float
    distance: float


def distance_against_time(points: Sequence[Point], title: str) -> str:
    """Draw a point for each method, on two logarithmic axes; "" without points."""
    if not points:
        return ""
    x = Axis.over(Scale.POWERS, [point.time for point in points], _LEFT, _WIDTH - _RIGHT)
    y = Axis.over(Scale.POWERS, [point.distance for point in points], _HEIGHT - _BOTTOM, _TOP)
    parts = [
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(title, quote=True)}">',
        f"<title>{escape(title)}</title>",
        *frame(x, y, "time, as a ratio to Lethe’s projection", "distance to retraining"),
    ]
    taken: list[complex] = []
    numbers = []
    for point in points:
        place = complex(x.at(point.time), y.at(point.distance))
        taken.append(spot := _free(place, taken))
        ends = f'x1="{place.real:.1f}" y1="{place.imag:.1f}" x2="{spot.real:.1f}" y2="{spot.imag:.1f}"'
        parts.append(
            f'<g class="point {point.family}"><line {ends}/>'
            f'<circle cx="{place.real:.1f}" cy="{place.imag:.1f}" r="3"/></g>'
        )
        numbers.append(
            f'<g class="point {point.family}"><title>{escape(point.name)}</title>'
            f'<circle cx="{spot.real:.1f}" cy="{spot.imag:.1f}" r="{_RADIUS}"/>'
            f'<text x="{spot.real:.1f}" y="{spot.imag + 3.5:.1f}">{point.number}</text></g>'
        )
    # Drawn above all lines.
    return "".join([*parts, *numbers, "</svg>"])


def _free(place: complex, taken: Sequence[complex]) -> complex:
    """Return the position of a point's number: its `place`, or the nearest spot that overlaps none of those `taken`."""
    rings = range(_WIDTH // (2 * _RADIUS))
    around = (place + 2 * _RADIUS * cmath.rect(ring, math.pi / 4 * turn) for ring in rings for turn in range(8))
    free = (
        spot
        for spot in around
        if all(abs(spot - other) >= 2 * _RADIUS for other in taken)
        and _LEFT <= spot.real <= _WIDTH - _RIGHT
        and _TOP <= spot.imag <= _HEIGHT - _BOTTOM
    )
    return next(free, place)


@dataclass(frozen=True)
class Line:
    """One series over several sizes."""

    name: str
    #: (size, value), ascending by size.
    points: Sequence[tuple[float, float]]
    #: Style class for colour and dashes; "" takes those of its rank from the top.
    look: str = ""


@dataclass(frozen=True)
class Sheet:
    """The drawing area of lines."""

    #: Width of the axes with labels, width of the names on the right, and height.
    width: int
    names: int
    height: int
    #: The style sheet; "" uses that of the surrounding page.
    style: str


#: Sheets for a separate file and for a part of the report's page.
ALONE, IN_PAGE = Sheet(680, 300, 460, _STYLE), Sheet(410, 210, 346, "")


def lines_by_size(
    lines: Sequence[Line],
    title: str,
    across: str,
    upwards: str,
    *,
    x: Scale = Scale.POWERS,
    y: Scale = Scale.POWERS,
    sheet: Sheet = ALONE,
) -> str:
    """Draw `lines`, each named at its right end; `across` and `upwards` label the axes."""
    points = [point for line in lines for point in line.points]
    horizontal = Axis.over(x, [size for size, _ in points], _LEFT, sheet.width - _RIGHT)
    vertical = Axis.over(y, [there for _, there in points], sheet.height - _BOTTOM, _TOP)
    whole = sheet.width + sheet.names
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {whole} {sheet.height}" role="img">',
        f"<title>{escape(title)}</title>{f'<style>{sheet.style}</style>' if sheet.style else ''}",
        f'<rect class="page" width="{whole}" height="{sheet.height}"/>' if sheet.style else "",
        *frame(horizontal, vertical, across, upwards),
    ]
    drawn = sorted(lines, key=lambda line: -line.points[-1][1])
    heights = _apart([vertical.at(line.points[-1][1]) for line in drawn], sheet.height - _BOTTOM)
    for number, (line, height) in enumerate(zip(drawn, heights, strict=True)):
        places = [(horizontal.at(size), vertical.at(there)) for size, there in line.points]
        look = line.look or f"colour{number % _COLOURS}" + (" dashed" if number >= _COLOURS else "")
        parts.append(f'<polyline class="{look}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in places)}"/>')
        parts += [f'<circle class="{look}" cx="{a:.1f}" cy="{b:.1f}" r="2.5"/>' for a, b in places]
        right, end = places[-1]
        parts.append(
            f'<line class="grid" x1="{right + 4:.1f}" x2="{sheet.width - 4}" y1="{end:.1f}" y2="{height:.1f}"/>'
        )
        parts.append(f'<text class="name {look}" x="{sheet.width}" y="{height + 4:.1f}">{escape(line.name)}</text>')
    return "".join([*parts, "</svg>\n"])


def _apart(ends: Sequence[float], bottom: float) -> list[float]:
    """Return heights for the names of lines with these ends, from the top down, without overlaps or names below
    `bottom`.
    """
    heights: list[float] = []
    for end in ends:
        heights.append(max(end, heights[-1] + _LINE) if heights else end)
    for place in range(len(heights) - 1, -1, -1):
        below = heights[place + 1] - _LINE if place + 1 < len(heights) else bottom
        heights[place] = min(heights[place], below)
    return heights
