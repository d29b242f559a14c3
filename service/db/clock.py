"""The one clock that all times come from: Postgres'."""

from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection


async def now(conn: AsyncConnection) -> datetime:
    """Return the time at which the caller's transaction began, UTC."""
    value: datetime = (await conn.execute(select(func.now()))).scalar_one()
    return value
