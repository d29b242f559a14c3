"""Drills: canaries deleted like any other nodes, to show that the weights forget them."""

from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from service.db.transactions import transaction
from service.domain.fields import Known
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.observability import tracing
from service.requests.answers import links_of
from service.requests.drill_rows import DrillRepository
from service.requests.drill_runs import AcceptedDrill, DrillsAnswer, accepted_drill, cohorts_answer, drill_answer
from service.web.api.auth import KeyedRoute, requires, requires_any
from service.web.api.deletion_routes import IdempotencyKey
from service.web.routes import LOCATION, problems, reply
from service.web.services import Services, services_of

router = APIRouter(prefix="/drills", tags=["drills"], route_class=KeyedRoute)

Writer = Annotated[ApiKey, requires(Scope.DELETIONS_WRITE)]
Looker = Annotated[ApiKey, requires_any(Scope.AUDIT_READ, Scope.DELETIONS_WRITE)]


class DrillFilters(Known):
    """Filters for the list of drills."""

    limit: int = Field(50, ge=1, le=200, description="Maximum number of drills.")


@router.post(
    "",
    status_code=202,
    response_model=AcceptedDrill,
    responses=LOCATION | problems(401, 403, 409, 429, 503),
    summary="Run a drill",
)
async def run_drill(request: Request, caller: Writer, idempotency_key: IdempotencyKey = None) -> Response:
    """Request the deletion of the next cohort of canaries; follow it at `links.self`, like any deletion.

    409 when the model has no canaries, no cohort is left, or another drill is under way.
    """
    services = services_of(request)
    newest = await services.drills.newest()
    started = await services.drills.start(caller, newest=newest, idempotency_key=idempotency_key)
    tracing.note("lethe.request", str(started.drill.request_id))
    answer = accepted_drill(started, with_result=_may_know(services, caller))
    return reply(answer, 202, {"Location": links_of(started.drill.request_id).self})


@router.get(
    "",
    response_model=DrillsAnswer,
    responses=problems(401, 403, 503),
    summary="List drills",
)
async def list_drills(request: Request, filters: Annotated[DrillFilters, Query()], caller: Looker) -> Response:
    """Results of the served model's drills, newest first, and the number of cohorts left."""
    services = services_of(request)
    async with transaction(services.engine) as connection:
        drills = await DrillRepository(connection).list(services.model, limit=filters.limit)
    return reply(
        DrillsAnswer(
            model=services.model,
            cohorts=cohorts_answer(await services.drills.cohorts(), next(iter(drills), None)),
            drills=[drill_answer(drill, with_result=_may_know(services, caller)) for drill in drills],
        )
    )


def _may_know(services: Services, caller: ApiKey) -> bool:
    """Return whether `caller` may see measurements of the weights without noise."""
    return services.settings.certify is None or Scope.AUDIT_READ in caller.scopes
