"""The one clock that all times come from, Postgres', how far this machine's is from it, and the clock of leases."""

import time
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection


def boottime() -> float:
    """Seconds since the machine was started, those in which it slept among them.

    Unlike `time.monotonic`, which stands still while a machine is suspended: a lease runs out meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


#: A difference above this is wrong: times in logs and evidence no longer agree (seconds).
MOST_APART_S = 5.0


async def now(conn: AsyncConnection) -> datetime:
    """Return the time at which the caller's transaction began, UTC."""
    value: datetime = (await conn.execute(select(func.now()))).scalar_one()
    return value


async def apart(conn: AsyncConnection) -> float:
    """Return how far the clocks are apart at least (seconds)."""
    before = datetime.now(UTC)
    there: datetime = (await conn.execute(select(func.clock_timestamp()))).scalar_one()
    return least_apart(before, there, datetime.now(UTC))


def least_apart(before: datetime, there: datetime, after: datetime) -> float:
    """The least difference (seconds) of a clock that showed `there` between two readings of this machine's.

    Anything that this machine's could have shown between the two counts as agreement.
    """
    return max((before - there).total_seconds(), (there - after).total_seconds(), 0.0)
