"""Drills that run by themselves: when one is due, who starts it, and what is said when none can run."""

import asyncio
import math
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from projector.forgetting.canaries import Canaries
from service.access.api_keys import ApiKeyRepository
from service.db.engine import create_engine
from service.db.transactions import transaction
from service.deletions.delivery.unclaimed import ClaimWatch
from service.deletions.requests import RequestRepository
from service.domain.drills import Drill, DrillTrigger
from service.domain.figures import RequestNorms
from service.domain.records import ApiKey
from service.domain.scopes import Scope
from service.drills.repository import DrillRepository
from service.drills.schedule import DrillSchedule, ensure_schedule_key
from service.observability.metrics import UnlearningMetrics
from service.operation.gauges import keep_gauges
from service.publication.facts import VersionFacts
from service.queue.connection import connect
from service.queue.outage import Outage
from service.queue.stream import DeletionStream
from tests.support.service.api_harness import Api, serving
from tests.support.service.db_harness import committed, made

CANARIES = Canaries(cohorts=2, nodes=2, first_column=16, tag="0badcafe")
NOW, LATER = timedelta(microseconds=1), timedelta(days=7)
SERVED = VersionFacts(1, 40, 40, 16, None, None, "cpu")
NORMS = RequestNorms(2, 0.25, 0.0, 4.0, 0.0)


@pytest.fixture
async def api(database_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path / "home", canaries=CANARIES, drill_every=7.0) as running:
        async with transaction(running.engine) as connection:
            await ensure_schedule_key(connection)
        yield running


def schedule(api: Api, interval: timedelta, *, leads: bool = True) -> DrillSchedule:
    return DrillSchedule(api.services.drills, interval, lambda: leads)


async def complete(api: Api, drill: Drill | None, norms: RequestNorms = NORMS) -> None:
    assert drill is not None
    await api.forget(CANARIES.cohort_ids(drill.cohort), drill.request_id)
    await api.complete(drill.request_id, norms)


async def test_the_next_drill_runs_when_the_last_is_old_enough_whoever_asked_for_it(api: Api) -> None:
    first = await schedule(api, LATER).look()
    assert first is not None
    assert (first.cohort, first.trigger) == (1, DrillTrigger.SCHEDULED)
    async with transaction(api.engine) as connection:
        found = await RequestRepository(connection).get(first.request_id)
        assert found is not None
        key = await ApiKeyRepository(connection).get(found[0].api_key_id)
    assert key is not None
    assert key.revoked_at is not None, "nobody can use the key that it is asked for under"
    assert await schedule(api, NOW).look() is None, "one is under way"
    await complete(api, first)
    assert await schedule(api, LATER).look() is None, "the last is not old, as another process sees it too"
    writer = await api.client(Scope.DELETIONS_WRITE)
    assert (await writer.post("/drills")).json()["cohort"] == 2
    async with transaction(api.engine) as connection:
        await complete(api, await DrillRepository(connection).newest("tiny"))
    assert await schedule(api, LATER).look() is None
    assert await api.count("drills") == 2


async def test_a_model_that_was_imported_is_drilled_at_once(api: Api) -> None:
    await complete(api, await schedule(api, LATER).look())
    assert await schedule(api, LATER).look() is None
    await api.replace_model()
    second = await schedule(api, LATER).look()
    assert second is not None
    assert second.cohort == 2
    assert await schedule(api, LATER).look() is None, "one is under way"
    await complete(api, second)
    assert await schedule(api, LATER).look() is None, "the new model has shown it"


async def test_only_the_holder_of_the_lease_starts_drills_and_of_two_one_does_until_none_is_left(api: Api) -> None:
    assert await schedule(api, NOW, leads=False).look() is None
    assert await api.count("drills") == 0
    await complete(api, await schedule(api, NOW).look())
    looks = await asyncio.gather(*(schedule(api, NOW).look() for _ in range(4)))
    [second] = [look for look in looks if look is not None]
    assert second.cohort == 2
    # And then there is none left, which is told once.
    await complete(api, second)
    running = schedule(api, NOW)
    with capture_logs() as lines:
        for _ in range(3):
            assert await running.look() is None
    [line] = lines
    assert (line["event"], line["log_level"]) == ("drill.not_started", "warning")
    assert line["reason"] == "All 2 cohorts of canaries are used."
    assert "--canaries" in line["remedy"]


