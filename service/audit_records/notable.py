"""The requests of a time that somebody has to answer for: what was late, failed, or was given more time.

All are counted, and as many are named as a paper has room for.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.audit_records.queries import AuditFilters
from service.audit_records.search import DRILLS, search
from service.db.rows import REQUEST_COLUMNS, deletion_request
from service.db.tables import DecisionRow, EventRow, RequestRow
from service.domain.records import DeletionRequest
from service.domain.states import EventType, RequestStatus

#: Most of each that are named.
MOST_NAMED = 20
_NO_DRILL = RequestRow.id.not_in(select(DRILLS.c.request_id))


@dataclass(frozen=True)
class Failure:
    """A request that failed, with what has become of it since."""

    request: DeletionRequest
    #: When it failed first, in the time asked for or since.
    failed_at: datetime


@dataclass(frozen=True)
class Extension:
    """A request that was given more time."""

    request: DeletionRequest
    reason: str
    decided_at: datetime


@dataclass(frozen=True)
class Failures:
    """How many requests failed, and how many of them have ended how."""

    all: int
    #: A later request deleted the same; somebody marked it as handled; it was retried, and completed or cancelled.
    superseded: int
    marked: int
    retried: int
    cancelled: int
    open: int


@dataclass(frozen=True)
class Notable:
    """Up to `MOST_NAMED` of each, open ones first, then the newest."""

    failures: Failures
    failed: Sequence[Failure]
    late: Sequence[DeletionRequest]
    #: How many of those that are late have not ended.
    late_open: int
    extended: Sequence[Extension]
    #: How often somebody gave more time.
    extensions: int


async def notable(conn: AsyncConnection, model: str, since: datetime, until: datetime) -> Notable:
    """What was received from `since` on and before `until` and is late, or failed; what failed or was extended then.

    Drills are left out.
    """
    late_open, late = await _late(conn, model, since, until)
    received_then = and_(RequestRow.received_at >= since, RequestRow.received_at < until)
    failures = (
        select(EventRow.request_id, func.min(EventRow.created_at).label("first_failed_at"))
        .join(RequestRow, RequestRow.id == EventRow.request_id)
        .where(EventRow.type == EventType.FAILED, EventRow.created_at >= since, RequestRow.model == model)
        .where(_NO_DRILL)
        # Those too that were received then and failed later: they are counted as failed among those received.
        .where(or_(EventRow.created_at < until, received_then))
        .group_by(EventRow.request_id)
        .subquery()
    )
    of_model = select(RequestRow.id).join(failures, failures.c.request_id == RequestRow.id)
    counted = of_model.with_only_columns(
        func.count().label("all"),
        func.count().filter(RequestRow.handled_by.is_not(None)).label("superseded"),
        func.count().filter(RequestRow.handled_at.is_not(None), RequestRow.handled_by.is_(None)).label("marked"),
        func.count().filter(RequestRow.status == RequestStatus.COMPLETED).label("retried"),
        func.count().filter(RequestRow.status == RequestStatus.CANCELLED).label("cancelled"),
        func.count().filter(RequestRow.ended_at.is_(None)).label("open"),
    )
    failed = (
        of_model.with_only_columns(*REQUEST_COLUMNS, failures.c.first_failed_at)
        .order_by(RequestRow.ended_at.is_not(None), failures.c.first_failed_at.desc())
        .limit(MOST_NAMED)
    )
    decided = select(func.count()).select_from(RequestRow).join(DecisionRow, DecisionRow.request_id == RequestRow.id)
    decided = decided.where(_NO_DRILL, RequestRow.model == model, DecisionRow.type == EventType.EXTENDED)
    decided = decided.where(DecisionRow.decided_at >= since, DecisionRow.decided_at < until)
    extended = (
        decided.with_only_columns(*REQUEST_COLUMNS, DecisionRow.reason, DecisionRow.decided_at)
        .order_by(RequestRow.ended_at.is_not(None), DecisionRow.decided_at.desc())
        .limit(MOST_NAMED)
    )
    return Notable(
        failures=Failures(**(await conn.execute(counted)).one()._mapping),
        failed=[Failure(deletion_request(row), row.first_failed_at) for row in await conn.execute(failed)],
        late=late,
        late_open=late_open,
        extended=[Extension(deletion_request(row), row.reason, row.decided_at) for row in await conn.execute(extended)],
        extensions=(await conn.execute(decided)).scalar_one(),
    )


async def _late(
    conn: AsyncConnection, model: str, since: datetime, until: datetime
) -> tuple[int, list[DeletionRequest]]:
    """How many that were received then are open and late, and the first of all that are late."""
    is_open = (
        select(func.count())
        .select_from(RequestRow)
        .where(RequestRow.model == model, RequestRow.received_at >= since, RequestRow.received_at < until)
        .where(RequestRow.ended_at.is_(None), RequestRow.due_at < func.now())
        .where(_NO_DRILL)
    )
    rows = await conn.execute(
        is_open.with_only_columns(*REQUEST_COLUMNS).order_by(RequestRow.due_at.desc()).limit(MOST_NAMED)
    )
    named = [deletion_request(row) for row in rows]
    if left := MOST_NAMED - len(named):
        ended = AuditFilters(late=True, open=False, drills=False, since=since, until=until)
        named += [entry.request for entry in (await search(conn, ended, None, left)).entries]
    return (await conn.execute(is_open)).scalar_one(), named
