"""Locks that processes take turns by, each a table without rows.

Only a login with a right to such a table can hold its lock (`service.db.rights`), while any login can hold an advisory
lock of Postgres. A lock lasts until the caller's transaction ends.
"""

from enum import StrEnum

from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.transactions import sqlstate

#: SQLSTATE of a lock that was not free, or not within the lock time-out.
NOT_AVAILABLE = "55P03"


class Lock(StrEnum):
    """What a lock guards, by its table."""

    #: Transactions that reserve keys share it; who decides which keys are orphaned takes it alone.
    INTAKE = "lock_intake"
    #: Appending to the log.
    LOG = "lock_log"
    #: Giving events of the feed their places.
    FEED = "lock_feed"
    #: Adding up the totals of the audit.
    TOTALS = "lock_totals"
    #: Recording a drill.
    DRILLS = "lock_drills"
    #: Beginning a session of the dashboard.
    SESSIONS = "lock_sessions"


async def take(conn: AsyncConnection, lock: Lock) -> None:
    """Wait for `lock`, and keep others out. `transaction` raises `Unavailable` after the lock time-out."""
    await conn.execute(text(f"LOCK TABLE {lock} IN SHARE ROW EXCLUSIVE MODE"))


async def share(conn: AsyncConnection, lock: Lock) -> None:
    """Wait for who has taken `lock`, and hold it together with others who share it. Raises as `take`."""
    await conn.execute(text(f"LOCK TABLE {lock} IN ROW EXCLUSIVE MODE"))


async def take_if_free(conn: AsyncConnection, lock: Lock) -> bool:
    """Take `lock` unless somebody else holds it, and return whether it was free."""
    try:
        async with conn.begin_nested():
            await conn.execute(text(f"LOCK TABLE {lock} IN SHARE ROW EXCLUSIVE MODE NOWAIT"))
    except DBAPIError as error:
        if sqlstate(error) != NOT_AVAILABLE:
            raise
        return False
    return True
