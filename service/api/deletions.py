"""Deletion requests: asked for, followed, listed, searched and cancelled."""

import hmac
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Body, Header, Path, Query
from starlette.requests import Request
from starlette.responses import Response

from service.api.auth import requires, requires_any
from service.api.deletion_answers import (
    AcceptedDeletion,
    DeletionAnswer,
    DeletionPage,
    FoundDeletion,
    SearchAnswer,
    accepted_deletion,
    deletion_answer,
    links_of,
)
from service.api.deletion_schemas import EXAMPLES, DeletionBody, DeletionFilters, SearchBody
from service.api.documents import problems
from service.api.replies import reply
from service.api.services import Services, services_of
from service.api.submission import submit
from service.db.requests import RequestFilters, RequestRepository
from service.db.transactions import transaction
from service.domain.records import ApiKey
from service.domain.states import RequestKind, Scope
from service.errors import BodyTooLarge, NotFound
from service.vault.cursors import PageCursor, decode, encode

router = APIRouter(prefix="/deletions", tags=["deletions"])

Writer = Annotated[ApiKey, requires(Scope.DELETIONS_WRITE)]
Follower = Annotated[ApiKey, requires(Scope.DELETIONS_READ)]
Operator = Annotated[ApiKey, requires(Scope.DELETIONS_WRITE, Scope.AUDIT_READ)]
Lister = Annotated[ApiKey, requires_any(Scope.DELETIONS_READ, Scope.AUDIT_READ)]
RequestId = Annotated[UUID, Path(description="The id from the 202 answer.")]

_ACCEPTED: dict[int | str, dict[str, Any]] = {
    202: {"headers": {"Location": {"description": "Where the request is found.", "schema": {"type": "string"}}}}
}


@router.post(
    "",
    status_code=202,
    response_model=AcceptedDeletion,
    responses=_ACCEPTED | problems(400, 401, 403, 404, 409, 413, 415, 422, 429, 503),
    summary="Ask for a deletion",
)
async def request_deletion(
    request: Request,
    body: Annotated[DeletionBody, Body(openapi_examples=EXAMPLES)],
    caller: Writer,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            pattern=r"^[\x21-\x7e]+$",
            description="Repeating a request with the same key and body gives the same answer, and deletes once.",
        ),
    ] = None,
) -> Response:
    """Accept a deletion; it is durable once this answers 202, and followed at `links.self`.

    What an earlier request deleted already is listed in `already_deleted` and left out; when nothing is left, the
    request is `completed` at once, or as soon as the earlier ones are.
    """
    services = services_of(request)
    submission = await submit(services, body, caller, idempotency_key)
    services.metrics.received(submission.request.kind)
    answer = accepted_deletion(submission.request, submission.targets, submission.already_deleted)
    return reply(answer, 202, {"Location": links_of(submission.request.id).self})


@router.get(
    "",
    response_model=DeletionPage,
    responses=problems(400, 401, 403, 422, 503),
    summary="List deletion requests",
)
async def list_deletions(request: Request, filters: Annotated[DeletionFilters, Query()], caller: Lister) -> Response:
    """A page of requests, newest first: all of them for a key with audit:read, its own for any other."""
    services = services_of(request)
    key = _cursor_key(services, filters, caller)
    cursor = None if filters.cursor is None else decode(filters.cursor, key)
    wanted = RequestFilters(
        status=filters.status,
        kind=filters.kind,
        since=filters.since,
        until=filters.until,
        api_key_id=visible_to(caller),
    )
    async with transaction(services.engine) as connection:
        # One more than the page holds tells whether there is a next page.
        rows = await RequestRepository(connection).page(wanted, cursor=cursor, limit=filters.limit + 1)
    page = rows[: filters.limit]
    more = len(rows) > len(page)
    return reply(
        DeletionPage(
            deletions=[deletion_answer(row, None, sees_references=_sees_references(caller)) for row in page],
            next_cursor=encode(PageCursor(page[-1].received_at, page[-1].id), key) if more else None,
        )
    )


