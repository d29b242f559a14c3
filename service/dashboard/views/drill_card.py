"""The card of the overview that shows the last drill, keeps itself current, and runs the next."""

from dataclasses import dataclass

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.access.sessions import Session
from service.dashboard.pages import Page, Region, current, html, polls, region
from service.dashboard.sessions import PATH, SignedIn, form_of
from service.db.clock import now
from service.db.transactions import transaction
from service.domain.drills import Drill
from service.domain.formats import ago
from service.domain.scopes import Scope
from service.domain.states import RequestStatus
from service.drills.cohorts import ranges
from service.drills.repository import DrillRepository
from service.drills.schemas import cohorts_answer
from service.errors import LetheError, MissingScope, Unavailable
from service.services import Services, services_of

router = APIRouter(prefix=f"{PATH}/drills", route_class=Page, include_in_schema=False)

_REGION = "drill"
#: Seconds between two looks: while a drill is under way, at rest, and after a refusal, which is to be read.
_OPEN_S, _REST_S, _FAULT_S = 1.0, 5.0, 20.0
#: Drills in the table of earlier ones.
_EARLIER = 10


@dataclass(frozen=True)
class Result:
    """How the result of a drill is shown."""

    label: str
    #: Class of its badge.
    tone: str


@router.get("")
async def drill_card(request: Request, visitor: SignedIn) -> Response:
    """The card, for itself; its page is the overview."""
    if not polls(request, _REGION):
        return RedirectResponse(PATH, 303)
    return current(request, await drill_region(services_of(request), visitor))


@router.post("")
async def run_drill(request: Request, visitor: SignedIn) -> Response:
    """Start the next drill with the key that is signed in, and show the card again."""
    services = services_of(request)
    fault = None
    try:
        await form_of(request, visitor.form_token)
        if not _may_run(visitor):
            raise MissingScope("This needs the scope deletions:write.", "Sign in with a key that has it.")
        await services.drills.start(visitor.key, newest=await services.drills.newest())
    except LetheError as error:
        # Without a script the refusal is a page of its own.
        if error.status == 500 or not polls(request, _REGION):
            raise
        fault = f"{error.detail} {error.remedy}"
    if not polls(request, _REGION):
        return RedirectResponse(PATH, 303)
    return html(str((await drill_region(services, visitor, fault)).markup))


async def drill_region(services: Services, visitor: Session, fault: str | None = None) -> Region:
    """The card for a visitor. Raises Unavailable."""
    async with transaction(services.engine) as connection:
        at = await now(connection)
        drills = await DrillRepository(connection).list(services.model, limit=1 + _EARLIER)
    try:
        cohorts = await services.drills.cohorts()
    except Unavailable:
        # A model that is being loaded is no reason not to show what was done.
        cohorts = None
    newest = next(iter(drills), None)
    is_open = newest is not None and newest.is_open
    left = cohorts_answer(cohorts, newest) if cohorts else None
    return region(
        _REGION,
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
    """How the result of a drill is shown."""
    if drill.is_open:
        return Result("Under way", "busy")
    if drill.status is RequestStatus.CANCELLED:
        return Result("Cancelled", "quiet")
    label = "Passed" if drill.passed else "Failed"
    if drill.model_replaced_at is not None:
        return Result(f"{label}, earlier model", "quiet")
    return Result(label, "good" if drill.passed else "bad")
