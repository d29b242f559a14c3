"""The overview: what is late, whether it is forgotten, and what to send to whom."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.audit.checkpoint import read
from service.audit_records.schemas import Summary
from service.audit_records.summary import months_received, summary
from service.dashboard.pages import Page, Region, current, page, polls, region, url_with
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.views.charts import CHARTS, charts_region, points_of
from service.dashboard.views.drill_card import drill_region, result_of
from service.dashboard.words.charts import OVERVIEW, sparkline
from service.dashboard.words.clock import clock_of
from service.dashboard.words.periods import PERIODS, Period, period_of
from service.db.clock import now
from service.db.transactions import transaction
from service.deletions.requests import RequestRepository
from service.domain.drills import Drill
from service.domain.formats import ago, days, plural
from service.domain.states import RequestStatus
from service.drills.repository import DrillRepository
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.checks import LogCheck, LogCheckRepository
from service.evidence.log import LogRepository
from service.papers.report import Span
from service.services import Services, services_of

router = APIRouter(prefix=PATH, route_class=Page, include_in_schema=False)

_REGION = "now"
_EVERY_S = 5.0
#: Open requests shown with their clocks, those with the least time left.
_OPEN_ROWS = 6
#: Months whose reports are offered, and those whose share on time is shown.
_REPORTS, _MONTHS = 15, 2


@dataclass(frozen=True)
class Verdict:
    """The answer to a question, in a sentence."""

    tone: str
    sentence: str


@router.get("")
async def overview_page(request: Request, visitor: SignedIn, period: str = "") -> Response:
    """The overview over the period in the URL, or the part of it that keeps itself current."""
    chosen = period_of(period)
    services = services_of(request)
    url = url_with(PATH, {"period": chosen.name})
    if polls(request, CHARTS):
        return current(request, await charts_region(services, chosen, OVERVIEW, url, norms=False))
    shown = await _region(services, chosen, url)
    if polls(request, _REGION):
        return current(request, shown)
    charts = await charts_region(services, chosen, OVERVIEW, url, norms=False)
    drill = await drill_region(services, visitor)
    return page(
        request, "overview.html", visitor, region=shown, drill=drill, charts=charts, period=chosen, periods=PERIODS
    )


async def _region(services: Services, period: Period, url: str) -> Region:
    async with transaction(services.engine) as connection:
        at = await now(connection)
        figures = await summary(connection, services.model, period.first_day(at))
        step, points = await points_of(connection, services.model, period, at)
        waiting = await RequestRepository(connection).open(services.model, limit=_OPEN_ROWS)
        both = await RequestRepository(connection).late_failures(services.model, at)
        spans = Span.up_to(at.date(), _REPORTS)
        received = await months_received(connection, services.model, spans[-1].since)
        note = await CheckpointRepository(connection).latest()
        size = await LogRepository(connection).size()
        check = await LogCheckRepository(connection).newest()
        # As the alert has it: one that was cancelled takes nothing back of what the one before it found.
        ended = (RequestStatus.COMPLETED, RequestStatus.FAILED)
        drill = await DrillRepository(connection).last(services.model, *ended)
    signed = 0 if note is None else read(note).size
    newest = Span.newest(received, at.date())
    completed = figures.by_status[RequestStatus.COMPLETED]
    deleting = completed - figures.completed_without_work
    bounds = [point.max_distance_bound_after_relative for point in points]
    return region(
        _REGION,
        "overview_now.html",
        url=url,
        every_s=_EVERY_S,
        figures=figures,
        period=period,
        since=period.first_day(at).isoformat(),
        state=_state(figures, both),
        proof=_proof(figures, signed, size, check, drill),
        days=days(figures.deadline_days),
        months=figures.months[: -_MONTHS - 1 : -1],
        deleting=deleting,
        receipts=completed + figures.by_status[RequestStatus.FAILED],
        # Of all batches; where some are not those of retraining, the requests say which.
        bound=max((bound for bound in bounds if bound is not None), default=None)
        if figures.completed_retrained == deleting
        else None,
        step=step.value,
        trends={
            "received": sparkline([point.received for point in points]),
            "completed": sparkline([point.completed for point in points]),
            "bound": sparkline(bounds),
        },
        signed=signed,
        size=size,
        check=check,
        check_age=None if check is None else ago(at - check.at),
        drill=drill,
        drill_result=None if drill is None else result_of(drill),
        drill_age=None if drill is None else ago(at - drill.requested_at),
        spans=[(span, span.has_any(received)) for span in spans],
        newest=newest.name,
        open=[(one, clock_of(one, at)) for one in waiting],
        statuses={status.value: figures.by_status[status] for status in RequestStatus},
    )


def _state(figures: Summary, both: int) -> Verdict:
    """`both` of those that failed are past their deadline."""
    late, failed = figures.open_past_deadline, figures.open_failed - both
    if late and failed:
        return Verdict("bad", f"{plural(late + failed, 'request')} need attention: {late:,} late, {failed:,} failed.")
    if late:
        return Verdict("bad", f"{plural(late, 'request is', 'requests are')} late.")
    if failed:
        return Verdict("bad", f"{plural(failed, 'failed request needs', 'failed requests need')} attention.")
    if near := figures.open_near_deadline:
        return Verdict("warn", f"{plural(near, 'request is', 'requests are')} due soon.")
    return Verdict("good", "Every open request is within its deadline." if figures.open else "Nothing is open.")


def _proof(figures: Summary, signed: int, size: int, check: LogCheck | None, drill: Drill | None) -> Verdict:
    completed = figures.by_status[RequestStatus.COMPLETED] - figures.completed_without_work
    left = completed - figures.completed_retrained
    if drill is not None and drill.passed is False:
        return Verdict("bad", "The last drill failed: the model may not forget what is deleted.")
    if left:
        requests = plural(left, "completed request")
        return Verdict("warn", f"The weights are not those of retraining after {requests}.")
    if signed < size:
        return Verdict("warn", "The newest events are not signed yet.")
    if check is None:
        return Verdict("warn", "Recorded, but nobody has reported an independent check yet.")
    if not completed:
        return Verdict("good", "Recorded and independently checked. Nothing was deleted in this period.")
    return Verdict("good", "Recorded, independently checked, and forgotten within a proven bound.")
