"""Imports of newly trained models: asked for by an operator, carried out by the holder of the model's lease."""

from collections.abc import Collection
from dataclasses import asdict, fields
from typing import Any
from uuid import UUID

from sqlalchemy import Row, func, select, update
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.forgetting.status import RepairStatus
from service.db.events import EventRepository
from service.db.models import ImportRow
from service.domain.records import Imported, ModelImport
from service.domain.states import EventType, ImportStatus
from service.errors import Conflict

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
                f"Another import into the model {model} has not ended yet.",
                "Start the service if it is stopped, wait until that import has ended, and import again.",
            )

    async def get(self, import_id: UUID) -> ModelImport | None:
        """Return an import, None when there is none of that id."""
        row = (await self._conn.execute(select(_IMPORTS).where(ImportRow.id == import_id))).one_or_none()
        return None if row is None else _import(row)

    async def open(self, model: str) -> ModelImport | None:
        """Return the import that has not ended, of which there is at most one per model."""
        query = select(_IMPORTS).where(ImportRow.model == model, ImportRow.finished_at.is_(None))
        row = (await self._conn.execute(query)).one_or_none()
        return None if row is None else _import(row)

    async def commit(self, import_id: UUID, imported: Imported) -> None:
        """Record and log that a pending import is the committed version; for the transaction that moves the pointer."""
        if not await self._move(
            import_id, {ImportStatus.PENDING}, ImportStatus.COMMITTED, committed_at=func.now(), **asdict(imported)
        ):
            return
        model = await self._conn.scalar(select(ImportRow.model).where(ImportRow.id == import_id))
        told = asdict(imported) | {"model": model, "import": str(import_id), "repair": imported.repair.value}
        told |= {f"model_{name}": told.pop(name) for name in ("version_before", "version_after")}
        await EventRepository(self._conn).append_of_no_request(EventType.IMPORTED, told)

    async def complete(self, import_id: UUID) -> None:
        """Record that the replaced model is gone from the disk; once is enough."""
        await self._move(import_id, {ImportStatus.COMMITTED}, ImportStatus.COMPLETED, finished_at=func.now())

    async def refuse(self, import_id: UUID, refusal: str) -> None:
        """Record that a pending import was not taken, and why."""
        await self._move(
            import_id, {ImportStatus.PENDING}, ImportStatus.REFUSED, finished_at=func.now(), refusal=refusal
        )

    async def _move(self, import_id: UUID, sources: Collection[ImportStatus], to: ImportStatus, **values: Any) -> bool:
        """Return whether it was not there before; raise `Conflict` when it cannot come there."""
        moved = update(ImportRow).where(ImportRow.id == import_id, ImportRow.status.in_(sources))
        if (await self._conn.execute(moved.values(status=to.value, **values))).rowcount == 1:
            return True
        found = await self.get(import_id)
        if found is None or found.status is not to:
            raise Conflict(
                f"The import is {'unknown' if found is None else found.status.value} and cannot become {to.value}.",
                "Import the model again.",
            )
        return False


def _import(row: Row[*tuple[Any, ...]]) -> ModelImport:
    values = dict(row._mapping)
    figures = {field.name: values.pop(field.name) for field in fields(Imported)}
    values["status"] = ImportStatus(values["status"])
    figures["repair"] = RepairStatus(figures["repair"])
    values["imported"] = None if figures["version_after"] is None else Imported(**figures)
    return ModelImport(**values)
