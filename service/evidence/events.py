"""What happened to requests, model and log, in order; the table only ever grows, and with every event the log."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Text, Uuid, and_, insert, or_, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.arrays import unnested
from service.db.tables import EventRow, RequestRow
from service.domain.states import EventType
from service.evidence.contents import Content, Payload, ServedFigures, sealed
from service.evidence.log import LogRepository


@dataclass(frozen=True)
class Event:
    """One row of `events`."""

    id: int
    request_id: UUID
    type: EventType
    payload: Payload
    created_at: datetime


class EventRepository:
    """The events of requests. The database refuses a second `applied`, `repaired` or `completed` event of a request."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def append_many(self, event_type: EventType, contents: Mapping[UUID, Content]) -> list[int]:
        """Add an event of one type, and its leaf, to each of several requests; return their numbers, in that order.

        The requests are as the event leaves them. Raises `NotCanonical` for a content that cannot be logged.
        """
        return await self._append(event_type, contents.items()) if contents else []

    async def append_unrequested(self, event_type: EventType, content: Content) -> int:
        """Add an event of `UNREQUESTED` and its leaf; return its number. Raises `NotCanonical`."""
        [number] = await self._append(event_type, [(None, content)])
        return number

    async def _append(self, event_type: EventType, contents: Collection[tuple[UUID | None, Content]]) -> list[int]:
        log = LogRepository(self._conn)
        # First, so that events are numbered in the order of their leaves.
        await log.take_turn()
        documents = [sealed(content.document()) for _, content in contents]
        rows = unnested(
            "added",
            request_id=(Uuid(), [request_id for request_id, _ in contents]),
            type=(Text(), [event_type.value] * len(contents)),
            payload=(JSONB(), [payload for payload, _ in documents]),
            opening=(JSONB(none_as_null=True), [opening for _, opening in documents]),
        )
        added = select(rows.c.request_id, rows.c.type, rows.c.payload, rows.c.opening)
        inserted = insert(EventRow).from_select(["request_id", "type", "payload", "opening"], added)
        numbers = list((await self._conn.execute(inserted.returning(EventRow.id))).scalars())
        await log.append(numbers)
        return numbers

    async def of_request(self, request_id: UUID) -> list[Event]:
        """Return the events of a request, oldest first."""
        query = select(EventRow.__table__).where(EventRow.request_id == request_id).order_by(EventRow.id)
        return [
            Event(row.id, request_id, EventType(row.type), row.payload, row.created_at)
            for row in await self._conn.execute(query)
        ]

    async def latest_figures(self, model: str) -> ServedFigures | None:
        """Return what the newest event that has figures of a model's weights says of them, None when none has."""
        of_request = and_(RequestRow.model == model, EventRow.payload.has_key("rank_after"))
        of_model = and_(EventRow.request_id.is_(None), EventRow.payload["model"].astext == model)
        query = (
            select(EventRow.payload, EventRow.opening)
            .outerjoin(RequestRow, RequestRow.id == EventRow.request_id)
            .where(or_(of_request, of_model))
            .order_by(EventRow.id.desc())
            .limit(1)
        )
        found = (await self._conn.execute(query)).one_or_none()
        return None if found is None else ServedFigures.read(found.payload, found.opening)
