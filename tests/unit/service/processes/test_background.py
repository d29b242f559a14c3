"""The activities beside the requests."""

import asyncio

from service.processes.listening import announce


async def test_nothing_is_announced_once_it_is_to_stop() -> None:
    stop, announced = asyncio.Event(), []

    async def is_ready() -> bool:
        stop.set()
        return True

    await announce(is_ready, lambda: announced.append("ready"), stop)
    assert announced == []
    stop.clear()

    async def is_ready_at_once() -> bool:
        return True

    await announce(is_ready_at_once, lambda: announced.append("ready"), stop)
    assert announced == ["ready"]
