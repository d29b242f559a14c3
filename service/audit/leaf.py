"""What a leaf of the log says: one event, with the request as it stood then, in canonical JSON. No I/O."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID

from service.audit.canonical import Document, canonical
from service.audit.commitments import Commitments, listed
from service.domain.records import DeletionRequest
from service.domain.states import EventType

#: The first member of every leaf; another number means another meaning of the members.
FORMAT = "lethe-leaf/1"
#: Events that tell what was deleted, and so carry the commitments; the others name the request that has them.
_NAMING = (EventType.APPLIED, EventType.FAILED)


@dataclass(frozen=True)
class LoggedEvent:
    """One row of `events`, and what its leaf takes from the request."""

    id: int
    type: EventType
    payload: Mapping[str, object]
    created_at: datetime
    #: The request after the move that the event reports; None for an event of no request.
    request: DeletionRequest | None
    commitments: Commitments


def leaf_data(index: int, event: LoggedEvent) -> bytes:
    """The leaf at `index`, canonical JSON. Raises NotCanonical for a payload that has no such form."""
    return canonical(leaf_document(index, event))


def leaf_document(index: int, event: LoggedEvent) -> Document:
    """The members of a leaf; no id and no reference is among them."""
    request, commitments = event.request, event.commitments
    if request is None:
        members = event_members(event.id, None, event.type, event.payload, event.created_at)
        return {
            "format": FORMAT,
            "index": index,
            **members,
            "request": None,
            "subjects": None,
            "reference": None,
        }
    # A request with nothing left to do is never applied: its one event tells.
    naming = event.type in _NAMING or request.guarantee is None
    subjects = commitments.subjects if naming else None
    reference = commitments.reference if naming else None
    return {
        "format": FORMAT,
        "index": index,
        **event_members(event.id, request.id, event.type, event.payload, event.created_at),
        "request": {
            "model": request.model,
            "kind": request.kind.value,
            "count": request.count,
            "received_at": timestamp(request.received_at),
            "guarantee": None if request.guarantee is None else request.guarantee.value,
            "repair": None if request.repair is None else request.repair.value,
            "explanation": request.explanation,
            "failure": request.failure,
            "already_deleted_by": None if request.already_deleted_by is None else str(request.already_deleted_by),
        },
        "subjects": None if subjects is None else listed(request.kind, subjects),
        "reference": None if reference is None else reference.hex(),
    }


def event_members(
    event_id: int, request_id: UUID | None, event_type: str, payload: Mapping[str, object], created_at: datetime
) -> Document:
    """The members of a leaf that repeat its row of `events`; an export has them again, and they must be the same."""
    return {
        "event": event_id,
        "request_id": None if request_id is None else str(request_id),
        "type": str(event_type),
        "time": timestamp(created_at),
        "details": dict(payload),
    }


def timestamp(moment: datetime) -> str:
    """`moment` in UTC as RFC 3339 with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
