"""Batches: what one update of the model did, and which requests it took."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any
from uuid import UUID

from sqlalchemy import ForeignKey, Row, Select, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection
from sqlalchemy.orm import Mapped, mapped_column

from service.db.arrays import any_of
from service.db.base import Base, holds
from service.db.rows import NORM_COLUMNS, QUEUED_COLUMNS, queued_request, request_norms
from service.db.tables import RequestAuditRow, RequestRow
from service.domain.figures import BatchDetails, RequestNorms
from service.domain.records import BatchRecord, QueuedRequest
from service.domain.states import Cause, RequestStatus
from service.domain.versions import Version, batch_record
from service.errors import Conflict
from service.versions.versions import VersionRepository, VersionRow, joined_version_in, version_columns, version_in


@holds(BatchDetails)
class BatchRow(Base):
    """What is measured of a version whose cause is a batch, and of no other."""

    __tablename__ = "batches"

    id: Mapped[UUID] = mapped_column(ForeignKey("versions.id"), primary_key=True)


_BATCHES = BatchRow.__table__
_DETAILS = tuple(field.name for field in fields(BatchDetails))
#: The version in which the repair of a batch ended.
_ENDED = VersionRow.__table__.alias("ended")
#: The columns that `batch_in` reads.
BATCH_COLUMNS = (*version_columns(), *(_BATCHES.c[name] for name in _DETAILS), *version_columns(_ENDED))


def with_batch(query: Select[Any], batch_id: Any, *, isouter: bool = False) -> Select[Any]:
    """`query` joined with what `BATCH_COLUMNS` are of: the batch whose id is in the column `batch_id`."""
    ended = (_ENDED.c.model == VersionRow.model) & (_ENDED.c.number == VersionRow.repair_version)
    query = query.join(VersionRow, VersionRow.id == batch_id, isouter=isouter)
    return query.join(BatchRow, BatchRow.id == VersionRow.id, isouter=isouter).join(_ENDED, ended, isouter=True)


def batch_in(row: Row[*tuple[Any, ...]]) -> BatchRecord:
    """The batch in a row of `BATCH_COLUMNS` and possibly more."""
    return batch_record(version_in(row), _details(row), joined_version_in(row, _ENDED))


def _details(row: Row[*tuple[Any, ...]]) -> BatchDetails:
    return BatchDetails(**{name: row._mapping[_BATCHES.c[name]] for name in _DETAILS})


class RequestsWithdrawn(Conflict):
    """Requests of a batch were cancelled, or taken by another batch, while it was computed."""

    def __init__(self, ids: Collection[UUID]) -> None:
        super().__init__(
            f"{len(ids)} requests of the batch are not queued any more.",
            "Roll back and compute the batch without them.",
        )
        self.ids = frozenset(ids)


@dataclass(frozen=True)
class Batch:
    """A batch whose version is committed, with what the remaining steps need."""

    details: BatchDetails
    #: The requests in it, and what it measured for each.
    requests: Mapping[UUID, QueuedRequest]
    norms: Mapping[UUID, RequestNorms]


class BatchRepository:
    """The tables `batches` and `request_audits` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def insert(self, version: Version, details: BatchDetails, norms: Mapping[UUID, RequestNorms]) -> None:
        """Record the details of a version that was just recorded, join its requests to it and keep their norms.

        Raises `RequestsWithdrawn` when a request is not queued any more: the caller's transaction must roll back.
        """
        await self._conn.execute(insert(BatchRow).values(id=version.id, **vars(details)))
        joined = (
            update(RequestRow)
            .where(RequestRow.id == any_of(norms), RequestRow.model == version.model)
            .where(RequestRow.status == RequestStatus.QUEUED, RequestRow.batch_id.is_(None))
            .values(batch_id=version.id)
        )
        found = set((await self._conn.execute(joined.returning(RequestRow.id))).scalars())
        if withdrawn := norms.keys() - found:
            raise RequestsWithdrawn(withdrawn)
        audits = [{"request_id": one, "batch_id": version.id, **vars(measured)} for one, measured in norms.items()]
        await self._conn.execute(insert(RequestAuditRow), audits)

    async def details(self, batch_id: UUID) -> BatchDetails:
        """Return what is measured of a batch that is recorded."""
        return _details((await self._conn.execute(select(_BATCHES).where(BatchRow.id == batch_id))).one())

    async def newest_residuals(self, model: str) -> tuple[Version | None, float | None]:
        """Return the newest version whose span residual is measured, and the newest version's coefficient residual.

        The one is None before any, the other where the newest version is no batch.
        """
        # Two, because the newest may not have been measured yet.
        made = await VersionRepository(self._conn).latest(model, limit=2)
        coefficient = None
        if made and made[0].cause is Cause.BATCH:
            coefficient = (await self.details(made[0].id)).coefficient_residual
        return next((one for one in made if one.span_residual is not None), None), coefficient

    async def get(self, batch_id: UUID) -> Batch:
        """Return a batch that is recorded, its requests oldest first."""
        taken = select(*QUEUED_COLUMNS).where(RequestRow.batch_id == batch_id)
        taken = taken.order_by(RequestRow.received_at, RequestRow.id)
        requests = [queued_request(row) for row in await self._conn.execute(taken)]
        audits = select(RequestAuditRow.request_id, *NORM_COLUMNS).where(RequestAuditRow.batch_id == batch_id)
        norms = {row.request_id: request_norms(row) for row in await self._conn.execute(audits)}
        return Batch(await self.details(batch_id), {request.id: request for request in requests}, norms)

    async def newest_duration_s(self, model: str, *, repair_budget_s: float) -> float:
        """Return how long (seconds) the newest batch of a model took, its repair up to the budget; 0 without one."""
        query = select(VersionRow.durations_ms).where(VersionRow.model == model, VersionRow.cause == Cause.BATCH)
        query = query.where(VersionRow.finished_at.is_not(None)).order_by(VersionRow.number.desc()).limit(1)
        durations = await self._conn.scalar(query) or {}
        beyond = max(0.0, durations.get("repair", 0.0) - 1000 * repair_budget_s)
        return (sum(durations.values()) - beyond) / 1000
