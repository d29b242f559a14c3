"""Requests with their audits: found by what they are and what was measured, newest first."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Row, Uuid, func, literal, select, tuple_
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
    """Return up to `limit` requests that `filters` keep and that come after `cursor`, newest first."""
    query = (
        select(*REQUEST_COLUMNS, *BATCH_COLUMNS, *NORM_COLUMNS)
        .join_from(RequestRow, RequestAuditRow, RequestAuditRow.request_id == RequestRow.id, isouter=True)
        .join(BatchRow, BatchRow.id == RequestAuditRow.batch_id, isouter=True)
        .where(*_conditions(filters))
        .order_by(RequestRow.received_at.desc(), RequestRow.id.desc())
        # One more than asked for tells whether there is a next page.
        .limit(limit + 1)
    )
    if cursor is not None:
        position = tuple_(RequestRow.received_at, RequestRow.id)
        query = query.where(position < tuple_(literal(cursor.received_at), literal(cursor.id)))
    entries = [_entry(row) for row in await conn.execute(query)]
    shown = entries[:limit]
    last = shown[-1].request if len(entries) > limit else None
    return Page(shown, None if last is None else PageCursor(last.received_at, last.id))


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
        yield RequestRow.id == func.any(literal(list(filters.ids), ARRAY(Uuid())))
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