async def test_of_two_that_make_the_key_at_once_neither_is_in_the_others_way(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    get, both, asked = ApiKeyRepository.get, asyncio.Barrier(2), 0

    async def neither_finds_it(keys: ApiKeyRepository, key_id: UUID) -> ApiKey | None:
        nonlocal asked
        found, asked = await get(keys, key_id), asked + 1
        if asked <= 2:
            await both.wait()
        return found

    monkeypatch.setattr(ApiKeyRepository, "get", neither_finds_it)
    engine = create_engine(database_url)

    async def start() -> None:
        async with transaction(engine) as connection:
            await ensure_schedule_key(connection)

    await asyncio.gather(start(), start())
    async with transaction(engine) as connection:
        [made] = await ApiKeyRepository(connection).list()
    assert made.revoked_at is not None
    await engine.dispose()


async def set_gauges(api: Api, metrics: UnlearningMetrics, served: VersionFacts | None = SERVED) -> None:
    """As they are every few seconds, once."""
    stop = asyncio.Event()
    asyncio.get_running_loop().call_soon(stop.set)
    async with connect("redis://127.0.0.1:1/0") as redis:
        relay = Outage("relay")
        queue = ClaimWatch(api.engine, DeletionStream(redis, "tiny"), (relay,), 0.0)
        await keep_gauges(
            metrics, api.services.drills, queue, lambda: served, timedelta(days=7), lambda: (0.0, 0.0), stop
        )


async def test_metrics_tell_whether_the_newest_residuals_are_too_large_whoever_measured_them(api: Api) -> None:
    registry = CollectorRegistry()
    metrics = UnlearningMetrics(registry)

    def told() -> float | None:
        return registry.get_sample_value("lethe_residuals_too_large")

    await set_gauges(api, metrics)
    assert told() == 0
    version = made(1, span_residual=3e-3)
    asked = await schedule(api, NOW).look()
    assert asked is not None
    async with transaction(api.engine) as connection:
        await committed(connection, version, {asked.request_id: NORMS})
    for _ in range(2):
        await set_gauges(api, metrics)
        assert told() == 1
        # One that lost its lease tells nothing, and as before once it has it again.
        await set_gauges(api, metrics, served=None)
        assert math.isnan(told() or 0.0)


async def test_metrics_tell_the_last_drill_and_what_is_left(api: Api) -> None:
    registry = CollectorRegistry()
    metrics = UnlearningMetrics(registry)

    async def told() -> dict[str, float]:
        """The gauges once they have been set for as many drills as there are."""
        await set_gauges(api, metrics)
        return {
            sample.name.removeprefix("lethe_drill_") + "".join(sample.labels.values()): sample.value
            for metric in registry.collect()
            for sample in metric.samples
            if sample.name.startswith("lethe_drill_")
        }

    before = await told()
    assert before["interval_seconds"] == 7 * 86_400
    assert (before["last_completed_timestamp_seconds"], before["cohorts_remaining"]) == (0.0, 2.0)
    assert math.isnan(before["last_passed"])
    await complete(api, await schedule(api, NOW).look())
    async with transaction(api.engine) as connection:
        drill = await DrillRepository(connection).newest("tiny")
    assert drill is not None
    assert drill.completed_at is not None
    after = await told()
    assert after["last_completed_timestamp_seconds"] == pytest.approx(drill.completed_at.timestamp())
    assert (after["last_passed"], after["cohorts_remaining"]) == (1.0, 1.0)
    # It shows nothing of a model that has been imported since.
    await api.replace_model()
    replaced = await told()
    assert replaced["last_completed_timestamp_seconds"] == 0.0
    assert math.isnan(replaced["last_passed"])
    await complete(api, await schedule(api, NOW).look(), RequestNorms(2, 0.25, 0.0, 4.0, 1.0))
    last = await told()
    assert (last["last_passed"], last["cohorts_remaining"]) == (0.0, 0.0)
