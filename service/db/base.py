"""The declarative base of the tables, and the conditions their constraints share."""

from datetime import datetime
from enum import StrEnum

from sqlalchemy import DateTime, Double, LargeBinary, MetaData, Text
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """Declares how Python types become columns and how constraints are named."""

    metadata = MetaData(
        naming_convention={
            "pk": "%(table_name)s_pkey",
            "fk": "%(table_name)s_%(column_0_name)s_fkey",
            "uq": "%(table_name)s_%(column_0_N_name)s_key",
            "ck": "%(table_name)s_%(constraint_name)s_check",
        }
    )
    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        str: Text(),
        bytes: LargeBinary(),
        datetime: DateTime(timezone=True),
        float: Double(),
    }


def one_of(column: str, values: type[StrEnum]) -> str:
    """Return the condition that `column` holds a value of `values` (or null)."""
    listed = ", ".join(f"'{value}'" for value in values)
    return f"{column} IN ({listed})"


def finite(columns: tuple[str, ...]) -> str:
    """Return the condition that all `columns` are non-negative finite numbers (or null)."""
    return " AND ".join(f"{column} >= 0 AND {column} < 'Infinity'::double precision" for column in columns)


def sha256(column: str) -> str:
    """Return the condition that `column` is a SHA-256 in hex."""
    return f"{column} ~ '^[0-9a-f]{{64}}$'"
