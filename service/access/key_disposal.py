"""Id-list keys that the database still needs, and destruction of the others by the unlearner."""

import asyncio
from collections.abc import Collection, Mapping
from uuid import UUID

import structlog
from sqlalchemy import Select, func, null, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service import failure_points
from service.access.request_keys import RequestKeys
from service.db import locks
from service.db.engine import Engine
from service.db.locks import Lock
from service.db.notifications import listen
from service.db.rows import any_of, key_slot
from service.db.tables import RequestRow
from service.db.transactions import Repository, transaction
from service.domain.records import KeySlot
from service.domain.states import RequestStatus
from service.errors import Unavailable
from service.failure_points import FailurePoint
from service.queue.outage import Outage, run_until

KEYS_CHANNEL = "lethe_keys"
#: Payload that announces keys of requests that were not stored.
ORPHANED = "orphaned"
#: States in which a request still needs its own key.
_UNFINISHED = (RequestStatus.QUEUED, RequestStatus.APPLIED)
_PATIENCE = "1s"


class RequestKeyRepository(Repository):
    """The key slots in the table `requests`, in the caller's transaction."""

    async def unfinished(self) -> dict[UUID, KeySlot | None]:
        """Return the requests that need their own key to be carried out, each with its slot."""
        query = _slots().where(RequestRow.status.in_(_UNFINISHED), RequestRow.ciphertext.is_not(None))
        return {row.id: key_slot(row) for row in await self._conn.execute(query)}

    async def vouchers(self, ids: Collection[UUID]) -> dict[UUID, bytes]:
        """Return the voucher of each request, empty if it has none."""
        query = select(RequestRow.id, RequestRow.voucher).where(RequestRow.id == any_of(ids))
        return {row.id: row.voucher or b"" for row in await self._conn.execute(query)}

    async def slot(self, request_id: UUID) -> KeySlot | None:
        """Return the slot of a request's key; None if it has none, or no longer."""
        row = (await self._conn.execute(_slots().where(RequestRow.id == request_id))).one_or_none()
        return None if row is None else key_slot(row)

    async def dropped(self, *, limit: int) -> dict[UUID, KeySlot]:
        """Return up to `limit` requests whose ciphertexts were dropped and whose keys may still exist."""
        query = _slots().where(RequestRow.ciphertext.is_(None), RequestRow.key_place.is_not(None)).limit(limit)
        return {row.id: KeySlot(row.key_file, row.key_place) for row in await self._conn.execute(query)}

    async def forget(self, ids: Collection[UUID]) -> None:
        """Record that the keys of `ids`, whose ciphertexts were dropped, are destroyed.

        A crash of Postgres may lose this record. That is harmless: emptying an empty slot again changes nothing.
        """
        await self._conn.execute(text("SET LOCAL synchronous_commit = off"))
        forgotten = update(RequestRow).where(RequestRow.id == any_of(ids), RequestRow.ciphertext.is_(None))
        await self._conn.execute(forgotten.values(key_file=null(), key_place=null()))

    async def notify_orphaned(self) -> None:
        """Make the unlearner look for keys of requests that were not stored, once this transaction commits."""
        await self._conn.execute(select(func.pg_notify(KEYS_CHANNEL, ORPHANED)))


async def enter(conn: AsyncConnection) -> None:
    """Begin to store requests. Call it before reserving their keys, so that every key in a file has a known writer."""
    await locks.share(conn, Lock.INTAKE)


async def exclude_writers(conn: AsyncConnection) -> None:
    """Wait for transactions that called `enter`, and block new ones until the caller's transaction ends.

    Among them may be commits whose callers died. If they take too long, as those of a stopped process may, this raises
    the error that `transaction` turns into `Unavailable`: a waiter here blocks everyone who calls `enter`.
    """
    await conn.execute(text(f"SET LOCAL lock_timeout = '{_PATIENCE}'"))
    await locks.take(conn, Lock.INTAKE)


async def orphaned(engine: AsyncEngine, held: Mapping[UUID, KeySlot]) -> dict[UUID, KeySlot]:
    """Return the keys in `held` that no request needs. Raises `Unavailable`.

    Writers `enter` before they reserve keys. So no later request needs a key that was in the files before this call,
    once all transactions inside have ended and no row names the key.
    """
    async with transaction(engine) as conn:
        await exclude_writers(conn)
        query = _slots().where(RequestRow.id == any_of(held), RequestRow.ciphertext.is_not(None))
        needed = {row.id: key_slot(row) for row in await conn.execute(query)}
    return {request_id: slot for request_id, slot in held.items() if needed.get(request_id) != slot}


def _slots() -> Select[UUID, int | None, int | None]:
    return select(RequestRow.id, RequestRow.key_file, RequestRow.key_place)


#: Longest delay before an unneeded key is destroyed if a notification gets lost (seconds).
_POLL_S = 1.0
#: Keys destroyed together, with one sync.
_PAGE = 10_000


class UnneededKeys:
    """Destroys unneeded keys. Idempotent and safe to run concurrently."""

    def __init__(self, engine: Engine, request_keys: RequestKeys) -> None:
        self._engine = engine
        self._keys = request_keys
        #: Keeps the batch that just ended and the one woken by its commit from syncing the same files twice.
        self._turn = asyncio.Lock()
        #: Set once the database is known to belong to these keys.
        self._is_ours = asyncio.Event()
        self._outage = Outage("keys of id lists")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """From `begin` until `stop` is set, destroy all unneeded keys as they appear; survives outages."""
        await run_until(stop, self._run())

    async def begin(self) -> None:
        """Destroy keys of dropped ciphertexts, and from now on all unneeded keys. Raises `Unavailable`, `OSError`.

        Call it only after confirming that database and store belong together. If the database is an older backup, even
        keys of requests that it does not know must stay.
        """
        await self.destroy_dropped()
        self._is_ours.set()

    async def destroy_dropped(self) -> int:
        """Destroy the keys of requests whose ciphertexts were dropped; return their number. Raises as `begin`."""
        destroyed = 0
        async with self._turn:
            while True:
                async with transaction(self._engine) as connection:
                    dropped = await RequestKeyRepository(connection).dropped(limit=_PAGE)
                if not dropped:
                    return destroyed
                await asyncio.to_thread(self._keys.destroy, dropped)
                failure_points.reached(FailurePoint.KEYS_EMPTIED)
                async with transaction(self._engine) as connection:
                    await RequestKeyRepository(connection).forget(dropped)
                destroyed += len(dropped)
                if len(dropped) < _PAGE:
                    return destroyed

    async def destroy_orphaned(self) -> int:
        """Destroy keys without a request and slots torn by a crash; return their number. Raises as `begin`."""
        destroyed = await asyncio.to_thread(self._keys.clear_torn)
        pages = self._keys.held()
        while page := await asyncio.to_thread(next, pages, None):
            orphans = await orphaned(self._engine, page)
            await asyncio.to_thread(self._keys.destroy, orphans)
            destroyed += len(orphans)
        if destroyed:
            self._log.info("keys.orphaned", destroyed=destroyed)
        return destroyed

    async def _run(self) -> None:
        await self._is_ours.wait()
        while True:
            try:
                # Listen first, then destroy everything pending: notifications from before are not repeated.
                async with listen(self._engine, KEYS_CHANNEL) as wakeup:
                    said = {ORPHANED}
                    while True:
                        await self.destroy_dropped()
                        if ORPHANED in said:
                            await self.destroy_orphaned()
                        self._outage.over()
                        await wakeup.wait(_POLL_S)
                        said = wakeup.payloads()
            except (Unavailable, OSError) as error:
                await self._outage.pause(error)
