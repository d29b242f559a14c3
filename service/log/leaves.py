"""Leaves of the log: one event each in canonical JSON, with a record type for each kind of event."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import Any, Protocol
from uuid import UUID

from service.domain.figures import EXACT, PublicationFigures, values_of
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, RequestAudit
from service.domain.states import EventType
from service.domain.versions import Recovery, Version
from service.log.canonical import Document, canonical
from service.log.commitments import FIGURES_COMMITMENT, Commitments, commitment, listed
from service.version import VERSION

#: First member of every leaf; a new number means that members changed meaning.
FORMAT = "lethe-leaf/1"
#: Events that report a deletion, and so carry the commitments; the others name their request.
_NAMING = (EventType.APPLIED, EventType.FAILED)


@dataclass(frozen=True)
class LoggedEvent:
    """One row of `events`, with the parts of its request that its leaf needs."""

    id: int
    type: EventType
    payload: Mapping[str, object]
    created_at: datetime
    #: The request after the transition that the event reports; None for an event without a request.
    request: DeletionRequest | None
    commitments: Commitments


def leaf_data(index: int, event: LoggedEvent) -> bytes:
    """Return the leaf at `index` as canonical JSON. Raises NotCanonical for a payload without such a form."""
    return canonical(leaf_document(index, event))


def leaf_document(index: int, event: LoggedEvent) -> Document:
    """Return the members of a leaf; they include no id and no reference."""
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
    # A request with nothing left to do is never applied, so its only event carries the commitments.
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
    """Return the members that a leaf repeats from its row of `events`. An export has both; they must match."""
    return {
        "event": event_id,
        "request_id": None if request_id is None else str(request_id),
        "type": str(event_type),
        "time": timestamp(created_at),
        "details": dict(payload),
    }


def timestamp(moment: datetime) -> str:
    """Return `moment` in UTC as RFC 3339 with microseconds."""
    return moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


#: JSON content of an event, as in its row.
Payload = Mapping[str, Any]

#: Figures of joining, which a leaf omits if they are zero or null.
_JOINING = (
    *("labels", "nodes_joined", "edges_joined", "features_joined", "labels_joined", "directions_gained"),
    *("joined", "rejoined", "training_norm_before", "training_norm_after"),
)
_OF_PUBLICATION = frozenset(each.name for each in fields(PublicationFigures))
_OF_IMPORT = (
    *("span_residual", "repair_iterations", "repair_tolerance", "distance_bound_before", "distance_bound_after"),
    *("distance_bound_before_relative", "distance_bound_after_relative"),
)


class Content(Protocol):
    """Content of an event."""

    def document(self) -> Payload:
        """The content as the log stores it."""


@dataclass(frozen=True)
class AuditFigures:
    """Content of `applied`, `repaired`, `not_repaired` and `completed`: figures of a request that a batch worked on."""

    kind: RequestKind
    audit: RequestAudit

    def document(self) -> Payload:
        """The figures of the batch and of the request."""
        # Avoid `asdict`: in batches of one-node requests its deep copies cost more than all other work per request.
        found: dict[str, Any] = vars(self.audit.batch) | vars(self.audit.norms)
        # Leaves of deletions stay as they always were.
        for name in _JOINING:
            if not found[name]:
                del found[name]
        found["software"] = f"lethe {VERSION}"
        found["batch"] = str(found.pop("id"))
        found["kind"] = self.kind.value
        found["durations_ms"] = dict(self.audit.batch.durations_ms)
        return found


@dataclass(frozen=True)
class AlreadyDeleted:
    """Content of `completed` for a request without work: the requests that had deleted its targets, where known."""

    kind: RequestKind
    by: tuple[UUID, ...]

    def document(self) -> Payload:
        """The kind and the requests."""
        return {"kind": self.kind.value, "already_deleted_by": [str(request) for request in self.by]}


@dataclass(frozen=True)
class Failed:
    """Content of `failed`: empty, because the request holds the reason."""

    def document(self) -> Payload:
        """Return an empty document."""
        return {}


@dataclass(frozen=True)
class HandledByDeletion:
    """Content of `handled` after a later deletion: the requests that deleted the targets, where known."""

    by: tuple[UUID, ...]

    def document(self) -> Payload:
        """The requests."""
        return {"deleted_by": [str(request) for request in self.by]}


@dataclass(frozen=True)
class Decided:
    """Content of `handled`, `extended`, `held` or `released` by an operator's decision: reason, time and API key."""

    #: None for `released`.
    reason: str | None
    api_key_id: UUID
    decided_at: datetime
    #: The new deadline, of `extended` and `released`.
    due_at: datetime | None = None

    def document(self) -> Payload:
        """The decision."""
        said = {} if self.reason is None else {"reason": self.reason}
        said |= {"api_key": str(self.api_key_id), "decided_at": timestamp(self.decided_at)}
        return said if self.due_at is None else {**said, "due_at": timestamp(self.due_at)}


