"""The tables, with every constraint that keeps an illegal state out of the database.

Triggers (the transitions of a request, a pointer that only moves forward, append-only events) are in the migrations.
Times are Postgres' own; none is compared with another in a constraint, because a clock that is set back must not stop
a deletion. Floating-point figures are finite: a NaN would poison every audit query.
"""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.orm import Mapped, mapped_column

from projector.forgetting.status import LARGEST_TOLERANCE, RepairStatus
from service.db.base import Base, finite, one_of, sha256
from service.domain.states import OF_NO_REQUEST, EventType, Guarantee, ImportStatus, RequestKind, RequestStatus, Scope

_BOUNDS = (
    "distance_bound_before",
    "distance_bound_after",
    "distance_bound_before_relative",
    "distance_bound_after_relative",
)
_FIGURES = (
    "lost_direction_norm_before",
    "lost_direction_norm_after",
    "weight_change",
    "coefficient_residual",
    "span_residual",
    *_BOUNDS,
)
_OF_NO_REQUEST = "(" + ", ".join(f"'{event}'" for event in OF_NO_REQUEST) + ")"
_NORMS = ("injected_norm_before", "injected_norm_after", "channel_norm_before", "channel_norm_after")


def _tolerated(status: str) -> str:
    """A tolerance is one that may be said, and what has converged is within it."""
    return (
        f"repair_tolerance > 0 AND repair_tolerance <= {LARGEST_TOLERANCE:g}"
        f" AND ({status} <> 'converged' OR distance_bound_after_relative <= repair_tolerance)"
    )


class ApiKeyRow(Base):
    """An API key, known by the hash of its text."""

    __tablename__ = "api_keys"
    __table_args__ = (
        CheckConstraint("name <> ''", name="named"),
        CheckConstraint("octet_length(hash) = 32", name="hash"),
        CheckConstraint(
            "cardinality(scopes) > 0 AND scopes <@ ARRAY[" + ", ".join(f"'{scope}'" for scope in Scope) + "]::text[]",
            name="scopes",
        ),
        Index("api_keys_name_in_use", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    name: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text()))
    hash: Mapped[bytes] = mapped_column(unique=True)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    revoked_at: Mapped[datetime | None]


