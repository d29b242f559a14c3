"""The page of one request: its steps so far, every figure with its meaning, and its proof in the log."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Literal, TypeVar
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from projector.forgetting.status import RepairStatus
from service.access.sessions import Session
from service.db.clock import now
from service.db.engine import Connection
from service.db.transactions import transaction
from service.domain.figures import answers, timed_steps
from service.domain.formats import moment
from service.domain.records import DeletionRequest
from service.domain.scopes import Scope
from service.domain.states import EventType, RequestStatus, guarantee_in_words, noise_in_a_sentence
from service.errors import InvalidRequest, MissingScope, NotFound
from service.log.canonical import parse_canonical
from service.log.checkpoints import read
from service.log.events import Event, EventRepository, LogRepository
from service.log.signed_checkpoints import CheckpointRepository
from service.log.verification import UnrequestedEvent
from service.reports.receipts import WITH_RECEIPT, model_events_after, receipt_of, receipt_paper
from service.requests.answers import audit_answer
from service.requests.decisions import Decisions
from service.requests.lookup import RequestRepository
from service.requests.moves import SEND_ANEW
from service.requests.schemas import ExtendedBody, HandledBody, HeldBody
from service.web.dashboard.pages import Page, Region, current, page, polls, region
from service.web.dashboard.signing_in import PATH, SignedIn, form_of
from service.web.dashboard.words import clock_of
from service.web.routes import page_reply
from service.web.services import services_of


@dataclass(frozen=True)
class Step:
    """One step of a request."""

    label: str
    #: `done`, `now` while in progress, `waiting`, or `failed`.
    state: str
    sentence: str
    at: datetime | None = None
    #: Time since the request was received.
    after: timedelta | None = None


def timeline(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    """Return the steps of `request` in order, past ones first."""
    received = Step(
        "Received",
        "done",
        "Stored durably. The ids that it names are encrypted under a key of their own.",
        request.received_at,
    )
    steps = [received, *_failed(request, events), *_decided(request, events), *_outcome(request, events)]
    # Steps with a time come first, in order of time; a repair may end after the erasure.
    done = sorted((step for step in steps if step.at is not None), key=lambda step: step.at or request.received_at)
    return [*done, *(step for step in steps if step.at is None)]


def is_final(request: DeletionRequest) -> bool:
    """Return whether a request has reached its end without further action."""
    if request.status is RequestStatus.COMPLETED:
        return request.repair is not RepairStatus.PENDING
    return request.ended_at is not None


def _outcome(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    if request.status is RequestStatus.FAILED:
        return []
    if request.status is RequestStatus.CANCELLED:
        text = "Withdrawn before work on it began. The ids that it named were erased."
        return [_done(request, request.cancelled_at, "Cancelled", text)]
    if request.status is RequestStatus.COMPLETED and request.applied_at is None:
        text = "Nothing was left to do: other requests had deleted everything that it names."
        return [_done(request, request.completed_at, "Completed", text)]
    return [_applied(request), *_repaired(request, events), _completed(request)]


def _failed(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    """Return a step for every failure. The newest gives the reason; earlier ones were retried."""
    text = "It could not be applied, and an operator retried it."
    failures = [event for event in events if event.type is EventType.FAILED]
    steps = [_done(request, event.created_at, "Failed", text, "failed") for event in failures]
    if request.status is RequestStatus.FAILED:
        steps[-1:] = [_done(request, request.failed_at, "Failed", request.failure or "", "failed")]
    return steps


def _decided(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    """Return the steps for extensions, holds, and for handling a failure."""
    steps = []
    for event in events:
        reason = event.payload.get("reason")
        if event.type is EventType.EXTENDED:
            due_at = moment(datetime.fromisoformat(event.payload["due_at"]))
            steps.append(
                _done(request, event.created_at, "Deadline extended", f"Now due {due_at} UTC. Reason: {reason}")
            )
        elif event.type is EventType.HELD:
            steps.append(_done(request, _decided_at(event), "Put on hold", f"Reason: {reason}"))
        elif event.type is EventType.RELEASED:
            due_at = moment(datetime.fromisoformat(event.payload["due_at"]))
            steps.append(_done(request, _decided_at(event), "Released from the hold", f"Now due {due_at} UTC."))
        elif event.type is EventType.HANDLED:
            text = reason or "Later requests have deleted everything that this one names."
            steps.append(_done(request, event.created_at, "Handled", text))
    return steps


def _decided_at(event: Event) -> datetime:
    return datetime.fromisoformat(event.payload["decided_at"])


def _applied(request: DeletionRequest) -> Step:
    if request.held_at is not None:
        return Step("Applied", "waiting", "On hold: it continues once it is released.")
    if request.waits_for is not None:
        return Step("Applied", "waiting", "Waiting behind a request on hold that names the same nodes or edges.")
    if request.applied_at is None:
        return Step("Applied", "now", "Waiting for its turn, or the new model is being computed.")
    return _done(request, request.applied_at, "Applied", request.kind.rules.applied)


def _repaired(request: DeletionRequest, events: Sequence[Event]) -> list[Step]:
    # The request's explanation gives the reason: no convergence, repair no longer wanted, or model replaced.
    short = "The repair ended or was abandoned before the weights reached those of retraining."
    text = "The weights were re-optimised on the remaining graph: they are those of retraining, within the bound."
    ends = {EventType.NOT_REPAIRED: ("Not repaired", short, "failed"), EventType.REPAIRED: ("Repaired", text, "done")}
    ended = [_done(request, event.created_at, *ends[event.type]) for event in events if event.type in ends]
    if ended:
        return ended
    if request.repair is RepairStatus.PENDING:
        return [Step("Repaired", "now", "The weights are being re-optimised. Erasure does not wait for it.")]
    if request.repair is RepairStatus.NOT_CONVERGED:
        return [Step("Not repaired", "failed", "The repair did not converge; an operator should look into it.")]
    return []


def _completed(request: DeletionRequest) -> Step:
    erased = request.kind.rules.erased
    if request.completed_at is None:
        state = "now" if request.status is RequestStatus.APPLIED else "waiting"
        return Step("Completed", state, f"{erased}, ids and older weights will be erased from the disk.")
    text = f"{erased}, ids and older weights are gone from the disk. The key to the ids in the request was destroyed."
    return _done(request, request.completed_at, "Completed", text)


def _done(request: DeletionRequest, at: datetime | None, label: str, text: str, state: str = "done") -> Step:
    return Step(label, state, text, at, None if at is None else at - request.received_at)


router = APIRouter(prefix=f"{PATH}/requests", route_class=Page, include_in_schema=False)

_Form = TypeVar("_Form", HandledBody, ExtendedBody, HeldBody)
_REGION = "request"
#: Seconds between refreshes of an open request.
_EVERY_S = 1.0


@router.get("/{request_id}")
async def request_page(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """The page, or only the region that refreshes itself until the request is finished."""
    services = services_of(request)
    async with transaction(services.engine) as connection:
        asked, shown = await _region(connection, request_id)
    if polls(request, _REGION):
        return current(request, shown)
    may_decide = asked.kind.rules.scope in visitor.key.scopes and asked.ended_at is None
    return page(
        request,
        "request.html",
        visitor,
        asked=asked,
        may_decide=may_decide,
        # Whether Lethe can recognise that a later request deleted the same.
        settles=may_decide and await services.deletions.intake.is_readable(request_id),
        send_anew=SEND_ANEW,
        region=shown,
    )


@router.post("/{request_id}/handle")
async def handle(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """Record that a failed request is handled, with the signed-in key."""
    fields = await _decision(request, visitor, "reason")
    body = _body(HandledBody, reason=fields.get("reason", "").strip())
    async with transaction(services_of(request).engine) as connection:
        await Decisions(connection).handle(request_id, visitor.key.id, body.reason)
    return RedirectResponse(f"{PATH}/requests/{request_id}", 303)


@router.post("/{request_id}/extend")
async def extend(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """Extend a request's deadline to the end of a day (UTC), with the signed-in key."""
    fields = await _decision(request, visitor, "day", "reason")
    due_at = f"{fields.get('day', '').strip()}T23:59:59Z"
    body = _body(ExtendedBody, due_at=due_at, reason=fields.get("reason", "").strip())
    async with transaction(services_of(request).engine) as connection:
        await Decisions(connection).extend(request_id, visitor.key.id, body.due_at, body.reason)
    return RedirectResponse(f"{PATH}/requests/{request_id}", 303)


