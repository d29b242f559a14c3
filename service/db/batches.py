"""Batches: what one update of the model did, and which requests it took."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from uuid import UUID

from sqlalchemy import Uuid, func, insert, literal, select, update
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from service.db.models import BatchRow, RequestAuditRow, RequestRow
from service.db.records import BATCH_COLUMNS, NORM_COLUMNS, batch_record, request_norms
from service.db.requests import RequestRepository
from service.domain.records import BatchRecord, QueuedRequest, RequestNorms
from service.domain.states import RequestStatus
from service.errors import Conflict


class RequestsWithdrawn(Conflict):
    """Requests of a batch were cancelled, or taken by another batch, while it was computed."""

    def __init__(self, ids: Collection[UUID]) -> None:
        super().__init__(
            f"{len(ids)} requests of the batch are not queued any more.",
            "Roll back and compute the batch without them.",
        )
        self.ids = frozenset(ids)


@dataclass(frozen=True)
class UnfinishedBatch:
    """A batch whose version is committed and whose erasure is not known to be finished."""

    record: BatchRecord
    #: Fencing number of the lease under which it was committed.
    fencing: int
    requests: tuple[QueuedRequest, ...]
    norms: Mapping[UUID, RequestNorms]


class BatchRepository:
    """The tables `batches` and `request_audits` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def insert(self, record: BatchRecord, fencing: int, norms: Mapping[UUID, RequestNorms]) -> None:
        """Record a batch, join its requests to it and keep their norms; for the transaction that advances the pointer.

        Raises `RequestsWithdrawn` when a request is not queued any more: the caller's transaction must roll back.
        """
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        values["durations_ms"] = dict(record.durations_ms)
        await self._conn.execute(insert(BatchRow).values(**values, fencing=fencing))
        joined = (
            update(RequestRow)
            .where(RequestRow.id == func.any(literal(list(norms), ARRAY(Uuid()))), RequestRow.model == record.model)
            .where(RequestRow.status == RequestStatus.QUEUED, RequestRow.batch_id.is_(None))
            .values(batch_id=record.id)
        )
        found = set((await self._conn.execute(joined.returning(RequestRow.id))).scalars())
        if withdrawn := norms.keys() - found:
            raise RequestsWithdrawn(withdrawn)
        audits = [
            {"request_id": request_id, "batch_id": record.id}
            | {field.name: getattr(measured, field.name) for field in fields(measured)}
            for request_id, measured in norms.items()
        ]
        await self._conn.execute(insert(RequestAuditRow), audits)

    async def finish(self, batch_id: UUID, *, span_residual: float, durations_ms: Mapping[str, float]) -> bool:
        """Record that a batch is erased, with the residual measured from disk; False when it was finished before."""
        finished = (
            update(BatchRow)
            .where(BatchRow.id == batch_id, BatchRow.finished_at.is_(None))
            .values(
                finished_at=func.now(),
                span_residual=span_residual,
                durations_ms=BatchRow.durations_ms.op("||")(literal(dict(durations_ms), JSONB())),
            )
        )
        return (await self._conn.execute(finished)).rowcount == 1

    async def newest_duration_s(self, model: str, *, repair_budget_s: float) -> float:
        """Return how long (seconds) the newest batch of a model took; 0 when there is none.

        Of its repair, what goes beyond the budget was done in the background, once the batch was complete.
        """
        query = select(BatchRow.durations_ms).where(BatchRow.model == model, BatchRow.finished_at.is_not(None))
        durations = await self._conn.scalar(query.order_by(BatchRow.model_version_after.desc()).limit(1)) or {}
        beyond = max(0.0, durations.get("repair", 0.0) - 1000 * repair_budget_s)
        return (sum(durations.values()) - beyond) / 1000

    async def unfinished(self, model: str) -> UnfinishedBatch | None:
        """Return the batch that a crash may have left between commit and erasure; there is at most one per model."""
        query = select(*BATCH_COLUMNS, BatchRow.fencing)
        query = query.where(BatchRow.model == model, BatchRow.finished_at.is_(None))
        row = (await self._conn.execute(query)).one_or_none()
        if row is None:
            return None
        record = batch_record(row)
        requests = await RequestRepository(self._conn).in_batch(record.id)
        return UnfinishedBatch(record, row.fencing, tuple(requests), await self._norms(record.id))

    async def _norms(self, batch_id: UUID) -> dict[UUID, RequestNorms]:
        query = select(RequestAuditRow.request_id, *NORM_COLUMNS).where(RequestAuditRow.batch_id == batch_id)
        return {row.request_id: request_norms(row) for row in await self._conn.execute(query)}
