"""Accept deletion requests: concurrent callers share one sync of the key file and one transaction.

A group runs in this order: find earlier uses of the idempotency keys; enter the intake; make the keys of the new
requests durable; insert requests and outbox rows; commit. So no row lacks its key. A key without a row is destroyed
once the row is known to be absent. This happens here if no commit was sent or if it was answered. Otherwise the
unlearner is notified, and checks once no commit can be in progress (`service.access.key_disposal`).
"""

import asyncio
import contextvars
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from uuid import UUID, uuid4

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import failure_points
from service.access.key_disposal import RequestKeyRepository, enter
from service.access.keyring import Keyring
from service.access.own_slots import OwnSlots, ReservedKey
from service.access.request_keys import NotDecrypted, RequestKeys, decrypt, encrypt
from service.db.transactions import transaction
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, Targets
from service.errors import Conflict, LetheError, Unavailable
from service.failure_points import FailurePoint
from service.log.commitments import commit
from service.requests import callers
from service.requests.callers import (
    Accepted,
    IdempotencyKey,
    NewRequest,
    NewRow,
    PendingCall,
    QueueDepth,
    Received,
    SaltUsed,
    StoredRequest,
    answer,
    check_body,
    refusal,
    refuse,
    repeat,
    request_of,
    shutting_down,
)
from service.requests.drill_rows import DrillOpen, DrillRepository
from service.requests.moves import SEND_ANEW, RequestMoves
from service.requests.queued_joins import QueuedJoins, joins_of

__all__ = ["Accepted", "Intake", "NewRequest"]

#: Maximum requests, and nodes and edges in them, per transaction; the rest wait for the next.
_GROUP_REQUESTS = 256
_GROUP_TARGETS = 20_000


@dataclass
class _Group:
    """The requests that one transaction found and stored."""

    earlier: dict[IdempotencyKey, StoredRequest]
    #: Requests that need a row.
    new: list[PendingCall]
    #: When each new request was received; requests that lost their idempotency key to another process are missing.
    received: dict[UUID, Received]


