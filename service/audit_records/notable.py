"""The requests of a time that a report names one by one: what was late, failed, or was given more time."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.audit_records.queries import AuditFilters
from service.audit_records.search import search
from service.db.rows import REQUEST_COLUMNS, deletion_request
from service.db.tables import DecisionRow, EventRow, RequestRow
from service.domain.records import DeletionRequest
from service.domain.states import EventType, RequestStatus

#: Most of each that are named.
MOST_NAMED = 100


@dataclass(frozen=True)
class Failure:
    """A request that failed, with what has become of it since."""

    request: DeletionRequest
    #: When it failed first in the time asked for.
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
    #: A later request deleted the same, somebody marked it as handled, it was tried again and completed.
    superseded: int
    marked: int
    retried: int
    open: int


@dataclass(frozen=True)
class Notable:
    """Up to `MOST_NAMED` of each, newest first; of those that failed the open ones first."""

    failures: Failures
    late: Sequence[DeletionRequest]
    failed: Sequence[Failure]
    extended: Sequence[Extension]


async def notable(conn: AsyncConnection, model: str, since: datetime, until: datetime) -> Notable:
    """What was received from `since` on and before `until` and is late; what failed, or was given more time, then."""
    late = await search(conn, AuditFilters(late=True, drills=False, since=since, until=until), None, MOST_NAMED)
    failed_at = func.min(EventRow.created_at).label("first_failed_at")
    failures = (
        select(EventRow.request_id, failed_at)
        .where(EventRow.type == EventType.FAILED, EventRow.created_at >= since, EventRow.created_at < until)
        .group_by(EventRow.request_id)
        .subquery()
    )
    of_model = select(RequestRow.id).join(failures, failures.c.request_id == RequestRow.id)
    of_model = of_model.where(RequestRow.model == model)
    counted = of_model.with_only_columns(
        func.count().label("all"),
        func.count().filter(RequestRow.handled_by.is_not(None)).label("superseded"),
        func.count().filter(RequestRow.handled_at.is_not(None), RequestRow.handled_by.is_(None)).label("marked"),
        func.count().filter(RequestRow.status == RequestStatus.COMPLETED).label("retried"),
        func.count().filter(RequestRow.ended_at.is_(None)).label("open"),
    )
    failed = (
        of_model.with_only_columns(*REQUEST_COLUMNS, failures.c.first_failed_at)
        .order_by(RequestRow.ended_at.is_not(None), failures.c.first_failed_at.desc())
        .limit(MOST_NAMED)
    )
    extended = (
        select(*REQUEST_COLUMNS, DecisionRow.reason, DecisionRow.decided_at)
        .join(DecisionRow, DecisionRow.request_id == RequestRow.id)
        .where(RequestRow.model == model, DecisionRow.type == EventType.EXTENDED)
        .where(DecisionRow.decided_at >= since, DecisionRow.decided_at < until)
        .order_by(DecisionRow.decided_at.desc())
        .limit(MOST_NAMED)
    )
    return Notable(
        failures=Failures(**(await conn.execute(counted)).one()._mapping),
        late=[entry.request for entry in late.entries],
        failed=[Failure(deletion_request(row), row.first_failed_at) for row in await conn.execute(failed)],
        extended=[Extension(deletion_request(row), row.reason, row.decided_at) for row in await conn.execute(extended)],
    )
