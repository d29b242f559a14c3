"""Search for requests with their audits by properties and measurements, in any `Order`."""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Row, and_, func, literal, or_, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import Mapped, mapped_column

from service.access.cursors import PageCursor
from service.db.rows import NORM_COLUMNS, REQUEST_COLUMNS, any_of, deletion_request, request_norms
from service.db.tables import Base, RequestAuditRow, RequestRow
from service.db.transactions import transaction
from service.domain.records import RequestAudit
from service.domain.states import AUDITED, RequestStatus
from service.predictions.version_rows import BATCH_COLUMNS, VersionRow, batch_in, with_batch
from service.reports.queries import AuditEntry, AuditFilters, Norms, Order, Searched, Threshold
from service.requests.drill_rows import DrillRow


class RequestSearchRow(Base):
    """The searchable columns of a request, its audit and its batch.

    Only triggers write this table, with its owner's rights; the service's role may not. Columns that change soon after
    a request's receipt are in no index, so a change writes only this row.
    """

    __tablename__ = "request_search"

    request_id: Mapped[UUID] = mapped_column(primary_key=True)
    api_key_id: Mapped[UUID]
    received_at: Mapped[datetime]
    status: Mapped[str]
    kind: Mapped[str]
    guarantee: Mapped[str | None]
    repair: Mapped[str | None]
    due_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    ended_late: Mapped[bool | None]
    held_at: Mapped[datetime | None]
    injected_norm_before: Mapped[float | None]
    injected_norm_after: Mapped[float | None]
    distance_bound_before_relative: Mapped[float | None]
    distance_bound_after_relative: Mapped[float | None]
    span_residual: Mapped[float | None]


#: Requests per page of an export.
EXPORT_PAGE = 500

#: Largest exact count; beyond it, the result only means "more".
MOST_COUNTED = 1_000_000


@dataclass(frozen=True)
class Page:
    """A page of requests, in order."""

    entries: list[AuditEntry]
    #: Start of the next page; None on the last.
    next_cursor: PageCursor | None


async def search(
    conn: AsyncConnection,
    filters: AuditFilters,
    cursor: PageCursor | None,
    limit: int,
    order: Order = Order.NEWEST,
) -> Page:
    """Return up to `limit` requests after `cursor` that match `filters`, in `order`."""
    # One extra row shows whether there is a next page.
    return await _page(conn, await _ids(conn, filters, cursor, limit + 1, order), limit, order)


async def newest_norms(conn: AsyncConnection, since: datetime, limit: int) -> list[Norms]:
    """Return norms of up to `limit` requests received since `since` that have any, newest first."""
    measured = AuditFilters(since=since, thresholds={Searched.INJECTED_NORM_BEFORE: Threshold(at_least=0.0)})
    rows = RequestSearchRow
    query = select(rows.request_id, rows.injected_norm_before, rows.injected_norm_after)
    query = query.where(rows.request_id == any_of(await _ids(conn, measured, None, limit, Order.NEWEST)))
    query = query.order_by(*_ordered(rows.received_at, rows.request_id, Order.NEWEST))
    return [
        Norms(row.request_id, row.injected_norm_before, row.injected_norm_after) for row in await conn.execute(query)
    ]


async def _ids(
    conn: AsyncConnection, filters: AuditFilters, cursor: PageCursor | None, limit: int, order: Order
) -> Sequence[UUID]:
    """Return the first `limit` matching requests after `cursor`, in `order`."""
    rows = RequestSearchRow
    query = select(rows.request_id).where(*_kept(filters))
    if cursor is not None:
        last, here = tuple_(literal(cursor.at), literal(cursor.id)), tuple_(getattr(rows, order.by), rows.request_id)
        query = query.where(last > here if order.descends else last < here)
    query = query.order_by(*_ordered(getattr(rows, order.by), rows.request_id, order)).limit(limit)
    return (await conn.execute(query)).scalars().all()


async def count(conn: AsyncConnection, filters: AuditFilters) -> int:
    """Return the number of matching requests, counted up to one more than `MOST_COUNTED`."""
    kept = select(RequestSearchRow.request_id).where(*_kept(filters)).limit(MOST_COUNTED + 1)
    return int(await conn.scalar(select(func.count()).select_from(kept.subquery())) or 0)


