"""The printed report of a month or quarter: number of requests, punctuality, proof and failures."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time

from sqlalchemy import and_, func, or_, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.clock import now
from service.db.engine import Connection
from service.db.rows import REQUEST_COLUMNS, deletion_request
from service.db.tables import DecisionRow, EventRow, RequestRow
from service.domain.drills import Drill
from service.domain.formats import number
from service.domain.records import DeletionRequest
from service.domain.states import IN_PLAIN_WORDS, EventType, RequestStatus
from service.errors import InvalidRequest
from service.log.canonical import parse_canonical
from service.log.checkpoints import Checkpoint, read, signers_of
from service.log.events import LogRepository
from service.log.signed_checkpoints import CheckpointRepository, LogCheck, LogCheckRepository
from service.log.verification import UnrequestedEvent
from service.reports.paper import Paper, paper
from service.reports.queries import AuditFilters
from service.reports.schemas import Summary
from service.reports.search import search
from service.reports.summary import summary
from service.requests.drill_rows import DrillRepository, DrillRow
from service.settings import Settings

#: Most entries per list.
MOST_NAMED = 20
_NO_DRILL = RequestRow.id.not_in(select(DrillRow.request_id))


@dataclass(frozen=True)
class Failure:
    """A failed request in its current state."""

    request: DeletionRequest
    #: First failure in the requested time or since.
    failed_at: datetime


@dataclass(frozen=True)
class Extension:
    """A request whose deadline was extended."""

    request: DeletionRequest
    reason: str
    decided_at: datetime


@dataclass(frozen=True)
class Failures:
    """Number of failed requests, by how they ended."""

    all: int
    #: Superseded: a later request deleted the same. Marked: somebody marked it as handled. Retried: retried, then
    #: completed. Cancelled: retried, then cancelled.
    superseded: int
    marked: int
    retried: int
    cancelled: int
    open: int


@dataclass(frozen=True)
class Notable:
    """Up to `MOST_NAMED` requests per list, open ones first, then the newest."""

    failures: Failures
    failed: Sequence[Failure]
    late: Sequence[DeletionRequest]
    #: Late requests that are still open.
    late_open: int
    extended: Sequence[Extension]
    #: Number of extensions.
    extensions: int


async def notable(conn: AsyncConnection, model: str, since: datetime, until: datetime) -> Notable:
    """Return late or failed requests received from `since` to before `until`, and failures and extensions in that time.

    Drills are left out.
    """
    late_open, late = await _late(conn, model, since, until)
    received_then = and_(RequestRow.received_at >= since, RequestRow.received_at < until)
    failures = (
        select(EventRow.request_id, func.min(EventRow.created_at).label("first_failed_at"))
        .join(RequestRow, RequestRow.id == EventRow.request_id)
        .where(EventRow.type == EventType.FAILED, EventRow.created_at >= since, RequestRow.model == model)
        .where(_NO_DRILL)
        # Include requests received in that time that failed later: they count as failed among those received.
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
    """Return the number of open late requests received then, and the first of all late ones."""
    is_open = (
        select(func.count())
        .select_from(RequestRow)
        .where(RequestRow.model == model, RequestRow.received_at >= since, RequestRow.received_at < until)
        .where(RequestRow.ended_at.is_(None), RequestRow.held_at.is_(None), RequestRow.due_at < func.now())
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


_NAME = re.compile(r"(20\d\d)-(?:(0[1-9]|1[0-2])|Q([1-4]))")
_ORDINALS = ("first", "second", "third", "fourth")


@dataclass(frozen=True)
class Span:
    """A month or a quarter, in UTC."""

    #: For example 2026-10 or 2026-Q4.
    name: str
    words: str
    since: date
    #: The day after the last.
    until: date

    @classmethod
    def parse(cls, name: str) -> "Span":
        """Return the span with this name. Raises InvalidRequest."""
        found = _NAME.fullmatch(name)
        if found is None:
            raise InvalidRequest("That is neither a month nor a quarter.", "Give one such as 2026-10 or 2026-Q4.")
        year = int(found[1])
        if found[2]:
            month = int(found[2])
            return cls(name, f"{date(year, month, 1):%B %Y}", date(year, month, 1), _first(year, month + 1))
        quarter = int(found[3])
        first, after = _first(year, 3 * quarter - 2), _first(year, 3 * quarter + 1)
        return cls(name, f"the {_ORDINALS[quarter - 1]} quarter of {year}", first, after)

    @classmethod
    def up_to(cls, today: date, months: int) -> "list[Span]":
        """Return the last `months` months up to that of `today`, newest first, each quarter after its last month."""
        found = []
        for back in range(months):
            year, month = divmod(today.year * 12 + today.month - 1 - back, 12)
            if month % 3 == 2 and back:
                found.append(cls.parse(f"{year}-Q{month // 3 + 1}"))
            found.append(cls.parse(f"{year}-{month + 1:02}"))
        return found

    @classmethod
    def newest(cls, received: Sequence[date], today: date) -> "Span":
        """Return the newest month of `received` (first days of months with requests), else the month of `today`."""
        month = received[-1] if received else today
        return cls.parse(f"{month:%Y-%m}")

    def has_any(self, received: Sequence[date]) -> bool:
        """Return whether requests were `received` in one of its months."""
        return any(self.since <= month < self.until for month in received)


def _first(year: int, month: int) -> date:
    """Return the first day of a month; month 13 is next January."""
    return date(year + 1, 1, 1) if month > 12 else date(year, month, 1)


@dataclass(frozen=True)
class Report:
    """Content of a report, as of `at`."""

    span: Span
    at: datetime
    summary: Summary
    notable: Notable
    drills: Sequence[Drill]
    #: Model changes in the span that no request caused.
    unrequested: Sequence[UnrequestedEvent]
    last_check: LogCheck | None
    #: Number of events in the log.
    size: int
    note: str
    keys: Sequence[str]

    @property
    def checkpoint(self) -> Checkpoint:
        """The checkpoint in the note."""
        return read(self.note)


async def read_report(connection: Connection, model: str, span: Span) -> Report:
    """Read the content of a span's report. Raises Unavailable before the log is first signed."""
    since, until = (datetime.combine(day, time(), UTC) for day in (span.since, span.until))
    checkpoints = CheckpointRepository(connection)
    note = await checkpoints.require()
    signers = signers_of(note)
    events = [UnrequestedEvent.of(parse_canonical(leaf.data)) for leaf in await LogRepository(connection).unrequested()]
    return Report(
        span=span,
        at=await now(connection),
        summary=await summary(connection, model, span.since, span.until),
        notable=await notable(connection, model, since, until),
        drills=await DrillRepository(connection).between(model, since, until),
        unrequested=[event for event in reversed(events) if since <= event.at < until],
        last_check=await LogCheckRepository(connection).newest(),
        size=await LogRepository(connection).size(),
        note=note,
        keys=[str(key) for key in (await checkpoints.keys()).values() if key.id in signers],
    )


