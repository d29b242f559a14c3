"""Keys of requests that need them no more: left where a crash fell between a commit and their destruction."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy.ext.asyncio import AsyncEngine

from service.db import intake_rows
from service.db.transactions import transaction


async def orphaned(engine: AsyncEngine, ids: Collection[UUID]) -> frozenset[UUID]:
    """Return those of `ids` whose requests are absent or forgotten. Raises `Unavailable`.

    For keys from before this process took any request: that of one which is being stored is not known from it. Waits
    for commits under way whose callers have died.
    """
    async with transaction(engine) as conn:
        await intake_rows.exclude_writers(conn, wait=True)
        return frozenset(ids) - await intake_rows.holding_targets(conn, ids)
