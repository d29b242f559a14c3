"""Deletion requests that were refused for what they name: who asked, for how much, and why; never for whom."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import BigInteger, ForeignKey, Identity, func, insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base
from service.domain.kinds import RequestKind


class RefusedRequestRow(Base):
    """One refusal; the view `audit_refusals` shows it with the key's name."""

    __tablename__ = "refused_requests"

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    model: Mapped[str]
    api_key_id: Mapped[UUID] = mapped_column(ForeignKey("api_keys.id"))
    kind: Mapped[str]
    #: How many nodes or edges it named.
    named: Mapped[int]
    #: The slug of the problem that answered it.
    reason: Mapped[str]
    refused_at: Mapped[datetime] = mapped_column(server_default=func.now())


@dataclass(frozen=True)
class Refusal:
    """A refusal to be recorded."""

    model: str
    api_key_id: UUID
    kind: RequestKind
    named: int
    #: The slug of the problem that answers it.
    reason: str


async def record(conn: AsyncConnection, refusal: Refusal) -> None:
    """Record a refusal in the caller's transaction."""
    await conn.execute(
        insert(RefusedRequestRow).values(
            model=refusal.model,
            api_key_id=refusal.api_key_id,
            kind=refusal.kind.value,
            named=refusal.named,
            reason=refusal.reason,
        )
    )
