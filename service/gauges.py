"""Every few seconds: gauges that nobody's action sets, and the totals of the audit added up."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from service.api.services import ModelInfo
from service.db.audit_totals import fold
from service.db.engine import Engine
from service.db.repairs import RepairRepository
from service.db.requests import RequestRepository
from service.db.transactions import transaction
from service.errors import Unavailable
from service.observability.metrics import UnlearningMetrics

_INTERVAL_S = 5.0


async def keep_gauges(
    metrics: UnlearningMetrics,
    engine: Engine,
    model: str,
    model_info: Callable[[], Awaitable[ModelInfo]],
    stop: asyncio.Event,
) -> None:
    """Set the gauges and fold the totals until `stop`; during an outage of Postgres both stay as they are."""
    while not stop.is_set():
        with contextlib.suppress(Unavailable):
            async with transaction(engine) as connection:
                metrics.queued(await RequestRepository(connection).queued_nodes(model))
                metrics.pending(await RepairRepository(connection).count_pending(model))
            async with transaction(engine) as connection:
                await fold(connection)
            info = await model_info()
            metrics.model(
                version=info.version,
                rank=info.rank,
                live_nodes=info.live_nodes,
                distance_bound_relative=info.distance_bound_relative,
            )
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _INTERVAL_S)
