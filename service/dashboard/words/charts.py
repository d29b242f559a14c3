"""The charts of the overview and of the model's page: what each shows, also as a table for who sees no picture."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from service.audit_records.schemas import SeriesPoint
from service.domain.figures import FIGURES, TOTALS
from service.domain.formats import duration, number, percent


@dataclass(frozen=True)
class Chart:
    """A chart over time."""

    #: Its description in `static/charts.js`.
    name: str
    title: str
    #: With `{step}` for the time that one point covers.
    caption: str
    #: Label and attribute of a point, of each line or bar.
    lines: tuple[tuple[str, str], ...]
    written: Callable[[Any], str] = number

    def rows(self, points: Sequence[SeriesPoint]) -> list[tuple[SeriesPoint, list[str]]]:
        """What its table shows, newest first: the points that have anything."""
        found = [(point, [getattr(point, name) for _, name in self.lines]) for point in reversed(points)]
        return [(point, [self.written(value) for value in values]) for point, values in found if any(values)]


FLOW = Chart(
    "flow",
    "Requests",
    "Received, completed and failed in each {step}, without drills.",
    ((TOTALS["requests"], "received"), (TOTALS["completed"], "completed"), (TOTALS["failed"], "failed")),
)
TIME = Chart(
    "time",
    TOTALS["seconds_to_completed"],
    "From receipt until everything is erased from the disk, on a log scale.",
    (("Median", "median_seconds_to_completed"), ("95% within", "p95_seconds_to_completed")),
    duration,
)
BOUND = Chart(
    "bound",
    FIGURES["distance_bound_after_relative"].label,
    "The largest of each {step}, relative to the weights, on a log scale: how far they can be from the retrained ones.",
    (("Largest", "max_distance_bound_after_relative"),),
    percent,
)
LIVE = Chart(
    "live",
    TOTALS["live_nodes"],
    "Nodes left in the model at the end of each {step}.",
    ((TOTALS["live_nodes"], "live_nodes"),),
)
RANK = Chart(
    "rank",
    TOTALS["rank"],
    "Independent directions in the live nodes’ features. It falls when a direction is lost with its last node.",
    ((TOTALS["rank"], "rank_after"),),
)
#: Width and height of a sparkline, in its own units.
SPARK = (100.0, 24.0)


def sparkline(values: Sequence[float | None]) -> str:
    """The corners of a line through `values`, from 0 at the bottom up; empty when fewer than two are known."""
    known = [(at, value) for at, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    width, height = SPARK
    most = max(value for _, value in known) or 1.0
    last = len(values) - 1
    return " ".join(f"{width * at / last:.1f},{height * (1 - value / most):.1f}" for at, value in known)


OVERVIEW = (FLOW, TIME)
MODEL = (BOUND, LIVE, RANK)
