"""The requests that wait for a repair, and the outcomes of their repairs."""

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from sqlalchemy import Text, Uuid, and_, func, or_, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from projector.forgetting.status import RepairStatus
from service.db.rows import NORM_COLUMNS, request_norms, unnested
from service.db.tables import RequestAuditRow, RequestRow
from service.domain.figures import RequestNorms
from service.domain.kinds import RequestKind
from service.domain.records import BatchRecord
from service.domain.states import Cause, EventType, Guarantee
from service.log.events import EventRepository
from service.log.leaves import Content
from service.predictions.version_rows import BATCH_COLUMNS, VersionRow, batch_in, with_batch

_REQUESTS = RequestRow.__table__


@dataclass(frozen=True)
class Pending:
    """An applied request that waits for a repair, or whose repair did not converge."""

    request_id: UUID
    kind: RequestKind
    #: Number of nodes or edges that it named.
    count: int
    batch: BatchRecord
    norms: RequestNorms


@dataclass(frozen=True)
class RepairEnd:
    """Outcome of the repair of one request."""

    request_id: UUID
    #: Its batch, with the outcome of the repair.
    batch: BatchRecord
    guarantee: Guarantee
    explanation: str
    #: Content of its `repaired` event, or of `not_repaired` if the repair did not converge.
    content: Content


class PendingRepairs:
    """Repair updates of requests and of their batches' versions, in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def count_pending(self, model: str) -> int:
        """Return the number of requests that wait for a repair."""
        query = select(func.count()).where(RequestRow.model == model, RequestRow.repair == RepairStatus.PENDING)
        return int(await self._conn.scalar(query) or 0)

    async def pending(self, model: str) -> list[Pending]:
        """Return the requests that wait for a repair, oldest first."""
        return await self._in_state(model, RepairStatus.PENDING)

    async def concerned(self, model: str, status: RepairStatus) -> list[Pending]:
        """Return the requests that a repair with outcome `status` concerns, each group oldest first.

        These are the waiting requests. A converged repair reaches the weights of retraining on all that remains. It
        therefore also covers earlier requests to the same trained model whose own repair did not converge.
        """
        if status is not RepairStatus.CONVERGED:
            return await self.pending(model)
        found = await self._in_state(model, RepairStatus.PENDING, RepairStatus.NOT_CONVERGED)
        waiting = [one for one in found if one.batch.repair is RepairStatus.PENDING]
        if len(waiting) == len(found):
            return waiting
        query = select(func.max(VersionRow.number)).where(VersionRow.model == model, VersionRow.cause == Cause.IMPORT)
        trained = await self._conn.scalar(query) or 0
        short = [one for one in found if one.batch.repair is RepairStatus.NOT_CONVERGED]
        return [*waiting, *(one for one in short if one.batch.model_version_after > trained)]

    async def _in_state(self, model: str, *states: RepairStatus) -> list[Pending]:
        query = (
            select(_REQUESTS.c.id, _REQUESTS.c.kind, _REQUESTS.c.count, *BATCH_COLUMNS, *NORM_COLUMNS)
            .join_from(RequestRow, RequestAuditRow, RequestAuditRow.request_id == RequestRow.id)
            .where(RequestRow.model == model, RequestRow.repair.in_(states))
            .order_by(RequestRow.received_at, RequestRow.id)
        )
        query = with_batch(query, RequestAuditRow.batch_id)
        return [
            Pending(
                request_id=row._mapping[_REQUESTS.c.id],
                kind=RequestKind(row._mapping[_REQUESTS.c.kind]),
                count=row._mapping[_REQUESTS.c.count],
                batch=batch_in(row),
                norms=request_norms(row),
            )
            for row in await self._conn.execute(query)
        ]

    async def end(self, ends: Sequence[RepairEnd]) -> list[UUID]:
        """Record the end of requests' repairs, with an event for each request, and update their batches.

        Returns the ids of the requests changed. Repeating a committed call changes nothing.
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
            ended_by = {"repair": batch.repair.value, "repair_version": batch.repair_version}
            await self._conn.execute(update(VersionRow).where(VersionRow.id == batch.id).values(ended_by))
        converged = [end for end in ended if end.batch.repair is RepairStatus.CONVERGED]
        others = [end for end in ended if end.batch.repair is not RepairStatus.CONVERGED]
        await EventRepository(self._conn).append(
            [
                *((EventType.REPAIRED, end.request_id, end.content) for end in converged),
                *((EventType.NOT_REPAIRED, end.request_id, end.content) for end in others),
            ]
        )
        return [end.request_id for end in ended]
