"""Limits of attempts, and failures until they refuse."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from service.access.limits import GUESSES, RateLimits
from service.errors import TooManyAttempts
from service.queue.connection import connect

FAILURES = GUESSES.item.amount


class Wrong(Exception):
    """A counted failure."""


@asynccontextmanager
async def limits_of(redis_url: str) -> AsyncIterator[RateLimits]:
    client = connect(redis_url, socket_timeout_s=0.5)
    try:
        yield RateLimits(client, b"secret")
    finally:
        await client.aclose()


async def fail(limits: RateLimits, who: str, times: int = 1) -> None:
    for _ in range(times):
        with pytest.raises(Wrong):
            async with limits.attempt(GUESSES, who, Wrong):
                raise Wrong


async def is_refused(limits: RateLimits, who: str) -> bool:
    try:
        async with limits.attempt(GUESSES, who, Wrong):
            return False
    except TooManyAttempts as error:
        refusal = error
    assert 1 <= refusal.extra["retry_after"] <= GUESSES.item.get_expiry()
    return True
