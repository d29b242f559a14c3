"""Finds requests that the stream no longer carries, and publishes them again."""

import asyncio

import structlog

from service.db.engine import Engine
from service.db.transactions import transaction
from service.deletions.requests import RequestRepository
from service.errors import Unavailable
from service.queue.backoff import Backoff
from service.queue.outage import Outage, run_until
from service.queue.stream import DeletionStream

#: Requests looked at in one sweep; the others follow in the next.
_PAGE = 10_000
_CONSUMER = "sweeper"


class Sweeper:
    """Compares the stream with Postgres, the truth, and republishes what is missing.

    Missing is what has been queued for `older_than_s` and is not in the stream, and what a consumer was given
    `older_than_s` ago and never acknowledged. What is merely waiting its turn in the stream is left alone, so that
    a long queue does not grow by being swept. Once the oldest request is stuck, delivered requests count as missing
    too, whichever consumer has them.
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
        #: What keeps it, while something does.
        self.outage = Outage("sweeper", backoff)

    async def run(self, stop: asyncio.Event) -> None:
        """Sweep until `stop` is set, through any outage of Postgres or Redis."""
        await run_until(stop, self._run())

    async def sweep(self) -> int:
        """One sweep; returns how many requests it published again.

        Raises:
            Unavailable: Postgres or Redis does not answer; the next sweep finds the same requests.
        """
        # Redis first: while it does not answer, no row of Postgres is kept locked.
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
            unclaimed = await requests.unclaimed(model, older_than_s=self._older_than_s, limit=_PAGE)
            waiting = await requests.queued(model, {entry.request_id for entry in abandoned})
            lost = dict.fromkeys([request.id for request in waiting])
            lost.update(dict.fromkeys(request_id for request_id in unclaimed if request_id not in present))
            await self._stream.publish(lost)
        # Last: until the new entry is there, the old one is what carries the request.
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
