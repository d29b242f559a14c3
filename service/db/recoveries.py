"""Recoveries: what was done about a store and a database that were not of the same moment."""

from collections.abc import Sequence
from dataclasses import asdict, fields

from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.events import EventRepository
from service.db.models import RecoveryRow
from service.domain.records import Recovery
from service.domain.states import EventType

_RECOVERIES = RecoveryRow.__table__


class RecoveryRepository:
    """The table `recoveries` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def is_open(self, model: str) -> bool:
        """Return whether a recovery was committed of which it is not known that it was finished."""
        query = select(func.count()).where(RecoveryRow.model == model, RecoveryRow.finished_at.is_(None))
        return bool(await self._conn.scalar(query))

    async def commit(self, recovery: Recovery, fencing: int) -> None:
        """Record and log a recovery; for the transaction that replaces the pointer."""
        await self._conn.execute(insert(RecoveryRow).values(**asdict(recovery), fencing=fencing))
        told = asdict(recovery)
        told |= {"recovery": str(told.pop("id")), "model_version_after": told.pop("version")}
        await EventRepository(self._conn).append_of_no_request(EventType.RECOVERED, told)

    async def finish(self, model: str, *, requests_failed: int) -> None:
        """Record that the store holds nothing any more of what the recoveries of a model deleted."""
        finished = update(RecoveryRow).where(RecoveryRow.model == model, RecoveryRow.finished_at.is_(None))
        await self._conn.execute(finished.values(finished_at=func.now(), requests_failed=requests_failed))

    async def list(self, model: str) -> Sequence[Recovery]:
        """Return all recoveries of a model, oldest first."""
        query = select(_RECOVERIES).where(RecoveryRow.model == model).order_by(RecoveryRow.version)
        names = [field.name for field in fields(Recovery)]
        return [Recovery(**{name: row._mapping[name] for name in names}) for row in await self._conn.execute(query)]
