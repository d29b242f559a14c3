"""What the stream lost is found in Postgres and published again; what it still holds is left alone."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from service.deletions.delivery.relay import Relay
from service.deletions.delivery.sweeper import Sweeper
from service.queue.backoff import Backoff
from service.queue.connection import connect
from service.queue.stream import DeletionStream
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.queue_world import MODEL, QueueWorld, claim_all, queue_world

KEY = f"lethe:{MODEL}:deletions"


@pytest.fixture
async def world(database_url: str, tmp_path: Path) -> AsyncIterator[QueueWorld]:
    async with queue_world(database_url, tmp_path) as world:
        yield world


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url) as client:
        yield client


@pytest.fixture
async def stream(redis: Redis) -> DeletionStream:
    stream = DeletionStream(redis, MODEL)
    await stream.ensure_group()
    return stream


@pytest.fixture
def sweeper(world: QueueWorld, stream: DeletionStream) -> Sweeper:
    return Sweeper(world.engine, stream, older_than_s=0.0)


async def test_requests_survive_redis_being_emptied(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper, redis: Redis
) -> None:
    accepted = await world.accept(5)
    await Relay(world.engine, stream).publish_pending()
    await redis.flushall()
    assert await sweeper.sweep() == 5
    assert await claim_all(stream, 5) == accepted


async def test_requests_that_wait_in_the_stream_are_left_alone(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper
) -> None:
    await world.accept(5)
    await Relay(world.engine, stream).publish_pending()
    assert [await sweeper.sweep() for _ in range(3)] == [0, 0, 0]
    assert await stream.length() == 5


async def test_only_what_was_trimmed_is_published_again(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper, redis: Redis
) -> None:
    accepted = await world.accept(6)
    await Relay(world.engine, stream).publish_pending()
    await redis.xtrim(KEY, maxlen=2, approximate=False)
    assert await sweeper.sweep() == 4
    assert await claim_all(stream, 6) == accepted[4:] + accepted[:4]


async def test_what_a_dead_consumer_was_given_is_delivered_to_another(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper
) -> None:
    accepted = await world.accept(3)
    await Relay(world.engine, stream).publish_pending()
    assert await claim_all(stream, 3, consumer="dead") == accepted
    assert await sweeper.sweep() == 3
    assert await stream.length() == 3
    assert await claim_all(stream, 3, consumer="alive") == accepted


async def test_what_a_consumer_was_given_just_now_is_left_to_it(world: QueueWorld, stream: DeletionStream) -> None:
    await world.accept(1)
    await Relay(world.engine, stream).publish_pending()
    await claim_all(stream, 1, consumer="busy")
    assert await Sweeper(world.engine, stream, older_than_s=3600.0).sweep() == 0
    assert await stream.claim("other", count=1, block_ms=0) == []


async def test_entries_of_finished_requests_are_removed_and_not_published(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper
) -> None:
    accepted = await world.accept(2)
    await Relay(world.engine, stream).publish_pending()
    await claim_all(stream, 2, consumer="dead")
    await world.intake.cancel(accepted[0], world.api_key_id)
    assert await sweeper.sweep() == 1
    assert await stream.length() == 1
    assert await claim_all(stream, 1) == accepted[1:]


async def test_requests_still_in_the_outbox_are_left_to_the_relay(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper
) -> None:
    await world.accept(2)
    assert await sweeper.sweep() == 0
    assert await stream.length() == 0


async def test_a_missing_group_is_recreated(
    world: QueueWorld, stream: DeletionStream, sweeper: Sweeper, redis: Redis
) -> None:
    accepted = await world.accept(1)
    await Relay(world.engine, stream).publish_pending()
    await redis.xgroup_destroy(KEY, "unlearner")
    assert await sweeper.sweep() == 0
    assert [group["name"] for group in await redis.xinfo_groups(KEY)] == [b"unlearner"]
    assert await claim_all(stream, 1) == accepted


async def test_an_unlearner_gets_every_request_while_redis_is_killed_again_and_again(
    world: QueueWorld, tmp_path: Path
) -> None:
    valkey = ValkeyProcess(tmp_path)
    quick = Backoff(base_s=0.005, cap_s=0.02)
    stop = asyncio.Event()
    async with connect(valkey.url) as client:
        stream = DeletionStream(client, MODEL)
        relay = Relay(world.engine, stream, backoff=quick)
        sweeper = Sweeper(world.engine, stream, older_than_s=0.0, interval_s=0.01, backoff=quick)
        tasks = [asyncio.create_task(activity.run(stop)) for activity in (relay, sweeper)]
        try:
            accepted = await world.accept(10)
            for _ in range(3):
                valkey.start()
                accepted += await world.accept(10)
                await claim_all(stream, 1, consumer="killed with Redis")
                valkey.kill()
            valkey.start()
            assert set(await claim_all(stream, 40)) == set(accepted)
        finally:
            stop.set()
            await asyncio.gather(*tasks)
            valkey.kill()
