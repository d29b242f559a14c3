"""Callers of the intake: their requests, the statements for a group of them, and their answers."""

import asyncio
import hmac
import time
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import ClassVar, NamedTuple
from uuid import UUID

from sqlalchemy import Integer, LargeBinary, SmallInteger, Text, Uuid, func, select, tuple_
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.notifications import OUTBOX_CHANNEL
from service.db.rows import REQUEST_COLUMNS, deletion_request, key_slot, unnested
from service.db.tables import OutboxRow, RequestRow, UsedSaltRow
from service.domain.drills import NewDrill
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, KeySlot, Targets
from service.domain.states import RequestStatus
from service.errors import Conflict, InvalidRequest, LetheError, NotFound, QueueFull, Unavailable
from service.log.commitments import Commitments
from service.observability.tracing import traceparent
from service.requests.lookup import RequestRepository

_RETRY_AFTER_SECONDS = 5


def refusal(error: Exception, model: str) -> Exception:
    """Return the error for the one caller whose request could not be stored because of `error`."""
    if "requests_model_fkey" in str(error):
        return NotFound(f"Unknown model {model}.", "Import it first.")
    if isinstance(error, LetheError) or not _is_text_error(error):
        return error
    return InvalidRequest(
        "The request contains text that cannot be stored: a NUL character or an unpaired surrogate.",
        "Remove it from the reference and the Idempotency-Key.",
    )


class SaltUsed(Conflict):
    """A salt from the caller was used before, by this request or an earlier one."""

    slug: ClassVar[str] = "salt-used"
    title: ClassVar[str] = "Salt used before"

    def __init__(self) -> None:
        super().__init__(
            "One of the salts was used before, so two requests could be linked.",
            "The request was not accepted. Draw new random salts for each request, and repeat a request whose "
            "answer was lost with its Idempotency-Key.",
        )


def queue_full(too_many: str) -> QueueFull:
    """Return the error for a request that would bring the queue to `too_many` nodes."""
    return QueueFull(
        f"{too_many} would be queued.",
        f"Try again in {_RETRY_AFTER_SECONDS} seconds.",
        retry_after=_RETRY_AFTER_SECONDS,
    )


def reused_key(request_id: UUID) -> Conflict:
    """Return the error for an idempotency key used before with a different body."""
    return Conflict(
        f"This Idempotency-Key was used with a different body, for request {request_id}.",
        "Use a new key for a new request, or send the first body again.",
    )


def shutting_down() -> Unavailable:
    """Return the error for a request that arrives while this process shuts down."""
    return Unavailable("Lethe is shutting down.", "Try again in a few seconds, with the same Idempotency-Key.")


def _is_text_error(error: Exception) -> bool:
    """Return whether the driver, or Postgres (SQLSTATE class 22), refused a value."""
    original = getattr(error, "orig", None)
    state = getattr(original, "sqlstate", None) or ""
    return (
        isinstance(error, UnicodeError)
        or state.startswith("22")
        or isinstance(getattr(original, "__cause__", None), ValueError)
    )


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
    traceparent: str | None


class Received(NamedTuple):
    """When a request was received and when it is due."""

    at: datetime
    due_at: datetime


@dataclass(frozen=True)
class StoredRequest:
    """A request found by its idempotency key."""

    request: DeletionRequest
    body_digest: bytes
    ciphertext: bytes | None
    key_slot: KeySlot | None
    #: Whether the unlearner has ever taken it into a batch, or it was held.
    is_taken: bool


async def find_earlier(conn: AsyncConnection, keys: Collection[IdempotencyKey]) -> dict[IdempotencyKey, StoredRequest]:
    """Return the requests stored under `keys`."""
    if not keys:
        return {}
    wanted = unnested(
        "wanted",
        api_key_id=(Uuid(), [key.api_key_id for key in keys]),
        idempotency_key=(Text(), [key.text for key in keys]),
    )
    stored = (RequestRow.idempotency_key, RequestRow.body_digest, RequestRow.ciphertext, RequestRow.taken_at)
    query = select(*REQUEST_COLUMNS, *stored, RequestRow.queued_at, RequestRow.key_file, RequestRow.key_place).where(
        tuple_(RequestRow.api_key_id, RequestRow.idempotency_key).in_(select(*wanted.c))
    )
    found: dict[IdempotencyKey, StoredRequest] = {}
    for row in await conn.execute(query):
        key = IdempotencyKey(row.api_key_id, row.idempotency_key)
        request = deletion_request(row)
        # One that is queued again was taken, and failed, or held.
        is_taken = row.taken_at is not None or row.queued_at > row.received_at
        found[key] = StoredRequest(request, row.body_digest, row.ciphertext, key_slot(row), is_taken)
    return found


async def use_salts(conn: AsyncConnection, hashes: Collection[bytes]) -> int:
    """Record salts that callers gave; return the number of new ones.

    Inserts in the order of hashes, so that two processes with the same salts wait for each other instead of
    deadlocking.
    """
    if not hashes:
        return 0
    added = unnested("added", hash=(LargeBinary(), sorted(hashes)))
    new = insert(UsedSaltRow).from_select(["hash"], select(*added.c)).on_conflict_do_nothing()
    return len((await conn.execute(new.returning(UsedSaltRow.hash))).all())


