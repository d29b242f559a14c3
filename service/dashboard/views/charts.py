"""The charts of a page: drawn by the browser, and beneath each its table, which needs no script."""

from collections.abc import Sequence
from datetime import UTC, datetime, time, timedelta

import orjson

from service.audit_records.schemas import SeriesPoint, SeriesStep
from service.audit_records.search import newest_norms
from service.audit_records.summary import first_received, series
from service.dashboard.pages import Region, region
from service.dashboard.words.charts import Chart
from service.dashboard.words.periods import Period
from service.db.clock import now
from service.db.engine import Connection
from service.db.transactions import transaction
from service.services import Services

#: The region's name.
CHARTS = "charts"
_EVERY_S = 10.0
#: Up to two days are drawn by the hour.
_BY_HOUR = timedelta(days=2)
#: Newest requests whose norms are drawn; more could not be told apart.
NORMS = 150


async def charts_region(
    services: Services, period: Period, charts: Sequence[Chart], url: str, *, norms: bool
) -> Region:
    """These charts over a period and, if wanted, the norms of its newest requests. Raises Unavailable."""
    async with transaction(services.engine) as connection:
        at = await now(connection)
        step, points = await points_of(connection, services.model, period, at)
        newest = await newest_norms(connection, period.start(at), NORMS) if norms else None
    drawn = {
        "step": step.value,
        # By column, as uPlot takes it; times in seconds since 1970.
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
        # The driver's UUIDs are of a class of their own.
        drawn=orjson.dumps(drawn, str).decode(),
    )


async def points_of(
    connection: Connection, model: str, period: Period, at: datetime
) -> tuple[SeriesStep, list[SeriesPoint]]:
    """What happened in a period, from the first day with a request on, by the hour where there are up to two days."""
    received = await first_received(connection, model)
    start = period.start(at)
    if received is not None:
        start = max(start, datetime.combine(received, time(), UTC))
    step = SeriesStep.HOUR if at - start <= _BY_HOUR else period.step
    return step, await series(connection, model, start, at, step)
