"""The unlearner's metrics of drills, and of the residuals of the newest version."""

import asyncio
import math
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from projector.forgetting.canaries import Canaries
from service.db.transactions import transaction
from service.domain.drills import Drill
from service.domain.figures import RequestNorms
from service.domain.scopes import Scope
from service.observability.metrics import UnlearningMetrics
from service.predictions.facts import VersionFacts
from service.processes.gauges import keep_gauges
from service.queue.connection import connect
from service.queue.outage import Outage
from service.queue.stream import DeletionStream
from service.requests.delivery import ClaimWatch
from service.requests.drill_rows import DrillRepository
from tests.support.service.api_harness import Api, serving
from tests.support.service.db_harness import committed, made

CANARIES = Canaries(cohorts=2, nodes=2, first_column=16, tag="0badcafe")
SERVED = VersionFacts(1, 40, 40, 16, None, None, "cpu")
NORMS = RequestNorms(2, 0.25, 0.0, 4.0, 0.0)


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path / "home", canaries=CANARIES) as running:
        yield running


async def drilled(api: Api) -> Drill:
    """Return a newly requested drill."""
    writer = await api.client(Scope.DELETIONS_WRITE)
    assert (await writer.post("/drills")).status_code == 202
    async with transaction(api.engine) as connection:
        drill = await DrillRepository(connection).newest("tiny")
    assert drill is not None
    return drill


async def complete(api: Api, drill: Drill, norms: RequestNorms = NORMS) -> None:
    await api.forget(CANARIES.cohort_ids(drill.cohort), drill.request_id)
    await api.complete(drill.request_id, norms)


async def set_gauges(api: Api, metrics: UnlearningMetrics, served: VersionFacts | None = SERVED) -> None:
    """Set the gauges once, as happens every few seconds."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    async with connect("redis://127.0.0.1:1/0") as redis:
        relay = Outage("relay")
        queue = ClaimWatch(api.engine, DeletionStream(redis, "tiny"), (relay,), 0.0)
        cohorts = api.services.drills.cohorts
        await keep_gauges(metrics, api.engine, "tiny", cohorts, queue, lambda: served, lambda: (0.0, 0.0), stop)


async def test_metrics_show_whether_the_newest_residuals_are_too_large_whoever_measured_them(api: Api) -> None:
    registry = CollectorRegistry()
    metrics = UnlearningMetrics(registry)

    def too_large() -> float | None:
        return registry.get_sample_value("lethe_residuals_too_large")

    await set_gauges(api, metrics)
    assert too_large() == 0
    version = made(1, span_residual=3e-3)
    asked = await drilled(api)
    async with transaction(api.engine) as connection:
        await committed(connection, version, {asked.request_id: NORMS})
    for _ in range(2):
        await set_gauges(api, metrics)
        assert too_large() == 1
        # A process without the lease reports nothing, and reports again once it has the lease back.
        await set_gauges(api, metrics, served=None)
        assert math.isnan(too_large() or 0.0)


async def test_metrics_show_the_last_drill_and_what_is_left(api: Api) -> None:
    registry = CollectorRegistry()
    metrics = UnlearningMetrics(registry)

    async def gauges() -> dict[str, float]:
        """Return the gauges, after they were set for all drills."""
        await set_gauges(api, metrics)
        return {
            sample.name.removeprefix("lethe_drill_") + "".join(sample.labels.values()): sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name.startswith("lethe_drill_")
        }

    before = await gauges()
    assert (before["last_completed_timestamp_seconds"], before["cohorts_remaining"]) == (0.0, 2.0)
    assert math.isnan(before["last_passed"])
    await complete(api, await drilled(api))
    async with transaction(api.engine) as connection:
        drill = await DrillRepository(connection).newest("tiny")
    assert drill is not None
    assert drill.completed_at is not None
    after = await gauges()
    assert after["last_completed_timestamp_seconds"] == pytest.approx(drill.completed_at.timestamp())
    assert (after["last_passed"], after["cohorts_remaining"]) == (1.0, 1.0)
    # It shows nothing about a later imported model.
    await api.replace_model()
    replaced = await gauges()
    assert replaced["last_completed_timestamp_seconds"] == 0.0
    assert math.isnan(replaced["last_passed"])
    await complete(api, await drilled(api), RequestNorms(2, 0.25, 0.0, 4.0, 1.0))
    last = await gauges()
    assert (last["last_passed"], last["cohorts_remaining"]) == (0.0, 0.0)
