"""Work that grows with what a caller names, done where nobody else has to wait for it."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

_Made = TypeVar("_Made")

#: Named nodes from which on the event loop is better served by a thread: below, handing over costs more than the work.
_MANY = 200


async def offload(count: int, work: Callable[[], _Made]) -> _Made:
    """What `work` makes of `count` named nodes; many are worked on in a thread, so that nobody else has to wait."""
    return work() if count < _MANY else await asyncio.to_thread(work)
