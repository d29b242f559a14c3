"""The declarative base of the tables."""

from datetime import datetime

from sqlalchemy import DateTime, Double, LargeBinary, Text
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    """Declares how Python types become columns."""

    type_annotation_map = {  # noqa: RUF012 (SQLAlchemy reads it from the class)
        str: Text(),
        bytes: LargeBinary(),
        datetime: DateTime(timezone=True),
        float: Double(),
    }
