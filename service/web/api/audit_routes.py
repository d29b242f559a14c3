"""The whole audit: in figures, over time, and as a file."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import Field, TypeAdapter
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from service.db.transactions import transaction
from service.domain.fields import Day, Known, Moment, Window
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import InvalidRequest
from service.reports.listing import audit_filters
from service.reports.queries import MEDIA_TYPES, ExportFormat, written
from service.reports.schemas import RecordFilters, Series, SeriesStep, Summary
from service.reports.search import export
from service.reports.summary import series, summary
from service.web.api.auth import KeyedRoute, requires
from service.web.routes import file_reply, problems
from service.web.services import services_of

router = APIRouter(prefix="/audit", tags=["audit"], route_class=KeyedRoute)

Auditor = Annotated[ApiKey, requires(Scope.AUDIT_READ)]

#: Most points of a series: a month of hours, two years of days.
MAX_POINTS = 744


class SummaryWindow(Window, Known):
    """The days to count."""

    since: Day | None = Field(None, description="First day (UTC); default: the beginning.")
    until: Day | None = Field(None, description="Day after the last day (UTC); default: the end.")


class SeriesWindow(Window, Known):
    """The hours or days to show."""

    step: SeriesStep = Field(SeriesStep.DAY, description="Time covered by one point.")
    since: Moment | None = Field(
        None, description="A moment in the first hour or day; default: 30 points before `until`."
    )
    until: Moment | None = Field(None, description="Exclusive; default: now.")


class ExportFilters(RecordFilters, Known):
    """Filters and format of an export."""

    format: ExportFormat = Field(ExportFormat.NDJSON, description="One JSON document per line, or a table.")


#: Read from the database in the form of the response.
_SUMMARY, _SERIES = TypeAdapter(Summary), TypeAdapter(Series)
#: Description in /docs of a response that is not one JSON document.
_FILE: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "One line per request, newest first",
        "content": {media_type: {"schema": {"type": "string"}} for media_type in MEDIA_TYPES.values()},
    }
}


@router.get(
    "/summary",
    response_model=Summary,
    responses=problems(401, 403, 503),
    summary="The audit in figures",
)
async def get_summary(request: Request, window: Annotated[SummaryWindow, Query()], caller: Auditor) -> Response:
    """Numbers of requests by result, their processing times, and what is still open."""
    services = services_of(request)
    async with transaction(services.engine) as connection:
        found = await summary(connection, services.model, window.since, window.until)
    return Response(_SUMMARY.dump_json(found), media_type="application/json")


@router.get(
    "/series",
    response_model=Series,
    responses=problems(401, 403, 503),
    summary="The audit over time",
)
async def get_series(request: Request, window: Annotated[SeriesWindow, Query()], caller: Auditor) -> Response:
    """Requests received, applied, completed and failed by hour or day, their times, and the model at its end."""
    services = services_of(request)
    width = timedelta(days=1) if window.step is SeriesStep.DAY else timedelta(hours=1)
    until = window.until or datetime.now(UTC)
    since = window.since or until - 30 * width
    if since >= until:
        raise InvalidRequest("The window is empty.", "Give a `since` before `until`.")
    if until - since > MAX_POINTS * width:
        raise InvalidRequest(
            f"This exceeds {MAX_POINTS} points.", "Request a shorter period, or days instead of hours."
        )
    async with transaction(services.engine) as connection:
        points = await series(connection, services.model, since, until, window.step)
    return Response(_SERIES.dump_json(Series(window.step, points)), media_type="application/json")


@router.get(
    "/export",
    response_class=StreamingResponse,
    responses={**_FILE, **problems(401, 403, 503)},
    summary="All requests with their audits, as a file",
)
async def get_export(request: Request, filters: Annotated[ExportFilters, Query()], caller: Auditor) -> Response:
    """One line for every matching request, newest first, with every figure of its audit."""
    pages = written(export(services_of(request).engine, audit_filters(filters, caller)), filters.format)
    return await file_reply(pages, f"lethe-audit.{filters.format.value}", MEDIA_TYPES[filters.format])
