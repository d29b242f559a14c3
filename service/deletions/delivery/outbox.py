"""Requests whose ids have to be put into the stream; written with them, emptied by the relay."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.arrays import any_of
from service.db.tables import OutboxRow


class OutboxRepository:
    """The table `outbox` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def take(self, model: str, limit: int) -> list[UUID]:
        """Return up to `limit` waiting requests, oldest first, that no other relay has taken; locks them."""
        query = select(OutboxRow.request_id).where(OutboxRow.model == model)
        query = query.order_by(OutboxRow.created_at).limit(limit).with_for_update(skip_locked=True)
        return list((await self._conn.execute(query)).scalars())

    async def delete(self, ids: Collection[UUID]) -> None:
        """Remove requests that are in the stream now."""
        await self._conn.execute(delete(OutboxRow).where(OutboxRow.request_id == any_of(ids)))
