"""Guessing is limited by address and by key, with and without Redis; valid keys are not affected."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
import redis

from service.access.limits import _MOST_REMEMBERED, GUESSES, PROBES
from service.domain.scopes import Scope
from service.processes.private_servers import Embedded
from tests.support.service.api_harness import NODES, Api, serving
from tests.support.service.bodies import node_body, refused
from tests.support.service.limits import FAILURES, Wrong, fail, is_refused, limits_of


@pytest.fixture(params=["redis", "local"])
def counting_in(request: pytest.FixtureRequest, redis_url: str) -> str:
    return redis_url if request.param == "redis" else "redis://127.0.0.1:1"


async def test_failures_are_limited_for_whoever_fails(counting_in: str) -> None:
    async with limits_of(counting_in) as limits:
        await fail(limits, "one", FAILURES - 1)
        assert not await is_refused(limits, "one")
        await fail(limits, "one")
        assert await is_refused(limits, "one")
        assert not await is_refused(limits, "another")


async def test_success_costs_nothing(counting_in: str) -> None:
    async with limits_of(counting_in) as limits:
        for _ in range(3 * FAILURES):
            assert not await is_refused(limits, "one")


async def test_attempts_at_the_same_time_are_no_way_around(counting_in: str) -> None:
    async with limits_of(counting_in) as limits:
        open_attempts = [limits.attempt(GUESSES, "one", Wrong) for _ in range(FAILURES)]
        for attempt in open_attempts:
            await attempt.__aenter__()
        assert await is_refused(limits, "one")
        for attempt in open_attempts:
            await attempt.__aexit__(None, None, None)
        assert not await is_refused(limits, "one")


async def test_processes_count_together_and_name_nobody_in_redis(redis_url: str) -> None:
    async with limits_of(redis_url) as first, limits_of(redis_url) as second:
        await fail(first, "192.0.2.7", FAILURES // 2)
        await fail(second, "192.0.2.7", FAILURES - FAILURES // 2)
        assert await is_refused(first, "192.0.2.7")
        assert await is_refused(second, "192.0.2.7")
    with redis.Redis.from_url(redis_url) as client:
        keys = list(client.scan_iter())
        assert keys
        assert not any(b"192.0.2.7" in key for key in keys)
        assert all(0 < client.ttl(key) <= GUESSES.item.get_expiry() + 1 for key in keys)


async def test_the_limits_go_on_when_redis_does_not(own_valkey: Embedded) -> None:
    servers = own_valkey.start()
    assert servers.redis_url is not None
    async with limits_of(servers.redis_url) as limits:
        await fail(limits, "one", FAILURES)
        assert await is_refused(limits, "one")
        own_valkey.stop()
        await fail(limits, "one", FAILURES)
        assert await is_refused(limits, "one")


async def test_memory_of_those_who_fail_is_bounded() -> None:
    async with limits_of("redis://127.0.0.1:1") as limits:
        for number in range(_MOST_REMEMBERED + 50):
            await fail(limits, f"host-{number}")
        await fail(limits, "last", FAILURES)
        assert len(limits._local._failures) == _MOST_REMEMBERED
        assert max(map(len, limits._local._failures.values())) == FAILURES
        assert await is_refused(limits, "last")
    # Nothing is left to a task that could fail unseen.
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.fixture
async def api(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, redis_url=redis_url, max_queued_nodes=5) as running:
        yield running


def too_many(answer: httpx2.Response) -> None:
    document = refused(answer, 429, "too-many-attempts")
    assert int(answer.headers["retry-after"]) == document["retry_after"] >= 1


@pytest.mark.ci
async def test_wrong_keys_are_limited_by_address_and_valid_ones_are_not(api: Api) -> None:
    """New valid keys are not limited either, as after a restart."""
    elsewhere = ("192.0.2.7", 4711)
    _, valid = await api.key(Scope.PREDICTIONS_READ)
    for number in range(FAILURES):
        guessing = await api.client_with(f"lethe_00000000_{number}", elsewhere)
        refused(await guessing.get("/predict/1"), 401, "unauthenticated")
    guessing = await api.client_with("lethe_00000000_more", elsewhere)
    for path in ("/predict/1", "/model", "/log/checkpoint", "/deletions"):
        too_many(await guessing.get(path))
    assert (await (await api.client_with(valid, elsewhere)).get("/predict/1")).status_code == 200
    assert (await (await api.client(Scope.PREDICTIONS_READ)).get("/predict/1")).status_code == 200


async def test_refusals_are_limited_by_key_for_keys_that_may_only_write(api: Api) -> None:
    writer, other = await api.client(Scope.DELETIONS_WRITE), await api.client(Scope.DELETIONS_WRITE)
    reader = await api.client(Scope.DELETIONS_WRITE, Scope.DELETIONS_READ)
    for _ in range(PROBES.item.amount):
        refused(await writer.post("/deletions", json=node_body("nobody")), 404, "unknown-targets")
        refused(await reader.post("/deletions", json=node_body("nobody")), 404, "unknown-nodes")
    for node in ("nobody", "1"):
        too_many(await writer.post("/deletions", json=node_body(node)))
    assert (await other.post("/deletions", json=node_body("1"))).status_code == 202
    assert (await reader.post("/deletions", json=node_body("2"))).status_code == 202


async def test_one_key_leaves_room_in_the_queue_for_the_others(api: Api) -> None:
    async def fills(client: httpx2.AsyncClient) -> None:
        assert (await client.post("/deletions", json=node_body(*NODES[:5]))).status_code == 202

    greedy, *others, late = [await api.client(Scope.DELETIONS_WRITE) for _ in range(5)]
    await fills(greedy)
    document = refused(await greedy.post("/deletions", json=node_body("10")), 429, "queue-full")
    assert document["detail"].startswith("More than 5 nodes asked for with this API key")
    for other in others:
        await fills(other)
    document = refused(await late.post("/deletions", json=node_body("10")), 429, "queue-full")
    assert document["detail"].startswith("More than 20 nodes, of all API keys")
