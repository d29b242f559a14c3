"""The tables as the service reads and writes them, and their declarative base."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints
from uuid import UUID

from sqlalchemy import (
    ARRAY,
    BigInteger,
    Computed,
    DateTime,
    Double,
    ForeignKey,
    Identity,
    Integer,
    LargeBinary,
    SmallInteger,
    Text,
    func,
    text,
    true,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.types import TypeEngine

from service.domain.figures import RequestNorms


class Base(DeclarativeBase):
    """Declares how Python types become columns."""

    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any]]] = {
        str: Text(),
        bytes: LargeBinary(),
        datetime: DateTime(timezone=True),
        float: Double(),
        int: Integer(),
    }


_Table = TypeVar("_Table", bound=type[Base])


def holds(*records: type[Any]) -> Callable[[_Table], _Table]:
    """Give a table a column for every field of the dataclasses `records`, with its name and type."""

    def add(table: _Table) -> _Table:
        for record in records:
            for name, hint in get_type_hints(record).items():
                kind, *null = get_args(hint) or (hint,)
                setattr(table, name, mapped_column(Base.type_annotation_map[kind], nullable=bool(null)))
        return table

    return add


class LogCheckRow(Base):
    """The newest check of the log that the holder of an API key reported."""

    __tablename__ = "log_checks"

    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"), primary_key=True)
    #: Number of leaves found in order, and the size since which the log only grew.
    size: Mapped[int] = mapped_column(BigInteger)
    against_size: Mapped[int] = mapped_column(BigInteger)
    #: Set by a trigger.
    checked_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LeaseRow(Base):
    """The lease on writing a model, and its holder's report; see `service.domain.lease_report`."""

    __tablename__ = "leases"

    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    fencing: Mapped[int] = mapped_column(BigInteger)
    #: Time of the last acquisition, also by the same holder.
    held_since: Mapped[datetime | None]
    expires_at: Mapped[datetime]
    phase: Mapped[str] = mapped_column(server_default=text("'stopped'"))
    reason: Mapped[str | None]
    repair_progress: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    device: Mapped[str | None]
    checks: Mapped[list[dict[str, Any]]] = mapped_column(JSONB, server_default=text("'[]'"))
    #: When a holder last reported that it serves.
    served_at: Mapped[datetime | None]
    #: When the present holder began to serve; null while it does not.
    serving_since: Mapped[datetime | None]
    #: Failures of holders since one last served steadily, and the time of the first.
    failures: Mapped[int] = mapped_column(server_default=text("0"))
    failing_since: Mapped[datetime | None]
    #: Id of the LETHE_HOME whose processes serve the model; null before the first holder that claimed one.
    home: Mapped[str | None]


class PointerRow(Base):
    """The committed version of a model."""

    __tablename__ = "pointers"

    model: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int] = mapped_column(BigInteger)
    fencing: Mapped[int] = mapped_column(BigInteger)
    folder: Mapped[str]
    digest: Mapped[str]
    weights_sha256: Mapped[str]
    moved_at: Mapped[datetime] = mapped_column(server_default=func.now())


