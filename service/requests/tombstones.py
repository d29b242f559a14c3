"""Tombstones: keyed hashes of deleted targets, looked up by external id, and the keys that made them."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from sqlalchemy import LargeBinary, Row, SmallInteger, Text, Uuid, and_, bindparam, func, or_, select, update
from sqlalchemy.dialects.postgresql import Insert, insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.access.keyring import Keyring
from service.db.engine import Engine
from service.db.rows import any_given, any_of, given, given_rows
from service.db.tables import QueuedJoinRow, TombstoneKeyRow, TombstoneRow
from service.db.transactions import transaction
from service.domain.kinds import DELETIONS, Part, RequestKind, Target, removing
from service.domain.records import Tombstone
from service.predictions.reader import offload
from service.requests.queued_joins import QueuedJoins

_COLUMNS = (
    *(TombstoneRow.kind, TombstoneRow.hash, TombstoneRow.key_number, TombstoneRow.request_id),
    TombstoneRow.rejoined_by.is_not(None).label("is_void"),
)


def _insert() -> Insert:
    """Build the statement of `TombstoneRepository.insert`."""
    keys = given_rows("keys", number=SmallInteger(), fingerprint=LargeBinary())
    registering = insert(TombstoneKeyRow).from_select(keys.c.keys(), select(*keys.c))
    registered = registering.on_conflict_do_nothing().cte("registered")
    rows = given_rows(
        "added",
        hash=LargeBinary(),
        kind=Text(),
        key_number=SmallInteger(),
        request_id=Uuid(),
        recovery_id=Uuid(),
    )
    names = [*rows.c.keys(), "model"]
    added = insert(TombstoneRow).from_select(names, select(*rows.c, bindparam("of", type_=Text())))
    # What was deleted, joined again and is deleted now has a tombstone already, which becomes valid again. What is
    # still queued to join again has one too: the later deletion must count, or it would join.
    anew = {name: added.excluded[name] for name in ("request_id", "recovery_id")} | {"rejoined_by": None}
    joining = select(QueuedJoinRow.hash).where(QueuedJoinRow.hash == any_given("added_hash", LargeBinary()))
    valid_again = added.on_conflict_do_update(
        index_elements=[TombstoneRow.hash],
        set_=anew,
        where=or_(TombstoneRow.rejoined_by.is_not(None), TombstoneRow.hash.in_(joining)),
    )
    return valid_again.add_cte(registered)


#: Built once, because deletions wait for it.
_INSERT = _insert()


class TombstoneRepository:
    """The tables `tombstones` and `tombstone_keys` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def insert(
        self,
        model: str,
        tombstones: Sequence[Tombstone],
        fingerprints: Mapping[int, bytes],
        recovery: UUID | None = None,
    ) -> None:
        """Record deletions of a model; an existing hash keeps its earlier request unless its target joins again.

        `fingerprints` are those of the keyring; those of the keys used are registered. Tombstones without a request
        refer to `recovery`.
        """
        used = sorted({tombstone.key_number for tombstone in tombstones})
        if not used:
            return
        added = given(
            "added",
            hash=[tombstone.hash for tombstone in tombstones],
            kind=[tombstone.kind.value for tombstone in tombstones],
            key_number=[tombstone.key_number for tombstone in tombstones],
            request_id=[tombstone.request_id for tombstone in tombstones],
            recovery_id=[None if tombstone.request_id else recovery for tombstone in tombstones],
        )
        keys = given("keys", number=used, fingerprint=[fingerprints[number] for number in used])
        await self._conn.execute(_INSERT, {"of": model, **added, **keys})

    async def lift(self, model: str, hashes: Mapping[UUID, Sequence[bytes]]) -> None:
        """Make the tombstones with these hashes void, because of the request by which their targets join again."""
        for request_id, those in hashes.items():
            await self._conn.execute(
                update(TombstoneRow)
                .where(TombstoneRow.model == model, TombstoneRow.hash == any_of(those, LargeBinary()))
                .where(TombstoneRow.rejoined_by.is_(None))
                .values(rejoined_by=request_id)
            )

    async def find(self, hashes: Collection[bytes], *, with_void: bool = False) -> dict[bytes, UUID | None]:
        """Return those `hashes` that are recorded, those under newer keys last, each with the request that deleted it.

        None stands for a request that this database, restored from an older backup, lacks. The tombstones of what
        joined again are void, and left out unless `with_void`.
        """
        if not hashes:
            return {}
        query = select(TombstoneRow.hash, TombstoneRow.request_id)
        query = query.where(TombstoneRow.hash == any_of(hashes, LargeBinary())).order_by(TombstoneRow.key_number)
        if not with_void:
            query = query.where(TombstoneRow.rejoined_by.is_(None))
        return {row.hash: row.request_id for row in await self._conn.execute(query)}

    async def count(self, model: str, part: Part | None = None, *, with_void: bool = True) -> int:
        """Return the number of tombstones of one part, or of any, in a model."""
        kinds = DELETIONS if part is None else removing(part)
        query = select(func.count()).where(TombstoneRow.model == model, TombstoneRow.kind.in_(kinds))
        if not with_void:
            query = query.where(TombstoneRow.rejoined_by.is_(None))
        return int(await self._conn.scalar(query) or 0)

    async def of_model(self, model: str) -> list[Tombstone]:
        """Return the tombstones of a model that are not void."""
        valid = select(*_COLUMNS).where(TombstoneRow.model == model, TombstoneRow.rejoined_by.is_(None))
        return self._read(await self._conn.execute(valid))

    async def of_requests(self, ids: Collection[UUID]) -> list[Tombstone]:
        """Return the tombstones of these requests, and those that they made void."""
        rejoined = and_(TombstoneRow.rejoined_by.is_not(None), TombstoneRow.rejoined_by == any_of(ids))
        of_these = or_(TombstoneRow.request_id == any_of(ids), rejoined)
        return self._read(await self._conn.execute(select(*_COLUMNS).where(of_these)))

    async def of_recoveries(self, ids: Collection[UUID]) -> list[Tombstone]:
        """Return the tombstones that these recoveries added."""
        return self._read(await self._conn.execute(select(*_COLUMNS).where(TombstoneRow.recovery_id == any_of(ids))))

    def _read(self, rows: Iterable[Row[Any]]) -> list[Tombstone]:
        return [Tombstone(RequestKind(row.kind), row.hash, row.key_number, row.request_id, row.is_void) for row in rows]

    async def key_fingerprints(self) -> dict[int, bytes]:
        """Return the fingerprints of the keys of recorded tombstones, for `Keyring.check`."""
        query = select(TombstoneKeyRow.number, TombstoneKeyRow.fingerprint)
        return {row.number: row.fingerprint for row in await self._conn.execute(query)}


