"""What every part of the unlearner works with, given once."""

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from model_store.work import Work
from service.db.engine import Engine
from service.key_slots.disposal import UnneededKeys
from service.observability.metrics import UnlearningMetrics
from service.publication.writer import Publisher
from service.queue.outage import Outage
from service.unlearning.placement import Placement
from service.vault.keyring import Keyring
from service.vault.request_keys import RequestKeys
from service.versions.told import Told

T = TypeVar("T")


@dataclass(frozen=True, eq=False, kw_only=True)
class Context:
    """The servers, keys, publication and threads of one unlearner, the same under every lease."""

    engine: Engine
    keyring: Keyring
    request_keys: RequestKeys
    unneeded_keys: UnneededKeys
    publisher: Publisher
    metrics: UnlearningMetrics
    #: Of one thread: what blocks, on the disk or the device, is done there, one thing after the other.
    executor: Executor
    outage: Outage
    placement: Placement
    #: Name of the model.
    model: str
    #: How long a batch may be repaired before it is served from its projected weights (seconds).
    repair_budget_s: float
    #: Set when the unlearner is to end after what is under way.
    stop: asyncio.Event
    #: What published versions have told; read again whenever a version is loaded.
    told: Told = field(default_factory=Told)
    #: What the executor is doing, for those who wait.
    work: Work = field(default_factory=Work)

    async def run(self, work: Callable[[], T]) -> T:
        """Blocking `work` on the executor, off the event loop, so that the lease is renewed meanwhile."""
        return await asyncio.get_running_loop().run_in_executor(self.executor, work)

    async def retry(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Makes attempts until one succeeds; see `Outage.retry`."""
        return await self.outage.retry(attempt, self.stop)
