"""Liveness, readiness and metrics of the process."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends
from prometheus_client import CONTENT_TYPE_LATEST
from pydantic import BaseModel, ConfigDict
from starlette.requests import Request
from starlette.responses import Response

from service.domain.lease_report import Check
from service.errors import LetheError, MissingScope, TooManyAttempts, Unauthenticated, Unavailable
from service.observability.metrics import AUDIT_ONLY
from service.predictions.reader import Reader
from service.reports.listing import reads_audit
from service.web.api.auth import caller_of, local_or_reading
from service.web.problems import MEDIA_TYPE, problem
from service.web.routes import Problem, StrictRoute, problems, reply
from service.web.services import services_of

router = APIRouter(tags=["operation"], route_class=StrictRoute)


class Alive(BaseModel):
    """The process responds."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"status": "alive"}]})

    status: Literal["alive"] = "alive"


class Ready(BaseModel):
    """Every check passed."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"status": "ready", "checks": [{"name": "postgres", "ok": True, "detail": "answers", "remedy": ""}]}
            ]
        }
    )

    status: Literal["ready"] = "ready"
    checks: list[Check]


_FAILING = Check(
    "predictions", False, "The model is loading.", "Try again in a moment; /readyz shows when it is ready."
)
_EXAMPLE = Problem(
    type="urn:lethe:problem:not-ready",
    title="Not ready",
    status=503,
    detail="Not ready: predictions.",
    remedy=_FAILING.remedy,
    checks=[_FAILING],
)
#: Responses of both routes.
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **problems(),
    503: {
        "description": "Not ready; `checks` lists the failing checks",
        "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}, "example": _EXAMPLE.model_dump()}},
    },
}


@router.get("/healthz", response_model=Alive, responses=problems(), summary="Liveness")
async def healthz() -> Response:
    """200 while the process responds. It does not check Postgres, Redis or the model."""
    return reply(Alive())


@router.get(
    "/readyz",
    response_model=Ready,
    responses=_RESPONSES,
    summary="Readiness",
)
async def readyz(request: Request) -> Response:
    """200 when deletions and predictions work; otherwise 503 with the failing checks and their remedies."""
    return _answer(await services_of(request).readiness())


@router.get(
    "/readyz/predictions",
    response_model=Ready,
    responses=_RESPONSES,
    summary="Readiness for predictions",
)
async def readyz_predictions(request: Request) -> Response:
    """200 when this process can predict now; otherwise 503. For load balancers that select prediction servers.

    It does not check Postgres or Redis: predictions continue without them.
    """
    return _answer([_prediction(services_of(request).reader)])


def _prediction(reader: Reader) -> Check:
    try:
        reader.predict_many(())
    except LetheError as error:
        return Check("predictions", False, error.detail, error.remedy)
    return Check("predictions", True, "answered")


def _answer(checks: Sequence[Check]) -> Response:
    failing = [check for check in checks if not check.ok]
    if not failing:
        return reply(Ready(checks=list(checks)))
    return problem(
        503,
        "not-ready",
        "Not ready",
        f"Not ready: {', '.join(check.name for check in failing)}.",
        " ".join(dict.fromkeys(check.remedy for check in failing)),
        extra={"checks": list(checks)},
        headers={"Retry-After": "1"},
    )


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format"}, **problems(401, 403)},
    summary="Metrics for Prometheus",
)
async def metrics(request: Request, allowed: Annotated[None, Depends(local_or_reading)]) -> Response:
    """Metrics of all processes of this service, by name. No label contains an id.

    Open to callers on this machine; remote callers need a key that may read. Edges, training nodes and scores are shown
    only to keys with audit:read.
    """
    shown = False
    # A key that expired takes nothing else from a scrape on this machine.
    with suppress(Unauthenticated, MissingScope, TooManyAttempts, Unavailable):
        shown = "authorization" in request.headers and reads_audit(await caller_of(request))
    metrics = await services_of(request).exposition(() if shown else AUDIT_ONLY)
    return Response(metrics, headers={"Content-Type": CONTENT_TYPE_LATEST})
