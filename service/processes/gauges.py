"""Periodically set the gauges that no event sets, and add up the totals of the audit."""

import asyncio
import contextlib
from collections.abc import Callable

from service.db.engine import Engine
from service.db.transactions import transaction
from service.domain.states import RequestStatus
from service.errors import Unavailable
from service.log.events import LogRepository
from service.observability.metrics import UnlearningMetrics
from service.predictions.facts import VersionFacts
from service.processes.readiness import residuals_too_large
from service.reports.summary import fold, open_counts
from service.requests.delivery import ClaimWatch
from service.requests.drill_rows import DrillRepository
from service.requests.drill_runs import CohortSearch
from service.requests.lookup import RequestRepository
from service.unlearner.pending_repairs import PendingRepairs
from service.webhooks.deliveries import DeliveryRepository

_INTERVAL_S = 5.0


async def keep_gauges(
    metrics: UnlearningMetrics,
    engine: Engine,
    model: str,
    cohorts: CohortSearch,
    queue: ClaimWatch,
    served: Callable[[], VersionFacts | None],
    room: Callable[[], tuple[float, float]],
    stop: asyncio.Event,
) -> None:
    """Set the gauges and fold the totals until `stop`; a Postgres outage leaves both unchanged.

    `served` describes the committed version, None while none is loaded or another process serves it. `room` returns the
    free bytes of its disk and of memory; it runs on a thread.
    """
    while not stop.is_set():
        with contextlib.suppress(Unavailable):
            async with transaction(engine) as connection:
                counts = await open_counts(connection, model)
                metrics.open.set(counts.open)
                metrics.past_deadline.set(counts.past_deadline)
                metrics.near_deadline.set(counts.near_deadline)
                metrics.open_failed.set(counts.failed)
                metrics.open_held.set(counts.held)
                metrics.oldest_open.set(counts.oldest_seconds)
                metrics.queued_nodes.set(await RequestRepository(connection).queued_nodes(model))
                metrics.pending_repairs.set(await PendingRepairs(connection).count_pending(model))
                repository = DrillRepository(connection)
                completed = await repository.last(model, RequestStatus.COMPLETED)
                metrics.drilled(completed, await repository.last(model, RequestStatus.COMPLETED, RequestStatus.FAILED))
                metrics.log_size.set(await LogRepository(connection).size())
                lacking = await DeliveryRepository(connection).undelivered()
                metrics.webhooks_waiting.set(lacking.waiting)
                metrics.webhooks_oldest.set(lacking.oldest_s)
                metrics.webhooks_given_up.set(lacking.given_up)
            disk_free, memory_free = await asyncio.to_thread(room)
            metrics.disk_free.set(disk_free)
            metrics.memory_free.set(memory_free)
            metrics.unclaimed.set(await queue.unclaimed_s())
            async with transaction(engine) as connection:
                await fold(connection)
            facts = served()
            if facts is None:
                metrics.no_model()
            else:
                async with transaction(engine) as connection:
                    exceeded = await residuals_too_large(connection, model)
                metrics.model(
                    version=facts.version,
                    live_nodes=facts.live_nodes,
                    edges=facts.edges,
                    drift=facts,
                    residuals_too_large=bool(exceeded),
                    promise_used=None if facts.noise is None else facts.noise.used / facts.noise.planned,
                )
                metrics.drill_cohorts.set(len((await cohorts()).unused))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _INTERVAL_S)