class RequestRow(Base):
    """One deletion request; its targets are only in `ciphertext`, under a key kept outside the database."""

    __tablename__ = "requests"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    model: Mapped[str] = mapped_column(ForeignKey("pointers.model"))
    kind: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=text("'queued'"))
    count: Mapped[int]
    reference: Mapped[str | None]
    ciphertext: Mapped[bytes | None]
    #: Place of the ciphertext's key: file number, and place in the file.
    key_file: Mapped[int | None] = mapped_column(SmallInteger)
    key_place: Mapped[int | None]
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    idempotency_key: Mapped[str | None]
    body_digest: Mapped[bytes | None]
    received_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: When it was received or, after a failure, last retried; a trigger sets it.
    queued_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: When the sweeper last put the request back into the stream.
    swept_at: Mapped[datetime | None]
    #: When the unlearner took the request; it can no longer be cancelled from then on.
    taken_at: Mapped[datetime | None]
    batch_id: Mapped[UUID | None] = mapped_column(ForeignKey("batches.id"))
    applied_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    cancelled_at: Mapped[datetime | None]
    #: From the deadline in force at receipt, or as extended since; a trigger sets it.
    due_at: Mapped[datetime]
    #: When a failed request was handled, and the later request that did so by deleting the same targets, if any.
    handled_at: Mapped[datetime | None]
    handled_by: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))
    #: Null while it is open: until it is completed, cancelled or, if it failed, handled.
    ended_at: Mapped[datetime | None] = mapped_column(Computed("coalesce(completed_at, cancelled_at, handled_at)"))
    #: Null while it is open, and if it was cancelled.
    ended_late: Mapped[bool | None] = mapped_column(
        Computed("CASE WHEN cancelled_at IS NULL THEN coalesce(completed_at, handled_at) > due_at END")
    )
    guarantee: Mapped[str | None]
    repair: Mapped[str | None]
    explanation: Mapped[str | None]
    failure: Mapped[str | None]
    already_deleted_by: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))
    #: The log's commitments to the targets and the reference; see `service.log.commitments`.
    subject_commitments: Mapped[bytes | None]
    reference_commitment: Mapped[bytes | None]
    #: Proves that a process of Lethe accepted the request; see `Keyring.voucher`.
    voucher: Mapped[bytes | None]
    #: Since when it is on hold, or the held request behind which it waits; see `service.requests.holds`.
    held_at: Mapped[datetime | None]
    waits_for: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))


class DecisionRow(Base):
    """A person's decision on a request; see `service.requests.decisions`."""

    __tablename__ = "decisions"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"))
    #: `handled`, `extended`, `held` or `released`; only the last has no reason, and it and `extended` a new deadline.
    type: Mapped[str]
    reason: Mapped[str | None]
    due_at: Mapped[datetime | None]
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    decided_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: Null until the unlearner has logged it.
    event_id: Mapped[int | None] = mapped_column(BigInteger, ForeignKey("events.id"))


class ServiceSettingsRow(Base):
    """The single row of settings that the database itself reads, as the last start wrote it."""

    __tablename__ = "service_settings"

    only_row: Mapped[bool] = mapped_column(primary_key=True, server_default=true())
    deadline_days: Mapped[float]
    #: Scopes that tokens of the OpenID Connect issuer can grant.
    oidc_scopes: Mapped[list[str]] = mapped_column(ARRAY(Text()), server_default="{}")


@holds(RequestNorms)
class RequestAuditRow(Base):
    """The deletions of one request and their measured norms, written together with its batch."""

    __tablename__ = "request_audits"

    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"), primary_key=True)
    batch_id: Mapped[UUID] = mapped_column(ForeignKey("batches.id"))


class UsedSaltRow(Base):
    """A salt from a caller, only as its keyed hash."""

    __tablename__ = "used_salts"

    hash: Mapped[bytes] = mapped_column(primary_key=True)


class OutboxRow(Base):
    """A request whose id is not in the stream yet."""

    __tablename__ = "outbox"

    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"), primary_key=True)
    model: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: The span of the call that made it, in W3C's format.
    traceparent: Mapped[str | None]


class TombstoneKeyRow(Base):
    """A tombstone key used by some tombstone; the key itself is in the key folder."""

    __tablename__ = "tombstone_keys"

    number: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    fingerprint: Mapped[bytes]


class VaultKeyRow(Base):
    """A key that the database relies on, other than a tombstone key; the key itself is in the key folder."""

    __tablename__ = "vault_keys"

    name: Mapped[str] = mapped_column(primary_key=True)
    fingerprint: Mapped[bytes]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class TombstoneRow(Base):
    """The keyed hash of a deleted id, with the request that deleted it first.

    If the database was restored from an older backup that lacks the request, the row names the recovery that added it.
    """

    __tablename__ = "tombstones"

    hash: Mapped[bytes] = mapped_column(primary_key=True)
    model: Mapped[str]
    kind: Mapped[str]
    key_number: Mapped[int] = mapped_column(SmallInteger, ForeignKey("tombstone_keys.number"))
    request_id: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))
    recovery_id: Mapped[UUID | None] = mapped_column(ForeignKey("recoveries.id"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    #: The request by which the deleted one joined again; the tombstone is void until a later request deletes it anew.
    rejoined_by: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))


