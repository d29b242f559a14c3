"""Locks between processes, each an empty table.

Only a login with a right to the table can hold its lock (`service.db.roles`); any login could hold a Postgres advisory
lock. A lock lasts until the caller's transaction ends.
"""

from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.transactions import sqlstate

#: SQLSTATE of a lock that was not free, or did not become free within the lock time-out.
NOT_AVAILABLE = "55P03"


class Lock(StrEnum):
    """The locks, by their tables."""

    #: Shared by transactions that reserve keys; exclusive to the search for orphaned keys.
    INTAKE = "lock_intake"
    #: Appending to the log.
    LOG = "lock_log"
    #: Assigning places to events of the feed.
    FEED = "lock_feed"
    #: Adding up the totals of the audit.
    TOTALS = "lock_totals"
    #: Recording a drill.
    DRILLS = "lock_drills"
    #: Starting a session of the dashboard.
    SESSIONS = "lock_sessions"


async def take(conn: AsyncConnection, lock: Lock) -> None:
    """Wait for `lock`, and take it exclusively. `transaction` raises `Unavailable` after the lock time-out."""
    await conn.execute(text(f"LOCK TABLE {lock} IN SHARE ROW EXCLUSIVE MODE"))


async def share(conn: AsyncConnection, lock: Lock) -> None:
    """Wait until nobody holds `lock` exclusively, and share it. Raises like `take`."""
    await conn.execute(text(f"LOCK TABLE {lock} IN ROW EXCLUSIVE MODE"))


async def take_if_free(conn: AsyncConnection, lock: Lock) -> bool:
    """Take `lock` if it is free; return whether it was."""
    try:
        async with conn.begin_nested():
            await conn.execute(text(f"LOCK TABLE {lock} IN SHARE ROW EXCLUSIVE MODE NOWAIT"))
    except DBAPIError as error:
        if sqlstate(error) != NOT_AVAILABLE:
            raise
        return False
    return True
