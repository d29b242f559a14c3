"""Many rows in one statement, as parallel array parameters: its text does not depend on how many there are."""

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, TableValuedAlias, Uuid, column, func, literal
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.types import TypeEngine


def unnested(name: str, **columns: tuple[TypeEngine[Any], Sequence[Any]]) -> TableValuedAlias:
    """Return a FROM item called `name` with a column per keyword, each given as its type and its values.

    All columns have the same number of values.
    """
    arrays = [literal(list(values), ARRAY(kind)) for kind, values in columns.values()]
    declared = [column(key, kind) for key, (kind, _) in columns.items()]
    return func.unnest(*arrays).table_valued(*declared, name=name).render_derived()


def any_of(values: Iterable[Any], kind: TypeEngine[Any] | None = None) -> ColumnElement[Any]:
    """For a comparison with any of `values`, ids of rows unless `kind` is another type."""
    return func.any(literal(list(values), ARRAY(kind or Uuid())))
