"""An activity through an outage: attempted again, and what it waits for is told meanwhile."""

import asyncio
import errno
import os
import random

import pytest

from service.errors import Unavailable
from service.queue.backoff import Backoff
from service.queue.outage import Outage


@pytest.fixture
def outage() -> Outage:
    return Outage("erasing", Backoff(base_s=1e-4, cap_s=1e-3), random.Random(0))


async def test_what_is_waited_for_is_told_until_an_attempt_succeeds(outage: Outage) -> None:
    told: list[str | None] = []

    async def attempt() -> str:
        told.append(outage.reason)
        if len(told) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(told) == 2:
            raise Unavailable("The database does not answer.", "Start it.")
        return "done"

    assert await outage.outlast(attempt, asyncio.Event()) == "done"
    full = f"The disk cannot be used: {os.strerror(errno.ENOSPC)}."
    assert told == [None, full, "The database does not answer."]
    assert outage.reason is None


async def test_a_stop_ends_the_attempts_with_what_they_failed_for(outage: Outage) -> None:
    stop = asyncio.Event()

    async def attempt() -> None:
        stop.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="space"):
        await outage.outlast(attempt, stop)


async def test_a_pause_that_is_over_is_told_of_no_more(outage: Outage) -> None:
    await outage.pause(Unavailable("The database does not answer.", "Start it."))
    assert outage.reason == "The database does not answer."
    outage.over()
    assert outage.reason is None
