"""The activities beside the requests: started together, stopped together, none failing unseen."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

#: Seconds between two looks at what is waited for.
_LOOK_S = 0.05


class Background:
    """Tasks that run until `stop` is set. One that fails is reported at once: nobody works on without it."""

    def __init__(self, on_failure: Callable[[BaseException], None]) -> None:
        self.stop = asyncio.Event()
        self._on_failure = on_failure
        self._tasks: list[asyncio.Task[None]] = []
        self._log = structlog.stdlib.get_logger(__name__)

    def start(self, name: str, activity: Coroutine[Any, Any, None]) -> None:
        """Run `activity` from now on."""
        task = asyncio.create_task(activity, name=name)
        task.add_done_callback(self._ended)
        self._tasks.append(task)

    async def close(self, grace_s: float) -> None:
        """Tell all to stop, give them `grace_s` seconds, then cancel those that have not; all have ended then."""
        self.stop.set()
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=grace_s)
        for task in late:
            self._log.warning("background.cancelled", activity=task.get_name(), after_s=grace_s)
            task.cancel()
        if late:
            await asyncio.wait(late)

    def _ended(self, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        error = task.exception()
        if error is not None:
            self._log.error("background.failed", activity=task.get_name(), exc_info=error)
            self._on_failure(error)


async def announce(is_ready: Callable[[], Awaitable[bool]], on_ready: Callable[[], None], stop: asyncio.Event) -> None:
    """Call `on_ready` once, when `is_ready` for the first time; never after `stop` is set."""
    while not stop.is_set():
        if await is_ready() and not stop.is_set():
            on_ready()
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _LOOK_S)
