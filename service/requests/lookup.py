"""Queries for deletion requests."""

from collections.abc import Collection
from datetime import datetime, timedelta
from uuid import UUID

from sqlalchemy import exists, func, literal, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.access_tables import ApiKeyRow
from service.db.rows import (
    NORM_COLUMNS,
    QUEUED_COLUMNS,
    REQUEST_COLUMNS,
    all_of,
    any_of,
    deletion_request,
    queued_request,
    request_norms,
)
from service.db.tables import OutboxRow, RequestAuditRow, RequestRow
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, OldestRequest, QueuedRequest, RequestAudit
from service.domain.scopes import Scope
from service.domain.states import AUDITED, RequestStatus
from service.errors import NotFound
from service.predictions.version_rows import BATCH_COLUMNS, batch_in, with_batch
from service.requests.drill_rows import DrillRow

#: The head of the queue, the requests before it that progressed since the head was queued, and the batch that the
#: unlearner has in hand: the requests it took and has not ended, however long that takes. The head is found among all
#: open requests by another index than the one for republishing: damage to one shows through the other. Requests that
#: are held, or wait behind such ones, are not in the queue.
_OLDEST = text(
    """
    WITH head AS (
        SELECT queued_at FROM requests
        WHERE model = :model AND ended_at IS NULL AND status NOT IN ('applied', 'failed') AND batch_id IS NULL
            AND held_at IS NULL AND waits_for IS NULL
        ORDER BY received_at, id LIMIT 1
    ), server AS (
        SELECT held_since, serving_since FROM leases
        WHERE name = :model AND phase = 'serving' AND expires_at > clock_timestamp()
    ), in_hand AS (
        SELECT min(r.taken_at) AS since FROM requests r, server
        WHERE r.model = :model AND r.ended_at IS NULL AND r.status <> 'failed' AND r.held_at IS NULL
            AND r.waits_for IS NULL
            AND r.taken_at >= greatest(server.held_since, r.queued_at)
    )
    SELECT EXISTS (SELECT FROM server) AS is_served, extract(epoch FROM coalesce(in_hand.since, clock_timestamp())
        - greatest(h.queued_at, (SELECT serving_since FROM server), (
        SELECT r.completed_at FROM requests r
        WHERE r.model = :model AND r.completed_at > h.queued_at AND r.received_at <= h.queued_at
        ORDER BY r.completed_at DESC LIMIT 1
    ), (
        SELECT r.failed_at FROM requests r
        WHERE r.model = :model AND r.failed_at > h.queued_at AND r.received_at <= h.queued_at
        ORDER BY r.failed_at DESC LIMIT 1
    ))) AS waits_s
    FROM head h, in_hand
    """
)
#: Conditions that a request is neither held nor waits behind one that is.
NOT_HELD = (RequestRow.held_at.is_(None), RequestRow.waits_for.is_(None))
#: Drills are excluded: nobody waits for the deletion of made-up nodes.
_NO_DRILL = RequestRow.id.not_in(select(DrillRow.request_id))