class Intake:
    """Stores requests for the API. One per process; bound to the event loop that uses it."""

    def __init__(
        self, engine: AsyncEngine, own_slots: OwnSlots, keyring: Keyring, *, max_queued_nodes: int | None
    ) -> None:
        self._engine = engine
        self._keyring = keyring
        self._slots = own_slots
        #: The keys of all processes, for repetitions and retries of requests that another accepted.
        self._keys = RequestKeys(own_slots.folder)
        self._depth = QueueDepth(max_queued_nodes)
        self._pending: list[PendingCall] = []
        self._writer: asyncio.Task[None] | None = None
        self._closed = False
        #: Whether keys of unstored requests may exist without the unlearner's knowledge. True at the start of a
        #: process, because its predecessor may have left some.
        self._has_orphans = True

    async def accept(self, new: NewRequest) -> Accepted:
        """Return once the request is committed, or the earlier request of its idempotency key.

        Raises `Conflict` (the idempotency key was used with another body; as `DrillOpen`, another drill is running; as
        `SaltUsed`, a salt was used before), `QueueFull`, `InvalidRequest` (text that cannot be stored), `NotFound` (no
        such model) and `Unavailable`. Nothing was stored then. The exception is `CommitUnanswered`: repeat the request
        with its idempotency key to find out.
        """
        if self._closed:
            raise shutting_down()
        waiting = PendingCall(new, uuid4(), asyncio.get_running_loop().create_future())
        self._pending.append(waiting)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_groups(), name="intake", context=contextvars.Context())
        return await waiting.answer

    async def find(self, api_key_id: UUID, idempotency_key: str, body_digest: bytes) -> Accepted | None:
        """Return the request stored under an idempotency key, or None.

        Raises `Conflict` (the key was used with another body), `NotDecrypted` and `Unavailable`.
        """
        key = IdempotencyKey(api_key_id, idempotency_key)
        async with transaction(self._engine) as conn:
            earlier = (await callers.find_earlier(conn, {key})).get(key)
        if earlier is None:
            return None
        check_body(earlier.request.id, earlier.body_digest, body_digest)
        return Accepted(earlier.request, self._targets(earlier), replayed=True, is_taken=earlier.is_taken)

    async def cancel(
        self, request_id: UUID, api_key_id: UUID, *, own_only: bool = False, kind: RequestKind | None = None
    ) -> DeletionRequest:
        """Cancel a queued request for the holder of an API key; the unlearner then destroys the request's own key.

        Raises `NotFound`, `Conflict`, `Unauthenticated`, `Unavailable`.
        """
        async with transaction(self._engine) as conn:
            cancelled = await RequestMoves(conn).cancel(request_id, api_key_id, own_only=own_only, kind=kind)
        failure_points.reached(FailurePoint.CANCELLED)
        return cancelled

    async def retry(self, request_id: UUID, api_key_id: UUID) -> DeletionRequest:
        """Queue a failed request again for the holder of an API key.

        Raises `NotFound`, `Unauthenticated`, `Unavailable`, and `Conflict` if it cannot be retried.
        """
        async with transaction(self._engine) as conn:
            request = await RequestMoves(conn).retry(request_id, api_key_id)
            if not await self._has_key(conn, request_id):
                raise Conflict(
                    f"The ids that request {request_id} names cannot be read any more: their key is gone.",
                    f"Restore the key folder. If the key is lost: {SEND_ANEW}",
                )
        return request

    async def is_readable(self, request_id: UUID) -> bool:
        """Return whether the key to a request's targets still exists. Raises `Unavailable`."""
        async with transaction(self._engine) as conn:
            return await self._has_key(conn, request_id)

    async def _has_key(self, conn: AsyncConnection, request_id: UUID) -> bool:
        return self._keys.get(request_id, await RequestKeyRepository(conn).slot(request_id)) is not None

    async def close(self) -> None:
        """Accept no more requests, and wait for those in progress."""
        self._closed = True
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_groups(self) -> None:
        group: list[PendingCall] = []
        try:
            while self._pending:
                group = self._take()
                try:
                    await self._write(group)
                except Exception as error:  # noqa: BLE001 - a defect: report it to the callers and continue
                    refuse(group, error)
        finally:
            # Callers still wait only if this task was cancelled.
            refuse([*group, *self._pending], shutting_down())
            self._pending.clear()

    def _take(self) -> list[PendingCall]:
        """Remove the next group, at least one request, from the pending ones, and drop those whose callers left."""
        targets = 0
        for size, waiting in enumerate(self._pending[:_GROUP_REQUESTS]):
            targets += waiting.new.targets.weight
            if size and targets > _GROUP_TARGETS:
                break
        else:
            size = _GROUP_REQUESTS
        group = self._pending[:size]
        del self._pending[:size]
        return [waiting for waiting in group if not waiting.answer.done()]

    async def _write(self, group: Sequence[PendingCall]) -> None:
        """Store a group and answer its callers; halving isolates a request that cannot be stored, which fails alone."""
        if not group:
            return
        try:
            stored = await self._store(group)
        except Unavailable as error:
            refuse(group, error)
        except (LetheError, DBAPIError, ValueError) as error:
            if len(group) == 1:
                refuse(group, refusal(error, group[0].new.model))
                return
            for half in (group[: len(group) // 2], group[len(group) // 2 :]):
                await self._write(half)
        else:
            self._answer(group, stored)

    async def _store(self, group: Sequence[PendingCall]) -> _Group:
        """Commit the new requests of a group in one transaction; every key left without a row is noted."""
        failure_points.reached(FailurePoint.ACCEPTING)
        reserved: Mapping[UUID, ReservedKey] = {}
        commit_sent = notified = False
        try:
            async with transaction(self._engine) as conn:
                if any(waiting.new.drill for waiting in group):
                    # Before any read, to see the drills that other processes stored.
                    await DrillRepository(conn).take_turn()
                asked = {waiting.key for waiting in group if waiting.key}
                stored = _Group(await callers.find_earlier(conn, asked), [], {})
                stored.new = await self._admit(conn, group, stored.earlier)
                if stored.new:
                    await enter(conn)
                    reserved = await self._reserve(stored.new)
                failure_points.reached(FailurePoint.KEYS_RESERVED)
                rows = [self._encrypted(waiting, reserved[waiting.id]) for waiting in stored.new]
                stored.received = await callers.insert_rows(conn, rows)
                inserted = [each for each in stored.new if each.id in stored.received]
                await _record_joins(conn, self._keyring, inserted)
                await _record_drills(conn, inserted)
                await _use_salts(conn, inserted)
                taken = {waiting.key for waiting in stored.new if waiting.key and waiting.id not in stored.received}
                stored.earlier |= await callers.find_earlier(conn, taken)
                if self._has_orphans:
                    await RequestKeyRepository(conn).notify_orphaned()
                    notified = True
                commit_sent = True
        except BaseException:
            self._depth.read_again()
            if commit_sent:
                self._has_orphans = True
            else:
                await self._destroy(reserved)
            raise
        failure_points.reached(FailurePoint.ACCEPTED)
        if notified:
            self._has_orphans = False
        await self._destroy({one: key for one, key in reserved.items() if one not in stored.received})
        return stored

    async def _admit(
        self, conn: AsyncConnection, group: Iterable[PendingCall], earlier: Collection[IdempotencyKey]
    ) -> list[PendingCall]:
        """Return the new requests of `group` that fit into the queue and, if they are drills, may begin.

        Others are refused, and their idempotency key passes to the next request with it. A request whose key belongs to
        an `earlier` request, or to one admitted before it, is a repetition.
        """
        self._depth.read_again(after_s=callers.FRESH_SECONDS)
        admitted: list[PendingCall] = []
        used = set(earlier)
        for waiting in group:
            # Already answered by an earlier attempt that another request of the group made fail.
            if waiting.answer.done() or waiting.key in used:
                continue
            if not await _may_begin(conn, waiting, admitted):
                refuse([waiting], DrillOpen())
                continue
            if (full := await self._depth.refusal(conn, waiting.new)) is not None:
                refuse([waiting], full)
                continue
            admitted.append(waiting)
            if waiting.key is not None:
                used.add(waiting.key)
        return admitted

    async def _reserve(self, new: Sequence[PendingCall]) -> Mapping[UUID, ReservedKey]:
        """Create a durable key for each request."""
        try:
            return await asyncio.to_thread(self._slots.reserve, [waiting.id for waiting in new])
        except asyncio.CancelledError:
            # The thread continues.
            self._has_orphans = True
            raise
        except OSError as error:
            # Some may be on the disk, because zeroing them may have failed too.
            self._has_orphans = True
            raise Unavailable(
                f"The keys of new requests cannot be written ({error.strerror}).", "Nothing was stored; try again."
            ) from error

    def _answer(self, group: Sequence[PendingCall], stored: _Group) -> None:
        """Answer every caller; a repetition gets the answer of the first use of its key."""
        for waiting in stored.new:
            if waiting.id in stored.received:
                request = request_of(waiting, stored.received[waiting.id])
                answer(waiting, Accepted(request, waiting.new.targets, replayed=False))
        firsts = {waiting.key: waiting for waiting in stored.new if waiting.key and waiting.id in stored.received}
        for waiting in group:
            if waiting.answer.done() or waiting.key is None:
                continue
            if waiting.key in stored.earlier:
                self._replay(waiting, stored.earlier[waiting.key])
            else:
                first = firsts[waiting.key]
                request = request_of(first, stored.received[first.id])
                repeat(waiting, first.new.body_digest, Accepted(request, first.new.targets, replayed=True))

    def _replay(self, waiting: PendingCall, earlier: StoredRequest) -> None:
        try:
            targets = self._targets(earlier)
        except NotDecrypted as error:
            refuse([waiting], error)
            return
        accepted = Accepted(earlier.request, targets, replayed=True, is_taken=earlier.is_taken)
        repeat(waiting, earlier.body_digest, accepted)

    def _targets(self, earlier: StoredRequest) -> Targets | None:
        """Return the targets of a stored request; None once they are erased. Raises `NotDecrypted`."""
        key = self._keys.get(earlier.request.id, earlier.key_slot)
        if key is None or earlier.ciphertext is None:
            return None
        return decrypt(earlier.ciphertext, key, earlier.request.id)

    def _encrypted(self, waiting: PendingCall, reserved: ReservedKey) -> NewRow:
        """Build the row of a request, with its targets encrypted."""
        new = waiting.new
        return NewRow(
            id=waiting.id,
            model=new.model,
            kind=new.kind,
            count=new.targets.count,
            reference=new.reference,
            ciphertext=encrypt(new.targets, reserved.key, waiting.id),
            key_slot=reserved.slot,
            api_key_id=new.api_key_id,
            idempotency_key=new.idempotency_key,
            body_digest=new.body_digest,
            commitments=commit(new.targets, new.reference),
            voucher=self._keyring.voucher(waiting.id),
            traceparent=waiting.traceparent,
        )

    async def _destroy(self, keys: Mapping[UUID, ReservedKey]) -> None:
        """Destroy unneeded keys of this process; on a disk error, leave them to the unlearner."""
        if not keys:
            return
        try:
            await asyncio.to_thread(self._slots.destroy, {one: reserved.slot for one, reserved in keys.items()})
        except OSError:
            self._has_orphans = True


async def _record_joins(conn: AsyncConnection, keyring: Keyring, stored: Iterable[PendingCall]) -> None:
    """Record the nodes of the stored additions, and those that deletions name before they have joined."""
    found = (joins_of(keyring, each.new.model, each.id, each.new.joins) for each in stored)
    await QueuedJoins(conn).insert(list(chain.from_iterable(found)))


async def _use_salts(conn: AsyncConnection, stored: Iterable[PendingCall]) -> None:
    """Record the salts from callers; raises `SaltUsed` if one was used before."""
    hashes = [one for waiting in stored for one in waiting.new.salt_hashes]
    if await callers.use_salts(conn, hashes) < len(hashes):
        raise SaltUsed


async def _may_begin(conn: AsyncConnection, waiting: PendingCall, before: Iterable[PendingCall]) -> bool:
    """Return whether a request is not a drill, or is the model's only open one, counting those admitted `before`."""
    model, drill = waiting.new.model, waiting.new.drill
    if drill is None:
        return True
    if any(other.new.drill is not None and other.new.model == model for other in before):
        return False
    return await DrillRepository(conn).may_begin(model, drill)


async def _record_drills(conn: AsyncConnection, stored: Iterable[PendingCall]) -> None:
    """Record which of the stored requests are drills."""
    for waiting in stored:
        if waiting.new.drill is not None:
            await DrillRepository(conn).record(waiting.id, waiting.new.model, waiting.new.drill)
