"""The overview: what is open and how long it still may be, how long forgetting takes, and what the model is now."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.audit_records.queries import Summary
from service.audit_records.summary import summary
from service.dashboard.pages import Page, Region, current, page, polls, region, url_with
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.views.drill_card import drill_region
from service.dashboard.words.clock import Clock, clock_of
from service.dashboard.words.periods import PERIODS, Period, period_of
from service.db.clock import now
from service.db.transactions import transaction
from service.deletions.requests import RequestRepository
from service.domain.formats import plural
from service.domain.states import RequestStatus
from service.services import Services, services_of

router = APIRouter(prefix=PATH, route_class=Page, include_in_schema=False)

_REGION = "now"
_EVERY_S = 5.0
#: Open requests shown with their clocks, those with the least time left.
_OPEN_ROWS = 8


@dataclass(frozen=True)
class Verdict:
    """The state of things in a sentence, and one on what follows."""

    tone: str
    sentence: str
    more: str


@router.get("")
async def overview_page(request: Request, visitor: SignedIn) -> Response:
    """The overview over the period in the URL, or the part of it that keeps itself current."""
    period = period_of(request.query_params.get("period"))
    services = services_of(request)
    shown = await _region(services, period)
    if polls(request, _REGION):
        return current(request, shown)
    drill = await drill_region(services, visitor)
    return page(request, "overview.html", visitor, region=shown, drill=drill, period=period, periods=PERIODS)


async def _region(services: Services, period: Period) -> Region:
    async with transaction(services.engine) as connection:
        at = await now(connection)
        figures = await summary(connection, services.model, period.first_day(at))
        waiting = await RequestRepository(connection).open(services.model, limit=_OPEN_ROWS)
    clocks: list[Clock] = [clock_of(one, at) for one in waiting]
    return region(
        _REGION,
        "overview_now.html",
        url=url_with(PATH, {"period": period.name}),
        every_s=_EVERY_S,
        figures=figures,
        period=period,
        verdict=_verdict(figures),
        open=list(zip(waiting, clocks, strict=True)),
        statuses={status.value: figures.by_status[status] for status in RequestStatus},
    )


def _verdict(figures: Summary) -> Verdict:
    more = (
        f"{plural(figures.open, 'request')} {'is' if figures.open == 1 else 'are'} open."
        if figures.open
        else "No request is open."
    )
    wrong = []
    if late := figures.open_past_deadline:
        wrong.append(f"{plural(late, 'request')} {'is' if late == 1 else 'are'} past the deadline")
    if failed := figures.open_failed:
        wrong.append(f"{plural(failed, 'request')} failed and {'is' if failed == 1 else 'are'} not handled")
    if wrong:
        return Verdict("bad", f"{', and '.join(wrong)}.", more)
    if near := figures.open_near_deadline:
        return Verdict("warn", f"{plural(near, 'request')} {'is' if near == 1 else 'are'} close to the deadline.", more)
    return Verdict("good", "Every open request is within its deadline.", more)
