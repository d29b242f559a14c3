"""The stream of request ids on a real Valkey: emptied, trimmed, duplicated, restarted, unreachable."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from uuid import UUID, uuid4

import pytest
from redis.asyncio import Redis

from service.errors import Unavailable
from service.queue.connection import connect
from service.queue.stream import DeletionStream
from tests.support.processes.valkey_process import ValkeyProcess

KEY = "lethe:cora:deletions"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyProcess]:
    valkey = ValkeyProcess(tmp_path_factory.mktemp("valkey"))
    valkey.start()
    yield valkey
    valkey.kill()


@pytest.fixture
async def redis(server: ValkeyProcess) -> AsyncIterator[Redis]:
    async with connect(server.url) as client:
        await client.flushall()
        yield client


@pytest.fixture
async def stream(redis: Redis) -> DeletionStream:
    stream = DeletionStream(redis, "cora")
    await stream.ensure_group()
    return stream


def ids(count: int) -> list[UUID]:
    return [uuid4() for _ in range(count)]


async def claimed(stream: DeletionStream, consumer: str = "one", count: int = 10_000) -> list[UUID]:
    return [entry.request_id for entry in await stream.claim(consumer, count=count, block_ms=0)]


async def test_what_is_published_is_claimed_once_in_order(stream: DeletionStream) -> None:
    published = ids(1203)
    await stream.publish(published)
    assert await claimed(stream, count=700) == published[:700]
    assert await claimed(stream, consumer="two") == published[700:]
    assert await claimed(stream) == []


async def test_acknowledged_entries_leave_the_stream(stream: DeletionStream, redis: Redis) -> None:
    await stream.publish(ids(5))
    entries = await stream.claim("one", count=5, block_ms=0)
    assert await stream.length() == 5
    await stream.acknowledge(entries[:3])
    assert await stream.length() == 2
    await stream.acknowledge(entries)
    await stream.acknowledge(entries)
    await stream.acknowledge([])
    assert await stream.length() == 0
    assert (await redis.xpending(KEY, "unlearner"))["pending"] == 0


async def test_what_was_published_before_the_group_existed_is_delivered(redis: Redis) -> None:
    stream = DeletionStream(redis, "cora")
    published = ids(3)
    await stream.publish(published)
    await stream.ensure_group()
    await stream.ensure_group()
    assert await claimed(stream) == published


async def test_a_claim_after_redis_was_emptied_recreates_the_group(stream: DeletionStream, redis: Redis) -> None:
    await stream.publish(ids(3))
    await redis.flushall()
    assert await claimed(stream) == []
    published = ids(2)
    await stream.publish(published)
    assert await claimed(stream) == published
    await redis.flushall()
    assert await stream.reclaim("one", idle_ms=0) == []
    await stream.publish(published)
    assert await claimed(stream) == published


async def test_a_blocked_claim_survives_the_stream_being_deleted(stream: DeletionStream, server: ValkeyProcess) -> None:
    claim = asyncio.create_task(stream.claim("one", count=1, block_ms=5_000))
    async with connect(server.url) as other:
        while not (await other.info("clients"))["blocked_clients"]:
            pass  # each answer lets the claim go on
        await other.flushall()
    assert await claim == []
    published = ids(1)
    await stream.publish(published)
    assert await claimed(stream) == published


async def test_entries_of_a_consumer_that_died_are_taken_over_page_by_page(stream: DeletionStream) -> None:
    published = ids(1203)
    await stream.publish(published)
    assert len(await claimed(stream, consumer="dead", count=1100)) == 1100
    taken = await stream.reclaim("alive", idle_ms=0)
    assert [entry.request_id for entry in taken] == published[:1100]
    assert await stream.reclaim("alive", idle_ms=3_600_000) == []
    await stream.acknowledge(taken)
    assert await stream.reclaim("alive", idle_ms=0) == []
    assert await claimed(stream, consumer="alive") == published[1100:]


async def test_entries_trimmed_after_delivery_are_not_taken_over(stream: DeletionStream, redis: Redis) -> None:
    published = ids(6)
    await stream.publish(published)
    await claimed(stream, consumer="dead")
    await redis.xtrim(KEY, maxlen=2, approximate=False)
    assert [entry.request_id for entry in await stream.reclaim("alive", idle_ms=0)] == published[4:]


async def test_all_entries_of_the_stream_are_listed_by_whether_they_were_delivered(stream: DeletionStream) -> None:
    published = ids(1203)
    await stream.publish(published)
    await claimed(stream, count=600)
    contents = await stream.contents()
    assert [entry.request_id for entry in contents.delivered] == published[:600]
    assert [entry.request_id for entry in contents.upcoming] == published[600:]


async def test_entries_that_name_no_request_are_removed(stream: DeletionStream, redis: Redis) -> None:
    await redis.xadd(KEY, {b"noise": b"1"})
    await redis.xadd(KEY, {b"request": b"not an id"})
    published = ids(1)
    await stream.publish(published)
    assert {entry.request_id for entry in (await stream.contents()).upcoming} == set(published)
    assert await claimed(stream) == published
    assert await stream.length() == 1


async def test_a_redis_that_is_down_or_frozen_is_unavailable_and_usable_again_later(tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    try:
        async with connect(valkey.url, socket_timeout_s=0.2) as client:
            stream = DeletionStream(client, "cora")
            await stream.ensure_group()
            valkey.freeze()
            with pytest.raises(Unavailable, match="Redis"):
                await stream.publish(ids(1))
            valkey.thaw()
            await stream.publish(ids(1))
            valkey.kill()
            for call in (
                stream.ensure_group(),
                stream.publish(ids(1)),
                stream.claim("one", count=1, block_ms=0),
                stream.reclaim("one", idle_ms=0),
                stream.contents(),
                stream.length(),
            ):
                with pytest.raises(Unavailable, match="REDIS_URL"):
                    await call
            valkey.start()
            published = ids(2)
            assert await claimed(stream) == []
            await stream.publish(published)
            assert await claimed(stream) == published
    finally:
        valkey.kill()
