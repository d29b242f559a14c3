"""Repairs that ended in a version of their own, and the requests that wait for one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from uuid import UUID

from sqlalchemy import Text, Uuid, and_, func, insert, literal, or_, select, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.forgetting.status import RepairStatus
from service.db.arrays import unnested
from service.db.events import EventRepository, Payload
from service.db.models import BatchRow, ImportRow, RepairRow, RequestAuditRow, RequestRow
from service.db.records import (
    BATCH_COLUMNS,
    NORM_COLUMNS,
    REPAIR_COLUMNS,
    batch_record,
    repair_record,
    request_norms,
)
from service.domain.records import BatchRecord, RepairRecord, RequestNorms
from service.domain.states import EventType, Guarantee, RequestKind

_REQUESTS = RequestRow.__table__


@dataclass(frozen=True)
class Pending:
    """A request that is applied and waits for a repair, or whose repair fell short."""

    request_id: UUID
    kind: RequestKind
    #: How many nodes or edges it named.
    count: int
    batch: BatchRecord
    norms: RequestNorms


@dataclass(frozen=True)
class RepairEnd:
    """How the repair of one request ended."""

    request_id: UUID
    #: Its batch, with how the repair ended and its figures.
    batch: BatchRecord
    guarantee: Guarantee
    explanation: str
    #: The content of its `repaired` event, or of `not_repaired` when the repair did not converge.
    payload: Payload


class RepairRepository:
    """The table `repairs`, and what repairs change of batches and requests, in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def insert(self, record: RepairRecord, fencing: int) -> None:
        """Record a repair; for the transaction that advances the pointer to its version."""
        values = {field.name: getattr(record, field.name) for field in fields(record)}
        values["durations_ms"] = dict(record.durations_ms)
        await self._conn.execute(insert(RepairRow).values(**values, fencing=fencing))

    async def finish(self, repair_id: UUID, *, span_residual: float, durations_ms: Mapping[str, float]) -> bool:
        """Record that nothing older than a repair is on the disk; False when that was recorded before."""
        finished = (
            update(RepairRow)
            .where(RepairRow.id == repair_id, RepairRow.finished_at.is_(None))
            .values(
                finished_at=func.now(),
                span_residual=span_residual,
                durations_ms=RepairRow.durations_ms.op("||")(literal(dict(durations_ms), JSONB())),
            )
        )
        return (await self._conn.execute(finished)).rowcount == 1

    async def unfinished(self, model: str) -> RepairRecord | None:
        """Return the repair that a crash may have left between commit and end; there is at most one per model."""
        query = select(*REPAIR_COLUMNS).where(RepairRow.model == model, RepairRow.finished_at.is_(None))
        row = (await self._conn.execute(query)).one_or_none()
        return None if row is None else repair_record(row)

    async def count_pending(self, model: str) -> int:
        """Return how many requests wait for a repair."""
        query = select(func.count()).where(RequestRow.model == model, RequestRow.repair == RepairStatus.PENDING)
        return int(await self._conn.scalar(query) or 0)

    async def pending(self, model: str) -> list[Pending]:
        """Return the requests that wait for a repair, oldest first."""
        return await self._in_state(model, RepairStatus.PENDING)

    async def concerned(self, model: str, status: RepairStatus) -> list[Pending]:
        """Return the requests that are told of a repair that ended as `status`, each group oldest first.

        Those that wait for one. One that converged has reached the weights of retraining on all that remains, and so
        covers as well the earlier requests to the same trained model whose own repair fell short.
        """
        if status is not RepairStatus.CONVERGED:
            return await self.pending(model)
        found = await self._in_state(model, RepairStatus.PENDING, RepairStatus.NOT_CONVERGED)
        waiting = [one for one in found if one.batch.repair is RepairStatus.PENDING]
        if len(waiting) == len(found):
            return waiting
        query = select(func.max(ImportRow.version_after)).where(ImportRow.model == model)
        trained = await self._conn.scalar(query) or 0
        short = [one for one in found if one.batch.repair is RepairStatus.NOT_CONVERGED]
        return [*waiting, *(one for one in short if one.batch.model_version_after > trained)]

    async def _in_state(self, model: str, *states: RepairStatus) -> list[Pending]:
        query = (
            select(_REQUESTS.c.id, _REQUESTS.c.kind, _REQUESTS.c.count)
            .add_columns(*BATCH_COLUMNS, *NORM_COLUMNS)
            .join_from(RequestRow, RequestAuditRow, RequestAuditRow.request_id == RequestRow.id)
            .join(BatchRow, RequestAuditRow.batch_id == BatchRow.id)
            .where(RequestRow.model == model, RequestRow.repair.in_(states))
            .order_by(RequestRow.received_at, RequestRow.id)
        )
        return [
            Pending(
                request_id=row._mapping[_REQUESTS.c.id],
                kind=RequestKind(row._mapping[_REQUESTS.c.kind]),
                count=row._mapping[_REQUESTS.c.count],
                batch=batch_record(row),
                norms=request_norms(row),
            )
            for row in await self._conn.execute(query)
        ]

    async def end(self, ends: Sequence[RepairEnd]) -> list[UUID]:
        """Record how the repair of requests ended, with an event for each, and that of their batches.

        Returns the requests that were not there before; repeating a call that was committed changes nothing.
        """
        rows = unnested(
            "ended",
            request_id=(Uuid(), [end.request_id for end in ends]),
            repair=(Text(), [end.batch.repair.value for end in ends]),
            guarantee=(Text(), [end.guarantee.value for end in ends]),
            explanation=(Text(), [end.explanation for end in ends]),
        )
        moved = (
            update(RequestRow)
            .where(RequestRow.id == rows.c.request_id)
            .where(
                or_(
                    RequestRow.repair == RepairStatus.PENDING,
                    and_(RequestRow.repair == RepairStatus.NOT_CONVERGED, rows.c.repair == RepairStatus.CONVERGED),
                )
            )
            .values(repair=rows.c.repair, guarantee=rows.c.guarantee, explanation=rows.c.explanation)
            .returning(RequestRow.id)
        )
        found = set((await self._conn.execute(moved)).scalars())
        ended = [end for end in ends if end.request_id in found]
        for batch in {end.batch.id: end.batch for end in ended}.values():
            await self._end_batch(batch)
        for has_converged, event in ((True, EventType.REPAIRED), (False, EventType.NOT_REPAIRED)):
            told = [end for end in ended if (end.batch.repair is RepairStatus.CONVERGED) is has_converged]
            await EventRepository(self._conn).append_many(event, {end.request_id: end.payload for end in told})
        return [end.request_id for end in ended]

    async def _end_batch(self, batch: BatchRecord) -> None:
        ended = (
            update(BatchRow)
            .where(BatchRow.id == batch.id)
            .values(
                repair=batch.repair.value,
                repair_iterations=batch.repair_iterations,
                repair_weight_change=batch.repair_weight_change,
                repair_version=batch.repair_version,
                repair_weights_sha256=batch.repair_weights_sha256,
                repair_tolerance=batch.repair_tolerance,
                distance_bound_after=batch.distance_bound_after,
                distance_bound_after_relative=batch.distance_bound_after_relative,
                durations_ms=literal(dict(batch.durations_ms), JSONB()),
            )
        )
        await self._conn.execute(ended)
