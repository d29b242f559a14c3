"""Accepting deletion requests: concurrent callers share one sync of the key file and one transaction.

Order of a group: look for earlier uses of the idempotency keys; make the keys of the new requests durable; insert
requests and outbox rows; commit. So there is no row without its key. A key without its row is destroyed once the row is
known to be absent: at once when no commit was sent, else by reading when no commit can be under way any more.
"""

import asyncio
import hmac
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID, uuid4

from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import failure_points
from service.audit.commitments import commit
from service.db import intake_rows
from service.db.intake_refusals import queue_full, refusal, reused_key, shutting_down
from service.db.intake_rows import IdempotencyKey, NewRow, StoredRequest
from service.db.queue_depth import QueueDepth
from service.db.requests import RequestRepository
from service.db.transactions import transaction
from service.domain.records import DeletionRequest, Targets
from service.domain.states import RequestKind, RequestStatus
from service.errors import Conflict, LetheError, Unavailable
from service.failure_points import FailurePoint
from service.vault.request_keys import RequestKeys
from service.vault.sealing import SealBroken, seal, unseal

#: Requests, and nodes and edges they name, in one transaction; the others wait for the next.
_GROUP_REQUESTS = 256
_GROUP_TARGETS = 20_000


@dataclass(frozen=True)
class NewRequest:
    """What a caller asks for; `targets` carry the salts."""

    model: str
    kind: RequestKind
    targets: Targets
    reference: str | None
    api_key_id: UUID
    idempotency_key: str | None = None
    #: `Keyring.body_digest` of the body, exactly when there is an idempotency key.
    body_digest: bytes | None = None


@dataclass(frozen=True)
class Accepted:
    """A request that is in the database."""

    request: DeletionRequest
    #: What it names, with its salts; None for an earlier request that has been forgotten since.
    targets: Targets | None
    #: Whether an earlier request with the same idempotency key and body answered.
    replayed: bool


@dataclass(eq=False)
class _Waiting:
    """One call of `accept`, with the id its request gets if it is new."""

    new: NewRequest
    id: UUID
    answer: asyncio.Future[Accepted]

    @property
    def key(self) -> IdempotencyKey | None:
        if self.new.idempotency_key is None:
            return None
        return IdempotencyKey(self.new.api_key_id, self.new.idempotency_key)


@dataclass
class _Group:
    """What one transaction found and stored."""

    earlier: dict[IdempotencyKey, StoredRequest]
    #: Those for which a row was to be made.
    new: list[_Waiting]
    #: When each new request was received; those that lost their idempotency key to another process are missing.
    received_at: dict[UUID, datetime]


