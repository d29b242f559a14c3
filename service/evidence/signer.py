"""Signs the transparency log whenever it has grown; nobody else has the key."""

import asyncio

import structlog

from service.db.engine import Engine
from service.db.notifications import listen
from service.db.transactions import transaction
from service.errors import Unavailable
from service.evidence.checkpoints import CheckpointRepository
from service.evidence.log import LOG_CHANNEL
from service.observability.metrics import UnlearningMetrics
from service.queue.outage import Outage, run_until
from service.vault.log_keys import LogKeys

#: Longest time a leaf waits for its checkpoint should a notification get lost (seconds).
_POLL_S = 1.0


class LogSigner:
    """Makes a checkpoint after every append, woken by Postgres' NOTIFY and by a poll in case one got lost."""

    def __init__(self, engine: Engine, keys: LogKeys, metrics: UnlearningMetrics) -> None:
        self._engine = engine
        self._keys = keys
        self._metrics = metrics
        self._outage = Outage("log")
        self._log = structlog.get_logger(__name__)

    async def run(self, stop: asyncio.Event) -> None:
        """Sign until `stop` is set, through any outage of Postgres.

        Raises KeyMissing, LogForked or LogDamaged when the log cannot be signed in good faith.
        """
        await run_until(stop, self._run())

    async def sign_pending(self) -> int:
        """Sign what no checkpoint covers yet; returns the size that is signed. Raises as `run`, and Unavailable."""
        async with transaction(self._engine) as connection:
            checkpoint = await CheckpointRepository(connection).sign(self._keys)
        self._metrics.log_signed(checkpoint.size)
        return checkpoint.size

    async def _run(self) -> None:
        # Once whether it is due or not: the keys may be newer than the last checkpoint.
        is_due = True
        while True:
            try:
                # Listening comes first: what is appended after the signing below still wakes the wait.
                async with listen(self._engine, LOG_CHANNEL) as wakeup:
                    while True:
                        if is_due:
                            size = await self.sign_pending()
                            self._log.debug("log.signed", size=size)
                        self._outage.over()
                        # Told of leaves, it need not look whether there are any.
                        is_due = await wakeup.wait(_POLL_S) or await self._is_due()
            except Unavailable as error:
                await self._outage.pause(error)

    async def _is_due(self) -> bool:
        async with transaction(self._engine) as connection:
            return await CheckpointRepository(connection).is_due()
