"""The page of one request: its way so far, every figure with its meaning, and the proof that the log has it."""

from collections.abc import Mapping
from typing import Annotated, Literal
from uuid import UUID

import orjson
from fastapi import APIRouter, Query
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from service.audit.canonical import parse_canonical
from service.audit.checkpoint import read
from service.audit.unrequested import UnrequestedEvent
from service.dashboard.pages import Page, Region, current, page, polls, region
from service.dashboard.sessions import PATH, SignedIn
from service.dashboard.words.clock import clock_of
from service.dashboard.words.timeline import is_final, timeline
from service.dashboard.words.wording import FIGURES, STEPS
from service.db.clock import now
from service.db.engine import Connection
from service.db.transactions import transaction
from service.deletions.answers import audit_answer
from service.deletions.receipts import model_events_after, receipt_of, receipt_page
from service.deletions.requests import RequestRepository
from service.domain.guarantees import told_of_noise
from service.domain.records import DeletionRequest
from service.domain.states import RequestStatus
from service.errors import NotFound
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.events import EventRepository
from service.evidence.log import LogRepository
from service.services import services_of

router = APIRouter(prefix=f"{PATH}/requests", route_class=Page, include_in_schema=False)

_REGION = "request"
#: Seconds between two looks at a request that is under way.
_EVERY_S = 1.0
_OPEN = (RequestStatus.QUEUED, RequestStatus.APPLIED)


@router.get("/{request_id}")
async def request_page(request: Request, request_id: UUID, visitor: SignedIn) -> Response:
    """The page, or the part of it that asks for itself until the request is finished."""
    async with transaction(services_of(request).engine) as connection:
        shown = await _region(request, connection, request_id)
    if polls(request, _REGION):
        return current(request, shown)
    return page(request, "request.html", visitor, request_id=request_id, region=shown)


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
    document = await receipt_of(services_of(request).engine, request_id, visitor.key)
    if form == "json":
        return Response(orjson.dumps(document), media_type="application/json")
    shown = receipt_page(document)
    return HTMLResponse(shown.html, headers={"Content-Security-Policy": shown.policy})


async def _region(request: Request, connection: Connection, request_id: UUID) -> Region:
    found = await RequestRepository(connection).get(request_id)
    if found is None:
        raise NotFound(f"There is no deletion request {request_id}.", "Check the address, or look in the list.")
    asked, audit = found
    events = await EventRepository(connection).of_request(request_id)
    figures = {} if audit is None else audit_answer(audit, reads_audit=True).model_dump()
    deadline = services_of(request).settings.deadline
    clock = clock_of(asked.received_at, await now(connection), deadline) if asked.status in _OPEN else None
    return region(
        _REGION,
        "request_now.html",
        url=f"{PATH}/requests/{request_id}",
        every_s=None if is_final(asked) else _EVERY_S,
        asked=asked,
        steps=timeline(asked, events),
        clock=clock,
        since=await _since(connection, asked),
        figures=figures,
        noise=told_of_noise(figures),
        groups=FIGURES,
        durations=_durations(figures.get("durations_ms", {})),
        total_ms=sum(figures.get("durations_ms", {}).values()),
    )


async def _since(connection: Connection, asked: DeletionRequest) -> list[UnrequestedEvent]:
    """What befell the model after the first event of a request: its figures are not of the weights since."""
    log = LogRepository(connection)
    leaves = await log.of_request(asked.id)
    if not leaves:
        return []
    return [
        UnrequestedEvent.of(parse_canonical(leaf.data))
        for leaf in await model_events_after(log, asked.model, leaves[0].index)
    ]


def _durations(by_step: Mapping[str, float]) -> list[tuple[str, float]]:
    """Milliseconds by step, in words and in the order of the steps; one without words keeps its name."""
    known = [(words, by_step[name]) for name, words in STEPS.items() if name in by_step]
    return known + [(name, ms) for name, ms in by_step.items() if name not in STEPS]
