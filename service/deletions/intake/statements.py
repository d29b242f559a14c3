"""The statements of the intake; each handles a whole group of requests."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import Integer, LargeBinary, SmallInteger, Text, Uuid, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.audit.commitments import Commitments
from service.db.arrays import unnested
from service.db.notifications import OUTBOX_CHANNEL
from service.db.rows import REQUEST_COLUMNS, deletion_request, key_slot
from service.db.tables import OutboxRow, RequestRow, UsedSaltRow
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, KeySlot


@dataclass(frozen=True)
class IdempotencyKey:
    """The `Idempotency-Key` of one API key."""

    api_key_id: UUID
    text: str


@dataclass(frozen=True)
class NewRow:
    """A request about to be inserted."""

    id: UUID
    model: str
    kind: RequestKind
    count: int
    reference: str | None
    ciphertext: bytes
    key_slot: KeySlot
    api_key_id: UUID
    idempotency_key: str | None
    body_digest: bytes | None
    commitments: Commitments
    voucher: bytes


class Received(NamedTuple):
    """When a request was received, and when it is due."""

    at: datetime
    due_at: datetime


@dataclass(frozen=True)
class StoredRequest:
    """A request found by its idempotency key."""

    request: DeletionRequest
    body_digest: bytes
    ciphertext: bytes | None
    key_slot: KeySlot | None


async def find_earlier(conn: AsyncConnection, keys: Collection[IdempotencyKey]) -> dict[IdempotencyKey, StoredRequest]:
    """Return the requests that were stored under `keys`."""
    if not keys:
        return {}
    wanted = unnested(
        "wanted",
        api_key_id=(Uuid(), [key.api_key_id for key in keys]),
        idempotency_key=(Text(), [key.text for key in keys]),
    )
    stored = (RequestRow.idempotency_key, RequestRow.body_digest, RequestRow.ciphertext)
    query = select(*REQUEST_COLUMNS, *stored, RequestRow.key_file, RequestRow.key_place).where(
        tuple_(RequestRow.api_key_id, RequestRow.idempotency_key).in_(select(*wanted.c))
    )
    found: dict[IdempotencyKey, StoredRequest] = {}
    for row in await conn.execute(query):
        key = IdempotencyKey(row.api_key_id, row.idempotency_key)
        found[key] = StoredRequest(deletion_request(row), row.body_digest, row.ciphertext, key_slot(row))
    return found


async def use_salts(conn: AsyncConnection, hashes: Collection[bytes]) -> int:
    """Record salts that callers gave, and return how many of them were not recorded before.

    In the order of their hashes, so that two processes with the same wait for each other instead of deadlocking.
    """
    if not hashes:
        return 0
    added = unnested("added", hash=(LargeBinary(), sorted(hashes)))
    new = insert(UsedSaltRow).from_select(["hash"], select(*added.c)).on_conflict_do_nothing()
    return len((await conn.execute(new.returning(UsedSaltRow.hash))).all())


async def insert_rows(conn: AsyncConnection, rows: Sequence[NewRow]) -> dict[UUID, Received]:
    """Insert requests with their outbox rows, after `enter`, wake the relay, and return when each was received.

    A row whose idempotency key is taken is left out. Rows go in by idempotency key, so that two processes inserting the
    same keys wait for each other instead of deadlocking.
    """
    if not rows:
        return {}
    ordered = sorted(rows, key=lambda row: (row.api_key_id, row.idempotency_key or ""))
    added = unnested(
        "added",
        id=(Uuid(), [row.id for row in ordered]),
        model=(Text(), [row.model for row in ordered]),
        kind=(Text(), [row.kind.value for row in ordered]),
        count=(Integer(), [row.count for row in ordered]),
        reference=(Text(), [row.reference for row in ordered]),
        ciphertext=(LargeBinary(), [row.ciphertext for row in ordered]),
        key_file=(SmallInteger(), [row.key_slot.file for row in ordered]),
        key_place=(Integer(), [row.key_slot.place for row in ordered]),
        api_key_id=(Uuid(), [row.api_key_id for row in ordered]),
        idempotency_key=(Text(), [row.idempotency_key for row in ordered]),
        body_digest=(LargeBinary(), [row.body_digest for row in ordered]),
        subject_commitments=(LargeBinary(), [row.commitments.subjects for row in ordered]),
        reference_commitment=(LargeBinary(), [row.commitments.reference for row in ordered]),
        voucher=(LargeBinary(), [row.voucher for row in ordered]),
    )
    stored = (
        insert(RequestRow)
        .from_select([column.name for column in added.c], select(*added.c))
        .on_conflict_do_nothing(
            index_elements=[RequestRow.api_key_id, RequestRow.idempotency_key],
            index_where=RequestRow.idempotency_key.is_not(None),
        )
        .returning(RequestRow.id, RequestRow.model, RequestRow.received_at, RequestRow.due_at)
        .cte("stored")
    )
    listed = insert(OutboxRow).from_select(["request_id", "model"], select(stored.c.id, stored.c.model)).cte("listed")
    notified = func.pg_notify(OUTBOX_CHANNEL, "")
    query = select(stored.c.id, stored.c.received_at, stored.c.due_at, notified).add_cte(listed)
    return {row.id: Received(row.received_at, row.due_at) for row in await conn.execute(query)}
