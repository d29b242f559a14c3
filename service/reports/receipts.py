"""The receipt of a deletion, as a document and on paper: evidence that can be checked without trusting Lethe."""

import asyncio
from dataclasses import dataclass, replace
from uuid import UUID

from projector.forgetting.status import RepairStatus
from service.db.engine import Connection, Engine
from service.db.transactions import transaction
from service.domain.figures import answers
from service.domain.formats import at_most, day, minute
from service.domain.kinds import RequestKind
from service.domain.records import ApiKey, DeletionRequest
from service.domain.states import IN_PLAIN_WORDS, IN_PLAIN_WORDS_OF_JOINS, EventType, Guarantee, RequestStatus
from service.errors import Conflict, Unavailable
from service.log.canonical import Document, parse_canonical
from service.log.checkpoints import read, signers_of
from service.log.events import LogRepository, StoredLeaf
from service.log.receipt import Entry, fingerprint, receipt
from service.log.signed_checkpoints import CheckpointRepository
from service.log.verification import OF_THE_MODEL
from service.reports.listing import reads_audit, visible_to
from service.reports.paper import Paper, moment, paper
from service.requests.lookup import RequestRepository
from service.settings import Settings

#: Seconds between checks for a new event's signature, which normally follows immediately.
_WAITS_S = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 0.0)
#: States with a receipt.
WITH_RECEIPT = (RequestStatus.APPLIED, RequestStatus.COMPLETED, RequestStatus.FAILED)


@dataclass(frozen=True)
class Receipt:
    """A receipt, and the parts of its request that the caller may see."""

    document: Document
    #: Without its reference if the caller may not see it.
    request: DeletionRequest
    reference_is_hidden: bool


async def receipt_of(engine: Engine, request_id: UUID, caller: ApiKey) -> Receipt:
    """Return the receipt of a request that `caller` may see.

    Raises:
        NotFound: the request does not exist, or the caller may not see it.
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
    """Return the receipt; None until the request's newest event is signed."""
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
    """Return the leaves, in order, of a model's events without a request after the leaf `after`."""
    return [leaf for leaf in reversed(await log.unrequested(after=after)) if _is_of(model, leaf)]


def _is_of(model: str, leaf: StoredLeaf) -> bool:
    event = parse_canonical(leaf.data)
    return event["type"] in OF_THE_MODEL and event["details"]["model"] == model


#: Labels of a request's events.
_HAPPENED = {
    EventType.APPLIED: "Applied",
    EventType.REPAIRED: "Repaired",
    EventType.NOT_REPAIRED: "Not repaired",
    EventType.COMPLETED: "Completed",
    EventType.FAILED: "Failed",
    EventType.HANDLED: "Handled",
    EventType.EXTENDED: "Deadline extended",
    EventType.HELD: "Put on hold",
    EventType.RELEASED: "Released from the hold",
}


def receipt_paper(receipt: Receipt, settings: Settings) -> Paper:
    """Return a receipt as a self-contained page to read and print."""
    document = receipt.document
    mark = fingerprint([entry["leaf"] for entry in document["entries"]])
    return paper(
        "receipt.html",
        settings,
        # Browsers send the part after the hash sign to no server.
        check=f"/dashboard/verify#{mark}",
        receipt=document,
        request=receipt.request,
        reference="not shown to this key" if receipt.reference_is_hidden else receipt.request.reference or "none given",
        happened=[(_HAPPENED[EventType(each["leaf"]["type"])], each["leaf"]["time"]) for each in document["entries"]],
        sentences=sentences(document["summary"], settings.organisation),
        annex=answers(document["summary"] | document["summary"]["figures"]),
        fingerprint=mark,
        tree=read(document["checkpoint"]),
    )


def sentences(summary: Document, organisation: str | None) -> list[str]:
    """Describe what was requested, what was done and what holds since, for readers who have never seen a model."""
    rules = RequestKind(summary["kind"]).rules
    what = rules.in_plain_words(summary["count"])
    asked = (
        f"On {day(moment(summary['received_at']))}, {organisation or 'the operator of this service'} was asked to "
        f"{f'take {what} into' if rules.joins else f'delete {what} from'} its machine learning model."
    )
    return [asked, *_done(summary)]


def _done(summary: Document) -> list[str]:
    if summary["status"] == EventType.FAILED:
        return _not_done(summary)
    joins = RequestKind(summary["kind"]).rules.joins
    if summary["applied_at"] is None:
        none = "Nothing was added or changed: all of it had been deleted on request."
        left = "There was nothing left to do: all of it had already been deleted."
        return [none if joins else left, summary["guarantee_in_words"]]
    left = f"Since {minute(moment(summary['applied_at']))}, no prediction of the model uses this data"
    if joins:
        gone = f"Since {minute(moment(summary['applied_at']))}, the predictions of the model use this data."
    elif summary["completed_at"] is None:
        gone = f"{left}. It is being erased from the disk; a later copy of this receipt will say when that was done."
    else:
        gone = (
            f"{left}. By {minute(moment(summary['completed_at']))} it had been erased from the disk, with every "
            "earlier version of the model."
        )
    if summary["repair"] == RepairStatus.PENDING:
        return [gone, "The model is still being corrected; a later copy of this receipt will state the result."]
    holds = (IN_PLAIN_WORDS_OF_JOINS if joins else IN_PLAIN_WORDS)[Guarantee(summary["guarantee"])]
    # For weights published with noise, the log holds only a commitment to the bound.
    bound = summary["figures"].get("distance_bound_after_relative")
    if bound is not None and summary["guarantee"] == Guarantee.RETRAINED:
        holds = f"{holds} The difference is at most {at_most(bound)} of the size of its weights."
    return [gone, holds]


def _not_done(summary: Document) -> list[str]:
    failed = f"This could not be done on {minute(moment(summary['failed_at']))}: nothing was deleted for this request."
    # The rest is advice to operators, which the annex repeats.
    reason, _, _ = summary["failure"].partition(". ")
    lines = [failed, f"The reason: {reason.rstrip('.')}."]
    if summary["handled_at"] is None:
        return [*lines, "The request is still open."]
    handled = day(moment(summary["handled_at"]))
    if summary["note"] is not None:
        return [*lines, f"The request was settled in another way on {handled}: {summary['note']}"]
    later = summary["handled_by"]
    by = f"the later request {later}, whose receipt says what was done" if later else "later requests"
    return [*lines, f"By {handled}, all of it had been deleted for {by}."]
