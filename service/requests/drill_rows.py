"""Drills: the requests that delete cohorts of canaries. Their results are stored with these requests."""

import builtins
from dataclasses import fields
from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    ForeignKey,
    Identity,
    Integer,
    Row,
    column,
    exists,
    func,
    insert,
    select,
    table,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db import locks
from service.db.locks import Lock
from service.db.tables import Base, RequestRow
from service.domain.drills import Drill, NewDrill
from service.domain.states import RequestStatus
from service.errors import Conflict

_OPEN = (RequestStatus.QUEUED, RequestStatus.APPLIED)
#: The view of drills with their results, including when the drilled model was replaced.
_DRILLS = table("audit_drills", column("number"), *(column(field.name) for field in fields(Drill)))


class DrillRow(Base):
    """A request that deletes a cohort of canaries; rows never change."""

    __tablename__ = "drills"

    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"), primary_key=True)
    #: Sequence number, unaffected by a clock that is set back.
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    model: Mapped[str]
    cohort: Mapped[int] = mapped_column(Integer)
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DrillOpen(Conflict):
    """A drill of the model is running, or was started at the same moment."""

    slug = "drill-open"
    title = "A drill is under way"

    def __init__(self) -> None:
        super().__init__(
            "A drill of this model is already running or was just started.",
            "Wait until it is completed (see `GET /drills`), then start the next.",
        )


class DrillRepository:
    """The table `drills` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def take_turn(self) -> None:
        """Keep others from recording drills until the caller's transaction ends."""
        await locks.take(self._conn, Lock.DRILLS)

    async def may_begin(self, model: str, new: NewDrill) -> bool:
        """Return whether no drill of the model is open, and none was recorded since the cohort was chosen.

        The caller must have taken its turn: otherwise two drills may both begin.
        """
        is_open = exists().where(
            DrillRow.model == model, RequestRow.id == DrillRow.request_id, RequestRow.status.in_(_OPEN)
        )
        newest = select(DrillRow.request_id).where(DrillRow.model == model).order_by(DrillRow.number.desc()).limit(1)
        found = (await self._conn.execute(select(is_open, newest.scalar_subquery()))).one()
        return not found[0] and found[1] == new.after

    async def record(self, request_id: UUID, model: str, new: NewDrill) -> None:
        """Record that a request is a drill."""
        await self._conn.execute(insert(DrillRow).values(request_id=request_id, model=model, cohort=new.cohort))

    async def get(self, request_id: UUID) -> Drill | None:
        """Return the drill of a request, or None if it is not a drill."""
        return next(iter(await self._read(_DRILLS.c.request_id == request_id, limit=1)), None)

    async def newest(self, model: str) -> Drill | None:
        """Return the latest drill of a model."""
        return next(iter(await self.list(model, limit=1)), None)

    async def list(self, model: str, *, limit: int) -> builtins.list[Drill]:
        """Return up to `limit` drills of a model, newest first."""
        return await self._read(_DRILLS.c.model == model, limit=limit)

    async def last(self, model: str, *statuses: RequestStatus) -> Drill | None:
        """Return the newest drill of the served model whose request has one of `statuses`.

        None if none exists: drills of a model that an import has replaced do not count.
        """
        served = (_DRILLS.c.model == model, _DRILLS.c.status.in_(statuses), _DRILLS.c.model_replaced_at.is_(None))
        return next(iter(await self._read(*served, limit=1)), None)

    async def between(self, model: str, since: datetime, until: datetime) -> builtins.list[Drill]:
        """Return the drills of a model requested from `since` on and before `until`, newest first."""
        asked = (_DRILLS.c.model == model, _DRILLS.c.requested_at >= since, _DRILLS.c.requested_at < until)
        return await self._read(*asked, limit=None)

    async def _read(self, *conditions: ColumnElement[bool], limit: int | None) -> builtins.list[Drill]:
        query = select(*_DRILLS.c).where(*conditions).order_by(_DRILLS.c.number.desc()).limit(limit)
        return [_drill(row) for row in await self._conn.execute(query)]


def _drill(row: Row[*tuple[Any, ...]]) -> Drill:
    values = {field.name: getattr(row, field.name) for field in fields(Drill)}
    values["status"] = RequestStatus(row.status)
    return Drill(**values)