async def insert_rows(conn: AsyncConnection, rows: Sequence[NewRow]) -> dict[UUID, Received]:
    """Insert requests with their outbox rows, after `enter`, wake the relay, and return when each was received.

    Skips rows whose idempotency key is taken. Inserts in the order of idempotency keys, so that two processes with the
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
    spans = unnested("spans", id=(Uuid(), [row.id for row in rows]), own=(Text(), [row.traceparent for row in rows]))
    listing = select(stored.c.id, stored.c.model, spans.c.own).join(spans, spans.c.id == stored.c.id)
    listed = insert(OutboxRow).from_select(["request_id", "model", "traceparent"], listing).cte("listed")
    query = select(stored.c.id, stored.c.received_at, stored.c.due_at, func.pg_notify(OUTBOX_CHANNEL, ""))
    return {row.id: Received(row.received_at, row.due_at) for row in await conn.execute(query.add_cte(listed))}


@dataclass(frozen=True)
class NewRequest:
    """A caller's request; `targets` carry the salts."""

    model: str
    kind: RequestKind
    targets: Targets
    reference: str | None
    api_key_id: UUID
    idempotency_key: str | None = None
    #: `Keyring.body_digest` of the body; set exactly if there is an idempotency key.
    body_digest: bytes | None = None
    #: Drill record to store with the request, if it is a drill.
    drill: NewDrill | None = None
    #: `Keyring.salt_hash` of each salt from the caller.
    salt_hashes: frozenset[bytes] = frozenset()
    #: Nodes of a deletion that are not in the graph but queued to join.
    joining: Collection[str] = ()

    @property
    def joins(self) -> Collection[str]:
        """The nodes that it names and that are not in the graph but queued to join, with it or before it."""
        return self.targets.nodes if self.kind is RequestKind.ADDITION else self.joining


@dataclass(frozen=True)
class Accepted:
    """A request stored in the database."""

    request: DeletionRequest
    #: Its targets with their salts; None for an earlier request whose targets have been erased.
    targets: Targets | None
    #: Whether an earlier request with the same idempotency key and body gave the answer.
    replayed: bool
    #: Whether the unlearner has taken it into a batch.
    is_taken: bool = False


@dataclass(eq=False)
class PendingCall:
    """One call of `accept`, with the id for its request if it is new."""

    new: NewRequest
    id: UUID
    answer: asyncio.Future[Accepted]
    traceparent: str | None = field(default_factory=traceparent)

    @property
    def key(self) -> IdempotencyKey | None:
        """The key under which it is stored, to recognize a repetition."""
        if self.new.idempotency_key is None:
            return None
        return IdempotencyKey(self.new.api_key_id, self.new.idempotency_key)


def request_of(waiting: PendingCall, received: Received) -> DeletionRequest:
    """Return the request as stored."""
    new = waiting.new
    return DeletionRequest(
        id=waiting.id,
        model=new.model,
        kind=new.kind,
        status=RequestStatus.QUEUED,
        count=new.targets.count,
        reference=new.reference,
        api_key_id=new.api_key_id,
        received_at=received.at,
        due_at=received.due_at,
    )


def answer(waiting: PendingCall, accepted: Accepted) -> None:
    """Answer a caller that still waits; one that left has cancelled its future."""
    if not waiting.answer.done():
        waiting.answer.set_result(accepted)


def repeat(waiting: PendingCall, first_digest: bytes | None, accepted: Accepted) -> None:
    """Answer a repeated idempotency key if the body equals the first one."""
    try:
        check_body(accepted.request.id, first_digest, waiting.new.body_digest)
    except Conflict as error:
        refuse([waiting], error)
    else:
        answer(waiting, accepted)


def check_body(first: UUID, first_digest: bytes | None, digest: bytes | None) -> None:
    """Raise `Conflict` if an idempotency key was used before with a different body."""
    if not hmac.compare_digest(first_digest or b"", digest or b""):
        raise reused_key(first)


def refuse(group: Iterable[PendingCall], error: Exception) -> None:
    """Raise `error` in the calls of `group` that still wait."""
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)


#: Maximum age of a count at the start of a group (seconds).
FRESH_SECONDS = 0.25
#: Number of keys that can fill their share of the queue.
_KEYS = 4


class QueueDepth:
    """Admits up to `limit` queued nodes and edges per key, and `_KEYS` times as many in total; None admits all."""

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        #: By model: the queued count per key.
        self._counts: dict[str, Counter[UUID]] = {}
        self._cleared_at = float("-inf")

    async def refusal(self, conn: AsyncConnection, new: NewRequest) -> QueueFull | None:
        """Count a request for its key if it fits; otherwise return the refusal."""
        if self._limit is None:
            return None
        if new.model not in self._counts:
            self._counts[new.model] = Counter(await RequestRepository(conn).queued_by_key(new.model))
        queued, count = self._counts[new.model], new.targets.count
        if queued[new.api_key_id] + count > self._limit:
            return queue_full(f"More than {self._limit} nodes asked for with this API key")
        if queued.total() + count > _KEYS * self._limit:
            return queue_full(f"More than {_KEYS * self._limit} nodes, of all API keys together,")
        queued[new.api_key_id] += count
        return None

    def read_again(self, *, after_s: float = 0.0) -> None:
        """Drop all counts if the last time was that long ago. Not amid a group: what it admitted is in no row yet."""
        if time.monotonic() - self._cleared_at >= after_s:
            self._counts.clear()
            self._cleared_at = time.monotonic()
