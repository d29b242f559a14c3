"""Deliver requests from the outbox to the stream, at least once; recover lost ones and report stalls."""

import asyncio
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from uuid import UUID

import structlog
from sqlalchemy import delete, select
from sqlalchemy.ext.asyncio import AsyncConnection

from service import failure_points
from service.db.engine import Engine
from service.db.notifications import listen
from service.db.rows import any_of
from service.db.tables import OutboxRow
from service.db.transactions import transaction
from service.domain.records import OldestRequest
from service.errors import Unavailable
from service.failure_points import FailurePoint
from service.observability import tracing
from service.queue.outage import Backoff, Outage, run_until
from service.queue.stream import DeletionStream
from service.requests.lookup import RequestRepository


class OutboxRepository:
    """The table `outbox` in the caller's transaction."""

    def __init__(self, conn: AsyncConnection) -> None:
        self._conn = conn

    async def take(self, model: str, limit: int) -> dict[UUID, str | None]:
        """Lock and return up to `limit` waiting requests, oldest first, that no other relay has taken.

        The values are their traceparents.
        """
        query = select(OutboxRow.request_id, OutboxRow.traceparent).where(OutboxRow.model == model)
        query = query.order_by(OutboxRow.created_at).limit(limit).with_for_update(skip_locked=True)
        return {row.request_id: row.traceparent for row in await self._conn.execute(query)}

    async def delete(self, ids: Collection[UUID]) -> None:
        """Remove requests that are now in the stream."""
        await self._conn.execute(delete(OutboxRow).where(OutboxRow.request_id == any_of(ids)))


#: Outbox rows per transaction.
_PAGE_OF_OUTBOX = 1000
#: Pause after publishing, so that the commits meanwhile are published together (seconds).
_GATHER_S = 0.02


