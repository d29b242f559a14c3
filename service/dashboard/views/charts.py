"""The charts of a page: drawn by the browser, and beneath each its table, which needs no script."""

from collections.abc import Sequence

import orjson

from service.audit_records.search import newest_norms
from service.audit_records.summary import series
from service.dashboard.pages import Region, region
from service.dashboard.words.charts import Chart
from service.dashboard.words.periods import Period
from service.db.clock import now
from service.db.transactions import transaction
from service.services import Services

#: The region's name.
CHARTS = "charts"
_EVERY_S = 10.0
#: Newest requests whose norms are drawn; more could not be told apart.
NORMS = 150


async def charts_region(
    services: Services, period: Period, charts: Sequence[Chart], url: str, *, norms: bool
) -> Region:
    """These charts over a period and, if wanted, the norms of its newest requests. Raises Unavailable."""
    async with transaction(services.engine) as connection:
        at = await now(connection)
        start = period.start(at)
        points = await series(connection, services.model, start, at, period.step)
        newest = await newest_norms(connection, start, NORMS) if norms else None
    drawn = {
        "step": period.step.value,
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
        step=period.step.value,
        charts=[(chart, chart.rows(points)) for chart in charts],
        norms=newest,
        # The driver's UUIDs are of a class of their own.
        drawn=orjson.dumps(drawn, str).decode(),
    )
