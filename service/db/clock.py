"""Postgres's clock, which all times come from, this machine's offset from it, and the clock of leases."""

import time
from datetime import UTC, datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection


def boottime() -> float:
    """Return the seconds since the machine booted, including sleep.

    `time.monotonic` stands still while a machine is suspended, but a lease expires meanwhile.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME)


#: A larger offset is an error: times in logs and evidence no longer agree (seconds).
MOST_APART_S = 5.0


async def now(conn: AsyncConnection) -> datetime:
    """Return the start time of the caller's transaction, UTC."""
    value: datetime = (await conn.execute(select(func.now()))).scalar_one()
    return value


async def apart(conn: AsyncConnection) -> float:
    """Return the minimum offset between the clocks (seconds)."""
    before = datetime.now(UTC)
    there: datetime = (await conn.execute(select(func.clock_timestamp()))).scalar_one()
    return least_apart(before, there, datetime.now(UTC))


def least_apart(before: datetime, there: datetime, after: datetime) -> float:
    """Return the minimum offset (seconds) of a clock that showed `there` between two local readings.

    Any value that the local clock could have shown between the two counts as agreement.
    """
    return max((before - there).total_seconds(), (there - after).total_seconds(), 0.0)