class Relay:
    """Moves one model's outbox to its stream, woken by Postgres's NOTIFY and by a poll in case one is lost."""

    def __init__(
        self, engine: Engine, stream: DeletionStream, *, poll_s: float = 1.0, backoff: Backoff | None = None
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._poll_s = poll_s
        #: The outage that stops it, if any.
        self.outage = Outage("relay", backoff)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set, through any outage of Postgres or Redis."""
        await run_until(stop, self._run())

    async def publish_pending(self) -> int:
        """Publish the contents of the outbox; returns the number of requests.

        A crash between publishing and committing publishes them again; the unlearner detects this in Postgres.

        Raises:
            Unavailable: Postgres or Redis does not answer; unpublished requests stay in the outbox.
        """
        published = 0
        while True:
            since = time.time_ns()
            async with transaction(self._engine) as connection:
                outbox = OutboxRepository(connection)
                taken = await outbox.take(self._stream.model, _PAGE_OF_OUTBOX)
                if taken:
                    failure_points.reached(FailurePoint.PUBLISHING)
                    await self._stream.publish(taken, taken)
                    failure_points.reached(FailurePoint.PUBLISHED)
                    await outbox.delete(taken)
            if taken:
                failure_points.reached(FailurePoint.RELAYED)
                tracing.passed(FailurePoint.RELAYED, taken, since)
            published += len(taken)
            if len(taken) < _PAGE_OF_OUTBOX:
                return published

    async def _run(self) -> None:
        while True:
            try:
                # Listen first: a row committed after the publishing below still wakes the wait.
                async with listen(self._engine) as wakeup:
                    while True:
                        if await self.publish_pending():
                            await asyncio.sleep(_GATHER_S)
                        self.outage.over()
                        await wakeup.wait(self._poll_s)
            except Unavailable as error:
                await self.outage.pause(error)


#: Requests per sweep; the rest follow in the next one.
_PAGE_OF_SWEEP = 10_000
_CONSUMER = "sweeper"


class Sweeper:
    """Compares the stream with Postgres, the source of truth, and republishes missing requests.

    A request is missing if it has been queued for `older_than_s` and is not in the stream, or if a consumer received it
    `older_than_s` ago and never acknowledged it. Requests that wait their turn in the stream are left alone, so that
    sweeps do not lengthen a long queue. Once the oldest request is stuck, delivered requests count as missing too,
    whichever consumer has them.
    """

    def __init__(
        self,
        engine: Engine,
        stream: DeletionStream,
        *,
        older_than_s: float = 15.0,
        interval_s: float = 5.0,
        backoff: Backoff | None = None,
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._older_than_s = older_than_s
        self._interval_s = interval_s
        #: The outage that stops it, if any.
        self.outage = Outage("sweeper", backoff)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop` is set, through any outage of Postgres or Redis."""
        await run_until(stop, self._run())

    async def sweep(self) -> int:
        """Sweep once; returns the number of requests published again.

        Raises:
            Unavailable: Postgres or Redis does not answer; the next sweep finds the same requests.
        """
        # Redis first: no Postgres row stays locked while Redis does not answer.
        await self._stream.ensure_group()
        abandoned = await self._stream.reclaim(_CONSUMER, idle_ms=int(self._older_than_s * 1000))
        contents = await self._stream.contents()
        async with transaction(self._engine) as connection:
            requests = RequestRepository(connection)
            model = self._stream.model
            oldest = await requests.oldest(model)
            present = {entry.request_id for entry in contents.upcoming}
            if oldest is None or not oldest.is_stuck(self._older_than_s):
                present.update(entry.request_id for entry in contents.delivered)
            unclaimed = await requests.unclaimed(model, older_than_s=self._older_than_s, limit=_PAGE_OF_SWEEP)
            waiting = await requests.queued(model, {entry.request_id for entry in abandoned})
            lost = dict.fromkeys([request.id for request in waiting])
            lost.update(dict.fromkeys(request_id for request_id in unclaimed if request_id not in present))
            await self._stream.publish(lost, {entry.request_id: entry.traceparent for entry in abandoned})
        # Last: until the new entry exists, the old one carries the request.
        replaced = [entry for entry in contents.delivered if entry.request_id in lost]
        await self._stream.acknowledge([*abandoned, *replaced])
        if lost:
            structlog.get_logger(__name__).warning("sweeper.republished", requests=len(lost))
        return len(lost)

    async def _run(self) -> None:
        while True:
            try:
                await self.sweep()
                self.outage.over()
                await asyncio.sleep(self._interval_s)
            except Unavailable as error:
                await self.outage.pause(error)


#: Maximum wait of the oldest request (seconds) while no batch is running, beyond the time that a batch has to fill.
#: Nearly all are claimed within one second, and requests that the stream lost are published again after 15.
MOST_UNCLAIMED_S = 40.0


@dataclass(frozen=True)
class UnclaimedRequests:
    """A stall in the claiming of requests, and its cause."""

    #: Duration in seconds.
    lasts_s: float
    #: Seconds that the oldest request has waited although it could be claimed; 0 if none waits.
    oldest_s: float
    reason: str
    remedy: str


class ClaimWatch:
    """Watches the activities that bring a committed request to the unlearner."""

    def __init__(self, engine: Engine, stream: DeletionStream, activities: Sequence[Outage], max_wait_s: float) -> None:
        """A batch has `max_wait_s` to fill."""
        self._engine = engine
        self._stream = stream
        self._activities = tuple(activities)
        self._most_s = MOST_UNCLAIMED_S + max_wait_s

    async def stall(self) -> UnclaimedRequests | None:
        """Return the current stall, None without one. Raises Unavailable."""
        longest = max(self._activities, key=lambda activity: activity.lasts_s)
        lasts_s, reason, remedy = longest.lasts_s, longest.reason, longest.remedy
        if reason is None or remedy is None:
            return None
        oldest = await self._oldest()
        return UnclaimedRequests(lasts_s, 0.0 if oldest is None else oldest.waits_s, reason, remedy)

    async def unclaimed_s(self) -> float:
        """Return how long the oldest claimable request has waited, in seconds; 0 without a delay.

        Raises Unavailable.
        """
        oldest = await self._oldest()
        if oldest is None:
            return 0.0
        is_kept = any(activity.reason is not None for activity in self._activities) or oldest.is_stuck(self._most_s)
        return oldest.waits_s if is_kept else 0.0

    async def _oldest(self) -> OldestRequest | None:
        async with transaction(self._engine) as connection:
            return await RequestRepository(connection).oldest(self._stream.model)
