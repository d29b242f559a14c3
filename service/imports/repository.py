"""Imports of newly trained models: asked for by an operator, carried out by the holder of the model's lease."""

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db.base import Base
from service.domain.states import ImportStatus
from service.domain.versions import ModelImport
from service.errors import Conflict
from service.versions.versions import VersionRow, joined_version_in, version_columns


class ImportRow(Base):
    """One import; from `committed` on its version has the same id. Once finished it is never changed."""

    __tablename__ = "imports"

    id: Mapped[UUID] = mapped_column(primary_key=True)
    #: Without a foreign key: the import may come before the model is served for the first time.
    model: Mapped[str]
    status: Mapped[str] = mapped_column(server_default=ImportStatus.PENDING.value)
    exclude_deleted: Mapped[bool]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())
    refusal: Mapped[str | None]
    finished_at: Mapped[datetime | None]


_IMPORTS = ImportRow.__table__


class ImportRepository:
    """The table `imports` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def ask(self, import_id: UUID, model: str, *, exclude_deleted: bool) -> None:
        """Record that a model's folder is ready; raises `Conflict` while another import of that model is open."""
        row = insert(ImportRow).values(id=import_id, model=model, exclude_deleted=exclude_deleted)
        if await self._conn.scalar(row.on_conflict_do_nothing().returning(ImportRow.id)) is None:
            raise Conflict(
                f"Another import into the model {model} is still running.",
                "Start the service if it is stopped, wait for that import to end, and import again.",
            )

    async def get(self, import_id: UUID) -> ModelImport | None:
        """Return an import, None when there is none of that id."""
        return await self._one(ImportRow.id == import_id)

    async def open(self, model: str) -> ModelImport | None:
        """Return the import that has not ended, of which there is at most one per model."""
        return await self._one(ImportRow.model == model, ImportRow.finished_at.is_(None))

    async def commit(self, import_id: UUID) -> None:
        """Record that a pending import is the committed version; for the transaction that moves the pointer."""
        await self._move(import_id, {ImportStatus.PENDING}, ImportStatus.COMMITTED)

    async def complete(self, import_id: UUID) -> None:
        """Record that the replaced model is gone from the disk; once is enough."""
        await self._move(import_id, {ImportStatus.COMMITTED}, ImportStatus.COMPLETED, finished_at=func.now())

    async def refuse(self, import_id: UUID, refusal: str) -> None:
        """Record that a pending import was not taken, and why."""
        await self._move(
            import_id, {ImportStatus.PENDING}, ImportStatus.REFUSED, finished_at=func.now(), refusal=refusal
        )

    async def _one(self, *conditions: Any) -> ModelImport | None:
        query = select(_IMPORTS, *version_columns()).join(VersionRow, VersionRow.id == ImportRow.id, isouter=True)
        row = (await self._conn.execute(query.where(*conditions))).one_or_none()
        return None if row is None else _import(row)

    async def _move(self, import_id: UUID, sources: Collection[ImportStatus], to: ImportStatus, **values: Any) -> None:
        """Do nothing when it is there already; raise `Conflict` when it cannot come there."""
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
