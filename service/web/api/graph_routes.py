"""Routes to request, follow and cancel additions to the graph and corrections of nodes."""

from typing import Annotated

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from service.domain.kinds import RequestKind
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.requests.answers import AcceptedDeletion, DeletionAnswer
from service.requests.graph_schemas import AdditionBody, CorrectionBody
from service.web.api.auth import KeyedRoute, requires
from service.web.api.deletion_routes import Follower, IdempotencyKey, RequestId, accept, cancelled, followed
from service.web.routes import LOCATION, problems

router = APIRouter(tags=["graph"], route_class=KeyedRoute)

Writer = Annotated[ApiKey, requires(Scope.GRAPH_WRITE)]


@router.post(
    "/additions",
    status_code=202,
    response_model=AcceptedDeletion,
    responses=LOCATION | problems(401, 403, 404, 409, 413, 429, 503),
    summary="Add nodes and edges",
)
async def request_addition(
    request: Request, body: AdditionBody, caller: Writer, idempotency_key: IdempotencyKey = None
) -> Response:
    """Accept an addition. Once this returns 202, the request is durable; follow it at `links.self`.

    The nodes are predicted from `applied` on, and those with a label are trained on. In a batch, everything that leaves
    the graph leaves first; then everything joins. A deletion beats an addition of the same node that is still queued.

    A key with deletions:read is refused by name if a node or edge is in the graph, or if a node was deleted. For any
    other key, the request is accepted, and fails when it is its turn.
    """
    return await accept(request, body, caller, idempotency_key)


@router.get(
    "/additions/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 503),
    summary="Follow an addition",
)
async def get_addition(request: Request, request_id: RequestId, caller: Follower) -> Response:
    """The status of an addition and, once applied, its audit. Without audit:read, only the key's own requests."""
    return await followed(request, request_id, caller, RequestKind.ADDITION)


@router.delete(
    "/additions/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 503),
    summary="Cancel an addition",
)
async def cancel_addition(request: Request, request_id: RequestId, caller: Writer) -> Response:
    """Cancel an addition that is still queued; 409 once the unlearner has started it."""
    return await cancelled(request, request_id, caller, RequestKind.ADDITION)


@router.post(
    "/corrections",
    status_code=202,
    response_model=AcceptedDeletion,
    responses=LOCATION | problems(401, 403, 404, 409, 413, 429, 503),
    summary="Correct nodes",
)
async def request_correction(
    request: Request, body: CorrectionBody, caller: Writer, idempotency_key: IdempotencyKey = None
) -> Response:
    """Accept a correction: the old features and labels are deleted and erased, and the new ones take their place.

    Once this returns 202, the request is durable; follow it at `links.self`. A key with deletions:read is refused by
    name if a node is unknown or was deleted. For any other key, the request is accepted, and fails when it is its turn.
    """
    return await accept(request, body, caller, idempotency_key)


@router.get(
    "/corrections/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 503),
    summary="Follow a correction",
)
async def get_correction(request: Request, request_id: RequestId, caller: Follower) -> Response:
    """The status of a correction and, once applied, its audit. Without audit:read, only the key's own requests."""
    return await followed(request, request_id, caller, RequestKind.CORRECTION)


@router.delete(
    "/corrections/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 503),
    summary="Cancel a correction",
)
async def cancel_correction(request: Request, request_id: RequestId, caller: Writer) -> Response:
    """Cancel a correction that is still queued; 409 once the unlearner has started it."""
    return await cancelled(request, request_id, caller, RequestKind.CORRECTION)
