"""What happened to each request, in order; the table only ever grows."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import Text, Uuid, insert, select
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.arrays import unnested
from service.db.models import EventRow
from service.domain.states import EventType

#: The content of an event: canonical JSON values, no ids of nodes.
Payload = Mapping[str, object]


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

    async def append(self, request_id: UUID, event_type: EventType, payload: Payload) -> int:
        """Add an event and return its number; `RequestRepository.mark_*` do this themselves."""
        row = insert(EventRow).values(request_id=request_id, type=event_type, payload=dict(payload))
        number: int = (await self._conn.execute(row.returning(EventRow.id))).scalar_one()
        return number

    async def append_many(self, event_type: EventType, payloads: Mapping[UUID, Payload]) -> None:
        """Add an event of one type to each of several requests, in their order."""
        rows = unnested(
            "added",
            request_id=(Uuid(), list(payloads)),
            type=(Text(), [event_type.value] * len(payloads)),
            payload=(JSONB(), [dict(payload) for payload in payloads.values()]),
        )
        added = select(rows.c.request_id, rows.c.type, rows.c.payload)
        await self._conn.execute(insert(EventRow).from_select(["request_id", "type", "payload"], added))

    async def of_request(self, request_id: UUID) -> list[Event]:
        """Return the events of a request, oldest first."""
        query = select(EventRow.__table__).where(EventRow.request_id == request_id).order_by(EventRow.id)
        return [
            Event(row.id, row.request_id, EventType(row.type), row.payload, row.created_at)
            for row in await self._conn.execute(query)
        ]