@dataclass(frozen=True)
class ModelImported:
    """Content of `imported`: the model as a version."""

    version: Version

    def document(self) -> Payload:
        """What was excluded, the version's figures, and the model."""
        version = self.version
        return {
            "import": str(version.id),
            # Includes the excluded nodes.
            "nodes": version.live_nodes + version.deleted_nodes,
            "excluded_nodes": version.deleted_nodes,
            "excluded_features": version.deleted_features,
            "excluded_edges": version.deleted_edges,
            "repair": version.repair.value,
            **{name: getattr(version, name) for name in _OF_IMPORT},
            "model_version_before": version.number_before,
            **_of_the_model(version),
        }


@dataclass(frozen=True)
class ModelCertified:
    """Content of `certified`: the promise for versions from this one on."""

    version: Version

    def document(self) -> Payload:
        """The promise, and the model."""
        return {"model_version_before": self.version.number_before, **_of_the_model(self.version)}


@dataclass(frozen=True)
class ModelRecovered:
    """Content of `recovered`."""

    recovery: Recovery

    def document(self) -> Payload:
        """What was found, what was deleted again, and the model."""
        version = self.recovery.version
        return {
            "recovery": str(version.id),
            "database_before": self.recovery.database_before,
            "store_before": self.recovery.store_before,
            "nodes": version.deleted_nodes,
            "features": version.deleted_features,
            "edges": version.deleted_edges,
            "unknown_nodes": self.recovery.unknown_nodes,
            **({} if self.recovery.ledger is None else {"ledger": asdict(self.recovery.ledger)}),
            **_of_the_model(version),
        }


@dataclass(frozen=True)
class LogKeyAdded:
    """Content of `log_key_added`: number and verifier key of a new signing key."""

    number: int
    public_key: str

    def document(self) -> Payload:
        """Number and verifier key."""
        return {"number": self.number, "public_key": self.public_key}


@dataclass(frozen=True)
class ServedFigures:
    """Figures of a model's weights in the newest event that has any; None where it lacks one."""

    #: The version of the event, and the version in which its repair ended.
    versions: tuple[int | None, int | None]
    rank: int | None
    span_residual: float | None
    distance_bound_relative: float | None

    @classmethod
    def read(cls, payload: Payload, opening: Payload | None = None) -> "ServedFigures":
        """Read the content of that event."""
        payload = {**payload, **(opening or {}).get("figures", {})}
        return cls(
            versions=(payload.get("model_version_after"), payload.get("repair_version")),
            rank=payload.get("rank_after"),
            span_residual=payload.get("span_residual"),
            distance_bound_relative=payload.get("distance_bound_after_relative"),
        )


def _of_the_model(version: Version) -> Payload:
    return {
        "model": version.model,
        "model_version_after": version.number,
        "weights_sha256_before": version.weights_sha256_before,
        "weights_sha256_after": version.weights_sha256,
        "directions_removed": version.directions_removed,
        "rank_after": version.rank,
        "live_nodes": version.live_nodes,
        **values_of(version, PublicationFigures),
    }


def redact(document: Payload) -> tuple[Payload, Payload | None]:
    """Return `document` as the log stores it, and its opening for audit readers; None if nothing is hidden.

    For a version published with noise, the log holds no figure computed from the weights without noise. It holds a
    commitment to all of them: SHA-256 of the version's salt and their canonical JSON.
    """
    document = dict(document)
    salt = document.pop("commitment_salt", None)
    if salt is None:
        return {name: value for name, value in document.items() if name not in _OF_PUBLICATION}, None
    figures = {name: document.pop(name) for name in EXACT & document.keys()}
    if not figures:
        return document, None
    digest = commitment(salt, canonical(figures).decode()).hex()
    return document | {FIGURES_COMMITMENT: digest}, {"salt": salt, "figures": figures}
