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
    "Received, completed and failed in each {step}.",
    ((TOTALS["requests"], "received"), (TOTALS["completed"], "completed"), (TOTALS["failed"], "failed")),
)
TIME = Chart(
    "time",
    TOTALS["seconds_to_completed"],
    "From receipt until everything is gone from the disk, on a log scale.",
    (("Median", "median_seconds_to_completed"), ("95 % within", "p95_seconds_to_completed")),
    duration,
)
BOUND = Chart(
    "bound",
    FIGURES["distance_bound_after_relative"].label,
    "The largest of each {step}, as a share of the weights, on a log scale: how far they are at most from those of "
    "retraining.",
    (("Largest", "max_distance_bound_after_relative"),),
    percent,
)
LIVE = Chart(
    "live",
    TOTALS["live_nodes"],
    "Nodes that the model still knows, at the end of each {step}.",
    ((TOTALS["live_nodes"], "live_nodes"),),
)
RANK = Chart(
    "rank",
    TOTALS["rank"],
    "Independent directions that the live nodes’ features span. It falls when a direction is lost with its last node.",
    ((TOTALS["rank"], "rank_after"),),
)
OVERVIEW = (FLOW, TIME)
MODEL = (BOUND, LIVE, RANK)
