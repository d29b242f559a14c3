"""The declarative base of the tables."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, ClassVar, TypeVar, get_args, get_type_hints

from sqlalchemy import DateTime, Double, Integer, LargeBinary, Text
from sqlalchemy.orm import DeclarativeBase, mapped_column
from sqlalchemy.types import TypeEngine


class Base(DeclarativeBase):
    """Declares how Python types become columns."""

    type_annotation_map: ClassVar[dict[Any, TypeEngine[Any]]] = {
        str: Text(),
        bytes: LargeBinary(),
        datetime: DateTime(timezone=True),
        float: Double(),
        int: Integer(),
    }


_Table = TypeVar("_Table", bound=type[Base])


def holds(*records: type[Any]) -> Callable[[_Table], _Table]:
    """Gives a table a column for every field of the dataclasses `records`, of its name and type."""

    def add(table: _Table) -> _Table:
        for record in records:
            for name, hint in get_type_hints(record).items():
                kind, *null = get_args(hint) or (hint,)
                setattr(table, name, mapped_column(Base.type_annotation_map[kind], nullable=bool(null)))
        return table

    return add
