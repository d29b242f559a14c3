"""The feed: events of requests, each at its own place, in an order without gaps.

A trigger writes a transition's event in the transition's transaction, and transactions commit in another order than
they number rows. So one publisher at a time assigns places to committed events, and excludes others until its
transaction ends. An event is therefore visible at its place only when all earlier ones are. A reader who continues
after the last event seen misses none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, exists, func, insert, literal, select, true, update

from service.db import locks
from service.db.locks import Lock
from service.db.tables import FeedRow, RequestRow, WebhookDeliveryRow, WebhookEndpointRow
from service.db.transactions import Repository
from service.domain.kinds import RequestKind
from service.domain.states import Milestone, RequestStatus
from service.errors import MalformedCursor

#: Events published per transaction.
_PAGE = 1000


@dataclass(frozen=True)
class FeedEvent:
    """One event of the feed."""

    id: UUID
    kind: RequestKind
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


#: Columns that `feed_event` needs from a query that joins the request.
FEED_COLUMNS = (
    FeedRow.id.label("feed_event_id"),
    FeedRow.milestone,
    FeedRow.at,
    FeedRow.request_id,
    FeedRow.status.label("event_status"),
    FeedRow.due_at,
    RequestRow.kind,
    RequestRow.reference,
    (RequestRow.status == RequestStatus.COMPLETED).label("is_completed"),
)


class FeedRepository(Repository):
    """The table `feed` in the caller's transaction."""

    async def exclude_publishers(self) -> None:
        """Wait for a running publisher, and block others until the transaction ends."""
        await locks.take(self._conn, Lock.FEED)

    async def publish(self) -> int:
        """Publish unpublished events: give them places, and list them for every endpoint; return their number.

        Publishes at most one page, and nothing while another publisher is running.
        """
        if not await locks.take_if_free(self._conn, Lock.FEED):
            return 0
        row = func.row_number().over(order_by=FeedRow.number).label("row")
        page = select(FeedRow.id, row).where(FeedRow.place.is_(None)).order_by(FeedRow.number).limit(_PAGE).subquery()
        last = select(func.coalesce(func.max(FeedRow.place), 0)).scalar_subquery()
        published = (
            update(FeedRow)
            .where(FeedRow.id == page.c.id, RequestRow.id == FeedRow.request_id)
            .values(place=last + page.c.row, due_at=func.coalesce(FeedRow.due_at, RequestRow.due_at))
            .returning(FeedRow.id)
            .cte("published")
        )
        outgoing = select(WebhookEndpointRow.id, published.c.id).join(published, true())
        outgoing = outgoing.where(WebhookEndpointRow.removed_at.is_(None))
        listed = insert(WebhookDeliveryRow).from_select(["endpoint_id", "event_id"], outgoing).cte("listed")
        return int(await self._conn.scalar(select(func.count()).select_from(published).add_cte(listed)) or 0)

    async def write_late(self) -> int:
        """Write an event for every late request, once per deadline; return their number."""
        due = RequestRow.due_at
        written = exists().where(
            FeedRow.request_id == RequestRow.id, FeedRow.milestone == Milestone.LATE, FeedRow.due_at == due
        )
        late = (
            select(RequestRow.id, RequestRow.api_key_id, literal(Milestone.LATE.value), RequestRow.status, due)
            .where(RequestRow.ended_at.is_(None), RequestRow.held_at.is_(None), due < func.now(), ~written)
            .order_by(due, RequestRow.id)
        )
        columns = ["request_id", "api_key_id", "milestone", "status", "due_at"]
        if not await locks.take_if_free(self._conn, Lock.FEED):
            return 0
        return (await self._conn.execute(insert(FeedRow).from_select(columns, late))).rowcount

    async def page(self, after: UUID | None, api_key_id: UUID | None, limit: int) -> Sequence[FeedEvent]:
        """Return up to `limit` events after the event `after`, or from the first; with `api_key_id`, only of that key.

        Raises `MalformedCursor` if `after` is not among them, as after restoring an older backup.
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
    """Return the event in a row with `FEED_COLUMNS`."""
    return FeedEvent(
        id=row.feed_event_id,
        kind=RequestKind(row.kind),
        milestone=Milestone(row.milestone),
        at=row.at,
        request_id=row.request_id,
        reference=row.reference,
        status=RequestStatus(row.event_status),
        due_at=row.due_at,
        is_completed=row.is_completed,
    )