class TombstoneLookup:
    """Looks up deletions and their requests by keyed hash, under every tombstone key."""

    def __init__(self, engine: Engine, keyring: Keyring, model: str) -> None:
        self._engine = engine
        self._keyring = keyring
        self._model = model

    async def find(self, part: Part, targets: Sequence[Target]) -> dict[Target, UUID | None]:
        """Return those `targets` whose part was deleted, each with the request. Raises Unavailable.

        None stands for a request that the database, restored from an older backup, lacks.
        """
        if not targets:
            return {}
        by_hash = await offload(len(targets), lambda: self._keyring.tombstone_hashes(self._model, part, targets))
        async with transaction(self._engine) as connection:
            found = await TombstoneRepository(connection).find(by_hash)
        return {by_hash[digest]: request_id for digest, request_id in found.items()}

    async def states(self, nodes: Sequence[str]) -> tuple[dict[Target, UUID | None], set[Target]]:
        """Return the deleted ones of `nodes`, like `find`, and those that are queued to join.

        Those include nodes whose addition was cancelled after a deletion named them. Raises Unavailable.
        """
        if not nodes:
            return {}, set()
        by_hash = await offload(len(nodes), lambda: self._keyring.tombstone_hashes(self._model, Part.NODES, nodes))
        async with transaction(self._engine) as connection:
            deleted = await TombstoneRepository(connection).find(by_hash)
            joining = await QueuedJoins(connection).find(by_hash)
        by_node = {by_hash[digest]: request_id for digest, request_id in deleted.items()}
        return by_node, {by_hash[digest] for digest, adds in joining.items() if adds or digest not in deleted}

    async def deleted_nodes(self, nodes: Sequence[str]) -> dict[str, UUID | None]:
        """Return those `nodes` that were deleted, like `find`. Raises Unavailable."""
        found = await self.find(Part.NODES, nodes)
        return {node: request_id for node, request_id in found.items() if isinstance(node, str)}