class LeaseRow(Base):
    """Who may write a model, and until when."""

    __tablename__ = "leases"
    __table_args__ = (
        CheckConstraint("fencing > 0", name="fencing"),
        CheckConstraint("holder <> ''", name="holder"),
        # No two rows could clash anyway: it makes `fencing` part of a key, so that changing it waits for FOR KEY SHARE.
        UniqueConstraint("name", "fencing"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    fencing: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime]


class PointerRow(Base):
    """Which version of a model is committed."""

    __tablename__ = "pointers"
    __table_args__ = (
        CheckConstraint("version >= 0 AND fencing >= 0", name="numbers"),
        CheckConstraint("folder = version || '-' || fencing", name="folder"),
        CheckConstraint(f"{sha256('digest')} AND {sha256('weights_sha256')}", name="digests"),
    )

    model: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    fencing: Mapped[int] = mapped_column(BigInteger)
    folder: Mapped[str]
    digest: Mapped[str]
    weights_sha256: Mapped[str]
    moved_at: Mapped[datetime] = mapped_column(server_default=func.now())


class BatchRow(Base):
    """One update of a model: what was measured, and whether its erasure is finished."""

    __tablename__ = "batches"
    __table_args__ = (
        CheckConstraint("fencing > 0 AND requests > 0 AND nodes >= 0 AND features >= 0 AND edges >= 0", name="size"),
        CheckConstraint(
            "model_version_before >= 0 AND model_version_after > model_version_before", name="model_versions"
        ),
        CheckConstraint(
            f"{sha256('weights_sha256_before')} AND {sha256('weights_sha256_after')}", name="weights_digests"
        ),
        CheckConstraint("rank_after >= 0 AND rank_before >= 0 AND directions_removed >= 0", name="ranks"),
        CheckConstraint("factor_method IN ('none', 'decompose', 'downdate', 'refactorise')", name="factor_method"),
        CheckConstraint(finite(_FIGURES), name="figures"),
        CheckConstraint(finite(("distance_bound_start_relative",)), name="start"),
        CheckConstraint("jsonb_typeof(durations_ms) = 'object'", name="durations_ms"),
        CheckConstraint("(finished_at IS NULL) = (span_residual IS NULL)", name="finished"),
        CheckConstraint(one_of("repair", RepairStatus), name="repair"),
        CheckConstraint("repair_iterations >= 0", name="repair_iterations"),
        CheckConstraint(
            "(repair_version IS NULL) = (repair_weights_sha256 IS NULL)"
            " AND (repair_version IS NOT NULL OR repair <> 'converged')"
            f" AND repair_version >= model_version_after AND {sha256('repair_weights_sha256')}",
            name="repair_version",
        ),
        CheckConstraint(finite(("repair_weight_change",)), name="repair_weight_change"),
        CheckConstraint("live_nodes >= 0", name="live_nodes"),
        CheckConstraint(_tolerated("repair"), name="tolerance"),
        CheckConstraint(finite(("factor_age_s",)), name="factor_age"),
        UniqueConstraint("model", "model_version_after"),
        Index("batches_unfinished", "model", unique=True, postgresql_where=text("finished_at IS NULL")),
        Index(
            "batches_committed_at",
            "model",
            "committed_at",
            postgresql_include=["rank_after", "live_nodes", "distance_bound_after_relative"],
        ),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(ForeignKey("pointers.model"))
    fencing: Mapped[int] = mapped_column(BigInteger)
    requests: Mapped[int] = mapped_column(Integer)
    nodes: Mapped[int] = mapped_column(Integer)
    features: Mapped[int] = mapped_column(Integer)
    edges: Mapped[int] = mapped_column(Integer)
    model_version_before: Mapped[int] = mapped_column(BigInteger)
    model_version_after: Mapped[int] = mapped_column(BigInteger)
    weights_sha256_before: Mapped[str]
    weights_sha256_after: Mapped[str]
    rank_before: Mapped[int]
    rank_after: Mapped[int]
    directions_removed: Mapped[int]
    lost_direction_norm_before: Mapped[float | None]
    lost_direction_norm_after: Mapped[float | None]
    weight_change: Mapped[float]
    coefficient_residual: Mapped[float]
    factor_method: Mapped[str]
    device: Mapped[str]
    durations_ms: Mapped[dict[str, float]] = mapped_column(JSONB)
    span_residual: Mapped[float | None]
    distance_bound_before: Mapped[float | None]
    distance_bound_after: Mapped[float | None]
    distance_bound_before_relative: Mapped[float | None]
    distance_bound_after_relative: Mapped[float | None]
    repair_iterations: Mapped[int | None]
    committed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
    repair: Mapped[str] = mapped_column(server_default=RepairStatus.NONE.value)
    repair_version: Mapped[int | None] = mapped_column(BigInteger)
    repair_weights_sha256: Mapped[str | None]
    repair_weight_change: Mapped[float | None]
    live_nodes: Mapped[int | None] = mapped_column(Integer)
    distance_bound_start_relative: Mapped[float | None]
    repair_tolerance: Mapped[float | None]
    factor_age_s: Mapped[float | None]


class RepairRow(Base):
    """A repair that ended in a version of its own."""

    __tablename__ = "repairs"
    __table_args__ = (
        CheckConstraint("status IN ('converged', 'not_converged')", name="status"),
        CheckConstraint("fencing > 0 AND requests >= 0 AND iterations >= 0 AND products >= 0", name="size"),
        CheckConstraint(
            "model_version_before >= 0 AND model_version_after > model_version_before", name="model_versions"
        ),
        CheckConstraint(
            f"{sha256('weights_sha256_before')} AND {sha256('weights_sha256_after')}", name="weights_digests"
        ),
        CheckConstraint(finite(("weight_change", *_BOUNDS, "span_residual")), name="figures"),
        CheckConstraint("jsonb_typeof(durations_ms) = 'object'", name="durations_ms"),
        CheckConstraint("(finished_at IS NULL) = (span_residual IS NULL)", name="finished"),
        CheckConstraint(_tolerated("status"), name="tolerance"),
        UniqueConstraint("model", "model_version_after"),
        Index("repairs_unfinished", "model", unique=True, postgresql_where=text("finished_at IS NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(ForeignKey("pointers.model"))
    fencing: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[str]
    requests: Mapped[int] = mapped_column(Integer)
    model_version_before: Mapped[int] = mapped_column(BigInteger)
    model_version_after: Mapped[int] = mapped_column(BigInteger)
    weights_sha256_before: Mapped[str]
    weights_sha256_after: Mapped[str]
    iterations: Mapped[int]
    products: Mapped[int]
    weight_change: Mapped[float]
    distance_bound_before: Mapped[float]
    distance_bound_after: Mapped[float]
    distance_bound_before_relative: Mapped[float | None]
    distance_bound_after_relative: Mapped[float | None]
    device: Mapped[str]
    durations_ms: Mapped[dict[str, float]] = mapped_column(JSONB)
    span_residual: Mapped[float | None]
    committed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
    repair_tolerance: Mapped[float | None]


class RequestRow(Base):
    """One deletion request; what it names is only in `ciphertext`, under a key kept outside the database."""

    __tablename__ = "requests"
    __table_args__ = (
        CheckConstraint(one_of("kind", RequestKind), name="kind"),
        CheckConstraint(one_of("status", RequestStatus), name="status"),
        CheckConstraint(one_of("guarantee", Guarantee), name="guarantee"),
        CheckConstraint(one_of("repair", RepairStatus), name="repair"),
        CheckConstraint("count > 0", name="count"),
        CheckConstraint(
            "(idempotency_key IS NULL) = (body_digest IS NULL) AND octet_length(body_digest) = 32", name="idempotency"
        ),
        CheckConstraint(
            "status <> 'queued' OR (ciphertext IS NOT NULL AND applied_at IS NULL AND completed_at IS NULL"
            " AND failed_at IS NULL AND cancelled_at IS NULL AND guarantee IS NULL)",
            name="queued",
        ),
        CheckConstraint(
            "status <> 'applied' OR (applied_at IS NOT NULL AND completed_at IS NULL)",
            name="applied",
        ),
        CheckConstraint(
            "(applied_at IS NULL) = (guarantee IS NULL) AND (applied_at IS NULL) = (repair IS NULL)"
            " AND (applied_at IS NULL OR (batch_id IS NOT NULL AND explanation IS NOT NULL))",
            name="applied_at",
        ),
        CheckConstraint(
            "(status = 'completed') = (completed_at IS NOT NULL) AND (status <> 'completed'"
            " OR (ciphertext IS NULL AND explanation IS NOT NULL AND (applied_at IS NULL) = (batch_id IS NULL)))",
            name="completed",
        ),
        CheckConstraint(
            "(already_deleted_by IS NOT NULL OR deleted_by_unknown) = (status = 'completed' AND batch_id IS NULL)"
            " AND already_deleted_by <> id",
            name="already_deleted_by",
        ),
        CheckConstraint(
            "(status = 'failed') = (failed_at IS NOT NULL) AND (status = 'failed') = (failure IS NOT NULL)"
            " AND (status <> 'failed' OR batch_id IS NULL)",
            name="failed",
        ),
        CheckConstraint(
            "(status = 'cancelled') = (cancelled_at IS NOT NULL)"
            " AND (status <> 'cancelled' OR (ciphertext IS NULL AND batch_id IS NULL))",
            name="cancelled",
        ),
        CheckConstraint("(guarantee = 'retrained') = (repair = 'converged')", name="retrained"),
        CheckConstraint(
            "octet_length(subject_commitments) = count * CASE kind WHEN 'edge' THEN 64 ELSE 32 END"
            " AND octet_length(reference_commitment) = 32",
            name="commitments",
        ),
        Index(
            "requests_idempotency",
            "api_key_id",
            "idempotency_key",
            unique=True,
            postgresql_where=text("idempotency_key IS NOT NULL"),
        ),
        Index("requests_newest_by_status", "status", "received_at", "id"),
        Index(
            "requests_queued",
            "model",
            "received_at",
            postgresql_where=text("status = 'queued'"),
            postgresql_include=["count", "api_key_id"],
        ),
        Index("requests_batch", "batch_id", postgresql_where=text("batch_id IS NOT NULL")),
        Index("requests_repair_pending", "model", postgresql_where=text("repair = 'pending'")),
        Index(
            "requests_open",
            "model",
            "received_at",
            postgresql_where=text("status IN ('queued', 'applied')"),
            postgresql_include=["id"],
        ),
        *(
            Index(
                f"requests_{column}",
                "model",
                column,
                postgresql_where=text(f"{column} IS NOT NULL"),
                postgresql_include=["received_at"],
            )
            for column in ("applied_at", "completed_at", "failed_at")
        ),
        Index("requests_reference", "reference", "received_at", "id", postgresql_where=text("reference IS NOT NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(ForeignKey("pointers.model"))
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=text("'queued'"))
    count: Mapped[int]
    reference: Mapped[str | None]
    ciphertext: Mapped[bytes | None]
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    idempotency_key: Mapped[str | None]
    body_digest: Mapped[bytes | None]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: When the sweeper last put the request back into the stream.
    swept_at: Mapped[datetime | None]
    #: When the unlearner took the request up; it cannot be cancelled from then on.
    taken_at: Mapped[datetime | None]
    batch_id: Mapped[UUID | None] = mapped_column(ForeignKey("batches.id"))
    applied_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    guarantee: Mapped[str | None]
    repair: Mapped[str | None]
    explanation: Mapped[str | None]
    failure: Mapped[str | None]
    already_deleted_by: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))
    #: Whether that is a request which the database, restored from an older backup, does not know.
    deleted_by_unknown: Mapped[bool] = mapped_column(server_default=text("false"))
    #: What the log holds in place of what the request names and of its reference; see `service.audit.commitments`.
    subject_commitments: Mapped[bytes | None]
    reference_commitment: Mapped[bytes | None]


class RequestAuditRow(Base):
    """What was deleted for one request and the norms measured for it, written together with its batch."""

    __tablename__ = "request_audits"
    __table_args__ = (
        CheckConstraint("deleted > 0", name="deleted"),
        CheckConstraint(finite(_NORMS), name="norms"),
        Index("request_audits_batch", "batch_id"),
    )

    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"), primary_key=True)
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"))
    deleted: Mapped[int]
    injected_norm_before: Mapped[float | None]
    injected_norm_after: Mapped[float | None]
    channel_norm_before: Mapped[float | None]
    channel_norm_after: Mapped[float | None]


class OutboxRow(Base):
    """A request whose id has not been put into the stream yet."""

    __tablename__ = "outbox"
    __table_args__ = (Index("outbox_oldest", "model", "created_at"),)

    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"), primary_key=True)
    model: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class TombstoneKeyRow(Base):
    """A tombstone key that some tombstone was made with; the key itself is in the key folder."""

    __tablename__ = "tombstone_keys"
    __table_args__ = (
        CheckConstraint("number > 0", name="number"),
        CheckConstraint("octet_length(fingerprint) = 16", name="fingerprint"),
    )

    number: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    fingerprint: Mapped[bytes]


class VaultKeyRow(Base):
    """A key outside the database, other than a tombstone key, that it relies on; the key is in the key folder."""

    __tablename__ = "vault_keys"
    __table_args__ = (
        CheckConstraint("name <> ''", name="name"),
        CheckConstraint("octet_length(fingerprint) = 16", name="fingerprint"),
    )

    name: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[bytes]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class TombstoneRow(Base):
    """The keyed hash of an id that was deleted, and the request that deleted it first."""

    __tablename__ = "tombstones"
    __table_args__ = (
        CheckConstraint(one_of("kind", RequestKind), name="kind"),
        CheckConstraint("octet_length(hash) = 32", name="hash"),
        Index("tombstones_request", "request_id"),
    )

    hash: Mapped[bytes] = mapped_column(primary_key=True)
    kind: Mapped[str]
    key_number: Mapped[int] = mapped_column(SmallInteger, ForeignKey("tombstone_keys.number"))
    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class EventRow(Base):
    """What happened to a request, to a model or to the log; rows are never changed."""

    __tablename__ = "events"
    __table_args__ = (
        CheckConstraint(one_of("type", EventType), name="type"),
        CheckConstraint(f"(request_id IS NULL) = (type IN {_OF_NO_REQUEST})", name="request"),
        CheckConstraint("jsonb_typeof(payload) = 'object'", name="payload"),
        Index("events_request", "request_id", "id"),
        Index("events_applied_once", "request_id", unique=True, postgresql_where=text("type = 'applied'")),
        Index("events_completed_once", "request_id", unique=True, postgresql_where=text("type = 'completed'")),
        Index("events_repaired_once", "request_id", unique=True, postgresql_where=text("type = 'repaired'")),
        Index("events_not_repaired_once", "request_id", unique=True, postgresql_where=text("type = 'not_repaired'")),
        Index("events_of_no_request", "id", postgresql_where=text("request_id IS NULL")),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    #: Null for what no request asked for.
    request_id: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))
    type: Mapped[str]
    payload: Mapped[dict[str, Any]] = mapped_column(JSONB)
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LeafRow(Base):
    """A leaf of the transparency log; rows are never changed."""

    __tablename__ = "leaves"
    __table_args__ = (
        CheckConstraint("index >= 0", name="index"),
        CheckConstraint("octet_length(hash) = 32 AND octet_length(root) = 32", name="hashes"),
        UniqueConstraint("event_id"),
    )

    index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    event_id: Mapped[int] = mapped_column(ForeignKey("events.id"))
    #: Canonical JSON; text and not jsonb, because every byte of it is hashed.
    data: Mapped[str]
    hash: Mapped[bytes]
    #: The root of the tree that ends with this leaf: it tells which leaf of a changed log was changed first.
    root: Mapped[bytes]


class LogNodeRow(Base):
    """The hash of a complete subtree of two leaves or more; rows are never changed."""

    __tablename__ = "log_nodes"
    __table_args__ = (
        CheckConstraint("level BETWEEN 1 AND 62 AND position >= 0", name="place"),
        CheckConstraint("octet_length(hash) = 32", name="hash"),
    )

    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hash: Mapped[bytes]


class CheckpointRow(Base):
    """A signed checkpoint of the log; rows are never changed."""

    __tablename__ = "checkpoints"
    __table_args__ = (CheckConstraint("size >= 0", name="size"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    #: As it was signed.
    note: Mapped[str]
    signed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LogKeyRow(Base):
    """A public key that has signed checkpoints; the private key is in the key folder."""

    __tablename__ = "log_keys"
    __table_args__ = (CheckConstraint("number > 0", name="number"),)

    number: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    public_key: Mapped[str]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class RecoveryRow(Base):
    """One recovery of a store and a database that were not of the same moment; once finished it is never changed."""

    __tablename__ = "recoveries"
    __table_args__ = (
        CheckConstraint("fencing > 0 AND version >= 0", name="numbers"),
        CheckConstraint(
            "nodes >= 0 AND features >= 0 AND edges >= 0 AND unknown_nodes >= 0 AND directions_removed >= 0",
            name="counts",
        ),
        CheckConstraint(
            f"{sha256('weights_sha256_before')} AND {sha256('weights_sha256_after')}", name="weights_digests"
        ),
        CheckConstraint("(finished_at IS NULL) = (requests_failed IS NULL)", name="finished"),
        CheckConstraint("requests_failed >= 0", name="requests_failed"),
        CheckConstraint("rank_after >= 0 AND live_nodes >= 0", name="left"),
        Index("recoveries_open", "model", postgresql_where=text("finished_at IS NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    model: Mapped[str]
    fencing: Mapped[int] = mapped_column(BigInteger)
    #: The version that the database had committed; null when it knew of none.
    database_before: Mapped[str | None]
    #: The version that the store was at.
    store_before: Mapped[str]
    version: Mapped[int] = mapped_column(BigInteger)
    weights_sha256_before: Mapped[str]
    weights_sha256_after: Mapped[str]
    nodes: Mapped[int]
    features: Mapped[int]
    edges: Mapped[int]
    directions_removed: Mapped[int]
    unknown_nodes: Mapped[int]
    requests_failed: Mapped[int | None]
    committed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    finished_at: Mapped[datetime | None]
    rank_after: Mapped[int | None] = mapped_column(Integer)
    live_nodes: Mapped[int | None] = mapped_column(Integer)


class ImportRow(Base):
    """One import of a newly trained model; once finished it is never changed."""

    __tablename__ = "imports"
    __table_args__ = (
        CheckConstraint(one_of("status", ImportStatus), name="status"),
        CheckConstraint("(status = 'refused') = (refusal IS NOT NULL)", name="refused"),
        CheckConstraint("(status IN ('completed', 'refused')) = (finished_at IS NOT NULL)", name="finished"),
        CheckConstraint("(status IN ('committed', 'completed')) = (committed_at IS NOT NULL)", name="committed"),
        CheckConstraint(
            "num_nulls(committed_at, version_before, version_after, weights_sha256_before, weights_sha256_after, nodes,"
            " excluded_nodes, excluded_features, excluded_edges, directions_removed, span_residual) IN (0, 11)",
            name="imported",
        ),
        CheckConstraint("version_before >= 0 AND version_after > version_before", name="versions"),
        CheckConstraint(
            f"{sha256('weights_sha256_before')} AND {sha256('weights_sha256_after')}", name="weights_digests"
        ),
        CheckConstraint(
            "nodes > 0 AND excluded_nodes >= 0 AND excluded_features >= 0 AND excluded_edges >= 0"
            " AND directions_removed >= 0",
            name="counts",
        ),
        CheckConstraint(finite(("span_residual",)), name="figures"),
        CheckConstraint(one_of("repair", RepairStatus), name="repair"),
        CheckConstraint("repair_iterations >= 0", name="repair_iterations"),
        CheckConstraint(finite(_BOUNDS), name="bounds"),
        CheckConstraint("rank_after >= 0 AND live_nodes >= 0", name="left"),
        CheckConstraint(_tolerated("repair"), name="tolerance"),
        UniqueConstraint("model", "version_after"),
        Index("imports_open", "model", unique=True, postgresql_where=text("finished_at IS NULL")),
    )

    id: Mapped[UUID] = mapped_column(primary_key=True)
    #: Without a foreign key: the import may come before the model is served for the first time.
    model: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=ImportStatus.PENDING.value)
    exclude_deleted: Mapped[bool]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    version_before: Mapped[int | None] = mapped_column(BigInteger)
    version_after: Mapped[int | None] = mapped_column(BigInteger)
    weights_sha256_before: Mapped[str | None]
    weights_sha256_after: Mapped[str | None]
    nodes: Mapped[int | None] = mapped_column(Integer)
    excluded_nodes: Mapped[int | None] = mapped_column(Integer)
    excluded_features: Mapped[int | None] = mapped_column(Integer)
    excluded_edges: Mapped[int | None] = mapped_column(Integer)
    directions_removed: Mapped[int | None] = mapped_column(Integer)
    span_residual: Mapped[float | None]
    refusal: Mapped[str | None]
    committed_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    repair: Mapped[str] = mapped_column(server_default=RepairStatus.NONE.value)
    repair_iterations: Mapped[int | None]
    distance_bound_before: Mapped[float | None]
    distance_bound_after: Mapped[float | None]
    distance_bound_before_relative: Mapped[float | None]
    distance_bound_after_relative: Mapped[float | None]
    rank_after: Mapped[int | None] = mapped_column(Integer)
    live_nodes: Mapped[int | None] = mapped_column(Integer)
    repair_tolerance: Mapped[float | None]
