"""Which readers there are, and which version each answers from."""

from collections.abc import Collection
from uuid import UUID

from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.notifications import Listening
from service.db.tables import ReaderLeaseRow

#: Notified, with the model's name, by every commit that moves a pointer.
POINTERS_CHANNEL = "lethe_pointers"
#: Notified, with the model's name, when a reader has moved to another version or gone.
READERS_CHANNEL = "lethe_readers"

_RENEW = "SELECT reader_lease_renew($1, $2, $3)"
_END = "SELECT reader_lease_end($1)"


async def renew(connection: Listening, reader: UUID, model: str, served: str | None) -> str | None:
    """Return the folder of the committed version, None when there is none, and renew the lease if `served` is that.

    One statement that commits by itself: a reader that is stopped in the middle of it holds nothing up. It waits for
    a pointer that is being moved. Raises `Unavailable`.
    """
    found: str | None = await connection.value(_RENEW, reader, model, served)
    return found


async def end(connection: Listening, reader: UUID) -> None:
    """The reader answers nothing any more. Raises `Unavailable`."""
    await connection.value(_END, reader)


class ReaderLeaseRepository:
    """The table `reader_leases` in the caller's transaction, for the unlearner."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def elsewhere(self, model: str, version: int) -> list[UUID]:
        """Return the readers that were last heard of on another version than this."""
        query = select(ReaderLeaseRow.reader).where(ReaderLeaseRow.model == model, ReaderLeaseRow.version != version)
        return list((await self._conn.execute(query)).scalars())

    async def remove(self, readers: Collection[UUID], *, unless: int | None = None) -> None:
        """Wait no longer for these readers; those that are on the version `unless` by now stay."""
        gone = delete(ReaderLeaseRow).where(ReaderLeaseRow.reader.in_(readers))
        await self._conn.execute(gone if unless is None else gone.where(ReaderLeaseRow.version != unless))
