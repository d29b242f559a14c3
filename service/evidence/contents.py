"""What the events of the log say: a record for each content, the only makers of what a leaf has as `details`.

A log once signed stays true: the members of a content, and the form of their values, are those of every leaf so far.
No external id is among them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from service.audit.canonical import canonical
from service.audit.commitments import FIGURES_COMMITMENT, commitment
from service.audit.leaf import timestamp
from service.domain.figures import EXACT, PublicationFigures, values_of
from service.domain.kinds import RequestKind
from service.domain.records import RequestAudit
from service.domain.versions import Recovery, Version
from service.version import VERSION

#: The content of an event as its row has it: JSON values.
Payload = Mapping[str, Any]

_OF_PUBLICATION = frozenset(each.name for each in fields(PublicationFigures))
_OF_IMPORT = (
    *("span_residual", "repair_iterations", "repair_tolerance", "distance_bound_before", "distance_bound_after"),
    *("distance_bound_before_relative", "distance_bound_after_relative"),
)


class Content(Protocol):
    """What an event says."""

    def document(self) -> Payload:
        """It as the log has it."""


@dataclass(frozen=True)
class AuditFigures:
    """Of a request that a batch did something for: `applied`, `repaired`, `not_repaired` and `completed`."""

    kind: RequestKind
    audit: RequestAudit

    def document(self) -> Payload:
        """The figures of the batch and of the request."""
        # Not `asdict`: its deep copies cost more than all else that is done for a request of a batch of one-node
        # requests.
        found: dict[str, Any] = vars(self.audit.batch) | vars(self.audit.norms)
        found["software"] = f"lethe {VERSION}"
        found["batch"] = str(found.pop("id"))
        found["kind"] = self.kind.value
        found["durations_ms"] = dict(self.audit.batch.durations_ms)
        return found


@dataclass(frozen=True)
class AlreadyDeleted:
    """Of a request that is `completed` without work, by the requests that deleted what it names, if they are known."""

    kind: RequestKind
    by: tuple[UUID, ...]

    def document(self) -> Payload:
        """The kind and the requests."""
        return {"kind": self.kind.value, "already_deleted_by": [str(request) for request in self.by]}


@dataclass(frozen=True)
class Failed:
    """Of a request that `failed`: the reason is a member of the request."""

    def document(self) -> Payload:
        """Nothing."""
        return {}


@dataclass(frozen=True)
class HandledByDeletion:
    """Of a failed request that is `handled`: by the requests that deleted what it names, if they are known."""

    by: tuple[UUID, ...]

    def document(self) -> Payload:
        """The requests."""
        return {"deleted_by": [str(request) for request in self.by]}


@dataclass(frozen=True)
class Decided:
    """Of a request that somebody says is `handled`, or has `extended`: why, when, and with which API key."""

    reason: str
    api_key_id: UUID
    decided_at: datetime
    #: The new deadline; None of one that is handled.
    due_at: datetime | None = None

    def document(self) -> Payload:
        """The same."""
        said = {
            "reason": self.reason,
            "api_key": str(self.api_key_id),
            "decided_at": timestamp(self.decided_at),
        }
        if self.due_at is None:
            return said
        return {**said, "due_at": timestamp(self.due_at)}


@dataclass(frozen=True)
class ModelImported:
    """Of a model that was `imported`, as a version."""

    version: Version

    def document(self) -> Payload:
        """What was excluded, the figures of the version, and the model."""
        version = self.version
        return {
            "import": str(version.id),
            # Those excluded among them.
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
    """Of a model that was `certified`: what is promised of its versions from this one on."""

    version: Version

    def document(self) -> Payload:
        """The promise, and the model."""
        return {"model_version_before": self.version.number_before, **_of_the_model(self.version)}


@dataclass(frozen=True)
class ModelRecovered:
    """Of a model that was `recovered`."""

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
            **_of_the_model(version),
        }


@dataclass(frozen=True)
class LogKeyAdded:
    """Of a key that signs checkpoints from here on: its number, and its verifier key."""

    number: int
    public_key: str

    def document(self) -> Payload:
        """The same."""
        return {"number": self.number, "public_key": self.public_key}


@dataclass(frozen=True)
class ServedFigures:
    """What the newest event with figures of a model's weights says of them; None for what it does not have."""

    #: The version that it was made for, and the one in which its repair ended.
    versions: tuple[int | None, int | None]
    rank: int | None
    span_residual: float | None
    distance_bound_relative: float | None

    @classmethod
    def read(cls, payload: Payload, opening: Payload | None = None) -> "ServedFigures":
        """Out of the content of that event."""
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


def sealed(document: Payload) -> tuple[Payload, Payload | None]:
    """`document` as the log has it, and what opens it for those who may read the audit: None where nothing is hidden.

    Of a version published with noise the log has no figure that is computed from the weights as they are, but a
    commitment to all of them, SHA-256 of the version's salt and their canonical JSON.
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
