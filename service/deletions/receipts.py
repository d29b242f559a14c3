"""The receipt of a deletion: evidence that can be checked without trusting Lethe."""

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from service.audit.canonical import Document, parse_canonical
from service.audit.checkpoint import read, signers_of
from service.audit.receipt import Entry, receipt
from service.audit.unrequested import OF_THE_MODEL
from service.db.engine import Connection, Engine
from service.db.transactions import transaction
from service.deletions.lookup import reads_audit, visible_to
from service.deletions.requests import RequestRepository
from service.domain.records import ApiKey, DeletionRequest
from service.domain.states import RequestStatus
from service.errors import Conflict, Unavailable
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.log import LogRepository, StoredLeaf

#: Seconds between looks for the signature of a new event, which is made at once.
_WAITS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.0)
#: The states in which a request has a receipt.
WITH_RECEIPT = (RequestStatus.APPLIED, RequestStatus.COMPLETED, RequestStatus.FAILED)


@dataclass(frozen=True)
class Receipt:
    """A receipt, and what of its request the caller may see beside it."""

    document: Document
    #: Without its reference where that is not for the caller's eyes.
    request: DeletionRequest
    reference_is_hidden: bool


async def receipt_of(engine: Engine, request_id: UUID, caller: ApiKey) -> Receipt:
    """The receipt of a request that `caller` may see.

    Raises:
        NotFound: there is no such request, as far as the caller may know.
        Conflict: it is not applied, or was cancelled.
        Unavailable: its newest event is not signed yet, or the database does not answer.
    """
    for wait_s in _WAITS_S:
        async with transaction(engine) as connection:
            request = await _ready(connection, request_id, caller)
            document = await _document(connection, request_id)
        if document is not None:
            hidden = request.status is RequestStatus.COMPLETED and not reads_audit(caller)
            return Receipt(document, replace(request, reference=None) if hidden else request, hidden)
        await asyncio.sleep(wait_s)
    raise Unavailable("The newest event of this request is not signed yet.", "Try again in a moment.")


async def _ready(connection: Connection, request_id: UUID, caller: ApiKey) -> DeletionRequest:
    request, _ = await RequestRepository(connection).require(request_id, visible_to(caller))
    status = request.status
    if status not in WITH_RECEIPT:
        waiting = status is RequestStatus.QUEUED
        raise Conflict(
            f"The request is {status}: it has no receipt.",
            "Try again once it is applied." if waiting else "Nothing was deleted.",
        )
    return request


async def _document(connection: Connection, request_id: UUID) -> Document | None:
    """The receipt; None while the newest event of the request is not signed yet."""
    log, checkpoints = LogRepository(connection), CheckpointRepository(connection)
    note = await checkpoints.require()
    size = read(note).size
    leaves = await log.of_request(request_id)
    if not leaves or leaves[-1].index >= size:
        return None

    async def proven(leaf: StoredLeaf) -> Entry:
        return Entry(parse_canonical(leaf.data), await log.inclusion(leaf.index, size))

    entries = [await proven(leaf) for leaf in leaves]
    model = entries[-1].leaf["request"]["model"]
    since = [await proven(leaf) for leaf in await model_events_after(log, model, leaves[0].index) if leaf.index < size]
    signers = signers_of(note)
    return receipt(entries, note, [key for key in (await checkpoints.keys()).values() if key.id in signers], since)


async def model_events_after(log: LogRepository, model: str, after: int) -> list[StoredLeaf]:
    """The leaves, in order, of what befell a model after the leaf `after` and no request asked for."""
    return [leaf for leaf in reversed(await log.unrequested(after=after)) if _is_of(model, leaf)]


def _is_of(model: str, leaf: StoredLeaf) -> bool:
    event = parse_canonical(leaf.data)
    return event["type"] in OF_THE_MODEL and event["details"]["model"] == model
