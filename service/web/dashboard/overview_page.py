"""The overview: open and late requests, their proof, what to send to whom, and the last drill."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from projector.forgetting.status import RepairStatus
from service.access.sessions import Session
from service.db.clock import now
from service.db.transactions import transaction
from service.domain.drills import Drill
from service.domain.formats import ago, days, plural
from service.domain.scopes import Scope
from service.domain.states import RequestStatus
from service.errors import LetheError, MissingScope, Unavailable
from service.log.checkpoints import read
from service.log.events import LogRepository
from service.log.signed_checkpoints import CheckpointRepository, LogCheck, LogCheckRepository
from service.reports.period_report import Span
from service.reports.schemas import Summary
from service.reports.summary import months_received, summary
from service.requests.drill_rows import DrillRepository
from service.requests.drill_runs import cohorts_answer, ranges
from service.requests.lookup import RequestRepository
from service.web.dashboard.charts import (
    CHARTS,
    OVERVIEW,
    PERIODS,
    Period,
    charts_region,
    period_of,
    points_of,
    sparkline,
)
from service.web.dashboard.pages import Page, Region, current, html, page, polls, region, url_with
from service.web.dashboard.signing_in import PATH, SignedIn, form_of
from service.web.dashboard.words import clock_of
from service.web.services import Services, services_of

drill_router = APIRouter(prefix=f"{PATH}/drills", route_class=Page, include_in_schema=False)

_DRILL_REGION = "drill"
#: Seconds between refreshes: during a drill, at rest, and after a refusal, which takes time to read.
_OPEN_S, _REST_S, _FAULT_S = 1.0, 5.0, 20.0
#: Most drills in the table of earlier ones.
_EARLIER = 10


@dataclass(frozen=True)
class Result:
    """Label and badge of a drill's result."""

    label: str
    #: Class of its badge.
    tone: str


@drill_router.get("")
async def drill_card(request: Request, visitor: SignedIn) -> Response:
    """The drill card alone; its page is the overview."""
    if not polls(request, _DRILL_REGION):
        return RedirectResponse(PATH, 303)
    return current(request, await drill_region(services_of(request), visitor))


@drill_router.post("")
async def run_drill(request: Request, visitor: SignedIn) -> Response:
    """Start the next drill with the signed-in key, and return the card."""
    services = services_of(request)
    fault = None
    try:
        await form_of(request, visitor.form_token)
        if not _may_run(visitor):
            raise MissingScope("This needs the scope deletions:write.", "Sign in with a key that has it.")
        await services.drills.start(visitor.key, newest=await services.drills.newest())
    except LetheError as error:
        # Without JavaScript, the refusal is a page of its own.
        if error.status == 500 or not polls(request, _DRILL_REGION):
            raise
        fault = f"{error.detail} {error.remedy}"
    if not polls(request, _DRILL_REGION):
        return RedirectResponse(PATH, 303)
    return html(str((await drill_region(services, visitor, fault)).markup))


async def drill_region(services: Services, visitor: Session, fault: str | None = None) -> Region:
    """Return the drill card for a visitor. Raises Unavailable."""
    async with transaction(services.engine) as connection:
        at = await now(connection)
        drills = await DrillRepository(connection).list(services.model, limit=1 + _EARLIER)
    try:
        cohorts = await services.drills.cohorts()
    except Unavailable:
        # While a model is loading, past drills can still be shown.
        cohorts = None
    newest = next(iter(drills), None)
    is_open = newest is not None and newest.is_open
    left = cohorts_answer(cohorts, newest) if cohorts else None
    return region(
        _DRILL_REGION,
        "drill_now.html",
        url=f"{PATH}/drills",
        every_s=_FAULT_S if fault else _OPEN_S if is_open else _REST_S,
        newest=newest,
        result=None if newest is None else result_of(newest),
        age=None if newest is None else ago(at - newest.requested_at),
        earlier=[(drill, result_of(drill)) for drill in drills[1:]],
        cohorts=cohorts,
        remaining=left.remaining if left else 0,
        skipped=ranges(left.partly_deleted) if left else "",
        may_run=_may_run(visitor),
        is_open=is_open,
        form_token=visitor.form_token,
        fault=fault,
    )


def _may_run(visitor: Session) -> bool:
    return Scope.DELETIONS_WRITE in visitor.key.scopes


def result_of(drill: Drill) -> Result:
    """Return label and badge of a drill's result."""
    if drill.is_open:
        return Result("Under way", "busy")
    if drill.status is RequestStatus.CANCELLED:
        return Result("Cancelled", "quiet")
    label = "Passed" if drill.passed else "Failed"
    if drill.model_replaced_at is not None:
        return Result(f"{label}, earlier model", "quiet")
    return Result(label, "good" if drill.passed else "bad")


router = APIRouter(prefix=PATH, route_class=Page, include_in_schema=False)

_REGION = "now"
_EVERY_S = 5.0
#: Most open requests shown, least time left first.
_OPEN_ROWS = 6
#: Months offered as reports, and months whose on-time share is shown.
_REPORTS, _MONTHS = 15, 2


@dataclass(frozen=True)
class Verdict:
    """The answer to a question, in a sentence."""

    tone: str
    sentence: str


@router.get("")
async def overview_page(request: Request, visitor: SignedIn, period: str = "") -> Response:
    """The overview over the period in the URL, or only a self-refreshing region."""
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
        # Like the alert: a cancelled drill does not revoke the result of the one before.
        ended = (RequestStatus.COMPLETED, RequestStatus.FAILED)
        drill = await DrillRepository(connection).last(services.model, *ended)
    signed = 0 if note is None else read(note).size
    newest = Span.newest(received, at.date())
    completed = figures.by_status[RequestStatus.COMPLETED]
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
        deleting=figures.completed_deletions,
        receipts=completed + figures.by_status[RequestStatus.FAILED],
        # Covers all batches, those of additions too, so show it only if all are repaired. Otherwise, see their pages.
        bound=max((bound for bound in bounds if bound is not None), default=None)
        if figures.by_repair[RepairStatus.CONVERGED] == sum(figures.by_repair.values())
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
    """Return the verdict on deadlines; `both` failed requests are also past their deadline."""
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
    completed = figures.completed_deletions
    left = completed - figures.completed_retrained
    if drill is not None and drill.passed is False:
        return Verdict("bad", "The last drill failed: the model may not forget what is deleted.")
    if left:
        requests = plural(left, "deletion")
        return Verdict("warn", f"The weights are not those of retraining after {requests}.")
    if signed < size:
        return Verdict("warn", "The newest events are not signed yet.")
    if check is None:
        return Verdict("warn", "Recorded, but nobody has reported an independent check yet.")
    if not completed:
        return Verdict("good", "Recorded and independently checked. Nothing was deleted in this period.")
    return Verdict("good", "Recorded, independently checked, and forgotten within a proven bound.")
