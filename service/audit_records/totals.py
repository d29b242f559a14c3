"""Totals of requests by day, which triggers on `requests` keep: what audit queries add up instead of the requests.

Drills are not counted. A change of requests adds signed rows and changes none, so no transaction waits for another's
totals. `fold` adds them up; that changes no total, only how many rows a query reads. The service works as a role that
may write neither table: triggers and folding have the rights of the tables' owner.
"""

from datetime import date

from sqlalchemy import BigInteger, Boolean, Identity, false, text
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db import locks
from service.db.base import Base
from service.db.locks import Lock


class AuditCountRow(Base):
    """How many requests received on a day are in one state."""

    __tablename__ = "audit_counts"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    model: Mapped[str]
    #: UTC.
    day: Mapped[date]
    status: Mapped[str]
    kind: Mapped[str]
    guarantee: Mapped[str | None]
    repair: Mapped[str | None]
    #: Whether the projection of its batch removed no direction; null before it is applied.
    unchanged: Mapped[bool | None]
    #: Whether they ended late; null while they are open, and of what was cancelled.
    late: Mapped[bool | None]
    #: To be added to the other rows of the same state; may be negative.
    requests: Mapped[int] = mapped_column(BigInteger)
    folded: Mapped[bool] = mapped_column(Boolean, server_default=false())


async def fold(conn: AsyncConnection) -> None:
    """Add up the rows that changes have added since; leaves it to whoever is folding already."""
    if await locks.take_if_free(conn, Lock.TOTALS):
        await conn.execute(text("SELECT audit_fold()"))
