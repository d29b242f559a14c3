"""What the unlearner does for requests beside deleting: decisions go into the log, and failed ones are followed up."""

import asyncio
from datetime import timedelta

import structlog

from service.db.engine import Engine
from service.db.notifications import listen
from service.db.transactions import transaction
from service.deletions.decisions import DECISIONS_CHANNEL, Decisions
from service.deletions.failed import FailedRequests
from service.errors import Unavailable
from service.queue.outage import Outage, run_until

#: Seconds between two looks, of which a decision need not wait for the next.
_LOOK_S = 2.0


class FollowUp:
    """Any unlearner may do it, whether or not it holds the lease: all of it bears to be repeated."""

    def __init__(self, engine: Engine, failed: FailedRequests, keep_failed: timedelta) -> None:
        """`keep_failed` is how long the encrypted ids of a failed request are kept."""
        self._engine = engine
        self._failed = failed
        self._keep_failed = keep_failed
        self._outage = Outage("decisions and failed requests")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Look again and again until `stop` is set, through any outage of Postgres."""
        await run_until(stop, self._run())

    async def look(self) -> None:
        """Do what there is to do. Raises `Unavailable`."""
        while True:
            async with transaction(self._engine) as connection:
                if not await Decisions(connection).log():
                    break
        if settled := await self._failed.settle():
            self._log.info("failed.settled", requests=settled)
        if forgotten := await self._failed.forget(self._keep_failed):
            self._log.warning("failed.forgotten", requests=forgotten)

    async def _run(self) -> None:
        while True:
            try:
                async with listen(self._engine, DECISIONS_CHANNEL) as wakeup:
                    while True:
                        await self.look()
                        self._outage.over()
                        await wakeup.wait(_LOOK_S)
            except (Unavailable, OSError) as error:
                await self._outage.pause(error)
