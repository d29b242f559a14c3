"""The outbox of webhooks: pending and finished deliveries per endpoint."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from sqlalchemy import Integer, Row, Text, Uuid, case, delete, func, literal, null, select, tuple_, update

from service.access.cursors import PageCursor
from service.db.rows import unnested
from service.db.tables import FeedRow, RequestRow, WebhookDeliveryRow, WebhookEndpointRow
from service.db.transactions import Repository
from service.webhooks.feed import FEED_COLUMNS, FeedEvent, feed_event

#: Time limit for delivering an event.
GIVE_UP_AFTER = timedelta(days=3)
#: Retention of finished deliveries.
_KEPT = timedelta(days=30)
#: Rows removed per transaction.
_REMOVED = 10_000
_ROW = WebhookDeliveryRow


class DeliveryState(StrEnum):
    """State of delivering an event to an endpoint."""

    WAITING = "waiting"
    DELIVERED = "delivered"
    GIVEN_UP = "given_up"


@dataclass(frozen=True)
class Claimed:
    """A delivery reserved by one sender for a while."""

    id: UUID
    #: Including this attempt.
    attempts: int
    event: FeedEvent


@dataclass(frozen=True)
class Outcome:
    """Result of one attempt."""

    delivery_id: UUID
    #: For people.
    answer: str
    #: Seconds until the next attempt; None once delivered.
    retry_s: float | None


@dataclass(frozen=True)
class Delivery:
    """One event on its way to one endpoint."""

    id: UUID
    url: str
    event: FeedEvent
    created_at: datetime
    attempts: int
    next_attempt_at: datetime | None
    delivered_at: datetime | None
    given_up_at: datetime | None
    answer: str | None

    @property
    def state(self) -> DeliveryState:
        """State of the delivery."""
        if self.delivered_at is not None:
            return DeliveryState.DELIVERED
        return DeliveryState.WAITING if self.given_up_at is None else DeliveryState.GIVEN_UP

    @property
    def origin(self) -> str:
        """Scheme, host and port of the address; its path may be a receiver's secret."""
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc}"


@dataclass(frozen=True)
class Undelivered:
    """Counts of undelivered events."""

    waiting: int
    #: Age of the oldest waiting event in seconds; 0 without one.
    oldest_s: float
    #: In the last 30 days.
    given_up: int


#: The column that marks a delivery's state.
_MARK = {
    DeliveryState.WAITING: _ROW.next_attempt_at,
    DeliveryState.DELIVERED: _ROW.delivered_at,
    DeliveryState.GIVEN_UP: _ROW.given_up_at,
}


class DeliveryRepository(Repository):
    """The table `webhook_deliveries` in the caller's transaction."""

    async def claim(self, endpoint_id: UUID, limit: int, for_s: float) -> Sequence[Claimed]:
        """Return up to `limit` due deliveries, longest due first, reserved for `for_s` seconds.

        If the caller ends without recording a result, they are sent again.
        """
        due = (
            select(_ROW.id)
            .where(_ROW.endpoint_id == endpoint_id, _ROW.next_attempt_at <= func.now())
            .order_by(_ROW.next_attempt_at)
            .limit(limit)
            .with_for_update(skip_locked=True)
        )
        claimed = (
            update(_ROW)
            .where(_ROW.id.in_(due))
            .values(attempts=_ROW.attempts + 1, next_attempt_at=func.now() + literal(timedelta(seconds=for_s)))
            .returning(_ROW.id, _ROW.attempts, _ROW.event_id)
            .cte("claimed")
        )
        query = (
            select(claimed.c.id, claimed.c.attempts, *FEED_COLUMNS)
            .select_from(claimed)
            .join(FeedRow, FeedRow.id == claimed.c.event_id)
            .join(RequestRow, RequestRow.id == FeedRow.request_id)
            .order_by(FeedRow.place)
        )
        return [Claimed(row.id, row.attempts, feed_event(row)) for row in await self._conn.execute(query)]

    async def record(self, outcomes: Sequence[Outcome]) -> Sequence[UUID]:
        """Record the results of attempts; return the deliveries given up because their time is over.

        Deliveries that have ended meanwhile stay unchanged.
        """
        rows = unnested(
            "outcome",
            id=(Uuid(), [one.delivery_id for one in outcomes]),
            answer=(Text(), [one.answer for one in outcomes]),
            retry_ms=(Integer(), [None if one.retry_s is None else round(one.retry_s * 1000) for one in outcomes]),
        )
        delivered = rows.c.retry_ms.is_(None)
        again = func.now() + rows.c.retry_ms * literal(timedelta(milliseconds=1))
        too_late = again > _ROW.created_at + literal(GIVE_UP_AFTER)
        recorded = (
            update(_ROW)
            .where(_ROW.id == rows.c.id, _ROW.next_attempt_at.is_not(None))
            .values(
                answer=rows.c.answer,
                delivered_at=case((delivered, func.now())),
                given_up_at=case((too_late, func.now())),
                next_attempt_at=case((delivered, null()), (too_late, null()), else_=again),
            )
            .returning(_ROW.id, _ROW.given_up_at)
        )
        return [row.id for row in await self._conn.execute(recorded) if row.given_up_at is not None]

    async def page(
        self, state: DeliveryState | None, cursor: PageCursor | None, limit: int
    ) -> tuple[Sequence[Delivery], PageCursor | None]:
        """Return up to `limit` deliveries after `cursor`, newest first, and the start of the next page."""
        query = (
            select(_ROW.__table__, WebhookEndpointRow.url, *FEED_COLUMNS)
            .join(WebhookEndpointRow, WebhookEndpointRow.id == _ROW.endpoint_id)
            .join(FeedRow, FeedRow.id == _ROW.event_id)
            .join(RequestRow, RequestRow.id == FeedRow.request_id)
            .order_by(_ROW.created_at.desc(), _ROW.id.desc())
            .limit(limit + 1)
        )
        if state is not None:
            query = query.where(_MARK[state].is_not(None))
        if cursor is not None:
            query = query.where(tuple_(_ROW.created_at, _ROW.id) < tuple_(cursor.at, cursor.id))
        found = [_delivery(row) for row in await self._conn.execute(query)]
        shown = found[:limit]
        return shown, PageCursor(shown[-1].created_at, shown[-1].id) if len(found) > limit else None

    async def undelivered(self) -> Undelivered:
        """Return the counts of undelivered events."""
        oldest = func.extract("epoch", func.now() - func.min(_ROW.created_at))
        waiting, oldest_s = (
            await self._conn.execute(select(func.count(), oldest).where(_ROW.next_attempt_at.is_not(None)))
        ).one()
        query = select(func.count()).where(_ROW.given_up_at.is_not(None), _ROW.created_at > func.now() - literal(_KEPT))
        return Undelivered(waiting, max(0.0, float(oldest_s or 0.0)), await self._conn.scalar(query) or 0)

    async def forget_old(self) -> int:
        """Remove deliveries that ended long ago; return their number."""
        old = select(_ROW.id).where(_ROW.created_at < func.now() - literal(_KEPT), _ROW.next_attempt_at.is_(None))
        return (await self._conn.execute(delete(_ROW).where(_ROW.id.in_(old.limit(_REMOVED))))).rowcount


def _delivery(row: Row[*tuple[Any, ...]]) -> Delivery:
    values = {each.name: getattr(row, each.name) for each in fields(Delivery) if each.name != "event"}
    return Delivery(event=feed_event(row), **values)