@router.post("/{request_id}/hold")
async def hold(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """Put a queued request on hold, with the signed-in key."""
    fields = await _decision(request, visitor, "reason")
    body = _body(HeldBody, reason=fields.get("reason", "").strip())
    async with transaction(services_of(request).engine) as connection:
        await Decisions(connection).hold(request_id, visitor.key.id, body.reason)
    return RedirectResponse(f"{PATH}/requests/{request_id}", 303)


@router.post("/{request_id}/release")
async def release(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """Release a request from its hold, with the signed-in key."""
    await _decision(request, visitor)
    async with transaction(services_of(request).engine) as connection:
        await Decisions(connection).release(request_id, visitor.key.id)
    return RedirectResponse(f"{PATH}/requests/{request_id}", 303)


@router.get("/{request_id}/proof")
async def proof(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """The data with which a browser verifies a request's events in the signed log: JSON, hashes in hex."""
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
    """The receipt, as the API returns it for the signed-in key."""
    services = services_of(request)
    found = await receipt_of(services.engine, request_id, visitor.key)
    if form == "json":
        return Response(orjson.dumps(found.document), media_type="application/json")
    paper = receipt_paper(found, services.settings)
    return page_reply(paper.html, paper.policy)


async def _decision(request: Request, visitor: Session, *names: str) -> dict[str, str]:
    fields = await form_of(request, visitor.form_token, *names)
    if visitor.key.scopes.isdisjoint((Scope.DELETIONS_WRITE, Scope.GRAPH_WRITE)):
        raise MissingScope("This needs the scope deletions:write.", "Sign in with a key that has it.")
    return fields


def _body(form: type[_Form], **fields: str) -> _Form:
    try:
        return form.model_validate(fields)
    except ValidationError:
        raise InvalidRequest(
            "A day or a reason is missing or invalid.",
            "Go back and fill it in; a reason has 500 characters at most.",
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
        holds=None if asked.guarantee is None else guarantee_in_words(asked.guarantee, joins=asked.kind.rules.joins),
        steps=timeline(asked, events),
        clock=clock,
        handles=await RequestRepository(connection).handled_by(request_id),
        since=await _since(connection, asked),
        has_receipt=asked.status in WITH_RECEIPT,
        figures=figures,
        noise=noise_in_a_sentence(figures),
        groups=answers(figures),
        durations=timed_steps(durations),
        total_ms=sum(durations.values()),
    )
    return asked, shown


async def _since(connection: Connection, asked: DeletionRequest) -> list[UnrequestedEvent]:
    """Return changes to the model after a request's first event: its figures describe the weights before them."""
    log = LogRepository(connection)
    leaves = await log.of_request(asked.id)
    if not leaves:
        return []
    return [
        UnrequestedEvent.of(parse_canonical(leaf.data))
        for leaf in await model_events_after(log, asked.model, leaves[0].index)
    ]
