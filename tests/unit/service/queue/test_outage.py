"""An activity through an outage: retried, while its cause is reported."""

import asyncio
import errno
import os
import random

import pytest

from service.errors import Unavailable
from service.queue import outage as outages
from service.queue.outage import Backoff, Outage, run_until


@pytest.fixture
def outage() -> Outage:
    return Outage("erasing", Backoff(base_s=1e-4, cap_s=1e-3), random.Random(0))


async def test_what_is_waited_for_is_reported_until_an_attempt_succeeds(outage: Outage) -> None:
    reasons: list[str | None] = []

    async def attempt() -> str:
        reasons.append(outage.reason)
        if len(reasons) == 1:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if len(reasons) == 2:
            raise Unavailable("The database does not answer.", "Start it.")
        return "done"

    assert await outage.retry(attempt, asyncio.Event()) == "done"
    full = f"The disk cannot be used: {os.strerror(errno.ENOSPC)}."
    assert reasons == [None, full, "The database does not answer."]
    assert outage.reason is None


async def test_a_stop_ends_the_attempts_with_what_they_failed_for(outage: Outage) -> None:
    stop = asyncio.Event()

    async def attempt() -> None:
        stop.set()
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(OSError, match="space"):
        await outage.retry(attempt, stop)


async def test_a_pause_that_is_over_is_no_longer_reported(outage: Outage) -> None:
    await outage.pause(Unavailable("The database does not answer.", "Start it."))
    assert outage.reason == "The database does not answer."
    outage.over()
    assert outage.reason is None


async def test_an_activity_that_loses_a_cancellation_is_cancelled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outages, "_CANCEL_AGAIN_S", 1e-3)
    stop, cancellations = asyncio.Event(), 0

    async def activity() -> None:
        nonlocal cancellations
        stop.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancellations += 1
                if cancellations > 1:
                    raise

    async with asyncio.timeout(120):
        await run_until(stop, activity())
    assert cancellations == 2


async def test_an_activity_has_ended_when_the_caller_that_runs_it_was_cancelled() -> None:
    ended: list[bool] = []

    async def activity() -> None:
        try:
            caller.cancel()
            await asyncio.Event().wait()
        finally:
            for _ in range(10):
                await asyncio.sleep(0)
            ended.append(True)

    caller = asyncio.create_task(run_until(asyncio.Event(), activity()))
    await asyncio.wait({caller})
    assert caller.cancelled()
    assert ended


async def test_what_an_activity_fails_with_is_raised() -> None:
    async def activity() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await run_until(asyncio.Event(), activity())


async def test_an_outage_lasts_from_its_first_failure_until_the_activity_goes_on() -> None:
    now = 100.0
    outage = Outage("publishing", Backoff(base_s=1e-4, cap_s=1e-3), random.Random(0), clock=lambda: now)
    assert outage.lasts_s == 0.0
    await outage.pause(Unavailable("Redis is full.", "Raise its maxmemory."))
    now = 130.0
    await outage.pause(Unavailable("Redis is a replica.", "Point REDIS_URL at the primary."))
    assert (outage.lasts_s, outage.reason, outage.remedy) == (
        30.0,
        "Redis is a replica.",
        "Point REDIS_URL at the primary.",
    )
    outage.over()
    now = 150.0
    assert (outage.lasts_s, outage.reason, outage.remedy) == (0.0, None, None)