class QueuedJoinRow(Base):
    """The keyed hash of a node that is queued to join, made like that of its tombstone; a trigger removes it."""

    __tablename__ = "queued_joins"

    hash: Mapped[bytes] = mapped_column(primary_key=True)
    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id", ondelete="CASCADE"), primary_key=True)
    model: Mapped[str]
    key_number: Mapped[int] = mapped_column(SmallInteger)


class EventRow(Base):
    """An event of a request, of a model or of the log; rows never change."""

    __tablename__ = "events"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    #: Null for an event without a request.
    request_id: Mapped[UUID | None] = mapped_column(ForeignKey("requests.id"))
    type: Mapped[str]
    payload: Mapped[dict[str, Any]] = mapped_column(JSONB)
    #: Opens the payload's commitment, for readers of the audit; not in any leaf.
    opening: Mapped[dict[str, Any] | None] = mapped_column(JSONB(none_as_null=True))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LeafRow(Base):
    """A leaf of the transparency log; rows never change."""

    __tablename__ = "leaves"

    index: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    event_id: Mapped[int] = mapped_column(ForeignKey("events.id"))
    #: Canonical JSON; text instead of jsonb, because every byte of it is hashed.
    data: Mapped[str]
    hash: Mapped[bytes]
    #: Root of the tree that ends with this leaf: it identifies the first changed leaf of a changed log.
    root: Mapped[bytes]


class LogNodeRow(Base):
    """The hash of a complete subtree of two leaves or more; rows never change."""

    __tablename__ = "log_nodes"

    level: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    position: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    hash: Mapped[bytes]


class CheckpointRow(Base):
    """A signed checkpoint of the log; rows never change."""

    __tablename__ = "checkpoints"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)
    #: As signed.
    note: Mapped[str]
    signed_at: Mapped[datetime] = mapped_column(server_default=func.now())


class LogKeyRow(Base):
    """A public key that has signed checkpoints; the private key is in the key folder."""

    __tablename__ = "log_keys"

    number: Mapped[int] = mapped_column(SmallInteger, primary_key=True, autoincrement=False)
    public_key: Mapped[str]
    registered_at: Mapped[datetime] = mapped_column(server_default=func.now())


class FeedRow(Base):
    """An event of a request for its followers; rows never change once they have a place."""

    __tablename__ = "feed"

    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=func.gen_random_uuid())
    #: In the order of writing, which differs from the order of commits.
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    #: In the order of delivery; null until then.
    place: Mapped[int | None] = mapped_column(BigInteger)
    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"))
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    milestone: Mapped[str]
    #: Status of the request after this event.
    status: Mapped[str]
    at: Mapped[datetime] = mapped_column(server_default=func.now())
    due_at: Mapped[datetime | None]


class WebhookEndpointRow(Base):
    """A receiver of webhooks."""

    __tablename__ = "webhook_endpoints"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    url: Mapped[str]
    #: Encrypted; null once the endpoint is removed.
    secret: Mapped[bytes | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    removed_at: Mapped[datetime | None]
    #: Reason for its removal.
    removal: Mapped[str | None]


class WebhookDeliveryRow(Base):
    """The delivery of one event to one endpoint."""

    __tablename__ = "webhook_deliveries"

    id: Mapped[UUID] = mapped_column(primary_key=True, server_default=func.gen_random_uuid())
    endpoint_id: Mapped[UUID] = mapped_column(ForeignKey("webhook_endpoints.id"))
    event_id: Mapped[UUID] = mapped_column(ForeignKey("feed.id"))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    attempts: Mapped[int] = mapped_column(server_default=text("0"))
    #: While one sender is sending it, when another may.
    next_attempt_at: Mapped[datetime | None] = mapped_column(server_default=func.now())
    delivered_at: Mapped[datetime | None]
    given_up_at: Mapped[datetime | None]
    #: Result of the last attempt.
    answer: Mapped[str | None]