def report_paper(report: Report, settings: Settings) -> Paper:
    """Return a report as a self-contained page to read and print."""
    root = report.checkpoint.root.hex()
    months = report.summary.months
    on_time, late = sum(month.on_time for month in months), sum(month.late for month in months)
    return paper(
        "report.html",
        settings,
        check=f"/dashboard/log?size={report.checkpoint.size}&root={root}",
        report=report,
        summary=report.summary,
        notable=report.notable,
        is_over=report.at.astimezone(UTC).date() >= report.span.until,
        on_time=on_time,
        late=late,
        statuses={status.value: report.summary.by_status[status] for status in RequestStatus},
        guarantees=[
            (count, IN_PLAIN_WORDS[guarantee]) for guarantee, count in report.summary.by_guarantee.items() if count
        ],
        became=became,
        drills=report.drills,
        drill_results=[f"{number(count)} {result}" for result, count in Counter(map(_result, report.drills)).items()],
        failed_drills=[drill for drill in report.drills if drill.passed is False],
        most=MOST_NAMED,
        root=root,
    )


def became(request: DeletionRequest) -> str:
    """Describe in a few words how a failed request ended."""
    if request.handled_by is not None:
        return f"Settled by request {str(request.handled_by)[:8]}…"
    if request.handled_at is not None:
        return "Marked as handled."
    if request.status is RequestStatus.COMPLETED:
        return "Retried and completed."
    if request.status is RequestStatus.FAILED:
        return "Open."
    return f"Retried: {request.status.value}."


def _result(drill: Drill) -> str:
    if drill.is_open:
        return "under way"
    return {True: "passed", False: "failed", None: "cancelled"}[drill.passed]
