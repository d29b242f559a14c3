"""Convert table rows to domain records, and many values to rows of one statement."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import ColumnElement, Row, TableValuedAlias, Uuid, and_, bindparam, case, column, func, literal, true
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine

from projector.forgetting.status import RepairStatus
from service.db.tables import RequestAuditRow, RequestRow
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import DeletionRequest, KeySlot, QueuedRequest
from service.domain.states import Guarantee, RequestStatus


def unnested(name: str, **columns: tuple[TypeEngine[Any], Sequence[Any]]) -> TableValuedAlias:
    """Return a FROM item called `name` with a column per keyword, each given as its type and its values.

    All columns have the same number of values.
    """
    arrays = [literal(list(values), ARRAY(kind)) for kind, values in columns.values()]
    return _unnested(name, arrays, {key: kind for key, (kind, _) in columns.items()})


def given_rows(name: str, **columns: TypeEngine[Any]) -> TableValuedAlias:
    """Return the same for a statement that is built once: `given` returns the parameters to execute it with."""
    arrays = [bindparam(f"{name}_{key}", type_=ARRAY(kind)) for key, kind in columns.items()]
    return _unnested(name, arrays, columns)


def given(name: str, **columns: Sequence[Any]) -> dict[str, Sequence[Any]]:
    """Return the parameters of `given_rows`, with the values of each column."""
    return {f"{name}_{key}": list(values) for key, values in columns.items()}


def _unnested(name: str, arrays: Sequence[Any], kinds: Mapping[str, TypeEngine[Any]]) -> TableValuedAlias:
    declared = [column(key, kind) for key, kind in kinds.items()]
    return func.unnest(*arrays).table_valued(*declared, name=name).render_derived()


def any_of(values: Iterable[Any], kind: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
    """Compare with any of `values`, which are row ids unless `kind` is another type."""
    return func.any(literal(list(values), ARRAY(kind or Uuid())))


def any_given(name: str, kind: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
    """Compare with any of the values, row ids unless `kind` is another type, that the parameter `name` lists."""
    return func.any(bindparam(name, type_=ARRAY(kind or Uuid())))


def all_of(ids: Iterable[Any]) -> ColumnElement[Any]:
    """Compare with all of these row ids."""
    return func.all(literal(list(ids), ARRAY(Uuid())))


_LATE = case(
    (and_(RequestRow.ended_at.is_(None), RequestRow.held_at.is_(None), RequestRow.due_at < func.now()), true()),
    else_=RequestRow.ended_late,
).label("late")
#: The columns that `deletion_request` reads.
REQUEST_COLUMNS = tuple(
    _LATE if field.name == "late" else RequestRow.__table__.c[field.name] for field in fields(DeletionRequest)
)
#: The columns that `queued_request` reads.
QUEUED_COLUMNS = tuple(RequestRow.__table__.c[field.name] for field in fields(QueuedRequest))
#: The columns that `request_norms` reads.
NORM_COLUMNS = tuple(RequestAuditRow.__table__.c[field.name] for field in fields(RequestNorms))


def deletion_request(row: Row[*tuple[Any, ...]]) -> DeletionRequest:
    """Convert a row of `REQUEST_COLUMNS` (and possibly more) to a record."""
    # Read once: each access builds it anew.
    by_column = row._mapping
    values = {column.name: by_column[column] for column in REQUEST_COLUMNS}
    values["kind"] = RequestKind(values["kind"])
    values["status"] = RequestStatus(values["status"])
    values["guarantee"] = None if values["guarantee"] is None else Guarantee(values["guarantee"])
    # By column, not by name: the batch in the same row has a column of this name too.
    values["repair"] = None if values["repair"] is None else RepairStatus(values["repair"])
    return DeletionRequest(**values)


def queued_request(row: Row[*tuple[Any, ...]]) -> QueuedRequest:
    """Convert a row of `QUEUED_COLUMNS` (and possibly more) to a record."""
    values = {column.name: row._mapping[column] for column in QUEUED_COLUMNS}
    values["kind"] = RequestKind(row.kind)
    values["status"] = RequestStatus(row.status)
    return QueuedRequest(**values)


def key_slot(row: Row[*tuple[Any, ...]]) -> KeySlot | None:
    """Return the place of the id list's key from a row of `key_file` and `key_place` (and possibly more)."""
    return None if row.key_place is None else KeySlot(row.key_file, row.key_place)


def request_norms(row: Row[*tuple[Any, ...]]) -> RequestNorms:
    """Convert a row of `NORM_COLUMNS` (and possibly more) to a record."""
    by_column = row._mapping
    return RequestNorms(**{column.name: by_column[column] for column in NORM_COLUMNS})
