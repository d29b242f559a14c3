"""Fixtures for tests of batches."""

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis.asyncio import Redis

from service.queue.connection import connect
from service.queue.stream import DeletionStream
from tests.support.processes.valkey_process import ValkeyProcess
from tests.support.service.db_harness import MODEL
from tests.support.service.running import settings, small_model, together
from tests.support.service.serving import models, serve

__all__ = ["models", "serve", "settings", "small_model", "together"]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ValkeyProcess]:
    """The test's own Valkey."""
    valkey = ValkeyProcess(tmp_path)
    valkey.start()
    yield valkey
    valkey.kill()


@pytest.fixture
async def redis(redis_url: str) -> AsyncIterator[Redis]:
    async with connect(redis_url) as client:
        yield client


@pytest.fixture
async def stream(redis: Redis) -> DeletionStream:
    """The queue of the model of `db`."""
    stream = DeletionStream(redis, MODEL)
    await stream.ensure_group()
    return stream
