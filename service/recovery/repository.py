"""Recoveries: what was done about a store and a database that were not of the same moment."""

from uuid import UUID

from sqlalchemy import ForeignKey, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base
from service.domain.states import Cause
from service.domain.versions import Recovery
from service.versions.versions import VersionRow, version_columns, version_in


class RecoveryRow(Base):
    """What is said of a version whose cause is a recovery, and of no other."""

    __tablename__ = "recoveries"

    id: Mapped[UUID] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    #: The version that the database had committed; null when it knew of none.
    database_before: Mapped[str | None]
    #: The version that store before.
    store_before: Mapped[str]
    unknown_nodes: Mapped[int]
    #: Null until it is finished.
    requests_failed: Mapped[int | None]


_RECOVERIES = RecoveryRow.__table__


class RecoveryRepository:
    """The table `recoveries` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def is_open(self, model: str) -> bool:
        """Return whether a recovery was committed of which it is not known that it was finished."""
        query = select(func.count()).select_from(VersionRow).where(VersionRow.model == model)
        query = query.where(VersionRow.cause == Cause.RECOVERY, VersionRow.finished_at.is_(None))
        return bool(await self._conn.scalar(query))

    async def insert(self, recovery: Recovery) -> None:
        """Record the details of a version that was just recorded."""
        values = {name: getattr(recovery, name) for name in ("database_before", "store_before", "unknown_nodes")}
        await self._conn.execute(insert(RecoveryRow).values(id=recovery.version.id, **values))

    async def finish(self, model: str, *, requests_failed: int) -> None:
        """Record that the store holds nothing any more of what the recoveries of a model deleted.

        Of those too that were interrupted; these are never measured.
        """
        of_model = select(VersionRow.id).where(VersionRow.model == model)
        ended = update(RecoveryRow).where(RecoveryRow.id.in_(of_model), RecoveryRow.requests_failed.is_(None))
        await self._conn.execute(ended.values(requests_failed=requests_failed))
        interrupted = update(VersionRow).where(VersionRow.model == model, VersionRow.cause == Cause.RECOVERY)
        interrupted = interrupted.where(VersionRow.finished_at.is_(None))
        await self._conn.execute(interrupted.values(finished_at=func.now()))

    async def list(self, model: str) -> list[Recovery]:
        """Return all recoveries of a model, oldest first."""
        query = select(_RECOVERIES, *version_columns()).join(VersionRow, VersionRow.id == RecoveryRow.id)
        query = query.where(VersionRow.model == model).order_by(VersionRow.number)
        return [
            Recovery(version_in(row), row.database_before, row.store_before, row.unknown_nodes)
            for row in await self._conn.execute(query)
        ]
