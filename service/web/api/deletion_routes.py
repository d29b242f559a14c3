"""Routes to request, follow, list, search and cancel deletions, and to fetch their receipts."""

from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Body, Header, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Scope as Scope_

from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.errors import Conflict, InvalidRequest
from service.observability import tracing
from service.predictions.reader import offload
from service.reports.listing import audit_filters, found_by_node, found_page, reads_audit, visible_to
from service.reports.receipts import receipt_of, receipt_paper
from service.reports.schemas import DeletionFilters, SearchBody
from service.requests.answers import (
    RECEIPT,
    AcceptedDeletion,
    DeletionAnswer,
    DeletionPage,
    SearchAnswer,
    accepted_deletion,
    deletion_answer,
)
from service.requests.decisions import Decisions
from service.requests.lookup import RequestRepository
from service.requests.schemas import EXAMPLES, DeletionBody, ExtendedBody, HandledBody, HeldBody, RequestBody
from service.requests.submission import submit
from service.web.api.auth import KeyedRoute, requires, requires_any
from service.web.routes import LOCATION, page_reply, problems, reply
from service.web.services import services_of


class DeletionRoute(KeyedRoute):
    """A route below /deletions; excludes the path `search`, which is not a request's id."""

    def matches(self, scope: Scope_) -> tuple[Match, Scope_]:
        """Match like any route, except for the path of the search route."""
        match, inner = super().matches(scope)
        if inner.get("path_params", {}).get("request_id") == "search":
            return Match.NONE, {}
        return match, inner


router = APIRouter(prefix="/deletions", tags=["deletions"], route_class=DeletionRoute)

Writer = Annotated[ApiKey, requires(Scope.DELETIONS_WRITE)]
Follower = Annotated[ApiKey, requires(Scope.DELETIONS_READ)]
Operator = Annotated[ApiKey, requires(Scope.DELETIONS_WRITE, Scope.AUDIT_READ)]
Lister = Annotated[ApiKey, requires_any(Scope.DELETIONS_READ, Scope.AUDIT_READ)]
RequestId = Annotated[UUID, Path(description="The id from the 202 answer.")]
#: Distinguishes a repeated request from a new one.
IdempotencyKey = Annotated[
    str | None,
    Header(
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="A repeated request with the same key and body gets the same answer and deletes only once.",
    ),
]


