"""Which keys of id lists the database needs, and which it needs no more.

A request names the slot of its key. The transaction that drops its ciphertext leaves the name there, for whoever
destroys the key, and a trigger notifies `KEYS_CHANNEL`; once the key is destroyed the request names it no more.
"""

from collections.abc import Collection, Mapping
from uuid import UUID

from sqlalchemy import Select, func, null, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.db import locks
from service.db.arrays import any_of
from service.db.locks import Lock
from service.db.rows import key_slot
from service.db.tables import RequestRow
from service.db.transactions import transaction
from service.domain.records import KeySlot
from service.domain.states import RequestStatus

KEYS_CHANNEL = "lethe_keys"
#: What is said there when there are keys of requests that were not stored.
ORPHANED = "orphaned"
#: States in which a request's own key is still needed to carry it out.
_UNFINISHED = (RequestStatus.QUEUED, RequestStatus.APPLIED)
_PATIENCE = "1s"


class RequestKeyRepository:
    """The slots that the table `requests` names, in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def unfinished(self) -> dict[UUID, KeySlot | None]:
        """Return the requests that cannot be carried out without their own key, each with its slot."""
        query = _slots().where(RequestRow.status.in_(_UNFINISHED), RequestRow.ciphertext.is_not(None))
        return {row.id: key_slot(row) for row in await self._conn.execute(query)}

    async def vouchers(self, ids: Collection[UUID]) -> dict[UUID, bytes]:
        """Return the voucher of each of these requests, empty if it has none."""
        query = select(RequestRow.id, RequestRow.voucher).where(RequestRow.id == any_of(ids))
        return {row.id: row.voucher or b"" for row in await self._conn.execute(query)}

    async def slot(self, request_id: UUID) -> KeySlot | None:
        """Return where the key of a request is; None when it has none (any more)."""
        row = (await self._conn.execute(_slots().where(RequestRow.id == request_id))).one_or_none()
        return None if row is None else key_slot(row)

    async def dropped(self, *, limit: int) -> dict[UUID, KeySlot]:
        """Return up to `limit` requests whose ciphertexts were dropped, and whose keys may still be there."""
        query = _slots().where(RequestRow.ciphertext.is_(None), RequestRow.key_place.is_not(None)).limit(limit)
        return {row.id: KeySlot(row.key_file, row.key_place) for row in await self._conn.execute(query)}

    async def forget(self, ids: Collection[UUID]) -> None:
        """Record that the keys of `ids`, whose ciphertexts were dropped, are destroyed.

        Lost with a crash of Postgres, at which nothing is lost: an empty slot is emptied again.
        """
        await self._conn.execute(text("SET LOCAL synchronous_commit = off"))
        forgotten = update(RequestRow).where(RequestRow.id == any_of(ids), RequestRow.ciphertext.is_(None))
        await self._conn.execute(forgotten.values(key_file=null(), key_place=null()))

    async def notify_orphaned(self) -> None:
        """Have the unlearner look for keys of requests that were not stored, once this transaction is committed."""
        await self._conn.execute(select(func.pg_notify(KEYS_CHANNEL, ORPHANED)))


async def enter(conn: AsyncConnection) -> None:
    """Begin to store requests; before their keys are reserved, so that no key is in a file that nobody vouches for."""
    await locks.share(conn, Lock.INTAKE)


async def exclude_writers(conn: AsyncConnection) -> None:
    """Keep out transactions that `enter`, until the caller's ends, once those under way have ended.

    Among them are commits whose callers have died. Raises what `transaction` makes `Unavailable` of when they take too
    long, as those of a process that was stopped: whoever waits here holds up all that would enter.
    """
    await conn.execute(text(f"SET LOCAL lock_timeout = '{_PATIENCE}'"))
    await locks.take(conn, Lock.INTAKE)


async def orphaned(engine: AsyncEngine, held: Mapping[UUID, KeySlot]) -> dict[UUID, KeySlot]:
    """Return those of the keys `held` that no request needs. Raises `Unavailable`.

    Whoever reserves keys is in the intake by then, so what is found of the files before this, and is in no row after
    all transactions there have ended, is needed by none to come.
    """
    async with transaction(engine) as conn:
        await exclude_writers(conn)
        query = _slots().where(RequestRow.id == any_of(held), RequestRow.ciphertext.is_not(None))
        needed = {row.id: key_slot(row) for row in await conn.execute(query)}
    return {request_id: slot for request_id, slot in held.items() if needed.get(request_id) != slot}


def _slots() -> Select[UUID, int | None, int | None]:
    return select(RequestRow.id, RequestRow.key_file, RequestRow.key_place)
