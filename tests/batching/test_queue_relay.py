"""From a committed request to the stream: at least once, through any outage."""

import asyncio
from collections.abc import Iterable, Mapping
from pathlib import Path
from uuid import UUID

import pytest
from redis.asyncio import Redis
from sqlalchemy import text

from service.db import migrate
from service.db.transactions import transaction
from service.errors import Unavailable
from service.processes.private_servers import Embedded
from service.queue.connection import connect
from service.queue.outage import Backoff
from service.queue.stream import DeletionStream
from service.requests.delivery import Relay
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.db_harness import MODEL, Database, open_database
from tests.support.service.queues import claim_all

QUICK = Backoff(base_s=0.005, cap_s=0.02)
NEVER_S = 3600.0
WAITING = "SELECT count(*) FROM outbox"
NONE: Mapping[UUID, str | None] = {}


class Running:
    """A relay or sweeper that runs for the block."""

    def __init__(self, activity: Relay) -> None:
        self._activity = activity
        self._stop = asyncio.Event()

    async def __aenter__(self) -> None:
        self._task = asyncio.create_task(self._activity.run(self._stop))

    async def __aexit__(self, *_: object) -> None:
        self._stop.set()
        async with asyncio.timeout(120):
            await self._task


async def test_accepted_requests_are_published_once_in_order(db: Database, stream: DeletionStream) -> None:
    accepted = await db.accept_each(5)
    relay = Relay(db.engine, stream)
    assert await relay.publish_pending() == 5
    assert await relay.publish_pending() == 0
    assert await db.value(WAITING) == 0
    assert [entry.request_id for entry in await stream.claim("one", count=10, block_ms=0)] == accepted


async def test_a_request_whose_notification_was_lost_is_found_by_polling(db: Database, stream: DeletionStream) -> None:
    accepted = await db.accept_each(1)
    await Relay(db.engine, stream).publish_pending()
    await claim_all(stream, 1)
    async with Running(Relay(db.engine, stream, poll_s=0.01)):
        async with transaction(db.engine) as connection:
            again = "INSERT INTO outbox (request_id, model) VALUES (:id, :model)"
            await connection.execute(text(again), {"id": accepted[0], "model": MODEL})
        assert await claim_all(stream, 1) == accepted


class CrashingStream(DeletionStream):
    """Publishes, and fails before anyone learns of it."""

    async def publish(self, request_ids: Iterable[UUID], traceparents: Mapping[UUID, str | None] = NONE) -> None:
        await super().publish(request_ids, traceparents)
        raise Unavailable("The answer got lost.", "Try again.")


async def test_a_crash_between_publishing_and_committing_publishes_again(
    db: Database, stream: DeletionStream, redis: Redis
) -> None:
    accepted = await db.accept_each(2)
    with pytest.raises(Unavailable):
        await Relay(db.engine, CrashingStream(redis, MODEL)).publish_pending()
    assert await db.value(WAITING) == 2
    await Relay(db.engine, stream).publish_pending()
    delivered = [entry.request_id for entry in await stream.claim("one", count=10, block_ms=0)]
    assert delivered == accepted * 2


async def test_requests_accepted_while_redis_is_down_are_published_when_it_is_back(
    db: Database, tmp_path: Path
) -> None:
    valkey = ValkeyProcess(tmp_path)
    async with connect(valkey.url) as client:
        stream = DeletionStream(client, MODEL)
        try:
            async with Running(Relay(db.engine, stream, poll_s=NEVER_S, backoff=QUICK)):
                accepted = await db.accept_each(2)
                valkey.start()
                assert await claim_all(stream, 2) == accepted
                valkey.kill()
                accepted = await db.accept_each(2)
                valkey.start()
                assert await claim_all(stream, 2) == accepted
        finally:
            valkey.kill()


async def test_it_stops_at_once_while_redis_is_frozen(db: Database, tmp_path: Path) -> None:
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    try:
        async with connect(valkey.url, socket_timeout_s=NEVER_S) as client:
            async with Running(Relay(db.engine, DeletionStream(client, MODEL), poll_s=0.01)):
                valkey.freeze()
                await db.accept_each(1)
            assert await db.value(WAITING) == 1
    finally:
        valkey.kill()


@pytest.mark.ci
async def test_it_goes_on_when_postgres_was_restarted(
    own_postgres: Embedded, stream: DeletionStream, tmp_path: Path
) -> None:
    url = own_postgres.start().database_url
    assert url is not None
    await migrate.upgrade(url)
    async with open_database(url, tmp_path) as db:
        relay = Relay(db.engine, stream, poll_s=NEVER_S, backoff=QUICK)
        async with Running(relay):
            before = await db.accept_each(1)
            assert await claim_all(stream, 1) == before
            await asyncio.to_thread(own_postgres.stop)
            await asyncio.to_thread(own_postgres.start)
            accepted = await db.accept_each(1)
            # If the stop preceded the commit of the first publication, it is published again.
            while accepted[0] not in await claim_all(stream, 1):
                pass


async def test_an_error_that_is_no_outage_ends_the_relay(db: Database, redis: Redis) -> None:
    class BrokenStream(DeletionStream):
        async def publish(self, request_ids: Iterable[UUID], traceparents: Mapping[UUID, str | None] = NONE) -> None:
            raise RuntimeError("a defect")

    await db.accept_each(1)
    with pytest.raises(RuntimeError, match="a defect"):
        await Relay(db.engine, BrokenStream(redis, MODEL)).run(asyncio.Event())
