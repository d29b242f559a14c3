"""The page of one request: its way so far, every figure with its meaning, and the proof that the log has it."""

from typing import Annotated, Literal, TypeVar
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from service.access.sessions import Session
from service.audit.canonical import parse_canonical
from service.audit.checkpoint import read
from service.audit.unrequested import UnrequestedEvent
from service.dashboard.pages import Page, Region, current, page, polls, region
from service.dashboard.sessions import PATH, SignedIn, form_of
from service.dashboard.words.clock import clock_of
from service.dashboard.words.timeline import is_final, timeline
from service.db.clock import now
from service.db.engine import Connection
from service.db.transactions import transaction
from service.deletions.answers import audit_answer
from service.deletions.decisions import Decisions
from service.deletions.moves import SEND_ANEW
from service.deletions.receipts import WITH_RECEIPT, model_events_after, receipt_of
from service.deletions.requests import RequestRepository
from service.deletions.schemas import ExtendedBody, HandledBody
from service.domain.figures import answers, timed_steps
from service.domain.guarantees import told_of_noise
from service.domain.records import DeletionRequest
from service.domain.scopes import Scope
from service.errors import InvalidRequest, MissingScope, NotFound
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.events import EventRepository
from service.evidence.log import LogRepository
from service.http.replies import page_reply
from service.papers.receipt import receipt_paper
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/requests", route_class=Page, include_in_schema=False)

_Form = TypeVar("_Form", HandledBody, ExtendedBody)
_REGION = "request"
#: Seconds between two looks at a request that is under way.
_EVERY_S = 1.0


@router.get("/{request_id}")
async def request_page(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """The page, or the part of it that asks for itself until the request is finished."""
    services = services_of(request)
    async with transaction(services.engine) as connection:
        asked, shown = await _region(connection, request_id)
    if polls(request, _REGION):
        return current(request, shown)
    may_decide = Scope.DELETIONS_WRITE in visitor.key.scopes and asked.ended_at is None
    return page(
        request,
        "request.html",
        visitor,
        asked=asked,
        may_decide=may_decide,
        # Whether Lethe can see that a later request has deleted the same.
        settles=may_decide and await services.deletions.intake.is_readable(request_id),
        send_anew=SEND_ANEW,
        region=shown,
    )


@router.post("/{request_id}/handle")
async def handle(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """Say that a failed request is handled, with the key that is signed in."""
    fields = await _decision(request, visitor, "reason")
    body = _body(HandledBody, reason=fields.get("reason", "").strip())
    async with transaction(services_of(request).engine) as connection:
        await Decisions(connection).handle(request_id, visitor.key.id, body.reason)
    return RedirectResponse(f"{PATH}/requests/{request_id}", 303)


@router.post("/{request_id}/extend")
async def extend(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """Give a request time until the end of a day (UTC), with the key that is signed in."""
    fields = await _decision(request, visitor, "day", "reason")
    due_at = f"{fields.get('day', '').strip()}T23:59:59Z"
    body = _body(ExtendedBody, due_at=due_at, reason=fields.get("reason", "").strip())
    async with transaction(services_of(request).engine) as connection:
        await Decisions(connection).extend(request_id, visitor.key.id, body.due_at, body.reason)
    return RedirectResponse(f"{PATH}/requests/{request_id}", 303)


@router.get("/{request_id}/proof")
async def proof(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """What a browser needs to check that the signed log has the events of a request: JSON, hashes in hex."""
    async with transaction(services_of(request).engine) as connection:
        log, checkpoints = LogRepository(connection), CheckpointRepository(connection)
        note = await checkpoints.latest()
        size = 0 if note is None else read(note).size
        leaves = await log.of_request(request_id)
        signed = [leaf for leaf in leaves if leaf.index < size]
        document = {
            "checkpoint": note,
            "keys": [str(key) for key in (await checkpoints.keys()).values()],
            "waiting": len(leaves) - len(signed),
            "leaves": [
                {
                    "index": leaf.index,
                    "data": leaf.data.decode(),
                    "proof": [digest.hex() for digest in await log.inclusion(leaf.index, size)],
                }
                for leaf in signed
            ],
        }
    return Response(orjson.dumps(document), media_type="application/json")


@router.get("/{request_id}/receipt")
async def receipt(
    request: Request,
    request_id: UUID,
    visitor: SignedIn,
    form: Annotated[Literal["json", "html"], Query(alias="format")] = "html",
) -> Response:
    """The receipt, as the interface gives it to the key that is signed in."""
    services = services_of(request)
    found = await receipt_of(services.engine, request_id, visitor.key)
    if form == "json":
        return Response(orjson.dumps(found.document), media_type="application/json")
    paper = receipt_paper(found, services.settings)
    return page_reply(paper.html, paper.policy)


async def _decision(request: Request, visitor: Session, *names: str) -> dict[str, str]:
    fields = await form_of(request, visitor.form_token, *names)
    if Scope.DELETIONS_WRITE not in visitor.key.scopes:
        raise MissingScope("This needs the scope deletions:write.", "Sign in with a key that has it.")
    return fields


def _body(form: type[_Form], **fields: str) -> _Form:
    try:
        return form.model_validate(fields)
    except ValidationError:
        raise InvalidRequest(
            "A day or a reason is missing or invalid.",
            "Go back and fill in both; a reason has 500 characters at most.",
        ) from None


async def _region(connection: Connection, request_id: UUID) -> tuple[DeletionRequest, Region]:
    found = await RequestRepository(connection).get(request_id)
    if found is None:
        raise NotFound(f"There is no deletion request {request_id}.", "Check the address, or look in the list.")
    asked, audit = found
    events = await EventRepository(connection).of_request(request_id)
    figures = {} if audit is None else audit_answer(audit, reads_audit=True).model_dump()
    durations = figures.get("durations_ms", {})
    clock = clock_of(asked, await now(connection)) if asked.ended_at is None else None
    shown = region(
        _REGION,
        "request_now.html",
        url=f"{PATH}/requests/{request_id}",
        every_s=None if is_final(asked) else _EVERY_S,
        asked=asked,
        steps=timeline(asked, events),
        clock=clock,
        handles=await RequestRepository(connection).handled_by(request_id),
        since=await _since(connection, asked),
        has_receipt=asked.status in WITH_RECEIPT,
        figures=figures,
        noise=told_of_noise(figures),
        groups=answers(figures),
        durations=timed_steps(durations),
        total_ms=sum(durations.values()),
    )
    return asked, shown


async def _since(connection: Connection, asked: DeletionRequest) -> list[UnrequestedEvent]:
    """What happened to the model after the first event of a request: its figures describe the weights before that."""
    log = LogRepository(connection)
    leaves = await log.of_request(asked.id)
    if not leaves:
        return []
    return [
        UnrequestedEvent.of(parse_canonical(leaf.data))
        for leaf in await model_events_after(log, asked.model, leaves[0].index)
    ]
