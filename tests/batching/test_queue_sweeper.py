"""Requests lost from the stream are found in Postgres and published again; those still in it are left alone."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from service.db import lease as leases
from service.db.transactions import transaction
from service.domain.lease_report import Condition, LeaseReport, Phase
from service.queue.connection import connect
from service.queue.outage import Backoff
from service.queue.stream import DeletionStream
from service.requests.delivery import Relay, Sweeper
from service.requests.moves import RequestMoves
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.db_harness import MODEL, Database
from tests.support.service.queues import claim_all

KEY = f"lethe:{MODEL}:deletions"
LONG_AGO = "now() - interval '5 min'"
RECEIVED_LONG_AGO = f"UPDATE requests SET received_at = {LONG_AGO}, queued_at = {LONG_AGO}, swept_at = NULL"


@pytest.fixture
def sweeper(db: Database, stream: DeletionStream) -> Sweeper:
    return Sweeper(db.engine, stream, older_than_s=0.0)


async def test_requests_survive_redis_being_emptied(
    db: Database, stream: DeletionStream, sweeper: Sweeper, redis: Redis
) -> None:
    accepted = await db.accept_each(5)
    await Relay(db.engine, stream).publish_pending()
    await redis.flushall()
    assert await sweeper.sweep() == 5
    assert await claim_all(stream, 5) == accepted


async def test_requests_that_wait_in_the_stream_are_left_alone(
    db: Database, stream: DeletionStream, sweeper: Sweeper
) -> None:
    await db.accept_each(5)
    await Relay(db.engine, stream).publish_pending()
    assert [await sweeper.sweep() for _ in range(3)] == [0, 0, 0]
    assert await stream.length() == 5


async def test_only_what_was_trimmed_is_published_again(
    db: Database, stream: DeletionStream, sweeper: Sweeper, redis: Redis
) -> None:
    accepted = await db.accept_each(6)
    await Relay(db.engine, stream).publish_pending()
    await redis.xtrim(KEY, maxlen=2, approximate=False)
    assert await sweeper.sweep() == 4
    assert await claim_all(stream, 6) == accepted[4:] + accepted[:4]


async def test_what_a_dead_consumer_was_given_is_delivered_to_another(
    db: Database, stream: DeletionStream, sweeper: Sweeper
) -> None:
    accepted = await db.accept_each(3)
    await Relay(db.engine, stream).publish_pending()
    assert await claim_all(stream, 3, consumer="dead") == accepted
    assert await sweeper.sweep() == 3
    assert await stream.length() == 3
    assert await claim_all(stream, 3, consumer="alive") == accepted


async def test_what_a_consumer_was_given_just_now_is_left_to_it(db: Database, stream: DeletionStream) -> None:
    await db.accept_each(1)
    await Relay(db.engine, stream).publish_pending()
    await claim_all(stream, 1, consumer="busy")
    assert await Sweeper(db.engine, stream, older_than_s=3600.0).sweep() == 0
    assert await stream.claim("other", count=1, block_ms=0) == []


async def test_entries_of_finished_requests_are_removed_and_not_published(
    db: Database, stream: DeletionStream, sweeper: Sweeper
) -> None:
    accepted = await db.accept_each(2)
    await Relay(db.engine, stream).publish_pending()
    await claim_all(stream, 2, consumer="dead")
    await db.intake.cancel(accepted[0], db.api_key_id)
    assert await sweeper.sweep() == 1
    assert await stream.length() == 1
    assert await claim_all(stream, 1) == accepted[1:]


async def test_requests_still_in_the_outbox_are_left_to_the_relay(
    db: Database, stream: DeletionStream, sweeper: Sweeper
) -> None:
    await db.accept_each(2)
    assert await sweeper.sweep() == 0
    assert await stream.length() == 0


async def unlearner(db: Database, phase: Phase, *, for_long: bool = True) -> None:
    """Simulate an unlearner that holds the lease at `phase`."""
    lease = await leases.acquire(db.engine, MODEL, "one", 3600.0)
    assert lease is not None
    await leases.renew(db.engine, lease, LeaseReport(Condition(phase)))
    if for_long:
        await db.rows(f"UPDATE leases SET held_since = {LONG_AGO}, serving_since = {LONG_AGO}")


async def moved_past(redis: Redis) -> None:
    await redis.xgroup_setid(KEY, "unlearner", "9999999999999-0")


async def read_by_another(redis: Redis) -> None:
    await redis.xreadgroup("unlearner", "foreign", {KEY: ">"}, noack=True)


async def acknowledged_by_another(redis: Redis) -> None:
    entries = await DeletionStream(redis, MODEL).claim("foreign", count=9, block_ms=0)
    await redis.xack(KEY, "unlearner", *(entry.entry_id for entry in entries))


async def kept_by_another(redis: Redis) -> None:
    """Claiming it repeatedly keeps it from growing old."""
    entries = await DeletionStream(redis, MODEL).claim("foreign", count=9, block_ms=0)
    await redis.xclaim(KEY, "unlearner", "foreign", 0, [entry.entry_id for entry in entries])


async def group_deleted_and_made_at_the_end(redis: Redis) -> None:
    await redis.xgroup_destroy(KEY, "unlearner")
    await redis.xgroup_create(KEY, "unlearner", id="$")


async def entry_removed(redis: Redis) -> None:
    await redis.xtrim(KEY, maxlen=0, approximate=False)


@pytest.mark.parametrize(
    "stall",
    [
        moved_past,
        read_by_another,
        acknowledged_by_another,
        kept_by_another,
        group_deleted_and_made_at_the_end,
        entry_removed,
    ],
)
async def test_whoever_has_had_them_requests_that_nobody_takes_up_are_delivered_again_once(
    db: Database, stream: DeletionStream, redis: Redis, stall: Callable[[Redis], Awaitable[None]]
) -> None:
    # No entry idle for less than this counts as abandoned.
    sweeper = Sweeper(db.engine, stream, older_than_s=60.0)
    await unlearner(db, Phase.SERVING)
    accepted = await db.accept_each(3)
    await Relay(db.engine, stream).publish_pending()
    await stall(redis)

    async def aged() -> None:
        await db.rows(RECEIVED_LONG_AGO)

    await aged()
    await sweeper.sweep()
    await aged()
    assert await sweeper.sweep() == 0, "those that are still to be delivered are left alone"
    assert sorted(await claim_all(stream, 3)) == sorted(accepted)
    assert await stream.claim("test", count=9, block_ms=0) == []
    assert await stream.length() == 3, "nothing of what was passed over is left"


async def test_requests_behind_a_batch_in_hand_are_not_delivered_again(db: Database, stream: DeletionStream) -> None:
    sweeper = Sweeper(db.engine, stream, older_than_s=60.0)
    await unlearner(db, Phase.SERVING)
    first, _ = await db.accept_each(2)
    await Relay(db.engine, stream).publish_pending()
    await claim_all(stream, 2)
    async with transaction(db.engine) as connection:
        await RequestMoves(connection).take([first])
        await connection.execute(text(f"{RECEIVED_LONG_AGO}, taken_at = {LONG_AGO}"))
        await connection.execute(text("UPDATE requests SET taken_at = NULL WHERE id <> :id"), {"id": first})
        await connection.execute(text("UPDATE leases SET held_since = held_since - interval '1 h'"))
    assert await sweeper.sweep() == 0


@pytest.mark.parametrize("phase", [Phase.LOADING, Phase.SERVING])
async def test_at_a_start_what_was_delivered_is_left_to_whom_it_was_given(
    db: Database, stream: DeletionStream, phase: Phase
) -> None:
    sweeper = Sweeper(db.engine, stream, older_than_s=60.0)
    await db.accept_each(2)
    await Relay(db.engine, stream).publish_pending()
    await db.rows(RECEIVED_LONG_AGO)
    await unlearner(db, phase, for_long=phase is Phase.LOADING)
    await claim_all(stream, 2)
    assert await sweeper.sweep() == 0


async def test_an_unlearner_gets_every_request_while_redis_is_killed_again_and_again(
    db: Database, tmp_path: Path
) -> None:
    valkey = ValkeyProcess(tmp_path)
    quick = Backoff(base_s=0.005, cap_s=0.02)
    stop = asyncio.Event()
    async with connect(valkey.url) as client:
        stream = DeletionStream(client, MODEL)
        relay = Relay(db.engine, stream, backoff=quick)
        sweeper = Sweeper(db.engine, stream, older_than_s=0.0, interval_s=0.01, backoff=quick)
        tasks = [asyncio.create_task(activity.run(stop)) for activity in (relay, sweeper)]
        try:
            accepted = await db.accept_each(10)
            for _ in range(3):
                valkey.start()
                accepted += await db.accept_each(10)
                await claim_all(stream, 1, consumer="killed with Redis")
                valkey.kill()
            valkey.start()
            assert set(await claim_all(stream, 40)) == set(accepted)
        finally:
            stop.set()
            await asyncio.gather(*tasks)
            valkey.kill()