class Intake:
    """Stores requests for the API. One per process; it belongs to the event loop it is used in."""

    def __init__(self, engine: AsyncEngine, request_keys: RequestKeys, *, max_queued_nodes: int | None) -> None:
        self._engine = engine
        self._keys = request_keys
        self._depth = QueueDepth(max_queued_nodes)
        self._pending: list[_Waiting] = []
        self._writer: asyncio.Task[None] | None = None
        self._closed = False
        #: Requests with a key of which it is not known whether they are in the database.
        self._unsettled: set[UUID] = set()

    async def accept(self, new: NewRequest) -> Accepted:
        """Return once the request is committed, or the earlier one that its idempotency key stands for.

        Raises `Conflict` (the idempotency key came with another body before), `QueueFull`, `InvalidRequest` (text that
        cannot be stored), `NotFound` (no such model) and `Unavailable`: nothing was stored, or, when it is a
        `CommitUnanswered`, repeating the request with its idempotency key finds out.
        """
        if self._closed:
            raise shutting_down()
        waiting = _Waiting(new, uuid4(), asyncio.get_running_loop().create_future())
        self._pending.append(waiting)
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write_groups(), name="intake")
        return await waiting.answer

    async def cancel(self, request_id: UUID, api_key_id: UUID | None) -> DeletionRequest:
        """Cancel a queued request and destroy its key; raises `NotFound`, `Conflict`, `Unavailable`."""
        async with transaction(self._engine) as conn:
            cancelled = await RequestRepository(conn).cancel(request_id, api_key_id)
        await self._destroy([request_id])
        return cancelled

    async def retry(self, request_id: UUID) -> DeletionRequest:
        """Queue a failed request again; raises `NotFound`, `Unavailable`, and `Conflict` when that is not possible."""
        async with transaction(self._engine) as conn:
            request = await RequestRepository(conn).retry(request_id)
            if self._keys.get(request_id) is None:
                raise Conflict(
                    f"What request {request_id} names cannot be read any more: the key of its id list is gone.",
                    "Send it again as a new request.",
                )
        return request

    async def destroy_orphaned_keys(self) -> int:
        """Destroy the keys of requests that are absent or forgotten; returns how many. Raises `Unavailable`.

        For the start of a process, after a crash between a commit and the destruction of its keys.
        """
        candidates = await asyncio.to_thread(self._keys.ids)
        async with transaction(self._engine) as conn:
            await intake_rows.exclude_writers(conn, wait=True)
            orphans = candidates - await intake_rows.holding_targets(conn, candidates)
        await self._destroy(orphans)
        return len(orphans)

    async def close(self) -> None:
        """Take no more requests, and wait for those under way."""
        self._closed = True
        if self._writer is not None:
            await asyncio.wait([self._writer])

    async def _write_groups(self) -> None:
        group: list[_Waiting] = []
        try:
            while self._pending:
                group = self._take()
                try:
                    await self._write(group)
                except Exception as error:  # noqa: BLE001 - a defect: it belongs to the callers, and the next group is due
                    _refuse(group, error)
        finally:
            # Only when this task was cancelled is anyone still waiting.
            _refuse([*group, *self._pending], shutting_down())
            self._pending.clear()

    def _take(self) -> list[_Waiting]:
        """Remove the next group, at least one request, from those pending, and drop whose callers have gone away."""
        targets = 0
        for size, waiting in enumerate(self._pending[:_GROUP_REQUESTS]):
            targets += waiting.new.targets.count
            if size and targets > _GROUP_TARGETS:
                break
        else:
            size = _GROUP_REQUESTS
        group = self._pending[:size]
        del self._pending[:size]
        return [waiting for waiting in group if not waiting.answer.done()]

    async def _write(self, group: Sequence[_Waiting]) -> None:
        """Store a group and answer its callers; a request that cannot be stored is found by halving and fails alone."""
        if not group:
            return
        try:
            stored = await self._store(group)
        except Unavailable as error:
            _refuse(group, error)
        except (LetheError, DBAPIError, ValueError) as error:
            if len(group) == 1:
                _refuse(group, refusal(error, group[0].new.model))
                return
            middle = len(group) // 2
            await self._write(group[:middle])
            await self._write(group[middle:])
        else:
            self._answer(group, stored)
            await self._settle()

    async def _store(self, group: Sequence[_Waiting]) -> _Group:
        """Commit the new ones of a group in one transaction; no key without a row is left behind unnoticed."""
        failure_points.reached(FailurePoint.ACCEPTING)
        reserved: set[UUID] = set()
        commit_sent = False
        try:
            async with transaction(self._engine) as conn:
                await intake_rows.enter(conn)
                asked = {waiting.key for waiting in group if waiting.key}
                stored = _Group(await intake_rows.find_earlier(conn, asked), [], {})
                stored.new = await self._admit(conn, _first_uses(group, stored.earlier))
                reserved = {waiting.id for waiting in stored.new}
                rows = await self._seal(stored.new)
                failure_points.reached(FailurePoint.KEYS_RESERVED)
                stored.received_at = await intake_rows.insert_rows(conn, rows)
                taken = {waiting.key for waiting in stored.new if waiting.key and waiting.id not in stored.received_at}
                stored.earlier |= await intake_rows.find_earlier(conn, taken)
                commit_sent = True
        except BaseException:
            if commit_sent:
                self._unsettled |= reserved
            else:
                await self._destroy(reserved)
            raise
        failure_points.reached(FailurePoint.ACCEPTED)
        await self._destroy(reserved - stored.received_at.keys())
        return stored

    async def _admit(self, conn: AsyncConnection, new: Iterable[_Waiting]) -> list[_Waiting]:
        """Return those of `new` that fit into the queue, and refuse the others."""
        admitted = []
        for waiting in new:
            if await self._depth.admits(conn, waiting.new.model, waiting.new.targets.count):
                admitted.append(waiting)
            else:
                _refuse([waiting], queue_full(self._depth.limit))
        return admitted

    async def _seal(self, new: Sequence[_Waiting]) -> list[NewRow]:
        """Make a durable key for each request and encrypt its targets."""
        if not new:
            return []
        try:
            keys = await asyncio.to_thread(self._keys.reserve, [waiting.id for waiting in new])
        except OSError as error:
            raise Unavailable(
                f"The keys of new requests cannot be written ({error.strerror}).", "Nothing was recorded; try again."
            ) from error
        return [
            NewRow(
                id=waiting.id,
                model=waiting.new.model,
                kind=waiting.new.kind,
                count=waiting.new.targets.count,
                reference=waiting.new.reference,
                ciphertext=seal(waiting.new.targets, keys[waiting.id], waiting.id),
                api_key_id=waiting.new.api_key_id,
                idempotency_key=waiting.new.idempotency_key,
                body_digest=waiting.new.body_digest,
                commitments=commit(waiting.new.targets, waiting.new.reference),
            )
            for waiting in new
        ]

    def _answer(self, group: Sequence[_Waiting], stored: _Group) -> None:
        """Tell every caller what became of its request; a repetition gets the answer of the first use of its key."""
        for waiting in stored.new:
            if waiting.id in stored.received_at:
                request = _request(waiting, stored.received_at[waiting.id])
                _tell(waiting, Accepted(request, waiting.new.targets, replayed=False))
        firsts = {waiting.key: waiting for waiting in stored.new if waiting.key and waiting.id in stored.received_at}
        for waiting in group:
            if waiting.answer.done() or waiting.key is None:
                continue
            if waiting.key in stored.earlier:
                self._replay(waiting, stored.earlier[waiting.key])
            elif waiting.key in firsts:
                first = firsts[waiting.key]
                request = _request(first, stored.received_at[first.id])
                _repeat(waiting, first.new.body_digest, Accepted(request, first.new.targets, replayed=True))
            else:
                _refuse([waiting], queue_full(self._depth.limit))

    def _replay(self, waiting: _Waiting, earlier: StoredRequest) -> None:
        key = self._keys.get(earlier.request.id)
        targets = None
        if key is not None and earlier.ciphertext is not None:
            try:
                targets = unseal(earlier.ciphertext, key, earlier.request.id)
            except SealBroken as error:
                _refuse([waiting], error)
                return
        _repeat(waiting, earlier.body_digest, Accepted(earlier.request, targets, replayed=True))

    async def _settle(self) -> None:
        """Destroy the keys of unanswered commits that did not happen, if none of them is still under way."""
        if not self._unsettled:
            return
        candidates = frozenset(self._unsettled)
        try:
            async with transaction(self._engine) as conn:
                if not await intake_rows.exclude_writers(conn, wait=False):
                    return
                absent = candidates - await intake_rows.holding_targets(conn, candidates)
        except Unavailable:
            # Nobody waits for this; the next group tries again.
            return
        self._unsettled -= candidates
        await self._destroy(absent)

    async def _destroy(self, ids: Collection[UUID]) -> None:
        """Destroy keys that nothing needs; when the disk refuses they are tried again with the next group."""
        if not ids:
            return
        try:
            await asyncio.to_thread(self._keys.destroy, list(ids))
        except OSError:
            self._unsettled |= set(ids)


