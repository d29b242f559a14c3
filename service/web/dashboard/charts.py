"""Charts of a page over a period, drawn by the browser, each with a table below."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import orjson

from service.db.clock import now
from service.db.engine import Connection
from service.db.transactions import transaction
from service.domain.figures import FIGURES, TOTALS
from service.domain.formats import duration, number, percent
from service.reports.schemas import SeriesPoint, SeriesStep
from service.reports.search import newest_norms
from service.reports.summary import first_received, series
from service.web.dashboard.pages import Region, region
from service.web.services import Services


@dataclass(frozen=True)
class Period:
    """A number of days up to now."""

    #: Name in the URL.
    name: str
    label: str
    #: In words, after "in".
    words: str
    #: Number of days, including today.
    days: int
    step: SeriesStep

    def first_day(self, now: datetime) -> date:
        """Return the first day (UTC)."""
        return now.astimezone(UTC).date() - timedelta(days=self.days - 1)

    def start(self, now: datetime) -> datetime:
        """Return the first moment (UTC)."""
        return datetime.combine(self.first_day(now), time(), UTC)


PERIODS = (
    Period("2d", "2 days", "the last 2 days", 2, SeriesStep.HOUR),
    Period("7d", "7 days", "the last 7 days", 7, SeriesStep.DAY),
    Period("30d", "30 days", "the last 30 days", 30, SeriesStep.DAY),
    Period("90d", "90 days", "the last 90 days", 90, SeriesStep.DAY),
    Period("365d", "1 year", "the last year", 365, SeriesStep.DAY),
)
_DEFAULT = PERIODS[2]


def period_of(name: str | None) -> Period:
    """Return the period with this name; thirty days for any other text."""
    return next((period for period in PERIODS if period.name == name), _DEFAULT)


@dataclass(frozen=True)
class Chart:
    """A chart over time."""

    #: Name of its description in `static/charts.js`.
    name: str
    title: str
    #: Contains `{step}` for the time covered by one point.
    caption: str
    #: Label and attribute of each line or bar.
    lines: tuple[tuple[str, str], ...]
    written: Callable[[Any], str] = number

    def rows(self, points: Sequence[SeriesPoint]) -> list[tuple[SeriesPoint, list[str]]]:
        """Return the rows of its table, newest first, without empty points."""
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
    """Return the corners of a line through `values` on a scale from 0; empty if fewer than two are known."""
    known = [(at, value) for at, value in enumerate(values) if value is not None]
    if len(known) < 2:
        return ""
    width, height = SPARK
    most = max(value for _, value in known) or 1.0
    last = len(values) - 1
    return " ".join(f"{width * at / last:.1f},{height * (1 - value / most):.1f}" for at, value in known)


OVERVIEW = (FLOW, TIME)
MODEL = (BOUND, LIVE, RANK)


#: Name of the region.
CHARTS = "charts"
_EVERY_S = 10.0
#: Up to two days are drawn by the hour.
_BY_HOUR = timedelta(days=2)
#: Most requests whose norms are drawn, newest first; more would be indistinguishable.
NORMS = 150


async def charts_region(
    services: Services, period: Period, charts: Sequence[Chart], url: str, *, norms: bool
) -> Region:
    """Return charts over a period and, if `norms`, the norms of its newest requests. Raises Unavailable."""
    async with transaction(services.engine) as connection:
        at = await now(connection)
        step, points = await points_of(connection, services.model, period, at)
        newest = await newest_norms(connection, period.start(at), NORMS) if norms else None
    drawn = {
        "step": step.value,
        # By column, as uPlot expects; times in seconds since 1970.
        "start": [point.start.timestamp() for point in points],
        "series": {name: [getattr(point, name) for point in points] for chart in charts for _, name in chart.lines},
        "norms": list(reversed(newest or ())),
    }
    return region(
        CHARTS,
        "charts_now.html",
        url=url,
        every_s=_EVERY_S,
        step=step.value,
        charts=[(chart, chart.rows(points)) for chart in charts],
        norms=newest,
        # The driver has a UUID class of its own.
        drawn=orjson.dumps(drawn, str).decode(),
    )


async def points_of(
    connection: Connection, model: str, period: Period, at: datetime
) -> tuple[SeriesStep, list[SeriesPoint]]:
    """Return a period's points from the first day that has a request; hourly for periods of up to two days."""
    received = await first_received(connection, model)
    start = period.start(at)
    if received is not None:
        start = max(start, datetime.combine(received, time(), UTC))
    step = SeriesStep.HOUR if at - start <= _BY_HOUR else period.step
    return step, await series(connection, model, start, at, step)