class RequestRepository:
    """Queries of the table `requests` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def get(
        self, request_id: UUID, api_key_id: UUID | None = None, kind: RequestKind | None = None
    ) -> tuple[DeletionRequest, RequestAudit | None] | None:
        """Return a request, with its audit once it is applied; None if unknown, or not of the given key or kind."""
        query = select(*REQUEST_COLUMNS).where(RequestRow.id == request_id)
        if kind is not None:
            query = query.where(RequestRow.kind == kind)
        if api_key_id is not None:
            query = query.where(RequestRow.api_key_id == api_key_id)
        row = (await self._conn.execute(query)).one_or_none()
        if row is None:
            return None
        request = deletion_request(row)
        return request, await self._audit(request)

    async def require(
        self, request_id: UUID, api_key_id: UUID | None = None, kind: RequestKind | None = None
    ) -> tuple[DeletionRequest, RequestAudit | None]:
        """Return a request like `get`; raises `NotFound`."""
        found = await self.get(request_id, api_key_id, kind)
        if found is None:
            raise NotFound(
                f"Unknown {kind or 'deletion'} request {request_id}, or one that this key may not see.",
                "Check the id; a key without audit:read sees only its own requests.",
            )
        return found

    async def open(self, model: str, *, limit: int) -> list[DeletionRequest]:
        """Return up to `limit` requests that have not ended, earliest deadline first, without drills."""
        query = select(*REQUEST_COLUMNS).where(RequestRow.model == model, RequestRow.ended_at.is_(None), _NO_DRILL)
        query = query.order_by(RequestRow.due_at, RequestRow.id).limit(limit)
        return [deletion_request(row) for row in await self._conn.execute(query)]

    async def late_failures(self, model: str, at: datetime) -> int:
        """Return the number of failed, unhandled requests past their deadline at `at`, without drills."""
        query = select(func.count()).where(RequestRow.model == model, RequestRow.ended_at.is_(None), _NO_DRILL)
        query = query.where(RequestRow.status == RequestStatus.FAILED, RequestRow.due_at < at)
        return int(await self._conn.scalar(query) or 0)

    async def handled_by(self, request_id: UUID) -> list[UUID]:
        """Return the failed requests handled because this one deleted the same targets."""
        query = select(RequestRow.id).where(RequestRow.handled_by == request_id).order_by(RequestRow.id)
        return list((await self._conn.execute(query)).scalars())

    async def queued(self, model: str, ids: Collection[UUID]) -> list[QueuedRequest]:
        """Return those of `ids` that are queued, not in a batch and not held or behind a hold, oldest first."""
        query = (
            select(*QUEUED_COLUMNS)
            .where(RequestRow.id == any_of(ids), RequestRow.model == model)
            .where(RequestRow.status == RequestStatus.QUEUED, RequestRow.batch_id.is_(None), *NOT_HELD)
            .order_by(RequestRow.received_at, RequestRow.id)
        )
        return [queued_request(row) for row in await self._conn.execute(query)]

    async def queued_before(self, model: str, last: QueuedRequest, *, without: Collection[UUID]) -> list[QueuedRequest]:
        """Return what is queued like `queued` and was received before `last`, oldest first, except for `without`."""
        query = (
            select(*QUEUED_COLUMNS)
            .where(RequestRow.model == model, RequestRow.received_at < last.received_at)
            .where(RequestRow.status == RequestStatus.QUEUED, RequestRow.batch_id.is_(None), *NOT_HELD)
            .where(RequestRow.id != all_of(without))
            .order_by(RequestRow.received_at, RequestRow.id)
        )
        return [queued_request(row) for row in await self._conn.execute(query)]

    async def received(self, ids: Collection[UUID]) -> dict[UUID, datetime]:
        """Return when each of these requests was received."""
        if not ids:
            return {}
        query = select(RequestRow.id, RequestRow.received_at).where(RequestRow.id == any_of(ids))
        return {row.id: row.received_at for row in await self._conn.execute(query)}

    async def all_may_know(self, ids: Collection[UUID]) -> bool:
        """Return whether the keys of all these requests may know of deletions."""
        query = select(func.bool_and(ApiKeyRow.scopes.contains([Scope.DELETIONS_READ.value])))
        query = query.join(RequestRow, RequestRow.api_key_id == ApiKeyRow.id).where(RequestRow.id == any_of(ids))
        return bool(await self._conn.scalar(query))

    async def ages_in_batch(self, batch_id: UUID) -> list[tuple[float, float]]:
        """Return, for each completed request of a batch, the seconds from receipt to `applied` and `completed`."""
        query = select(
            func.extract("epoch", RequestRow.applied_at - RequestRow.received_at),
            func.extract("epoch", RequestRow.completed_at - RequestRow.received_at),
        ).where(RequestRow.batch_id == batch_id, RequestRow.status == RequestStatus.COMPLETED)
        return [(float(applied), float(completed)) for applied, completed in await self._conn.execute(query)]

    async def unclaimed(self, model: str, *, older_than_s: float, limit: int) -> list[UUID]:
        """Return up to `limit` queued requests that nobody has claimed for `older_than_s`, oldest first.

        Leaves those in the outbox to the relay. Returns each at most once per `older_than_s`.
        """
        age = literal(timedelta(seconds=older_than_s))
        waiting = (
            select(RequestRow.id)
            .where(RequestRow.model == model, RequestRow.status == RequestStatus.QUEUED, RequestRow.batch_id.is_(None))
            .where(*NOT_HELD)
            .where(func.coalesce(RequestRow.swept_at, RequestRow.queued_at) < func.now() - age)
            .where(~exists().where(OutboxRow.request_id == RequestRow.id))
            .order_by(RequestRow.received_at, RequestRow.id)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        swept = update(RequestRow).where(RequestRow.id.in_(waiting)).values(swept_at=func.now())
        rows = await self._conn.execute(swept.returning(RequestRow.id, RequestRow.received_at))
        return [row.id for row in sorted(rows, key=lambda row: (row.received_at, row.id))]

    async def queued_nodes(self, model: str) -> int:
        """Return the number of nodes and edges in the queued requests."""
        query = select(func.coalesce(func.sum(RequestRow.count), 0))
        query = query.where(RequestRow.model == model, RequestRow.status == RequestStatus.QUEUED)
        return int(await self._conn.scalar(query) or 0)

    async def oldest(self, model: str) -> OldestRequest | None:
        """Return the state of the request at the head of the queue; None if no request waits."""
        found = (await self._conn.execute(_OLDEST, {"model": model})).one_or_none()
        return None if found is None else OldestRequest(max(0.0, float(found.waits_s)), found.is_served)

    async def queued_by_key(self, model: str) -> dict[UUID, int]:
        """Return the number of nodes and edges in the queued requests of each API key, without held ones."""
        query = select(RequestRow.api_key_id, func.sum(RequestRow.count)).where(RequestRow.held_at.is_(None))
        query = query.where(RequestRow.model == model, RequestRow.status == RequestStatus.QUEUED)
        return {key: int(count) for key, count in await self._conn.execute(query.group_by(RequestRow.api_key_id))}

    async def _audit(self, request: DeletionRequest) -> RequestAudit | None:
        if request.status not in AUDITED or request.batch_id is None:
            return None
        query = select(*BATCH_COLUMNS, *NORM_COLUMNS).select_from(RequestAuditRow)
        query = with_batch(query, RequestAuditRow.batch_id).where(RequestAuditRow.request_id == request.id)
        row = (await self._conn.execute(query)).one()
        return RequestAudit(batch=batch_in(row), norms=request_norms(row))
