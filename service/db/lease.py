"""The right to write one model: a row timed by Postgres' clock, with a number that grows at each acquisition."""

from datetime import timedelta

from sqlalchemy import func, literal, or_, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncEngine

from service.boottime import boottime
from service.db.fencing import fence, held, lost, settle
from service.db.models import LeaseRow
from service.db.transactions import transaction
from service.domain.records import Lease

__all__ = ["acquire", "fence", "release", "renew", "settle"]

#: The share of a lease's time after which its holder must not start a write.
_USABLE_SHARE = 2 / 3


async def acquire(engine: AsyncEngine, name: str, holder: str, ttl_seconds: float, *, above: int = 0) -> Lease | None:
    """Take the lease `name` for `ttl_seconds`, or return None while another holder has it.

    Its fencing number is greater than all before, of the same holder too, and than `above`: a restored database has
    forgotten some.
    Waits for a write of the former holder that is still being committed. Raises `Unavailable`.
    """
    asked_at = boottime()
    expires_at = func.clock_timestamp() + literal(timedelta(seconds=ttl_seconds))
    taken = insert(LeaseRow).values(name=name, holder=holder, fencing=above + 1, expires_at=expires_at)
    taken = taken.on_conflict_do_update(
        index_elements=[LeaseRow.name],
        set_={"holder": holder, "fencing": func.greatest(LeaseRow.fencing, above) + 1, "expires_at": expires_at},
        where=or_(LeaseRow.expires_at <= func.clock_timestamp(), LeaseRow.holder == holder),
    )
    async with transaction(engine) as conn:
        fencing = await conn.scalar(taken.returning(LeaseRow.fencing))
    if fencing is None:
        return None
    return Lease(name, holder, fencing, ttl_seconds, asked_at + ttl_seconds * _USABLE_SHARE)


async def renew(engine: AsyncEngine, lease: Lease) -> Lease:
    """Return `lease` with its full time from now; raises `LeaseLost` when it has run out, and `Unavailable`."""
    asked_at = boottime()
    expires_at = func.clock_timestamp() + literal(timedelta(seconds=lease.ttl_seconds))
    renewed = update(LeaseRow).where(held(lease)).values(expires_at=expires_at).returning(LeaseRow.fencing)
    async with transaction(engine) as conn:
        if await conn.scalar(renewed) is None:
            raise lost(lease)
    give_up_at = asked_at + lease.ttl_seconds * _USABLE_SHARE
    return Lease(lease.name, lease.holder, lease.fencing, lease.ttl_seconds, give_up_at)


async def release(engine: AsyncEngine, lease: Lease) -> None:
    """Let another holder take the lease at once; does nothing when it is lost already. Raises `Unavailable`."""
    async with transaction(engine) as conn:
        await conn.execute(update(LeaseRow).where(held(lease)).values(expires_at=func.clock_timestamp()))
