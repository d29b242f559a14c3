"""Requests that need a person: decisions on failed or late ones, and the unlearner's follow-up."""

import asyncio
import re
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import structlog
from sqlalchemy import func, literal, null, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.access.request_keys import RequestKeys, decrypt_targets
from service.db.engine import Engine
from service.db.notifications import listen
from service.db.rows import QUEUED_COLUMNS, any_of, queued_request
from service.db.tables import DecisionRow, RequestRow
from service.db.transactions import transaction
from service.domain.kinds import Part, Target, ends_of
from service.domain.records import DeletionRequest, QueuedRequest
from service.domain.states import EventType, RequestStatus
from service.errors import Conflict, InvalidRequest, Unavailable
from service.log.events import EventRepository, LogRepository
from service.log.leaves import Decided
from service.queue.outage import Outage, run_until
from service.requests.lookup import RequestRepository
from service.requests.moves import RequestMoves, permitted
from service.requests.tombstones import TombstoneLookup

#: Every transaction that adds a decision notifies this channel.
DECISIONS_CHANNEL = "lethe_decisions"
#: Decisions logged per transaction.
_PAGE_OF_DECISIONS = 100


class Decisions:
    """The table `decisions` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def handle(self, request_id: UUID, api_key_id: UUID, reason: str) -> DeletionRequest:
        """Settle a failed request for `reason`; its targets are then erased.

        Raises `NotFound`, `Conflict` unless it has failed and is not handled, `InvalidRequest` for a reason that the
        log must not contain, and `Unauthenticated` for a key without the right.
        """
        await self._require(request_id, reason)
        is_handled = permitted(await self._conn.scalar(select(func.request_handle(request_id, api_key_id, reason))))
        found = await self._require(request_id, reason)
        if is_handled:
            return found
        if found.status is RequestStatus.FAILED:
            raise Conflict(f"Request {request_id} is already handled.", "Nothing to do.")
        raise Conflict(f"Request {request_id} is {found.status}.", "Only a failed request can be handled.")

    async def extend(self, request_id: UUID, api_key_id: UUID, due_at: datetime, reason: str) -> DeletionRequest:
        """Extend an open request to `due_at`, for `reason`. Raises as `handle`, and `Conflict` if it is late."""
        await self._require(request_id, reason)
        extending = select(func.request_extend(request_id, api_key_id, due_at, reason))
        is_extended = permitted(await self._conn.scalar(extending))
        found = await self._require(request_id, reason)
        if is_extended:
            return found
        if found.ended_at is not None:
            raise Conflict(f"Request {request_id} has ended.", "Only an open request can be extended.")
        if found.held_at is not None:
            raise Conflict(f"Request {request_id} is on hold.", "Its deadline moves when it is released.")
        if found.late:
            raise Conflict(f"Request {request_id} is past its deadline.", "Extend a request before its deadline.")
        raise Conflict(
            f"Request {request_id} is already due at {found.due_at:%Y-%m-%d %H:%M} UTC.", "Give a later time."
        )

    async def hold(self, request_id: UUID, api_key_id: UUID, reason: str) -> DeletionRequest:
        """Hold a queued request for `reason`, until `release`. Raises as `handle`, and `Conflict` if it is too late."""
        await self._require(request_id, reason)
        is_held = permitted(await self._conn.scalar(select(func.request_hold(request_id, api_key_id, reason))))
        found = await self._require(request_id, reason)
        if is_held:
            return found
        if found.held_at is not None:
            raise Conflict(f"Request {request_id} is already on hold.", "Nothing to do.")
        if found.status is RequestStatus.QUEUED:
            raise Conflict(f"Request {request_id} is being applied.", "It can no longer be held.")
        raise Conflict(f"Request {request_id} is {found.status}.", "Only a queued request can be held.")

    async def release(self, request_id: UUID, api_key_id: UUID) -> DeletionRequest:
        """End a hold: the request and those that wait behind it go to the unlearner, and its deadline moves.

        Raises `NotFound`, `Conflict` unless it is held, and `Unauthenticated` for a key without the right.
        """
        await RequestRepository(self._conn).require(request_id)
        is_released = permitted(await self._conn.scalar(select(func.request_release(request_id, api_key_id))))
        found, _ = await RequestRepository(self._conn).require(request_id)
        if not is_released:
            raise Conflict(f"Request {request_id} is not on hold.", "Nothing to do.")
        return found

    async def log(self) -> int:
        """Log decisions that are not in the log yet, oldest first; returns their number."""
        waiting = select(DecisionRow.__table__).where(DecisionRow.event_id.is_(None))
        waiting = waiting.order_by(DecisionRow.id).limit(_PAGE_OF_DECISIONS)
        if not (await self._conn.execute(waiting)).all():
            return 0
        # Others may log them too: read again once they are locked out.
        await LogRepository(self._conn).take_turn()
        rows = (await self._conn.execute(waiting)).all()
        for row in rows:
            content = Decided(row.reason, row.api_key_id, row.decided_at, row.due_at)
            [event] = await EventRepository(self._conn).append_many(EventType(row.type), {row.request_id: content})
            logged = update(DecisionRow).where(DecisionRow.id == row.id).values(event_id=event)
            await self._conn.execute(logged)
        return len(rows)

    async def _require(self, request_id: UUID, reason: str) -> DeletionRequest:
        request, _ = await RequestRepository(self._conn).require(request_id)
        reference = re.escape(request.reference or "")
        if reference and re.search(rf"(?<!\w){reference}(?!\w)", reason, re.IGNORECASE):
            raise InvalidRequest(
                "The reason contains the request's reference.",
                "The log keeps reasons forever: do not name a person.",
            )
        return request


#: Requests per page.
_PAGE_OF_FAILED = 100


class FailedRequests:
    """Failed, unhandled requests of one model; all methods are idempotent and safe to run concurrently."""

    def __init__(self, engine: Engine, model: str, request_keys: RequestKeys, tombstones: TombstoneLookup) -> None:
        self._engine = engine
        self._model = model
        self._keys = request_keys
        self._tombstones = tombstones
        #: Latest end and failure of a request at the last full pass; nothing is new until these change.
        self._seen: tuple[datetime | None, ...] | None = None

    async def settle(self) -> int:
        """Settle requests whose targets are all deleted; returns their number. Raises `Unavailable`."""
        async with transaction(self._engine) as connection:
            of_model = RequestRow.model == self._model
            ended = select(func.max(RequestRow.completed_at)).where(of_model).scalar_subquery()
            failed = select(func.max(RequestRow.failed_at)).where(of_model).scalar_subquery()
            newest = tuple((await connection.execute(select(ended, failed))).one())
        if newest == self._seen:
            return 0
        settled, after = 0, None
        while page := await self._page(after):
            settled += await self._settle(page)
            after = page[-1].id
        self._seen = newest
        return settled

    async def forget(self, older_than: timedelta) -> int:
        """Drop the encrypted ids of requests that failed longer ago; returns their number. Raises `Unavailable`."""
        async with transaction(self._engine) as connection:
            dropped = (
                update(RequestRow)
                .where(RequestRow.model == self._model, RequestRow.status == RequestStatus.FAILED)
                .where(RequestRow.ciphertext.is_not(None), RequestRow.failed_at < func.now() - literal(older_than))
                .values(ciphertext=null())
            )
            return (await connection.execute(dropped)).rowcount

    async def _page(self, after: UUID | None) -> Sequence[QueuedRequest]:
        query = select(*QUEUED_COLUMNS).where(RequestRow.model == self._model, RequestRow.ciphertext.is_not(None))
        query = query.where(RequestRow.status == RequestStatus.FAILED).order_by(RequestRow.id).limit(_PAGE_OF_FAILED)
        if after is not None:
            query = query.where(RequestRow.id > after)
        async with transaction(self._engine) as connection:
            return [queued_request(row) for row in await connection.execute(query)]

    async def _settle(self, page: Sequence[QueuedRequest]) -> int:
        opened = await asyncio.to_thread(lambda: [(one, decrypt_targets(one, self._keys)) for one in page])
        # Without its key a request's targets are unknown, so a person has to decide.
        named = [
            (one.id, one.kind.rules.deletes, targets.named)
            for one, targets in opened
            if targets is not None and not one.kind.rules.joins
        ]
        deleted_by = {
            part: await self._deleted_by(part, {target for _, of, targets in named if of is part for target in targets})
            for part in Part
        }
        by = {
            request_id: {deleted_by[part][target] for target in targets} - {None}
            for request_id, part, targets in named
            if all(target in deleted_by[part] for target in targets)
        }
        completed = await self._completed({one for ids in by.values() for one in ids if one is not None})
        settled = 0
        for request_id, ids in by.items():
            if ids <= completed.keys():
                last_first = sorted((one for one in completed if one in ids), key=completed.__getitem__, reverse=True)
                async with transaction(self._engine) as connection:
                    settled += await RequestMoves(connection).mark_handled(request_id, tuple(last_first))
        return settled

    async def _deleted_by(self, part: Part, named: Collection[Target]) -> Mapping[Target, UUID | None]:
        """Return those of `named` that were deleted, by themselves or with a node, each with its request."""
        found = await self._tombstones.find(part, list(named))
        others = {target: ends_of(target) for target in named if target not in found}
        nodes = await self._tombstones.deleted_nodes(list({end for ends in others.values() for end in ends}))
        with_node = {target: nodes[end] for target, ends in others.items() for end in ends if end in nodes}
        return found | with_node

    async def _completed(self, ids: Collection[UUID]) -> Mapping[UUID, datetime]:
        """Return those of `ids` that are completed, with their completion times."""
        query = select(RequestRow.id, RequestRow.completed_at).where(RequestRow.id == any_of(ids))
        async with transaction(self._engine) as connection:
            found = await connection.execute(query.where(RequestRow.completed_at.is_not(None)))
            return {row.id: row.completed_at for row in found}


#: Seconds between two passes; a decision is notified earlier.
_LOOK_S = 2.0


class FollowUp:
    """Follow-up work that any unlearner may run, with or without the lease: all of it is idempotent."""

    def __init__(self, engine: Engine, failed: FailedRequests, keep_failed: timedelta) -> None:
        """`keep_failed` is how long the encrypted ids of a failed request are kept."""
        self._engine = engine
        self._failed = failed
        self._keep_failed = keep_failed
        self._outage = Outage("decisions and failed requests")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Repeat `look` until `stop` is set, through any outage of Postgres."""
        await run_until(stop, self._run())

    async def look(self) -> None:
        """Do the pending work once. Raises `Unavailable`."""
        while True:
            async with transaction(self._engine) as connection:
                if not await Decisions(connection).log():
                    break
        if settled := await self._failed.settle():
            self._log.info("failed.settled", requests=settled)
        if forgotten := await self._failed.forget(self._keep_failed):
            self._log.warning("failed.forgotten", requests=forgotten)

    async def _run(self) -> None:
        while True:
            try:
                async with listen(self._engine, DECISIONS_CHANNEL) as wakeup:
                    while True:
                        await self.look()
                        self._outage.over()
                        await wakeup.wait(_LOOK_S)
            except (Unavailable, OSError) as error:
                await self._outage.pause(error)
