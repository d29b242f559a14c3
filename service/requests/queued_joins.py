"""Nodes that unfinished additions name, by the keyed hashes that their tombstones would have.

By these hashes a node can be deleted before it has joined. A deletion of such a node records it again, and so ends well
even if the addition is cancelled first. A trigger removes them when the request ends.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

from sqlalchemy import LargeBinary, SmallInteger, Text, Uuid, func, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.access.keyring import Keyring
from service.db.rows import any_of, unnested
from service.db.tables import QueuedJoinRow, RequestRow
from service.domain.kinds import RequestKind


class Join(NamedTuple):
    """A node of an addition, or of a deletion before it has joined."""

    hash: bytes
    request_id: UUID
    model: str
    key_number: int


def joins_of(keyring: Keyring, model: str, request_id: UUID, nodes: Iterable[str]) -> list[Join]:
    """Return the joins of a request's `nodes`, under the newest tombstone key."""
    hashed = [keyring.tombstone_hash(model, RequestKind.NODE, node) for node in nodes]
    return [Join(digest, request_id, model, number) for number, digest in hashed]


class QueuedJoins:
    """The table `queued_joins` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def insert(self, joins: Sequence[Join]) -> None:
        """Record joins of additions that have their rows."""
        if not joins:
            return
        added = unnested(
            "added",
            hash=(LargeBinary(), [join.hash for join in joins]),
            request_id=(Uuid(), [join.request_id for join in joins]),
            model=(Text(), [join.model for join in joins]),
            key_number=(SmallInteger(), [join.key_number for join in joins]),
        )
        await self._conn.execute(insert(QueuedJoinRow).from_select(added.c.keys(), select(*added.c)))

    async def find(self, hashes: Collection[bytes]) -> dict[bytes, bool]:
        """Return the recorded ones of `hashes`, and whether an addition names them."""
        if not hashes:
            return {}
        adds = func.bool_or(RequestRow.kind == RequestKind.ADDITION).label("adds")
        query = select(QueuedJoinRow.hash, adds).join(RequestRow, RequestRow.id == QueuedJoinRow.request_id)
        query = query.where(QueuedJoinRow.hash == any_of(hashes, LargeBinary())).group_by(QueuedJoinRow.hash)
        return {row.hash: row.adds for row in await self._conn.execute(query)}