async def export(engine: AsyncEngine, filters: AuditFilters) -> AsyncIterator[list[AuditEntry]]:
    """Yield all matching requests, newest first, a page at a time. Raises `Unavailable`.

    Memory does not grow with their number. Each page has its own transaction, so that a slow reader holds neither a
    connection nor a snapshot. A request that changes meanwhile is exported in its state at that time.
    """
    cursor: PageCursor | None = None
    while True:
        async with transaction(engine) as conn:
            page = await search(conn, filters, cursor, EXPORT_PAGE)
        yield page.entries
        if page.next_cursor is None:
            return
        cursor = page.next_cursor


async def _page(conn: AsyncConnection, ids: Sequence[UUID], limit: int, order: Order) -> Page:
    query = (
        select(*REQUEST_COLUMNS, *BATCH_COLUMNS, *NORM_COLUMNS)
        .select_from(RequestRow)
        .join(RequestAuditRow, RequestAuditRow.request_id == RequestRow.id, isouter=True)
        .where(RequestRow.id == any_of(ids))
        .order_by(*_ordered(getattr(RequestRow, order.by), RequestRow.id, order))
    )
    query = with_batch(query, RequestAuditRow.batch_id, isouter=True)
    entries = [_entry(row) for row in await conn.execute(query)]
    shown = entries[:limit]
    last = shown[-1].request if len(entries) > limit else None
    return Page(shown, None if last is None else PageCursor(getattr(last, order.by), last.id))


def _ordered(time: Any, identity: Any, order: Order) -> tuple[ColumnElement[Any], ...]:
    return (time.desc(), identity.desc()) if order.descends else (time, identity)


def _kept(filters: AuditFilters) -> Iterator[ColumnElement[bool]]:
    rows = RequestSearchRow
    for column, value in (
        (rows.api_key_id, filters.api_key_id),
        (rows.status, filters.status),
        (rows.kind, filters.kind),
        (rows.guarantee, filters.guarantee),
        (rows.repair, filters.repair),
    ):
        if value is not None:
            yield column == value
    if filters.thresholds:
        yield rows.status.in_(AUDITED)
    if filters.since is not None:
        yield rows.received_at >= filters.since
    if filters.until is not None:
        yield rows.received_at < filters.until
    if filters.ids is not None:
        yield rows.request_id == any_of(filters.ids)
    if filters.open is not None:
        yield rows.ended_at.is_(None) if filters.open else rows.ended_at.is_not(None)
    if filters.late is not None:
        is_past = and_(rows.ended_at.is_(None), rows.held_at.is_(None), rows.due_at < func.now())
        is_late = or_(rows.ended_late.is_(True), is_past)
        yield is_late if filters.late else rows.ended_late.is_(False)
    if filters.held is not None:
        yield rows.held_at.is_not(None) if filters.held else rows.held_at.is_(None)
    if filters.drills is not None:
        is_drill = rows.request_id.in_(select(DrillRow.request_id))
        yield is_drill if filters.drills else ~is_drill
    if filters.due_before is not None:
        yield rows.due_at < filters.due_before
    if filters.part_of_reference is not None:
        part = RequestRow.reference.icontains(filters.part_of_reference, autoescape=True)
        yield rows.request_id.in_(select(RequestRow.id).where(part))
    if filters.reference is not None:
        yield rows.request_id.in_(select(RequestRow.id).where(RequestRow.reference == filters.reference))
        if filters.api_key_id is not None:
            # Finding a request by its reference would reveal the reference.
            yield rows.status != RequestStatus.COMPLETED
    if filters.thresholds and filters.api_key_id is not None:
        # Hidden figures of weights published with noise meet no threshold.
        made, held = VersionRow.__table__, VersionRow.__table__.alias("held")
        seen = select(RequestAuditRow.request_id).join(made, made.c.id == RequestAuditRow.batch_id)
        seen = seen.join(
            held, (held.c.model == made.c.model) & held.c.number.in_([made.c.number, made.c.repair_version])
        )
        seen = seen.where(RequestAuditRow.request_id == rows.request_id, held.c.commitment_salt.is_not(None))
        yield ~seen.exists()
    for figure, threshold in filters.thresholds.items():
        measured = getattr(rows, figure.value)
        if threshold.at_least is not None:
            yield measured >= threshold.at_least
        if threshold.at_most is not None:
            yield measured <= threshold.at_most


def _entry(row: Row[*tuple[Any, ...]]) -> AuditEntry:
    request = deletion_request(row)
    if request.status not in AUDITED or request.batch_id is None:
        return AuditEntry(request, None)
    return AuditEntry(request, RequestAudit(batch=batch_in(row), norms=request_norms(row)))
