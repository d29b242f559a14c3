"""The audit as a file: a line for every request, as CSV or as JSON. No I/O."""

import csv
import io
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from enum import StrEnum
from typing import Any

import orjson

from service.audit_records.queries import AuditEntry
from service.domain.figures import FIGURES, OF_REQUEST, Form

#: Attributes of the request, in the order of the columns.
_REQUEST = (
    *("id", "model", "status", "kind", "count", "reference", "received_at", "applied_at", "completed_at", "failed_at"),
    *("cancelled_at", "due_at", "ended_at", "late", "handled_at", "handled_by", "guarantee", "repair", "explanation"),
    *("failure", "already_deleted_by"),
)
#: Those of the batch first.
_FIGURES = sorted(
    (name for name, each in FIGURES.items() if each.form is not Form.BY_STEP), key=OF_REQUEST.__contains__
)
COLUMNS = (*_REQUEST, "batch_id", *_FIGURES)
#: Where a spreadsheet may read text as a formula: at its start, and after any separator at which it can be set to split
#: cells, because quotation marks do not prevent that. Full-width signs count, too.
_FORMULA = re.compile('(^|[;|\t\r\n])(?=["\\s]*[=+\\-@\t\r\n＝＋－＠﹦﹢﹣﹫])')


class ExportFormat(StrEnum):
    """How the file is written."""

    CSV = "csv"
    NDJSON = "ndjson"


MEDIA_TYPES = {ExportFormat.CSV: "text/csv", ExportFormat.NDJSON: "application/x-ndjson"}


async def written(pages: AsyncIterator[Iterable[AuditEntry]], form: ExportFormat) -> AsyncIterator[bytes]:
    """The file, a page of requests at a time; raises what `pages` raises."""
    head = _table([COLUMNS]) if form is ExportFormat.CSV else b""
    async for page in pages:
        yield head + _lines(page, form)
        head = b""


def _lines(entries: Iterable[AuditEntry], form: ExportFormat) -> bytes:
    records = [_record(entry) for entry in entries]
    if form is ExportFormat.CSV:
        return _table([[_cell(value) for value in record] for record in records])
    return b"".join(
        # The driver's UUIDs are of a class of their own.
        orjson.dumps(dict(zip(COLUMNS, record, strict=True)), str, orjson.OPT_UTC_Z | orjson.OPT_APPEND_NEWLINE)
        for record in records
    )


def _record(entry: AuditEntry) -> list[Any]:
    """The values of `COLUMNS`; None where there is none."""
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
