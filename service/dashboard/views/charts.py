"""The charts of a page: drawn by the browser, and beneath each its table, which needs no script."""

from collections.abc import Sequence

import orjson

from service.audit_records.queries import AuditEntry, AuditFilters, Searched, SeriesPoint, Threshold
from service.audit_records.search import search
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
    entries: Sequence[AuditEntry] = ()
    async with transaction(services.engine) as connection:
        at = await now(connection)
        start = period.start(at)
        points = await series(connection, services.model, start, at, period.step)
        if norms:
            measured = {Searched.INJECTED_NORM_BEFORE: Threshold(at_least=0.0)}
            found = await search(connection, AuditFilters(since=start, thresholds=measured), None, NORMS)
            entries = [entry for entry in found.entries if entry.audit]
    drawn = {
        "step": period.step.value,
        "series": _columns(points),
        "norms": [_norms(entry) for entry in reversed(entries)],
    }
    return region(
        CHARTS,
        "charts_now.html",
        url=url,
        every_s=_EVERY_S,
        step=period.step.value,
        charts=[(chart, chart.rows(points)) for chart in charts],
        norms=entries if norms else None,
        drawn=orjson.dumps(drawn).decode(),
    )


def _columns(points: Sequence[SeriesPoint]) -> dict[str, list[float | int | None]]:
    """The series by column, as uPlot takes it; times in seconds since 1970."""
    return {
        "time": [point.start.timestamp() for point in points],
        "received": [point.received for point in points],
        "completed": [point.completed for point in points],
        "failed": [point.failed for point in points],
        "median": [point.median_seconds_to_completed for point in points],
        "p95": [point.p95_seconds_to_completed for point in points],
        "rank": [point.rank_after for point in points],
        "live": [point.live_nodes for point in points],
        "bound": [point.max_distance_bound_after_relative for point in points],
    }


def _norms(entry: AuditEntry) -> dict[str, object]:
    assert entry.audit is not None
    norms = entry.audit.norms
    return {"id": str(entry.request.id), "before": norms.injected_norm_before, "after": norms.injected_norm_after}
