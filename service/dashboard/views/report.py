"""The report of a month or quarter, to read and to print."""

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import Response

from service.dashboard.pages import Page
from service.dashboard.sessions import PATH, SignedIn
from service.db.transactions import transaction
from service.http.replies import page_reply
from service.papers.report import Span, read_report, report_paper
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/report", route_class=Page, include_in_schema=False)


@router.get("")
async def report(request: Request, visitor: SignedIn, of: Annotated[str, Query(max_length=7)]) -> Response:
    """The report of the month or quarter `of`."""
    services = services_of(request)
    span = Span.parse(of)
    async with transaction(services.engine) as connection:
        found = await read_report(connection, services.model, span)
    paper = report_paper(found, services.settings)
    return page_reply(paper.html, paper.policy)
