"""The report of a month or quarter, to read and to print."""

from datetime import UTC
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.summary import months_received
from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.db.clock import now
from service.db.transactions import transaction
from service.http.replies import page_reply
from service.papers.report import Span, read_report, report_paper
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/report", route_class=Page, include_in_schema=False)


@router.get("")
async def report(
    request: Request, visitor: SignedIn, of: Annotated[str | None, Query(max_length=7)] = None
) -> Response:
    """The report of the month or quarter `of`, or of the newest month that has requests."""
    services = services_of(request)
    asked = None if of is None else Span.parse(of)
    async with transaction(services.engine) as connection:
        span = asked or Span.newest(
            await months_received(connection, services.model), (await now(connection)).astimezone(UTC).date()
        )
        found = await read_report(connection, services.model, span)
    paper = report_paper(found, services.settings)
    return page_reply(paper.html, paper.policy)
