"""Requests with their audits: found by what they are and what was measured, newest first.

What a search filters by is in the narrow table `request_search`. States alone are looked for in the days that have such
requests, as the totals by day tell. With thresholds, the newest rows are looked at first, which is enough where many
requests match; where few or none do, the whole table is read once, in any order. So no combination of filters, however
it contradicts itself, costs more than one pass over that table.
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from typing import Any
from uuid import UUID

from sqlalchemy import (
    ColumnElement,
    DateTime,
    Row,
    Select,
    Uuid,
    and_,
    func,
    literal,
    or_,
    select,
    table,
    true,
    tuple_,
)
from sqlalchemy import column as named
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.orm import aliased

from service.audit_records.queries import AuditEntry, AuditFilters, Norms, Order, Searched, Threshold
from service.audit_records.search_row import RequestSearchRow
from service.audit_records.totals import AuditCountRow
from service.db.arrays import any_of, unnested
from service.db.rows import NORM_COLUMNS, REQUEST_COLUMNS, deletion_request, request_norms
from service.db.tables import RequestAuditRow, RequestRow
from service.db.transactions import transaction
from service.domain.records import RequestAudit
from service.domain.states import AUDITED, RequestStatus
from service.vault.cursors import PageCursor
from service.versions.batch_rows import BATCH_COLUMNS, batch_in, with_batch
from service.versions.versions import VersionRow

#: Requests read at a time by an export.
EXPORT_PAGE = 500
#: How many of the newest requests a search looks through before it looks through all.
_CANDIDATES = 5000

#: Their repository is a layer above.
DRILLS = table("drills", named("request_id", Uuid()))

#: Requests that are counted; of more it is told that there are more.
MOST_COUNTED = 1_000_000

_Searched = type[RequestSearchRow]


@dataclass(frozen=True)
class Page:
    """Requests in their order."""

    entries: list[AuditEntry]
    #: Where the next page starts; None on the last.
    next_cursor: PageCursor | None


async def search(
    conn: AsyncConnection,
    filters: AuditFilters,
    cursor: PageCursor | None,
    limit: int,
    order: Order = Order.NEWEST,
) -> Page:
    """Return up to `limit` requests that `filters` keep and that come after `cursor`, in that order."""
    # One more than asked for tells whether there is a next page.
    return await _page(conn, await _ids(conn, filters, cursor, limit + 1, order), limit, order)


async def newest_norms(conn: AsyncConnection, since: datetime, limit: int) -> list[Norms]:
    """Return the norms of up to `limit` requests received from `since` on that have any, newest first."""
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
    """The first `limit` requests that `filters` keep and that come after `cursor`, in that order."""
    ids: Sequence[UUID] = ()
    if order is not Order.NEWEST:
        kept = select(RequestSearchRow.request_id).where(*_placed(RequestSearchRow, filters, cursor, order))
        kept = _first(kept.where(*_kept(RequestSearchRow, filters)), RequestSearchRow, limit, order)
        return (await conn.execute(kept)).scalars().all()
    if _by_state(filters):
        days = await _days(conn, filters, cursor)
        if not days:
            return ids
        if _keeps_whole_states(filters):
            return await _by_day(conn, days, filters, cursor, limit)
    # A reference has an index of its own.
    if filters.reference is None and filters.part_of_reference is None:
        ids = (await conn.execute(_newest(filters, cursor, limit))).scalars().all()
    if len(ids) < limit and _may_keep_few(filters):
        ids = (await conn.execute(_all(filters, cursor, limit))).scalars().all()
    return ids


async def count(conn: AsyncConnection, filters: AuditFilters) -> int:
    """Return how many requests `filters` keep, counted up to one more than `MOST_COUNTED`."""
    kept = select(RequestSearchRow.request_id).where(*_placed(RequestSearchRow, filters, None))
    kept = kept.where(*_kept(RequestSearchRow, filters)).limit(MOST_COUNTED + 1)
    return int(await conn.scalar(select(func.count()).select_from(kept.subquery())) or 0)


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


def _by_state(filters: AuditFilters) -> bool:
    """Whether the totals by day can tell where to look, or that there is nothing."""
    if filters.reference is not None or filters.part_of_reference is not None or filters.ids is not None:
        return False
    states = (filters.status, filters.kind, filters.guarantee, filters.repair)
    return bool(filters.thresholds) or any(state is not None for state in states)


def _keeps_whole_states(filters: AuditFilters) -> bool:
    """Whether `filters` keep all that a day has in a state, as many as the totals tell."""
    others = (filters.api_key_id, filters.open, filters.late, filters.drills, filters.due_before)
    return not filters.thresholds and all(other is None for other in others)


async def _days(conn: AsyncConnection, filters: AuditFilters, cursor: PageCursor | None) -> list[tuple[date, int]]:
    """The days (UTC) that have requests in the states that `filters` keep, and how many, newest first."""
    newest = [moment for moment in (filters.until, _moment(cursor)) if moment is not None]
    query = select(AuditCountRow.day, func.sum(AuditCountRow.requests)).where(*_in_states(AuditCountRow, filters))
    if filters.since is not None:
        query = query.where(AuditCountRow.day >= _day_of(filters.since))
    if newest:
        query = query.where(AuditCountRow.day <= _day_of(min(newest)))
    query = query.group_by(AuditCountRow.day).having(func.sum(AuditCountRow.requests) > 0)
    return [(day, int(count)) for day, count in await conn.execute(query.order_by(AuditCountRow.day.desc()))]


async def _by_day(
    conn: AsyncConnection,
    days: Sequence[tuple[date, int]],
    filters: AuditFilters,
    cursor: PageCursor | None,
    limit: int,
) -> list[UUID]:
    """The first `limit` requests that `filters` keep in `days`, which are looked at until there are so many.

    Some that were counted may have left these states before they are looked for, as a queue drains: then there are more
    days to look at.
    """
    ids: list[UUID] = []
    while days and len(ids) < limit:
        looked_at = _having(days, filters, cursor, limit - len(ids))
        starts = [datetime.combine(day, time(), UTC) for day, _ in days[:looked_at]]
        ids += (await conn.execute(_within(starts, filters, cursor, limit - len(ids)))).scalars()
        days = days[looked_at:]
    return ids


def _having(days: Sequence[tuple[date, int]], filters: AuditFilters, cursor: PageCursor | None, limit: int) -> int:
    """How many of the newest days were counted to have `limit` requests; all when they have fewer."""
    ends = (filters.since, filters.until, _moment(cursor))
    cut = {_day_of(moment) for moment in ends if moment is not None}
    found = 0
    for looked_at, (day, count) in enumerate(days, 1):
        # Of a day that is not wholly looked at, it is not known how many are left.
        found += 0 if day in cut else count
        if found >= limit:
            return looked_at
    return len(days)


def _within(starts: Sequence[datetime], filters: AuditFilters, cursor: PageCursor | None, limit: int) -> Select[UUID]:
    """What `filters` keep of the days that begin at `starts`, each by a range of the index."""
    day_rows = unnested("days", start=(DateTime(timezone=True), list(starts)))
    of_day = (
        select(RequestSearchRow)
        .where(RequestSearchRow.received_at >= day_rows.c.start)
        .where(RequestSearchRow.received_at < day_rows.c.start + timedelta(days=1))
        .where(*_placed(RequestSearchRow, filters, cursor), *_kept(RequestSearchRow, filters))
        .lateral("of_day")
    )
    rows = aliased(RequestSearchRow, of_day)
    return _first(select(rows.request_id).select_from(day_rows.join(of_day, true())), rows, limit)


def _moment(cursor: PageCursor | None) -> datetime | None:
    return None if cursor is None else cursor.at


def _day_of(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def _newest(filters: AuditFilters, cursor: PageCursor | None, limit: int) -> Select[UUID]:
    """What `filters` keep of the newest requests that one index finds; all of them when the index answers all."""
    candidates = select(RequestSearchRow).where(*_placed(RequestSearchRow, filters, cursor))
    candidates = candidates.order_by(RequestSearchRow.received_at.desc(), RequestSearchRow.request_id.desc())
    looked_at = _CANDIDATES if _may_keep_few(filters) else limit
    newest = aliased(RequestSearchRow, candidates.limit(max(looked_at, limit)).subquery("newest"))
    return _first(select(newest.request_id).where(*_kept(newest, filters)), newest, limit)


def _all(filters: AuditFilters, cursor: PageCursor | None, limit: int) -> Select[UUID]:
    """What `filters` keep of all requests."""
    kept = select(RequestSearchRow).where(*_placed(RequestSearchRow, filters, cursor))
    kept = kept.where(*_kept(RequestSearchRow, filters))
    if filters.reference is not None:
        named = select(RequestRow.id).where(RequestRow.reference == filters.reference)
        kept = kept.where(RequestSearchRow.request_id.in_(named))
    # Without an order of its own, which the plan would else be to walk an index for, a row at a time.
    found = aliased(RequestSearchRow, kept.offset(0).subquery("found"))
    return _first(select(found.request_id), found, limit)


def _first(query: Select[UUID], rows: _Searched, limit: int, order: Order = Order.NEWEST) -> Select[UUID]:
    return query.order_by(*_ordered(getattr(rows, order.by), rows.request_id, order)).limit(limit)


def _ordered(time: Any, identity: Any, order: Order) -> tuple[ColumnElement[Any], ...]:
    return (time.desc(), identity.desc()) if order.descends else (time, identity)


def _may_keep_few(filters: AuditFilters) -> bool:
    """Whether something is filtered that no index in the order of a page answers."""
    states = (filters.status, filters.kind, filters.guarantee, filters.repair, filters.open, filters.late)
    others = (filters.drills, filters.due_before, filters.reference, filters.part_of_reference, filters.ids)
    return bool(filters.thresholds) or any(state is not None for state in (*states, *others))


def _placed(
    rows: _Searched, filters: AuditFilters, cursor: PageCursor | None, order: Order = Order.NEWEST
) -> Iterator[ColumnElement[bool]]:
    """The conditions that an index in the order of a page answers."""
    if filters.api_key_id is not None:
        yield rows.api_key_id == filters.api_key_id
    if filters.since is not None:
        yield rows.received_at >= filters.since
    if filters.until is not None:
        yield rows.received_at < filters.until
    if filters.ids is not None:
        yield rows.request_id == any_of(filters.ids)
    if cursor is not None:
        last, here = tuple_(literal(cursor.at), literal(cursor.id)), tuple_(getattr(rows, order.by), rows.request_id)
        yield last > here if order.descends else last < here


def _in_states(rows: _Searched | type[AuditCountRow], filters: AuditFilters) -> Iterator[ColumnElement[bool]]:
    for column, value in (
        (rows.status, filters.status),
        (rows.kind, filters.kind),
        (rows.guarantee, filters.guarantee),
        (rows.repair, filters.repair),
    ):
        if value is not None:
            yield column == value
    if filters.thresholds:
        yield rows.status.in_(AUDITED)


def _kept(rows: _Searched, filters: AuditFilters) -> Iterator[ColumnElement[bool]]:
    """The other conditions."""
    yield from _in_states(rows, filters)
    if filters.open is not None:
        yield rows.ended_at.is_(None) if filters.open else rows.ended_at.is_not(None)
    if filters.late is not None:
        is_late = or_(rows.ended_late.is_(True), and_(rows.ended_at.is_(None), rows.due_at < func.now()))
        yield is_late if filters.late else rows.ended_late.is_(False)
    if filters.drills is not None:
        is_drill = rows.request_id.in_(select(DRILLS.c.request_id))
        yield is_drill if filters.drills else ~is_drill
    if filters.due_before is not None:
        yield rows.due_at < filters.due_before
    if filters.part_of_reference is not None:
        part = RequestRow.reference.icontains(filters.part_of_reference, autoescape=True)
        yield rows.request_id.in_(select(RequestRow.id).where(part))
    if filters.reference is not None and filters.api_key_id is not None:
        # To be found by a reference is to show it.
        yield rows.status != RequestStatus.COMPLETED
    if filters.thresholds and filters.api_key_id is not None:
        # What may not be known of weights published with noise meets no threshold.
        made, held = VersionRow.__table__, VersionRow.__table__.alias("held")
        seen = select(RequestAuditRow.request_id).join(made, made.c.id == RequestAuditRow.batch_id)
        seen = seen.join(
            held, (held.c.model == made.c.model) & held.c.number.in_([made.c.number, made.c.repair_version])
        )
        seen = seen.where(RequestAuditRow.request_id == rows.request_id, held.c.commitment_salt.is_not(None))
        yield ~seen.exists()
    for figure, threshold in filters.thresholds.items():
        column = getattr(rows, figure.value)
        if threshold.at_least is not None:
            yield column >= threshold.at_least
        if threshold.at_most is not None:
            yield column <= threshold.at_most


def _entry(row: Row[*tuple[Any, ...]]) -> AuditEntry:
    request = deletion_request(row)
    if request.status not in AUDITED or request.batch_id is None:
        return AuditEntry(request, None)
    return AuditEntry(request, RequestAudit(batch=batch_in(row), norms=request_norms(row)))