def _first_uses(group: Iterable[_Waiting], earlier: Collection[IdempotencyKey]) -> list[_Waiting]:
    """Return those of `group` that are new: no earlier request, and no one before them, has their idempotency key."""
    seen = set(earlier)
    new = []
    for waiting in group:
        if waiting.key is None:
            new.append(waiting)
        elif waiting.key not in seen:
            seen.add(waiting.key)
            new.append(waiting)
    return new


def _request(waiting: _Waiting, received_at: datetime) -> DeletionRequest:
    new = waiting.new
    return DeletionRequest(
        id=waiting.id,
        model=new.model,
        kind=new.kind,
        status=RequestStatus.QUEUED,
        count=new.targets.count,
        reference=new.reference,
        api_key_id=new.api_key_id,
        received_at=received_at,
    )


def _tell(waiting: _Waiting, accepted: Accepted) -> None:
    # A caller that has gone away has cancelled its future.
    if not waiting.answer.done():
        waiting.answer.set_result(accepted)


def _repeat(waiting: _Waiting, first_digest: bytes | None, accepted: Accepted) -> None:
    """Answer a repeated idempotency key, if the body is the one it came with first."""
    if hmac.compare_digest(first_digest or b"", waiting.new.body_digest or b""):
        _tell(waiting, accepted)
    else:
        _refuse([waiting], reused_key(accepted.request.id))


def _refuse(group: Iterable[_Waiting], error: Exception) -> None:
    for waiting in group:
        if not waiting.answer.done():
            waiting.answer.set_exception(error)
