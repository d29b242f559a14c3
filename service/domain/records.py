"""Records passed between layers. All times are UTC, from Postgres' clock."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from projector.forgetting.status import RepairStatus
from projector.graph.columns import NodeFeatures
from service.domain.figures import EXACT, FIGURES, OF_REQUEST, BatchDetails, RepairFigures, RequestNorms, VersionFigures
from service.domain.kinds import RequestKind, Target, ordered
from service.domain.scopes import Scope
from service.domain.states import Guarantee, RequestStatus


@dataclass(frozen=True)
class NodeContent:
    """What a node gets by an addition or a correction."""

    #: One number per column of the model, or values by column; None for a correction of the label alone.
    features: NodeFeatures | None = None
    #: The name of a class, or real-valued targets; None for no label, or one that stays as it is.
    label: str | tuple[float, ...] | None = None
    #: Whether the node may join although a request that came before had deleted it.
    rejoin: bool = False


def _values(features: NodeFeatures) -> int:
    given = features.values() if isinstance(features, Mapping) else features
    return sum(len(value) if isinstance(value, tuple) else 1 for value in given)


@dataclass(frozen=True)
class Targets:
    """The targets of one request, by external id. Encrypted at rest under a key of their own."""

    #: The nodes of the request, without duplicates, in the order asked; of an addition, those that join.
    nodes: tuple[str, ...] = ()
    #: The edges that an `edge` request deletes or an addition adds, each as a pair of external ids.
    edges: tuple[tuple[str, str], ...] = ()
    #: External id -> hex salt under which the transparency log commits to it.
    node_salts: Mapping[str, str] | None = None
    #: Hex salt of the reference, or None when the request has no reference.
    reference_salt: str | None = None
    #: What each of the nodes gets, by external id; of an addition or a correction alone.
    content: Mapping[str, NodeContent] = field(default_factory=dict, hash=False)
    #: The weights of the edges that an addition adds, in their order; empty if all are 1.
    edge_weight: tuple[float, ...] = ()

    @property
    def named(self) -> tuple[Target, ...]:
        """The nodes, then the edges with sorted ends."""
        return self.nodes + tuple(map(ordered, self.edges))

    @property
    def count(self) -> int:
        """Number of nodes and edges in the request."""
        return len(self.nodes) + len(self.edges)

    @property
    def weight(self) -> int:
        """Size of the request in nodes and edges; a few features or targets weigh as much as one of these."""
        values = sum(_values(each.features or ()) + len(each.label or ()) for each in self.content.values())
        return self.count + values // 8


@dataclass(frozen=True)
class OldestRequest:
    """State of the request at the head of the queue: the oldest open one that is in no committed batch."""

    #: Seconds for which it could have been started. They count from the latest of three moments: it was queued, an
    #: earlier request last progressed, or the unlearner began to serve. They end when the unlearner took its current
    #: batch.
    waits_s: float
    #: Whether an unlearner serves; if not, the lease check gives the reason.
    is_served: bool

    def is_stuck(self, most_s: float) -> bool:
        """Return whether it has waited longer than `most_s` for a serving unlearner."""
        return self.is_served and self.waits_s > most_s


class KeySlot(NamedTuple):
    """Location of a request's id-list key: the file in `keys/requests` and the place in it."""

    file: int
    place: int


@dataclass(frozen=True)
class DeletionRequest:
    """One row of `requests`, without its targets."""

    id: UUID
    model: str
    kind: RequestKind
    status: RequestStatus
    #: Number of nodes or edges requested.
    count: int
    #: The caller's own reference, such as the number of a data subject request.
    reference: str | None
    #: The API key that sent the request.
    api_key_id: UUID
    received_at: datetime
    #: Deadline: the one in force at receipt, or a later one set by an extension.
    due_at: datetime
    #: Batch that applies the request, from step 6 on.
    batch_id: UUID | None = None
    applied_at: datetime | None = None
    completed_at: datetime | None = None
    failed_at: datetime | None = None
    cancelled_at: datetime | None = None
    guarantee: Guarantee | None = None
    repair: RepairStatus | None = None
    #: When a failed request was handled, and the later request that deleted the same, if any.
    handled_at: datetime | None = None
    handled_by: UUID | None = None
    #: When it was completed, cancelled or handled; open until then.
    ended_at: datetime | None = None
    #: Whether it ended after its deadline or is open past it; None while time remains or it is held, or if cancelled.
    late: bool | None = None
    #: What was done, in one or two plain sentences.
    explanation: str | None = None
    #: Why a `failed` request failed, and the remedy.
    failure: str | None = None
    #: The earlier request that had already deleted every target.
    already_deleted_by: UUID | None = None
    #: Since when it is on hold; None if it is not.
    held_at: datetime | None = None
    #: The held request behind which it waits.
    waits_for: UUID | None = None