@router.post(
    "",
    status_code=202,
    response_model=AcceptedDeletion,
    responses=LOCATION | problems(401, 403, 404, 409, 413, 429, 503),
    summary="Ask for a deletion",
)
async def request_deletion(
    request: Request,
    body: Annotated[DeletionBody, Body(openapi_examples=EXAMPLES)],
    caller: Writer,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Accept a deletion request. Once this returns 202, the request is durable; follow it at `links.self`.

    For a key with deletions:read, `already_deleted` lists targets that an earlier request deleted; they are left out.
    If nothing is left, the request is `completed` with the next batch. For any other key, responses do not distinguish
    deleted targets from others: a refusal only says that not everything named can be deleted.
    """
    return await accept(request, body, caller, idempotency_key)


async def accept(request: Request, body: RequestBody, caller: ApiKey, idempotency_key: str | None) -> Response:
    """Accept a request of any kind."""
    services = services_of(request)
    submission = await submit(services.deletions, body, caller, idempotency_key)
    services.metrics.received(submission.request.kind)
    tracing.note("lethe.request", str(submission.request.id))
    answer = accepted_deletion(submission.request, submission.targets, submission.already_deleted)
    return reply(answer, 202, {"Location": answer.links.self})


@router.get(
    "",
    response_model=DeletionPage,
    responses=problems(401, 403, 503),
    summary="List deletion requests",
)
async def list_deletions(request: Request, filters: Annotated[DeletionFilters, Query()], caller: Lister) -> Response:
    """A page of requests, newest first: all of them for a key with audit:read, its own for any other."""
    deletions = services_of(request).deletions
    entries, next_cursor = await found_page(deletions, filters, audit_filters(filters, caller), caller)
    shown = [deletion_answer(entry.request, None, reads_audit=reads_audit(caller)) for entry in entries]
    return reply(DeletionPage(deletions=shown, next_cursor=next_cursor))


@router.post(
    "/search",
    response_model=SearchAnswer,
    responses=problems(401, 403, 413, 503),
    summary="Find deletions by node id, reference or figures",
)
async def search_deletions(request: Request, body: SearchBody, caller: Lister) -> Response:
    """The requests that deleted these nodes or their features, or those that match the filters, a page at a time.

    Ids and references are in the body, so that no URL log contains them. Queued requests are not found by node, because
    their ids stay encrypted until they are applied.
    """
    deletions = services_of(request).deletions
    filters = replace(audit_filters(body, caller), reference=body.reference)
    if body.nodes is not None:
        if body.cursor is not None:
            raise InvalidRequest("A search by nodes has no pages.", "Omit `cursor`.")
        found = await found_by_node(deletions, body.nodes, filters, caller)
        return await offload(len(body.nodes), lambda: reply(found))
    entries, next_cursor = await found_page(deletions, body, filters, caller)
    shown = [deletion_answer(entry.request, entry.audit, reads_audit=reads_audit(caller)) for entry in entries]
    return reply(SearchAnswer(found=[], not_found=[], deletions=shown, next_cursor=next_cursor))


@router.get(
    "/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 503),
    summary="Follow a deletion request",
)
async def get_deletion(request: Request, request_id: RequestId, caller: Follower) -> Response:
    """The status of a request of any kind and, once applied, its audit.

    Without audit:read, only the key's own requests.
    """
    return await followed(request, request_id, caller)


async def followed(request: Request, request_id: UUID, caller: ApiKey, kind: RequestKind | None = None) -> Response:
    """Return the state of a request, of this kind if given."""
    services = services_of(request)
    async with transaction(services.engine) as connection:
        row = await RequestRepository(connection).require(request_id, visible_to(caller), kind)
        handles = await RequestRepository(connection).handled_by(request_id)
    return reply(deletion_answer(*row, reads_audit=reads_audit(caller), handles=handles))


@router.delete(
    "/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 503),
    summary="Cancel a deletion request",
)
async def cancel_deletion(request: Request, request_id: RequestId, caller: Writer) -> Response:
    """Cancel a request that is still queued; 409 once the unlearner has started it."""
    return await cancelled(request, request_id, caller)


async def cancelled(request: Request, request_id: UUID, caller: ApiKey, kind: RequestKind | None = None) -> Response:
    """Cancel a request, of this kind if given, and return its state."""
    try:
        found = await services_of(request).deletions.intake.cancel(
            request_id, caller.id, own_only=visible_to(caller) is not None, kind=kind
        )
    except Conflict:
        if Scope.DELETIONS_READ in caller.scopes:
            raise
        raise Conflict(
            f"Request {request_id} can no longer be cancelled.",
            "A key with deletions:read can see its progress.",
        ) from None
    return reply(deletion_answer(found, None, reads_audit=reads_audit(caller)))


@router.post(
    "/{request_id}/retry",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 503),
    summary="Retry a failed deletion request",
)
async def retry_deletion(request: Request, request_id: RequestId, caller: Operator) -> Response:
    """Retry a failed request once the cause is fixed. 409 for requests that did not fail because of their own data."""
    queued = await services_of(request).deletions.intake.retry(request_id, caller.id)
    return reply(deletion_answer(queued, None, reads_audit=True))


@router.post(
    "/{request_id}/handle",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 413, 503),
    summary="Record that a failed deletion request was handled",
)
async def handle_deletion(request: Request, request_id: RequestId, body: HandledBody, caller: Operator) -> Response:
    """Close a failed request. The reason becomes an event in the log, and the list of ids is then destroyed.

    If a later request deletes the same nodes or edges, the failed one is handled automatically.
    """
    async with transaction(services_of(request).engine) as connection:
        handled = await Decisions(connection).handle(request_id, caller.id, body.reason)
    return reply(deletion_answer(handled, None, reads_audit=True))


@router.post(
    "/{request_id}/extend",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 413, 503),
    summary="Extend the deadline of a deletion request",
)
async def extend_deletion(request: Request, request_id: RequestId, body: ExtendedBody, caller: Operator) -> Response:
    """Extend the deadline of an open request that is not late. The reason becomes an event in the log."""
    async with transaction(services_of(request).engine) as connection:
        extended = await Decisions(connection).extend(request_id, caller.id, body.due_at, body.reason)
    return reply(deletion_answer(extended, None, reads_audit=True))


@router.post(
    "/{request_id}/hold",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 413, 503),
    summary="Put a queued request on hold",
)
async def hold_deletion(request: Request, request_id: RequestId, body: HeldBody, caller: Operator) -> Response:
    """Hold a request of any kind, and what is queued for the same nodes; 409 once the unlearner has started it.

    It is not late while it is held, and its deadline moves by that time. It can still be cancelled. The reason becomes
    an event in the log.
    """
    async with transaction(services_of(request).engine) as connection:
        held = await Decisions(connection).hold(request_id, caller.id, body.reason)
    return reply(deletion_answer(held, None, reads_audit=True))


@router.post(
    "/{request_id}/release",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 503),
    summary="Release a request from its hold",
)
async def release_deletion(request: Request, request_id: RequestId, caller: Operator) -> Response:
    """End a hold: the request and what waits behind it continue, in the order of receipt. The log records it."""
    async with transaction(services_of(request).engine) as connection:
        released = await Decisions(connection).release(request_id, caller.id)
    return reply(deletion_answer(released, None, reads_audit=True))


receipt_router = APIRouter(prefix="/deletions", tags=["deletions"], route_class=KeyedRoute)


class ReceiptEntry(BaseModel):
    """One event of the request, as stored in the log."""

    leaf: dict[str, Any] = Field(description="The hashed text, in canonical JSON (RFC 8785).")
    inclusion_proof: list[str] = Field(
        description="Inclusion proof from the leaf to the root of the checkpoint: hashes in hex."
    )


class ReceiptAnswer(BaseModel):
    """The evidence of one deletion; `lethe audit verify` checks it offline."""

    model_config = ConfigDict(json_schema_extra={"examples": [RECEIPT]})

    format: str
    request_id: UUID
    summary: dict[str, Any] = Field(description="Summary of the leaves, for people; derived only from them.")
    entries: list[ReceiptEntry]
    since: list[ReceiptEntry] = Field(description="Imports and recoveries of the model since the first leaf.")
    checkpoint: str = Field(description="The signed note that the proofs end in.")
    public_keys: list[str] = Field(
        description="Keys that signed the checkpoint, according to the server. Trust only keys that you have "
        "from elsewhere."
    )


@receipt_router.get(
    "/{request_id}/receipt",
    response_model=ReceiptAnswer,
    responses={
        200: {"content": {"text/html": {"schema": {"type": "string"}}}},
        **problems(401, 403, 404, 409, 503),
    },
    summary="The receipt of a deletion",
)
async def get_receipt(
    request: Request,
    request_id: RequestId,
    caller: Follower,
    form: Annotated[Literal["json", "html"], Query(alias="format", description="`html`: a printable page.")] = "json",
) -> Response:
    """What was requested, what was done and what is guaranteed, with proofs that the signed log records it.

    Available from `applied` on, and for failed requests; 409 before that, and for cancelled requests.
    """
    services = services_of(request)
    receipt = await receipt_of(services.engine, request_id, caller)
    if form == "json":
        return Response(orjson.dumps(receipt.document), media_type="application/json")
    paper = receipt_paper(receipt, services.settings)
    return page_reply(paper.html, paper.policy)
