"""The report of a month or quarter, to read and print."""

from datetime import UTC
from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.db.clock import now
from service.db.transactions import transaction
from service.reports.period_report import Span, read_report, report_paper
from service.reports.summary import months_received
from service.web.dashboard.pages import Page
from service.web.dashboard.signing_in import PATH, SignedIn
from service.web.routes import page_reply
from service.web.services import services_of

router = APIRouter(prefix=f"{PATH}/report", route_class=Page, include_in_schema=False)


@router.get("")
async def report(
    request: Request, visitor: SignedIn, of: Annotated[str | None, Query(max_length=7)] = None
) -> Response:
    """The report of the month or quarter `of`; default: the newest month with requests."""
    services = services_of(request)
    asked = None if of is None else Span.parse(of)
    async with transaction(services.engine) as connection:
        span = asked or Span.newest(
            await months_received(connection, services.model), (await now(connection)).astimezone(UTC).date()
        )
        found = await read_report(connection, services.model, span)
    paper = report_paper(found, services.settings)
    return page_reply(paper.html, paper.policy)
