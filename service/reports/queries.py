"""Input and output of audit queries, and the audit as a CSV or JSON file with one line per request. No I/O."""

import csv
import io
import re
from collections.abc import AsyncIterator, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

import orjson

from projector.forgetting.status import RepairStatus
from service.domain.figures import FIGURES, OF_REQUEST, Form
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, RequestAudit
from service.domain.states import Guarantee, RequestStatus


@dataclass(frozen=True)
class OpenCounts:
    """Number of a model's open requests, and how many of them need attention."""

    open: int
    past_deadline: int
    near_deadline: int
    failed: int
    held: int
    #: Age of the oldest that is not held; 0 without one.
    oldest_seconds: float


@dataclass(frozen=True)
class Norms:
    """What a model had learned from one request's nodes alone, before and after their deletion."""

    id: UUID
    before: float
    after: float | None


@dataclass(frozen=True)
class Threshold:
    """Matches figures from `at_least` to `at_most`, both included; missing figures never match."""

    at_least: float | None = None
    at_most: float | None = None

    @property
    def is_empty(self) -> bool:
        """Whether no value can match."""
        return self.at_least is not None and self.at_most is not None and self.at_least > self.at_most


class Searched(StrEnum):
    """Figures with thresholds in searches."""

    INJECTED_NORM_BEFORE = "injected_norm_before"
    INJECTED_NORM_AFTER = "injected_norm_after"
    DISTANCE_BOUND_BEFORE_RELATIVE = "distance_bound_before_relative"
    DISTANCE_BOUND_AFTER_RELATIVE = "distance_bound_after_relative"
    SPAN_RESIDUAL = "span_residual"


class Order(StrEnum):
    """Order of listed requests."""

    NEWEST = "newest"
    OLDEST = "oldest"
    #: Earliest deadline first.
    DUE = "due"
    #: Latest deadline first.
    DUE_LAST = "due_last"

    @property
    def by(self) -> str:
        """The column to sort by."""
        return "received_at" if self in (Order.NEWEST, Order.OLDEST) else "due_at"

    @property
    def descends(self) -> bool:
        """Whether the latest comes first."""
        return self in (Order.NEWEST, Order.DUE_LAST)


@dataclass(frozen=True)
class AuditFilters:
    """Filters for requests; None matches all."""

    status: RequestStatus | None = None
    kind: RequestKind | None = None
    guarantee: Guarantee | None = None
    repair: RepairStatus | None = None
    #: Whether it is still open.
    open: bool | None = None
    #: Whether it ended late or is open past its deadline; False: it ended on time.
    late: bool | None = None
    #: Whether it is on hold.
    held: bool | None = None
    #: Whether it is a drill.
    drills: bool | None = None
    #: Due before this time.
    due_before: datetime | None = None
    #: Received at this time or later.
    since: datetime | None = None
    #: Received before this time.
    until: datetime | None = None
    #: Exact match. With an `api_key_id`, completed requests are not found by reference.
    reference: str | None = None
    #: Case-insensitive part of the reference; only for callers who may see all requests.
    part_of_reference: str | None = None
    thresholds: Mapping[Searched, Threshold] = field(default_factory=dict)
    #: Sent with this API key.
    api_key_id: UUID | None = None
    #: One of these.
    ids: Collection[UUID] | None = None


@dataclass(frozen=True)
class AuditEntry:
    """One request and, from `applied` on, its audit."""

    request: DeletionRequest
    audit: RequestAudit | None


#: Attributes of the request, in the order of the columns.
_REQUEST = (
    *("id", "model", "status", "kind", "count", "reference", "received_at", "applied_at", "completed_at", "failed_at"),
    *("cancelled_at", "due_at", "ended_at", "late", "handled_at", "handled_by", "guarantee", "repair", "explanation"),
    *("failure", "already_deleted_by", "held_at"),
)
#: Batch figures first.
_FIGURES = sorted(
    (name for name, each in FIGURES.items() if each.form is not Form.BY_STEP), key=OF_REQUEST.__contains__
)
COLUMNS = (*_REQUEST, "batch_id", *_FIGURES)
#: Places where a spreadsheet may read text as a formula: at its start, and after any separator that it can be set to
#: split cells at, because quotation marks do not prevent that. Full-width signs count, too.
_FORMULA = re.compile('(^|[;|\t\r\n])(?=["\\s]*[=+\\-@\t\r\n＝＋－＠﹦﹢﹣﹫])')


class ExportFormat(StrEnum):
    """Format of the file."""

    CSV = "csv"
    NDJSON = "ndjson"


MEDIA_TYPES = {ExportFormat.CSV: "text/csv", ExportFormat.NDJSON: "application/x-ndjson"}


async def written(pages: AsyncIterator[Iterable[AuditEntry]], form: ExportFormat) -> AsyncIterator[bytes]:
    """Yield the file, a page of requests at a time. Raises what `pages` raises."""
    head = _table([COLUMNS]) if form is ExportFormat.CSV else b""
    async for page in pages:
        yield head + _lines(page, form)
        head = b""


def _lines(entries: Iterable[AuditEntry], form: ExportFormat) -> bytes:
    records = [_record(entry) for entry in entries]
    if form is ExportFormat.CSV:
        return _table([[_cell(value) for value in record] for record in records])
    return b"".join(
        # The driver has a UUID class of its own.
        orjson.dumps(dict(zip(COLUMNS, record, strict=True)), str, orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)
        for record in records
    )


def _record(entry: AuditEntry) -> list[Any]:
    """Return the values of `COLUMNS`; None where missing."""
    request = [getattr(entry.request, name) for name in _REQUEST]
    if entry.audit is None:
        return request + [None] * (len(COLUMNS) - len(request))
    figures = entry.audit.figures
    return [*request, entry.audit.batch.id, *(figures[name] for name in _FIGURES)]


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if hasattr(value, "isoformat"):
        return str(value.isoformat().replace("+00:00", "Z"))
    return _FORMULA.sub(r"\1'", value) if isinstance(value, str) else str(value)


def _table(rows: Sequence[Sequence[str]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()