@router.post(
    "/search",
    response_model=SearchAnswer,
    responses=problems(400, 401, 403, 413, 415, 422, 503),
    summary="Find deletions by node id",
)
async def search_deletions(request: Request, body: SearchBody, caller: Lister) -> Response:
    """The requests that deleted these nodes, or their features; ids travel in the body, so that no URL log has any.

    What is still queued is not found: until it is applied, its ids are kept encrypted.
    """
    services = services_of(request)
    limit = services.settings.max_nodes_per_request
    if len(body.nodes) > limit:
        raise BodyTooLarge(
            f"{len(body.nodes)} nodes are more than the {limit} that one search may name.",
            "Search for them in several requests.",
            max_nodes=limit,
        )
    deleted_by = [await services.tombstones.find(kind, body.nodes) for kind in (RequestKind.NODE, RequestKind.FEATURES)]
    async with transaction(services.engine) as connection:
        repository = RequestRepository(connection)
        answers: dict[UUID, DeletionAnswer] = {}
        for request_id in {request_id: None for by_node in deleted_by for request_id in by_node.values()}:
            row = await repository.get(request_id, visible_to(caller))
            if row is not None:
                answers[request_id] = deletion_answer(*row, sees_references=_sees_references(caller))
    nodes = list(dict.fromkeys(body.nodes))
    found = [
        FoundDeletion(node=node, deletion=answers[by_node[node]])
        for node in nodes
        for by_node in deleted_by
        if node in by_node and by_node[node] in answers
    ]
    known = {one.node for one in found}
    return reply(SearchAnswer(found=found, not_found=[node for node in nodes if node not in known]))


@router.get(
    "/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 422, 503),
    summary="Follow a deletion request",
)
async def get_deletion(request: Request, request_id: RequestId, caller: Follower) -> Response:
    """How far a request has come and, once it is applied, its audit. Without audit:read: the key's own requests."""
    services = services_of(request)
    async with transaction(services.engine) as connection:
        row = await RequestRepository(connection).get(request_id, visible_to(caller))
    if row is None:
        raise NotFound(
            "There is no such deletion request, as far as this key may know.",
            "Check the id; a key without audit:read sees only what it asked for itself.",
        )
    return reply(deletion_answer(*row, sees_references=_sees_references(caller)))


@router.delete(
    "/{request_id}",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 422, 503),
    summary="Cancel a deletion request",
)
async def cancel_deletion(request: Request, request_id: RequestId, caller: Writer) -> Response:
    """Withdraw a request that is still queued; 409 once the unlearner has taken it up."""
    cancelled = await services_of(request).intake.cancel(request_id, visible_to(caller))
    return reply(deletion_answer(cancelled, None, sees_references=_sees_references(caller)))


@router.post(
    "/{request_id}/retry",
    response_model=DeletionAnswer,
    responses=problems(401, 403, 404, 409, 422, 503),
    summary="Try a failed deletion request again",
)
async def retry_deletion(request: Request, request_id: RequestId, caller: Operator) -> Response:
    """Queue a request that failed for its own data, once what was wrong is put right; 409 for any other."""
    return reply(deletion_answer(await services_of(request).intake.retry(request_id), None, sees_references=True))


def visible_to(caller: ApiKey) -> UUID | None:
    """The key whose requests `caller` may see; None for those of every key."""
    return None if Scope.AUDIT_READ in caller.scopes else caller.id


def _sees_references(caller: ApiKey) -> bool:
    return Scope.AUDIT_READ in caller.scopes


def _cursor_key(services: Services, filters: DeletionFilters, caller: ApiKey) -> bytes:
    """A key that only this query of this caller has: a cursor of another does not decode."""
    query = filters.model_dump_json(exclude={"cursor", "limit"})
    return hmac.digest(services.keyring.cursor_key, f"{visible_to(caller)} {query}".encode(), "sha256")
