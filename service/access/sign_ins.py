"""How often somebody may try to sign in to the dashboard: attempts in vain, counted for all processes together."""

import math
from datetime import timedelta

from sqlalchemy import delete, func, insert, literal, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db import locks
from service.db.locks import Lock
from service.db.tables import SignInRow
from service.errors import TooManyAttempts

#: Attempts in vain that one address may make, in any span of so long: a person types them.
MOST_IN_VAIN = 10
SPAN = timedelta(minutes=5)


class SignInRepository:
    """The table `sign_ins` in the caller's transaction: attempts that failed, or that are under way."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def begin(self, address_hash: bytes) -> int:
        """Count an attempt, as one in vain until it has succeeded; returns its number.

        `address_hash` is a keyed hash (32 bytes). Raises TooManyAttempts when the address has used up its attempts.
        """
        await locks.take(self._conn, Lock.SIGN_INS)
        await self._conn.execute(delete(SignInRow).where(SignInRow.begun_at <= func.now() - literal(SPAN)))
        newest = (
            select(SignInRow.begun_at)
            .where(SignInRow.address_hash == address_hash)
            .order_by(SignInRow.begun_at.desc())
            .limit(MOST_IN_VAIN)
            .subquery()
        )
        until = func.extract("epoch", func.min(newest.c.begun_at) + literal(SPAN) - func.now())
        counted, wait = (await self._conn.execute(select(func.count(), until).select_from(newest))).one()
        if counted >= MOST_IN_VAIN:
            wait_s = max(1, math.ceil(wait))
            raise TooManyAttempts(
                f"There were too many failed attempts to sign in from your address: {MOST_IN_VAIN} within "
                f"{SPAN.total_seconds():.0f} seconds.",
                f"Try again in {wait_s} seconds.",
                retry_after=wait_s,
            )
        begun = insert(SignInRow).values(address_hash=address_hash).returning(SignInRow.id)
        return int((await self._conn.execute(begun)).scalar_one())

    async def succeeded(self, number: int) -> None:
        """Count an attempt no more."""
        await self._conn.execute(delete(SignInRow).where(SignInRow.id == number))
