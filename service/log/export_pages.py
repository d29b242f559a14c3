"""The whole log in pages. Existing rows never change, so pages need no common transaction."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, func, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.db.tables import CheckpointRow, EventRow, LeafRow
from service.db.transactions import transaction
from service.log import export
from service.log.canonical import Document
from service.log.export import ExportedCheckpoint, ExportedLeaf
from service.log.leaves import event_members, timestamp
from service.log.signed_checkpoints import CheckpointRepository

_PAGE = 1000
_EVENT_COLUMNS = (EventRow.id, EventRow.request_id, EventRow.type, EventRow.payload, EventRow.created_at)


async def export_lines(engine: AsyncEngine) -> AsyncIterator[Sequence[Document]]:
    """Yield the lines of an export of the current log, a page at a time. Raises `Unavailable`."""
    async with transaction(engine) as conn:
        keys = await CheckpointRepository(conn).keys()
        now: datetime = (await conn.execute(select(func.now()))).scalar_one()
        last_leaf = await conn.scalar(select(func.max(LeafRow.index)))
        last_event = await conn.scalar(select(func.max(EventRow.id)))
        last_checkpoint = await conn.scalar(select(func.max(CheckpointRow.id)))
    size = 0 if last_leaf is None else int(last_leaf) + 1
    yield [export.head(next((key.name for key in keys.values()), None), timestamp(now))]
    leaves = checkpoints = seen = 0
    for start in range(0, size, _PAGE) or [0]:
        stop = min(start + _PAGE, size)
        async with transaction(engine) as conn:
            page = await _leaves(conn, start, stop)
            # The last page takes all remaining checkpoints, whatever size they claim.
            limit = stop if stop < size else None
            signed, seen = await _checkpoints(conn, seen, last_checkpoint or 0, limit)
        leaves += len(page)
        checkpoints += len(signed)
        yield list(export.lines(page, signed))
    async with transaction(engine) as conn:
        orphans = await _unlogged(conn, last_event or 0)
    yield [*map(export.unlogged, orphans), export.end(leaves, checkpoints)]


async def _leaves(conn: AsyncConnection, start: int, stop: int) -> list[ExportedLeaf]:
    place = LeafRow.index.label("place")
    query = (
        select(place, LeafRow.data, LeafRow.hash, LeafRow.root, EventRow.opening, *_EVENT_COLUMNS)
        .outerjoin(EventRow, EventRow.id == LeafRow.event_id)
        .where(LeafRow.index >= start, LeafRow.index < stop)
        .order_by(LeafRow.index)
    )
    return [
        ExportedLeaf(row.place, row.data, row.hash, row.root, None if row.id is None else _members(row), row.opening)
        for row in await conn.execute(query)
    ]


async def _checkpoints(
    conn: AsyncConnection, after: int, last: int, size: int | None
) -> tuple[list[ExportedCheckpoint], int]:
    """Return the checkpoints with ids above `after` up to `last` and, if given, sizes up to `size`; and the last id."""
    query = select(CheckpointRow.id, CheckpointRow.size, CheckpointRow.note)
    query = query.where(CheckpointRow.id > after, CheckpointRow.id <= last).order_by(CheckpointRow.id)
    found: list[ExportedCheckpoint] = []
    for row in await conn.execute(query.limit(None if size is None else 2 * _PAGE)):
        if size is not None and row.size > size:
            break
        found.append(ExportedCheckpoint(row.size, row.note))
        after = row.id
    return found, after


async def _unlogged(conn: AsyncConnection, last: int) -> list[Document]:
    query = select(*_EVENT_COLUMNS).outerjoin(LeafRow, LeafRow.event_id == EventRow.id)
    query = query.where(LeafRow.event_id.is_(None), EventRow.id <= last).order_by(EventRow.id)
    return [_members(row) for row in await conn.execute(query)]


def _members(row: Row[*tuple[Any, ...]]) -> Document:
    return event_members(row.id, row.request_id, row.type, row.payload, row.created_at)
