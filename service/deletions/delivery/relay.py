"""Outbox to stream: what a committed transaction promised is published, at least once."""

import asyncio

from service import failure_points
from service.db.engine import Engine
from service.db.notifications import listen
from service.db.transactions import transaction
from service.deletions.delivery.outbox import OutboxRepository
from service.errors import Unavailable
from service.failure_points import FailurePoint
from service.queue.backoff import Backoff
from service.queue.outage import Outage, run_until
from service.queue.stream import DeletionStream

#: Outbox rows moved by one transaction.
_PAGE = 1000
#: After what was published: the commits of this time are published together (seconds).
_GATHER_S = 0.02


class Relay:
    """Moves one model's outbox to its stream, woken by Postgres' NOTIFY and by a poll in case one got lost."""

    def __init__(
        self, engine: Engine, stream: DeletionStream, *, poll_s: float = 1.0, backoff: Backoff | None = None
    ) -> None:
        self._engine = engine
        self._stream = stream
        self._poll_s = poll_s
        #: What keeps it, while something does.
        self.outage = Outage("relay", backoff)

    async def run(self, stop: asyncio.Event) -> None:
        """Publish until `stop` is set, through any outage of Postgres or Redis."""
        await run_until(stop, self._run())

    async def publish_pending(self) -> int:
        """Publish what the outbox holds; returns how many requests that were.

        A crash between publishing and committing publishes them again, which the unlearner notices in Postgres.

        Raises:
            Unavailable: Postgres or Redis does not answer; what was not published stays in the outbox.
        """
        published = 0
        while True:
            async with transaction(self._engine) as connection:
                outbox = OutboxRepository(connection)
                request_ids = await outbox.take(self._stream.model, _PAGE)
                if request_ids:
                    failure_points.reached(FailurePoint.PUBLISHING)
                    await self._stream.publish(request_ids)
                    failure_points.reached(FailurePoint.PUBLISHED)
                    await outbox.delete(request_ids)
            if request_ids:
                failure_points.reached(FailurePoint.RELAYED)
            published += len(request_ids)
            if len(request_ids) < _PAGE:
                return published

    async def _run(self) -> None:
        while True:
            try:
                # Listening comes first: a row committed after the publishing below still wakes the wait.
                async with listen(self._engine) as wakeup:
                    while True:
                        if await self.publish_pending():
                            await asyncio.sleep(_GATHER_S)
                        self.outage.over()
                        await wakeup.wait(self._poll_s)
            except Unavailable as error:
                await self.outage.pause(error)
