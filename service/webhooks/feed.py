"""The feed: what is told of requests, each event at a place of its own, in an order without holes.

A move writes its event, by a trigger, in its own transaction; transactions do not commit in the order in which they
number what they write. So one teller at a time gives places to what is committed by then, and keeps others out until
its transaction ends: an event is visible at its place only when all before it are, and whoever reads on after the last
that it has seen misses none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, exists, func, insert, literal, select, true, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db import locks
from service.db.locks import Lock
from service.db.tables import FeedRow, RequestRow, WebhookDeliveryRow, WebhookEndpointRow
from service.domain.states import Milestone, RequestStatus
from service.errors import MalformedCursor

#: Events told by one transaction.
_PAGE = 1000


@dataclass(frozen=True)
class FeedEvent:
    """One event of the feed."""

    id: UUID
    milestone: Milestone
    #: When it happened.
    at: datetime
    request_id: UUID
    reference: str | None
    #: Status of the request after this event.
    status: RequestStatus
    due_at: datetime
    #: Whether the request is completed by now.
    is_completed: bool


#: What `feed_event` reads, of a query that joins the request.
FEED_COLUMNS = (
    FeedRow.id.label("told_id"),
    FeedRow.milestone,
    FeedRow.at,
    FeedRow.request_id,
    FeedRow.status.label("event_status"),
    FeedRow.due_at,
    RequestRow.reference,
    (RequestRow.status == RequestStatus.COMPLETED).label("is_completed"),
)


class FeedRepository:
    """The table `feed` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def record_untold_events(self) -> None:
        """Wait for whoever tells, and let nobody tell until the transaction ends."""
        await locks.take(self._conn, Lock.FEED)

    async def tell(self) -> int:
        """Give places to what was written and is not told yet, and list it for every endpoint; returns how many.

        At most a page of them; none while another is at it.
        """
        if not await locks.take_if_free(self._conn, Lock.FEED):
            return 0
        row = func.row_number().over(order_by=FeedRow.number).label("row")
        untold = select(FeedRow.id, row).where(FeedRow.place.is_(None)).order_by(FeedRow.number).limit(_PAGE).subquery()
        last = select(func.coalesce(func.max(FeedRow.place), 0)).scalar_subquery()
        told = (
            update(FeedRow)
            .where(FeedRow.id == untold.c.id, RequestRow.id == FeedRow.request_id)
            .values(place=last + untold.c.row, due_at=func.coalesce(FeedRow.due_at, RequestRow.due_at))
            .returning(FeedRow.id)
            .cte("told")
        )
        outgoing = select(WebhookEndpointRow.id, told.c.id).join(told, true())
        outgoing = outgoing.where(WebhookEndpointRow.removed_at.is_(None))
        listed = insert(WebhookDeliveryRow).from_select(["endpoint_id", "event_id"], outgoing).cte("listed")
        return int(await self._conn.scalar(select(func.count()).select_from(told).add_cte(listed)) or 0)

    async def write_late(self) -> int:
        """Write an event for every open request whose deadline has passed, once for each deadline; returns how many."""
        due = RequestRow.due_at
        written = exists().where(
            FeedRow.request_id == RequestRow.id, FeedRow.milestone == Milestone.LATE, FeedRow.due_at == due
        )
        late = (
            select(RequestRow.id, RequestRow.api_key_id, literal(Milestone.LATE.value), RequestRow.status, due)
            .where(RequestRow.ended_at.is_(None), due < func.now(), ~written)
            .order_by(due, RequestRow.id)
        )
        columns = ["request_id", "api_key_id", "milestone", "status", "due_at"]
        if not await locks.take_if_free(self._conn, Lock.FEED):
            return 0
        return (await self._conn.execute(insert(FeedRow).from_select(columns, late))).rowcount

    async def page(self, after: UUID | None, api_key_id: UUID | None, limit: int) -> Sequence[FeedEvent]:
        """Return up to `limit` events after the event `after`, or from the first; of one key's requests if it is given.

        Raises `MalformedCursor` when there is no such event among them, as after the restore of an older backup.
        """
        visible: list[ColumnElement[bool]] = [FeedRow.place.is_not(None)]
        if api_key_id is not None:
            visible.append(FeedRow.api_key_id == api_key_id)
        query = select(*FEED_COLUMNS).join(RequestRow, RequestRow.id == FeedRow.request_id).where(*visible)
        if after is not None:
            place = await self._conn.scalar(select(FeedRow.place).where(FeedRow.id == after, *visible))
            if place is None:
                raise MalformedCursor(
                    f"The feed has no event {after}, or this key may not see it.",
                    "Give the id of an event from the feed. If the database was restored from an older backup, "
                    "read from the beginning; known events keep their ids.",
                )
            query = query.where(FeedRow.place > place)
        rows = await self._conn.execute(query.order_by(FeedRow.place).limit(limit))
        return [feed_event(row) for row in rows]


def feed_event(row: Row[*tuple[Any, ...]]) -> FeedEvent:
    """The event of a row with `FEED_COLUMNS`."""
    return FeedEvent(
        id=row.told_id,
        milestone=Milestone(row.milestone),
        at=row.at,
        request_id=row.request_id,
        reference=row.reference,
        status=RequestStatus(row.event_status),
        due_at=row.due_at,
        is_completed=row.is_completed,
    )
