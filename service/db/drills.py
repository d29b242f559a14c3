"""Drills: which requests delete cohorts of canaries. What came of them is kept with their requests, and not here."""

from datetime import datetime
from typing import Any
from uuid import UUID

from sqlalchemy import (
    BigInteger,
    ForeignKey,
    Identity,
    Integer,
    Row,
    ScalarSelect,
    Select,
    and_,
    case,
    exists,
    func,
    insert,
    select,
)
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, aliased, mapped_column

from service.db.base import Base
from service.db.models import RequestAuditRow, RequestRow
from service.db.versions import VersionRow
from service.domain.drills import Drill, DrillTrigger, NewDrill
from service.domain.states import AUDITED, Cause, RequestStatus
from service.errors import Conflict

#: Advisory lock of whoever records a drill (the bytes of "drill").
_DRILL_LOCK = 0x6472696C6C
_OPEN = (RequestStatus.QUEUED, RequestStatus.APPLIED)


class DrillRow(Base):
    """A request that deletes a cohort of canaries; rows are never changed."""

    __tablename__ = "drills"

    request_id: Mapped[UUID] = mapped_column(ForeignKey("requests.id"), primary_key=True)
    #: Their order, which a clock that is set back does not change.
    number: Mapped[int] = mapped_column(BigInteger, Identity(always=True))
    model: Mapped[str]
    cohort: Mapped[int] = mapped_column(Integer)
    trigger: Mapped[str]
    requested_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DrillOpen(Conflict):
    """A drill of the model is under way, or was asked for at the same moment."""

    slug = "drill-open"
    title = "A drill is under way"

    def __init__(self) -> None:
        super().__init__(
            "A drill of this model is under way, or was asked for at the same moment.",
            "Wait until it is completed (`GET /drills` shows it), then ask for the next.",
        )


class DrillRepository:
    """The table `drills` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def take_turn(self) -> None:
        """Keep others from recording drills until the caller's transaction ends."""
        await self._conn.execute(select(func.pg_advisory_xact_lock(_DRILL_LOCK)))

    async def may_begin(self, model: str, new: NewDrill) -> bool:
        """Whether no drill of the model is open, and none was recorded since the cohort was chosen.

        For a caller that has taken its turn: otherwise two may both begin.
        """
        is_open = exists().where(
            DrillRow.model == model, RequestRow.id == DrillRow.request_id, RequestRow.status.in_(_OPEN)
        )
        newest = select(DrillRow.request_id).where(DrillRow.model == model).order_by(DrillRow.number.desc()).limit(1)
        found = (await self._conn.execute(select(is_open, newest.scalar_subquery()))).one()
        return not found[0] and found[1] == new.after

    async def record(self, request_id: UUID, model: str, new: NewDrill) -> None:
        """Record that a request is a drill."""
        row = insert(DrillRow).values(request_id=request_id, model=model, cohort=new.cohort, trigger=new.trigger.value)
        await self._conn.execute(row)

    async def get(self, request_id: UUID) -> Drill | None:
        """Return the drill that a request is, None when it is none."""
        row = (await self._conn.execute(_drills().where(DrillRow.request_id == request_id))).one_or_none()
        return None if row is None else _drill(row)

    async def newest(self, model: str) -> Drill | None:
        """Return the drill of a model that was asked for last."""
        return next(iter(await self.list(model, limit=1)), None)

    async def list(self, model: str, *, limit: int) -> "list[Drill]":
        """Return up to `limit` drills of a model, newest first."""
        query = _drills().where(DrillRow.model == model).order_by(DrillRow.number.desc()).limit(limit)
        return [_drill(row) for row in await self._conn.execute(query)]

    async def last(self, model: str, *statuses: RequestStatus) -> Drill | None:
        """Return the newest drill whose request has one of `statuses` and that says something of the served model.

        None when there is none: of one that an import has replaced since, drills say nothing any more.
        """
        query = _drills().where(DrillRow.model == model, RequestRow.status.in_(statuses), _replaced_at().is_(None))
        row = (await self._conn.execute(query.order_by(DrillRow.number.desc()).limit(1))).one_or_none()
        return None if row is None else _drill(row)


def _drills() -> Select[*tuple[Any, ...]]:
    """Drills with what became of them."""
    audited = and_(RequestAuditRow.request_id == RequestRow.id, RequestRow.status.in_(AUDITED))
    return (
        select(
            DrillRow.request_id,
            DrillRow.model,
            DrillRow.cohort,
            DrillRow.trigger,
            DrillRow.requested_at,
            RequestRow.status,
            RequestRow.applied_at,
            RequestRow.completed_at,
            RequestRow.failed_at,
            RequestAuditRow.channel_norm_before,
            RequestAuditRow.channel_norm_after,
            _replaced_at().label("model_replaced_at"),
        )
        .join(RequestRow, RequestRow.id == DrillRow.request_id)
        .join(RequestAuditRow, audited, isouter=True)
        .join(VersionRow, VersionRow.id == RequestAuditRow.batch_id, isouter=True)
    )


def _replaced_at() -> ScalarSelect[datetime]:
    """When the first import after the version that a drill was applied to was committed, or after it was asked for."""
    imported = aliased(VersionRow)
    is_after = case(
        (VersionRow.id.is_not(None), imported.number > VersionRow.number),
        else_=imported.committed_at > DrillRow.requested_at,
    )
    return (
        select(imported.committed_at)
        .where(imported.model == DrillRow.model, imported.cause == Cause.IMPORT, is_after)
        .order_by(imported.number)
        .limit(1)
        .correlate(DrillRow, VersionRow)
        .scalar_subquery()
    )


def _drill(row: Row[*tuple[Any, ...]]) -> Drill:
    values = dict(row._mapping)
    values["trigger"] = DrillTrigger(row.trigger)
    values["status"] = RequestStatus(row.status)
    return Drill(**values)
