"""However the stream stalls, accepted requests are carried out, or readiness names the cause."""

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis

from service.processes import readiness
from service.queue.connection import connect
from service.requests.delivery import Sweeper
from service.settings import Settings
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.db_harness import until
from tests.support.service.running import Lethe, running

KEY = "lethe:small:deletions"
GROUP = "unlearner"


@pytest.fixture
async def redis(server: ValkeyProcess) -> AsyncIterator[Redis]:
    async with connect(server.url) as client:
        yield client


@pytest.fixture
async def lethe(settings: Settings, server: ValkeyProcess, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Lethe]:
    # Instead of 15 s and 5 s.
    defaults = Sweeper.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "older_than_s", 1.0)
    monkeypatch.setitem(defaults, "interval_s", 0.5)
    async with running(settings.model_copy(update={"redis_url": server.url})) as lethe:
        await until(lethe.is_ready)
        yield lethe


async def leave(redis: Redis) -> None:
    """Do nothing more: the group is already past the entry."""


async def read_elsewhere(redis: Redis) -> None:
    async with redis.pipeline(transaction=True) as pipeline:
        pipeline.xgroup_setid(KEY, GROUP, "0")
        pipeline.xreadgroup(GROUP, "foreign", {KEY: ">"}, noack=True)
        await pipeline.execute()


async def delete_group(redis: Redis) -> None:
    await redis.xgroup_destroy(KEY, GROUP)


async def trim(redis: Redis) -> None:
    await redis.xtrim(KEY, maxlen=0, approximate=False)


async def test_what_a_stalled_stream_holds_is_carried_out(lethe: Lethe, redis: Redis) -> None:
    stalls: tuple[Callable[[Redis], Awaitable[None]], ...] = (leave, read_elsewhere, delete_group, trim)
    for node, stall in enumerate(stalls):
        await redis.xgroup_setid(KEY, GROUP, "9999999999999-0")
        accepted = await lethe.delete(str(node))
        await stall(redis)
        state = await lethe.completed(accepted)
        assert state["status"] == "completed", stall.__name__
    audit = await lethe.client.get("/audit/summary")
    assert audit.json()["by_status"]["completed"] == len(stalls)
    assert lethe.failures == []


@pytest.mark.ci
async def test_a_stream_that_takes_no_commands_is_named_by_readiness(
    lethe: Lethe, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readiness, "MOST_UNCLAIMED_S", 0.5)
    await redis.client_pause(60_000, all=False)
    accepted = await lethe.delete("3")

    async def failing() -> list[str]:
        return [check["name"] for check in (await lethe.client.get("/readyz")).json()["checks"] if not check["ok"]]

    async def is_named() -> bool:
        return await failing() == ["oldest_request"]

    await until(is_named)
    await redis.client_unpause()
    await lethe.completed(accepted)
    await until(lethe.is_ready)
