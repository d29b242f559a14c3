"""What the charts of the overview draw: JSON, times in seconds since 1970."""

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.queries import AuditEntry, AuditFilters, Searched, SeriesPoint, Threshold
from service.audit_records.search import search
from service.audit_records.summary import series
from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.periods import period_of
from service.db.clock import now
from service.db.transactions import transaction
from service.services import services_of

router = APIRouter(prefix=PATH, route_class=Page, include_in_schema=False)

#: Newest requests whose norms are drawn; more could not be told apart.
NORMS = 150


@router.get("/charts")
async def charts(request: Request, visitor: SignedIn) -> Response:
    """The series of a period, and the norms of its newest requests."""
    services = services_of(request)
    period = period_of(request.query_params.get("period"))
    async with transaction(services.engine) as connection:
        at = await now(connection)
        points = await series(connection, services.model, period.start(at), at, period.step)
        measured = {Searched.INJECTED_NORM_BEFORE: Threshold(at_least=0.0)}
        found = await search(connection, AuditFilters(since=period.start(at), thresholds=measured), None, NORMS)
    document = {
        "now": at.timestamp(),
        "step": period.step.value,
        "series": _columns(points),
        "norms": [_norms(entry) for entry in reversed(found.entries) if entry.audit],
        "norms_cut": found.next_cursor is not None,
    }
    return Response(orjson.dumps(document), media_type="application/json")


def _columns(points: list[SeriesPoint]) -> dict[str, list[float | int | None]]:
    """The series by column, as uPlot takes it."""
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
    return {
        "id": str(entry.request.id),
        "time": entry.request.received_at.timestamp(),
        "before": norms.injected_norm_before,
        "after": norms.injected_norm_after,
    }
