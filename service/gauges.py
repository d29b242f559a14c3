"""Every few seconds: gauges that nobody's action sets, and the totals of the audit added up."""

import asyncio
import contextlib

from service.api.drilling import find_cohorts
from service.api.services import Services
from service.db.audit_totals import fold
from service.db.drills import DrillRepository
from service.db.log import LogRepository
from service.db.repairs import RepairRepository
from service.db.requests import RequestRepository
from service.db.transactions import transaction
from service.domain.states import RequestStatus
from service.errors import Unavailable
from service.queue.unclaimed import Queue

_INTERVAL_S = 5.0


async def keep_gauges(services: Services, queue: Queue, stop: asyncio.Event) -> None:
    """Set the gauges and fold the totals until `stop`; during an outage of Postgres both stay as they are."""
    metrics, model = services.metrics, services.model
    interval = services.settings.drill_interval
    metrics.drill_interval(0.0 if interval is None else interval.total_seconds())
    while not stop.is_set():
        with contextlib.suppress(Unavailable):
            async with transaction(services.engine) as connection:
                metrics.queued(await RequestRepository(connection).queued_nodes(model))
                metrics.pending(await RepairRepository(connection).count_pending(model))
                drills = DrillRepository(connection)
                completed = await drills.last(model, RequestStatus.COMPLETED)
                metrics.drilled(completed, await drills.last(model, RequestStatus.COMPLETED, RequestStatus.FAILED))
                metrics.log_grown(await LogRepository(connection).size())
            stall = await queue.stall()
            metrics.unclaimed(0.0 if stall is None else stall.oldest_s)
            async with transaction(services.engine) as connection:
                await fold(connection)
            info = await services.model_info()
            metrics.model(
                version=info.version,
                rank=info.rank,
                live_nodes=info.live_nodes,
                distance_bound_relative=info.distance_bound_relative,
            )
            metrics.drills_left(len((await find_cohorts(services)).unused))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _INTERVAL_S)
