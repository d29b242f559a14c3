"""Requests with their audits: found by what they are and what was measured, newest first."""

from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, Select, Uuid, func, literal, select, tuple_
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from service.db.models import BatchRow, RequestAuditRow, RequestRow
from service.db.records import (
    BATCH_COLUMNS,
    NORM_COLUMNS,
    REQUEST_COLUMNS,
    batch_record,
    deletion_request,
    request_norms,
)
from service.db.transactions import transaction
from service.domain.audit import AuditEntry, AuditFilters, Figure
from service.domain.records import RequestAudit
from service.domain.states import AUDITED, RequestStatus
from service.vault.cursors import PageCursor

#: Requests read at a time by an export.
EXPORT_PAGE = 500
#: How many of the newest requests a search looks through before it looks for what was measured.
_CANDIDATES = 5000
_POSITION = tuple_(RequestRow.received_at, RequestRow.id)
_FIGURES = {
    Figure.INJECTED_NORM_BEFORE: RequestAuditRow.injected_norm_before,
    Figure.INJECTED_NORM_AFTER: RequestAuditRow.injected_norm_after,
    Figure.DISTANCE_BOUND_BEFORE_RELATIVE: BatchRow.distance_bound_before_relative,
    Figure.DISTANCE_BOUND_AFTER_RELATIVE: BatchRow.distance_bound_after_relative,
    Figure.SPAN_RESIDUAL: BatchRow.span_residual,
}


@dataclass(frozen=True)
class Page:
    """Requests, newest first."""

    entries: list[AuditEntry]
    #: Where the next page starts; None on the last.
    next_cursor: PageCursor | None


async def search(conn: AsyncConnection, filters: AuditFilters, cursor: PageCursor | None, limit: int) -> Page:
    """Return up to `limit` requests that `filters` keep and that come after `cursor`, newest first.

    Where many requests match, the newest of them fill the page soon; where few do, an index on what was measured finds
    them. Postgres cannot know which it is (repairs that converged hardly ever have a large bound), so the newest
    `_CANDIDATES` are looked through first, and only then all.
    """
    kept = [*_conditions(filters), *_after(cursor)]
    oldest = await _oldest_candidate(conn, filters, cursor) if _may_keep_few(filters) else None
    if oldest is None:
        return await _page(conn, kept, limit)
    page = await _page(conn, [*kept, _place(oldest) <= _POSITION], limit)
    if page.next_cursor is not None:
        return page
    # Materialised, because the plan would else be to walk from the newest again.
    found = _joined(select(RequestRow.id, RequestRow.received_at)).where(*kept).cte("found").prefix_with("MATERIALIZED")
    newest = select(found.c.id).order_by(found.c.received_at.desc(), found.c.id.desc()).limit(limit + 1)
    ids = (await conn.execute(newest)).scalars().all()
    return await _page(conn, [_among(ids)], limit)


async def export(engine: AsyncEngine, filters: AuditFilters) -> AsyncIterator[list[AuditEntry]]:
    """Yield all requests that `filters` keep, newest first, a page at a time; raises `Unavailable`.

    Memory does not grow with their number. Each page is read in a transaction of its own, so that whoever reads slowly
    holds neither a connection nor a snapshot; a request that moves meanwhile is exported as it is by then.
    """
    cursor: PageCursor | None = None
    while True:
        async with transaction(engine) as conn:
            page = await search(conn, filters, cursor, EXPORT_PAGE)
        yield page.entries
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


async def _page(conn: AsyncConnection, conditions: Sequence[ColumnElement[bool]], limit: int) -> Page:
    query = _joined(select(*REQUEST_COLUMNS, *BATCH_COLUMNS, *NORM_COLUMNS)).where(*conditions)
    # One more than asked for tells whether there is a next page.
    query = query.order_by(RequestRow.received_at.desc(), RequestRow.id.desc()).limit(limit + 1)
    entries = [_entry(row) for row in await conn.execute(query)]
    shown = entries[:limit]
    last = shown[-1].request if len(entries) > limit else None
    return Page(shown, None if last is None else PageCursor(last.received_at, last.id))


async def _oldest_candidate(
    conn: AsyncConnection, filters: AuditFilters, cursor: PageCursor | None
) -> PageCursor | None:
    """The last of the newest `_CANDIDATES` requests, or None when there are not as many; read from one index."""
    query = select(RequestRow.received_at, RequestRow.id).where(*_indexed(filters), *_after(cursor))
    query = query.order_by(RequestRow.received_at.desc(), RequestRow.id.desc()).offset(_CANDIDATES - 1).limit(1)
    row = (await conn.execute(query)).one_or_none()
    return None if row is None else PageCursor(row.received_at, row.id)


def _may_keep_few(filters: AuditFilters) -> bool:
    """Whether something is filtered for which there is no index in the order of a page."""
    return bool(filters.thresholds or filters.guarantee or filters.repair or (filters.kind and filters.status))


def _joined(query: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    return (
        query.select_from(RequestRow)
        .join(RequestAuditRow, RequestAuditRow.request_id == RequestRow.id, isouter=True)
        .join(BatchRow, BatchRow.id == RequestAuditRow.batch_id, isouter=True)
    )


def _place(cursor: PageCursor) -> ColumnElement[Any]:
    return tuple_(literal(cursor.received_at), literal(cursor.id))


def _after(cursor: PageCursor | None) -> list[ColumnElement[bool]]:
    return [] if cursor is None else [_place(cursor) > _POSITION]


def _among(ids: Collection[UUID]) -> ColumnElement[bool]:
    return RequestRow.id == func.any(literal(list(ids), ARRAY(Uuid())))


def _indexed(filters: AuditFilters) -> Iterator[ColumnElement[bool]]:
    """The conditions that an index in the order of a page answers."""
    if filters.status is not None:
        yield RequestRow.status == filters.status
    elif filters.kind is not None:
        yield RequestRow.kind == filters.kind
    if filters.api_key_id is not None:
        yield RequestRow.api_key_id == filters.api_key_id
    if filters.since is not None:
        yield RequestRow.received_at >= filters.since
    if filters.until is not None:
        yield RequestRow.received_at < filters.until


def _conditions(filters: AuditFilters) -> Iterator[ColumnElement[bool]]:
    for column, value in (
        (RequestRow.status, filters.status),
        (RequestRow.kind, filters.kind),
        (RequestRow.guarantee, filters.guarantee),
        (RequestRow.repair, filters.repair),
        (RequestRow.reference, filters.reference),
        (RequestRow.api_key_id, filters.api_key_id),
    ):
        if value is not None:
            yield column == value
    if filters.since is not None:
        yield RequestRow.received_at >= filters.since
    if filters.until is not None:
        yield RequestRow.received_at < filters.until
    if filters.ids is not None:
        yield _among(filters.ids)
    if filters.reference is not None and filters.api_key_id is not None:
        # To be found by a reference is to show it.
        yield RequestRow.status != RequestStatus.COMPLETED
    if filters.thresholds:
        yield RequestRow.status.in_(AUDITED)
    for figure, threshold in filters.thresholds.items():
        if threshold.at_least is not None:
            yield _FIGURES[figure] >= threshold.at_least
        if threshold.at_most is not None:
            yield _FIGURES[figure] <= threshold.at_most


def _entry(row: Row[*tuple[Any, ...]]) -> AuditEntry:
    request = deletion_request(row)
    if request.status not in AUDITED or request.batch_id is None:
        return AuditEntry(request, None)
    return AuditEntry(request, RequestAudit(batch=batch_record(row), norms=request_norms(row)))
