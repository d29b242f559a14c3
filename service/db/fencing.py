"""Checking, inside a transaction, that a lease is still held, and keeping it from being taken over meanwhile.

A fenced transaction holds the lease's row with FOR KEY SHARE. Taking over changes `fencing`, which is part of a unique
constraint, and therefore waits for such transactions; a renewal changes `expires_at` alone and does not.
"""

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.tables import LeaseRow
from service.domain.records import Lease
from service.errors import LeaseLost


async def fence(conn: AsyncConnection, lease: Lease) -> None:
    """Keep `lease` from being taken over until the caller's transaction ends; raises `LeaseLost` when it already is."""
    row = select(LeaseRow.fencing).where(held(lease)).with_for_update(read=True, key_share=True)
    if await conn.scalar(row) is None:
        raise lost(lease)


async def wait_for_writers(conn: AsyncConnection, lease: Lease) -> None:
    """Wait until no earlier fenced transaction is still being committed, so that what is read next is final.

    For after an unanswered commit. Raises `LeaseLost` when the lease was taken over, or `Unavailable` from the
    surrounding `transaction` when that commit takes longer than the lock time-out.
    """
    row = select(LeaseRow.fencing).where(held(lease)).with_for_update()
    if await conn.scalar(row) is None:
        raise lost(lease)


def held(lease: Lease) -> ColumnElement[bool]:
    """Return the condition that `lease` is the one in force."""
    return and_(
        LeaseRow.name == lease.name,
        LeaseRow.holder == lease.holder,
        LeaseRow.fencing == lease.fencing,
        LeaseRow.expires_at > func.clock_timestamp(),
    )


def lost(lease: Lease) -> LeaseLost:
    """Return the error that says `lease` is gone."""
    return LeaseLost(
        f"The lease on {lease.name} (fencing number {lease.fencing}) ran out or was taken over.",
        "Nothing was written; the holder starts again with a new lease.",
    )
