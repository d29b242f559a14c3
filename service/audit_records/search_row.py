"""What a search looks at: one narrow row per request, which triggers on its tables keep."""

from datetime import datetime
from uuid import UUID

from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base


class RequestSearchRow(Base):
    """The columns of a request, its audit and its batch that searches filter by.

    Only triggers write it, with the rights of its owner; the role that the service works as may not. What changes soon
    after a request came is in no index, so that a change writes this row and nothing else.
    """

    __tablename__ = "request_search"

    request_id: Mapped[UUID] = mapped_column(primary_key=True)
    api_key_id: Mapped[UUID]
    received_at: Mapped[datetime]
    status: Mapped[str]
    kind: Mapped[str]
    guarantee: Mapped[str | None]
    repair: Mapped[str | None]
    due_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    ended_late: Mapped[bool | None]
    injected_norm_before: Mapped[float | None]
    injected_norm_after: Mapped[float | None]
    distance_bound_before_relative: Mapped[float | None]
    distance_bound_after_relative: Mapped[float | None]
    span_residual: Mapped[float | None]
