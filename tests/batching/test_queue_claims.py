"""What the unlearner waits for, and what ends the wait."""

import asyncio

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from service.db.transactions import transaction
from service.queue.stream import DeletionStream, Entry
from service.unlearner.batcher import BatchLimits, Claims, Take, Wait
from tests.support.service.db_harness import MODEL, Database, until


def claims_of(db: Database, stream: DeletionStream, *, max_nodes: int) -> Claims:
    limits = BatchLimits(max_nodes=max_nodes, max_wait_s=60.0)
    return Claims(engine=db.engine, stream=stream, model=MODEL, consumer="unlearner", limits=limits)


async def test_a_stop_ends_the_wait_for_entries_and_the_next_start_has_what_came_meanwhile(
    db: Database, redis: Redis, stream: DeletionStream
) -> None:
    claims = claims_of(db, stream, max_nodes=2)
    stop = asyncio.Event()
    # Earlier deliveries come first; there were none.
    await claims.wait(0.0, stop)
    waiting = asyncio.create_task(claims.wait(9.0, stop))

    async def is_waiting() -> bool:
        return bool((await redis.info("clients"))["blocked_clients"])

    await until(is_waiting)
    stop.set()
    async with asyncio.timeout(5.0):
        await waiting
    assert claims.none

    await stream.publish(await db.accept_each(2))
    claims.start_again()
    # Delivered but unacknowledged entries come first, then new ones.
    for _ in range(2):
        await claims.wait(0.5, asyncio.Event())
    assert claims.decide() == Take(2)


async def test_what_came_while_a_batch_was_under_way_has_waited_since_it_was_received(
    db: Database, stream: DeletionStream
) -> None:
    claims = claims_of(db, stream, max_nodes=2)
    await claims.wait(0.0, asyncio.Event())

    async def claimed_after(batch: int, received_before: str) -> Take | Wait:
        ended, requests = claims.first(batch), await db.accept_each(1)
        async with transaction(db.engine) as connection:
            earlier = f"UPDATE requests SET received_at = received_at - interval '{received_before}' WHERE id = :id"
            await connection.execute(text(earlier), {"id": requests[0]})
        for each in ended:
            await db.intake.cancel(each.id, db.api_key_id)
        await claims.done(batch, ())
        await stream.publish(requests)
        await claims.wait(9.0, asyncio.Event())
        return claims.decide()

    assert isinstance(await claimed_after(0, "0 s"), Wait)
    assert await claimed_after(1, "2 min") == Take(1)
    assert isinstance(await claimed_after(1, "10 s"), Wait)


async def test_a_batch_that_fills_does_not_wait_for_the_next_tick_of_redis(
    db: Database, stream: DeletionStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    claims, blocked = claims_of(db, stream, max_nodes=2), list[int]()
    claim = stream.claim

    async def noted(consumer: str, *, count: int, block_ms: int) -> list[Entry]:
        blocked.append(block_ms)
        return await claim(consumer, count=count, block_ms=block_ms)

    monkeypatch.setattr(stream, "claim", noted)
    await claims.wait(0.0, asyncio.Event())
    await stream.publish(await db.accept_each(1))
    await claims.wait(9.0, asyncio.Event())
    assert blocked == [9000, 0]
    await stream.publish(await db.accept_each(1))
    await claims.wait(9.0, asyncio.Event())
    assert claims.decide() == Take(2)
    assert not any(blocked[1:])


async def test_requests_do_not_overtake_each_other_whatever_order_they_are_delivered_in(
    db: Database, stream: DeletionStream
) -> None:
    claims = claims_of(db, stream, max_nodes=9)
    await claims.wait(0.0, asyncio.Event())
    first, second, third, fourth = [(await db.accept_each(1))[0] for _ in range(4)]
    # The first is late, and the second lost.
    await stream.publish([third])
    await claims.wait(9.0, asyncio.Event())
    assert [each.id for each in claims.first(9)] == [first, second, third]
    await stream.publish([fourth, first])
    await claims.wait(9.0, asyncio.Event())
    assert [each.id for each in claims.first(9)] == [first, second, third, fourth]
    await claims.done(4, {second})
    assert [each.id for each in claims.first(9)] == [second]
    assert await stream.length() == 0
