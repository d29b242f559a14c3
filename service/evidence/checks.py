"""Who has checked the log, how far and when: what watchers and browsers say once they have found all in order."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from sqlalchemy import select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.tables import ApiKeyRow, LogCheckRow
from service.errors import Conflict, InvalidRequest
from service.evidence.log import LogRepository


@dataclass(frozen=True)
class Extent:
    """Size and root of a log at a checkpoint."""

    #: Number of leaves.
    size: int
    root: bytes


@dataclass(frozen=True)
class LogCheck:
    """The newest check of the log that somebody has reported."""

    #: Name of the API key.
    by: str
    #: Number of leaves.
    size: int
    #: How many the earlier log had that it was compared with.
    against_size: int
    at: datetime


class LogCheckRepository:
    """The table `log_checks` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def record(self, api_key_id: UUID, checked: Extent, against: Extent) -> None:
        """Record that the holder of this key found the log grown from `against` to `checked`.

        Raises `InvalidRequest` unless `against` has leaves, and fewer than `checked`: comparing a log with itself
        proves nothing. Raises `Conflict` if this log has other roots there, or fewer leaves: they checked another log.
        """
        if not 0 < against.size < checked.size:
            raise InvalidRequest(
                f"A checkpoint of {checked.size} leaves cannot be checked against one of {against.size}.",
                "Compare it with an earlier, smaller checkpoint.",
            )
        log = LogRepository(self._conn)
        for extent in (checked, against):
            if extent.size > await log.size() or await log.root(extent.size) != extent.root:
                raise Conflict(
                    f"This log does not have that root at {extent.size} leaves.",
                    "Keep your checkpoint: either it belongs to another log, or this log was changed.",
                )
        added = insert(LogCheckRow).values(api_key_id=api_key_id, size=checked.size, against_size=against.size)
        newer = {"size": added.excluded.size, "against_size": added.excluded.against_size}
        await self._conn.execute(added.on_conflict_do_update(index_elements=["api_key_id"], set_=newer))

    async def newest(self) -> LogCheck | None:
        """Return the newest check, None when nobody has reported one."""
        query = select(ApiKeyRow.name, LogCheckRow.size, LogCheckRow.against_size, LogCheckRow.checked_at)
        query = query.join(ApiKeyRow, ApiKeyRow.id == LogCheckRow.api_key_id)
        row = (await self._conn.execute(query.order_by(LogCheckRow.checked_at.desc()).limit(1))).one_or_none()
        return None if row is None else LogCheck(*row)
