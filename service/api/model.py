"""The model that is served, in figures."""

from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.api.auth import KeyedRoute, requires
from service.api.prediction_schemas import AUDIT_ONLY, ModelAnswer, NoiseAnswer, RepairProgressAnswer
from service.deletions.lookup import reads_audit
from service.domain.guarantees import noise_in_words
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.http.problem_responses import problems
from service.http.replies import reply
from service.services import services_of

router = APIRouter(tags=["model"], route_class=KeyedRoute)

Caller = Annotated[ApiKey, requires(Scope.PREDICTIONS_READ)]


@router.get("/model", response_model=ModelAnswer, responses=problems(401, 403, 503), summary="Describe the model")
async def describe_model(request: Request, caller: Caller) -> Response:
    """The committed version: dimensions, live nodes, repair and guarantee.

    Keys that also have audit:read get rank, edges, condition number, residual, bounds and the digest of W. With these,
    a caller who has the graph could test which node was deleted.
    """
    info = await services_of(request).model_info()
    progress, noise = info.repair_progress, info.facts.served.noise
    told = None
    if noise is not None:
        meaning = noise_in_words(noise.epsilon, noise.delta, noise.planned, noise.mu)
        told = NoiseAnswer(**vars(noise), meaning=meaning)
    answer = ModelAnswer(
        **vars(info.facts.model),
        **vars(info.facts.served) | {"noise": told},
        span_residual=info.span_residual if noise is None else None,
        repair=info.repair,
        repair_progress=None
        if progress is None
        else RepairProgressAnswer(
            iterations=progress.iterations,
            products=progress.products,
            distance_bound_relative=progress.bound_relative,
        ),
        guarantee=info.guarantee,
        weights_sha256=info.weights_sha256,
    )
    return reply(answer if reads_audit(caller) else answer.model_copy(update=dict.fromkeys(AUDIT_ONLY)))
