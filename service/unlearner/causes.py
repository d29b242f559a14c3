"""Imports and recoveries in the database: versions without a request."""

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Row, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db.tables import Base
from service.domain.states import Cause, ImportStatus
from service.domain.versions import ModelImport, Recovery
from service.errors import Conflict
from service.predictions.version_rows import VersionRow, joined_version_in, version_columns, version_in


class ImportRow(Base):
    """One import. From `committed` on its version has the same id. A finished import never changes."""

    __tablename__ = "imports"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    #: No foreign key: the import may precede the first time that the model is served.
    model: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=ImportStatus.PENDING.value)
    exclude_deleted: Mapped[bool]
    without_added: Mapped[bool]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    refusal: Mapped[str | None]
    finished_at: Mapped[datetime | None]


_IMPORTS = ImportRow.__table__


class ImportRepository:
    """The table `imports` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def ask(self, import_id: UUID, model: str, *, exclude_deleted: bool, without_added: bool = False) -> None:
        """Record that a model's folder is ready; raises `Conflict` while another import of that model is open."""
        row = upsert(ImportRow).values(
            id=import_id, model=model, exclude_deleted=exclude_deleted, without_added=without_added
        )
        if await self._conn.scalar(row.on_conflict_do_nothing().returning(ImportRow.id)) is None:
            raise Conflict(
                f"Another import into the model {model} is still running.",
                "Start the service if it is stopped, wait for that import to end, and import again.",
            )

    async def get(self, import_id: UUID) -> ModelImport | None:
        """Return an import, or None if the id is unknown."""
        return await self._one(ImportRow.id == import_id)

    async def open(self, model: str) -> ModelImport | None:
        """Return the model's open import, or None. A model has at most one."""
        return await self._one(ImportRow.model == model, ImportRow.finished_at.is_(None))

    async def commit(self, import_id: UUID) -> None:
        """Record that a pending import is the committed version; call in the transaction that moves the pointer."""
        await self._move(import_id, {ImportStatus.PENDING}, ImportStatus.COMMITTED)

    async def complete(self, import_id: UUID) -> None:
        """Record that the replaced model is gone from the disk. Idempotent."""
        await self._move(import_id, {ImportStatus.COMMITTED}, ImportStatus.COMPLETED, finished_at=func.now())

    async def refuse(self, import_id: UUID, refusal: str) -> None:
        """Record that a pending import was refused, and why."""
        await self._move(
            import_id, {ImportStatus.PENDING}, ImportStatus.REFUSED, finished_at=func.now(), refusal=refusal
        )

    async def _one(self, *conditions: Any) -> ModelImport | None:
        query = select(_IMPORTS, *version_columns()).join(VersionRow, VersionRow.id == ImportRow.id, isouter=True)
        row = (await self._conn.execute(query.where(*conditions))).one_or_none()
        return None if row is None else _import(row)

    async def _move(self, import_id: UUID, sources: Collection[ImportStatus], to: ImportStatus, **values: Any) -> None:
        """Move the import to `to`. Do nothing if it is there already; raise `Conflict` if it cannot get there."""
        moved = update(ImportRow).where(ImportRow.id == import_id, ImportRow.status.in_(sources))
        if (await self._conn.execute(moved.values(status=to.value, **values))).rowcount == 1:
            return
        found = await self.get(import_id)
        if found is None or found.status is not to:
            raise Conflict(
                f"The import is {'unknown' if found is None else found.status.value} and cannot become {to.value}.",
                "Import the model again.",
            )


def _import(row: Row[*tuple[Any, ...]]) -> ModelImport:
    values = {column.name: row._mapping[column] for column in _IMPORTS.c}
    return ModelImport(**values | {"status": ImportStatus(values["status"])}, version=joined_version_in(row))


class RecoveryRow(Base):
    """Details of a version whose cause is a recovery."""

    __tablename__ = "recoveries"

    id: Mapped[UUID] = mapped_column(ForeignKey("versions.id"), primary_key=True)
    #: The version that the database had committed; null if it knew none.
    database_before: Mapped[str | None]
    #: The store's version before the recovery.
    store_before: Mapped[str]
    unknown_nodes: Mapped[int]
    #: Null until the recovery is finished.
    requests_failed: Mapped[int | None]


_RECOVERIES = RecoveryRow.__table__


class RecoveryRepository:
    """The table `recoveries` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def is_open(self, model: str) -> bool:
        """Return whether a committed recovery has not been recorded as finished."""
        query = select(func.count()).select_from(VersionRow).where(VersionRow.model == model)
        query = query.where(VersionRow.cause == Cause.RECOVERY, VersionRow.finished_at.is_(None))
        return bool(await self._conn.scalar(query))

    async def insert(self, recovery: Recovery) -> None:
        """Record the details of a version recorded just before."""
        values = {name: getattr(recovery, name) for name in ("database_before", "store_before", "unknown_nodes")}
        await self._conn.execute(insert(RecoveryRow).values(id=recovery.version.id, **values))

    async def finish(self, model: str, *, requests_failed: int) -> None:
        """Record that the store no longer holds anything that the model's recoveries deleted.

        This includes interrupted recoveries, which are never measured.
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
