"""The node limit of a key for each version: over HTTP, and counted by several processes together."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from uuid import UUID, uuid4

import pytest
import redis

from service.access.limits import _KEPT_S, NodeAllowance
from service.domain.scopes import Scope
from service.errors import NodeLimitReached
from service.queue.connection import connect
from tests.support.service.api_harness import NODES, Api, publish, serving
from tests.support.service.bodies import node_body, refused

MOST = 5


@pytest.fixture
async def api(database_url: str, redis_url: str, tmp_path: Path) -> AsyncIterator[Api]:
    async with serving(database_url, tmp_path, redis_url=redis_url, max_predicted_nodes=MOST) as running:
        yield running


async def test_a_key_may_predict_so_many_nodes_of_each_version(api: Api) -> None:
    client, other = await api.client(Scope.PREDICTIONS_READ), await api.client(*Scope)
    for node in (*NODES[:MOST], *NODES[:MOST], "nobody"):
        assert (await client.get(f"/predict/{node}")).status_code == (404 if node == "nobody" else 200)
    document = refused(await client.get(f"/predict/{NODES[MOST]}"), 403, "node-limit-reached")
    assert (document["max_predicted_nodes"], document["predicted_nodes"], document["model_version"]) == (MOST, MOST, 1)
    assert (await client.post("/predict", json={"nodes": [*NODES[:MOST], "nobody"]})).status_code == 200

    refused(await other.post("/predict", json={"nodes": NODES[: MOST + 1]}), 403, "node-limit-reached")
    assert (await other.post("/predict", json={"nodes": [*NODES[:MOST], *NODES[:MOST]]})).status_code == 200

    writer = await api.client(Scope.DELETIONS_WRITE)
    await api.forget(["7"], (await writer.post("/deletions", json=node_body("7"))).json()["id"])
    answer = (await client.post("/predict", json={"nodes": [*NODES[6 : 7 + MOST]]})).json()
    assert (len(answer["predictions"]), answer["unknown"], answer["model_version"]) == (MOST, ["7"], 2)
    refused(await client.get("/predict/0"), 403, "node-limit-reached")


async def test_a_download_counts_each_of_its_nodes(api: Api) -> None:
    client = await api.client(Scope.PREDICTIONS_READ, Scope.PREDICTIONS_ALL)
    refused(await client.get("/predictions"), 403, "node-limit-reached")
    for _ in range(2):
        page = await client.get(f"/predictions?format=csv&limit={MOST}")
        assert [line.split(",")[0] for line in page.text.splitlines()[1:]] == list(NODES[:MOST])
    refused(await client.get(f"/predict/{NODES[MOST]}"), 403, "node-limit-reached")
    after = page.headers["lethe-next-cursor"]
    refused(await client.get(f"/predictions?limit=1&cursor={after}"), 403, "node-limit-reached")


async def test_an_answer_is_of_the_version_that_was_counted(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    client, taken = await api.client(Scope.PREDICTIONS_READ), list[int]()
    take = NodeAllowance.take

    async def slow(self: NodeAllowance, key_id: UUID, version: int, rows: list[int]) -> None:
        await take(self, key_id, version, rows)
        taken.append(version)
        if len(taken) == 1:
            publish(api.services.reader, api.publisher, replace(api.snapshot, version=2))

    monkeypatch.setattr(NodeAllowance, "take", slow)
    assert (await client.get("/predict/1")).json()["model_version"] == 2
    assert taken == [1, 2]


async def test_without_redis_nothing_is_predicted(database_url: str, tmp_path: Path) -> None:
    async with serving(database_url, tmp_path, max_predicted_nodes=MOST) as api:
        refused(await (await api.client(Scope.PREDICTIONS_READ)).get("/predict/1"), 503, "unavailable")


async def test_processes_count_together_also_while_they_answer_from_two_versions(redis_url: str) -> None:
    key = uuid4()
    async with AsyncExitStack() as stack:
        processes = [NodeAllowance(await stack.enter_async_context(connect(redis_url)), "small", 40) for _ in range(2)]

        async def is_allowed(process: NodeAllowance, version: int, row: int) -> bool:
            try:
                await process.take(key, version, [row, 100_000])
            except NodeLimitReached:
                return False
            return True

        asked = [is_allowed(processes[row % 2], version, row) for row in range(60) for version in (1, 2)]
        assert sum(await asyncio.gather(*asked)) == 2 * (40 - 1)
        await processes[0].take(key, 3, [1])
        # A process that still answers from an earlier version; the newest version's count stays while it is served.
        await processes[1].take(key, 2, [100_000])
        with redis.Redis.from_url(redis_url) as client:
            assert client.ttl(f"lethe:predicted:small:{key}:3") == -1
        await processes[0].take(key, 3, [1])
    with redis.Redis.from_url(redis_url) as client:
        kept = {
            name.rpartition(b":")[2]: client.ttl(name) for name in client.scan_iter(f"lethe:predicted:small:{key}:*")
        }
    assert kept.pop(b"3") == -1
    # The two earlier ones are removed, and a bit for each row remains.
    assert set(kept) == {b"1", b"2"}
    assert all(0 < seconds <= _KEPT_S for seconds in kept.values())