@dataclass(frozen=True)
class QueuedRequest:
    """The unlearner's view of a request: its kind, and its targets still encrypted."""

    id: UUID
    kind: RequestKind
    status: RequestStatus
    count: int
    ciphertext: bytes | None
    reference: str | None
    received_at: datetime
    batch_id: UUID | None
    key_file: int | None = None
    key_place: int | None = None

    @property
    def key_slot(self) -> KeySlot | None:
        """Slot of its key; None once the key is destroyed."""
        return None if self.key_file is None or self.key_place is None else KeySlot(self.key_file, self.key_place)


@dataclass(frozen=True)
class Pointer:
    """The committed version of a model."""

    model: str
    version: int
    #: Fencing number of the lease that wrote the version.
    fencing: int
    #: Folder below `versions/`, `<version>-<fencing>`.
    folder: str
    #: SHA-256, hex, of the version's manifest.
    digest: str
    #: SHA-256, hex, of the weights.
    weights_sha256: str


@dataclass(frozen=True)
class Lease:
    """The right to write one model, until `expires_at` by Postgres' clock."""

    name: str
    holder: str
    #: Grows with each acquisition; every write transaction checks it.
    fencing: int
    ttl_seconds: float
    #: `boottime()` after which the holder must neither start a write nor answer a prediction (seconds).
    give_up_at: float


@dataclass(frozen=True, kw_only=True)
class BatchRecord(BatchDetails, VersionFigures, RepairFigures):
    """Audit of one update of the model; its repair may have ended in a later version."""

    id: UUID
    model: str
    requests: int
    #: Nodes deleted, nodes that lost only their features or label, and edges deleted by themselves.
    nodes: int
    features: int
    edges: int
    labels: int = 0
    model_version_before: int
    model_version_after: int
    weights_sha256_before: str
    weights_sha256_after: str
    rank_after: int
    #: Nodes left in the graph.
    live_nodes: int = 0
    device: str
    #: Milliseconds by step of the batch.
    durations_ms: Mapping[str, float]
    #: Progress of its repair.
    repair: RepairStatus = RepairStatus.NONE
    #: Version in which the repair ended (the batch's own or a later one), and the digest of its weights.
    repair_version: int | None = None
    repair_weights_sha256: str | None = None


@dataclass(frozen=True)
class RequestAudit:
    """Audit of one request: its own norms, and its batch."""

    batch: BatchRecord
    norms: RequestNorms

    @property
    def figures(self) -> dict[str, Any]:
        """Every figure's value, by name."""
        return {name: getattr(self.norms if name in OF_REQUEST else self.batch, name) for name in FIGURES}

    @property
    def public_figures(self) -> dict[str, Any]:
        """The figures for readers without audit access: none computed from weights that are published with noise."""
        if self.batch.commitment_salt is None:
            return self.figures
        hidden = dict.fromkeys(EXACT) | {"durations_ms": {}}
        return self.figures | hidden


@dataclass(frozen=True)
class Tombstone:
    """The keyed hash by which Lethe recognises a deleted id."""

    kind: RequestKind
    #: HMAC-SHA-256 of the model's name, the kind and the external id(s).
    hash: bytes
    #: Number of the tombstone key behind `hash`.
    key_number: int
    #: The request that deleted it; None if a recovery took it from the store alone.
    request_id: UUID | None
    #: Whether it joined again.
    is_void: bool = False


@dataclass(frozen=True)
class ApiKey:
    """An API key as the service knows it; the key itself is never stored."""

    id: UUID
    name: str
    scopes: frozenset[Scope]
    created_at: datetime
    revoked_at: datetime | None = None
    #: None if it does not expire.
    expires_at: datetime | None = None
    #: The kinds of request that it may make; None for all.
    kinds: frozenset[RequestKind] | None = None
    #: Until when the text that the last rotation replaced is valid too.
    previous_until: datetime | None = None
    #: Whether it stands for a subject of the OpenID Connect issuer instead of a key.
    is_subject: bool = False
    #: Last use, to a minute. Only lists of keys have it.
    used_at: datetime | None = None

    def has_expired(self, now: datetime) -> bool:
        """Return whether it has expired at `now`."""
        return self.expires_at is not None and self.expires_at <= now
