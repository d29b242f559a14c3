"""Backoff between attempts, recovery after an outage, and prompt stopping."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, TypeVar

import structlog

from projector.errors import ExplainedError
from service.errors import Unavailable


@dataclass(frozen=True)
class Backoff:
    """Capped exponential backoff with full jitter.

    Drawing the whole delay at random keeps processes that failed together from retrying together (M. Brooker,
    "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).
    """

    #: Maximum delay before the second attempt, in seconds.
    base_s: float = 0.1
    #: Maximum delay before any attempt, in seconds.
    cap_s: float = 5.0

    def ceiling(self, failures: int) -> float:
        """Return the maximum delay after `failures` failed attempts in a row (at least 1), in seconds."""
        # 2 ** 1024 does not fit a float; 60 doublings reach any cap.
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 60))

    def delay(self, failures: int, rng: random.Random) -> float:
        """Return a delay in seconds, uniform between 0 and the ceiling, after `failures` failed attempts in a row."""
        return rng.uniform(0.0, self.ceiling(failures))


T = TypeVar("T")

#: Seconds after which a cancellation without effect is repeated.
_CANCEL_AGAIN_S = 0.5


class Outage:
    """Counts the consecutive failures of one activity and waits between its attempts."""

    def __init__(
        self,
        activity: str,
        backoff: Backoff | None = None,
        rng: random.Random | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._activity = activity
        self._backoff = backoff or Backoff()
        self._rng = rng or random.Random()
        self._clock = clock
        self._failures = 0
        #: Time of the first failure in a row.
        self._since: float | None = None
        #: Why the activity waits; None if it does not.
        self.reason: str | None = None
        #: The remedy for it.
        self.remedy: str | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def lasts_s(self) -> float:
        """Seconds since the first failure in a row; 0 if the activity works."""
        return 0.0 if self._since is None else self._clock() - self._since

    def failed(self, error: ExplainedError | OSError) -> None:
        """Count a failure; the caller logs it and waits."""
        self._failures += 1
        if self._since is None:
            self._since = self._clock()
        error = as_outage(error)
        self.reason, self.remedy = error.detail, error.remedy

    async def pause(self, error: Unavailable | OSError) -> None:
        """Wait before the next attempt, longer after each failure in a row."""
        self.failed(error)
        delay = self._backoff.delay(self._failures, self._rng)
        self._log.warning(
            "outage",
            activity=self._activity,
            failures=self._failures,
            retry_in_s=round(delay, 3),
            reason=error.for_operators if isinstance(error, Unavailable) else self.reason,
        )
        await asyncio.sleep(delay)

    async def retry(self, attempt: Callable[[], Awaitable[T]], stop: asyncio.Event) -> T:
        """Repeat an idempotent `attempt` until it succeeds, and return its result.

        Raises the error of an outage once `stop` is set, and any other error immediately.
        """
        while True:
            try:
                result = await attempt()
            except (Unavailable, OSError) as error:
                if stop.is_set():
                    raise
                await self.pause(error)
            else:
                self._since = self.reason = self.remedy = None
                return result

    def over(self) -> None:
        """Record a success: the next failure counts as the first again."""
        self._since = self.reason = self.remedy = None
        if self._failures:
            self._log.info("outage.over", activity=self._activity, failures=self._failures)
            self._failures = 0


def as_outage(error: ExplainedError | OSError) -> Unavailable:
    """Convert an error to an outage: a full or missing disk is waited for like an unresponsive server."""
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, ExplainedError):
        return Unavailable(error.detail, error.remedy)
    return Unavailable(f"The disk cannot be used: {error.strerror or type(error).__name__}.", "Free or restore it.")


async def run_until(stop: asyncio.Event, activity: Coroutine[Any, Any, None]) -> None:
    """Run `activity` until it ends or `stop` is set; an error of the activity is raised.

    On `stop` the activity is cancelled wherever it waits, and has ended on return.
    """
    task = asyncio.ensure_future(activity)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        # Both have ended on return. Cancel repeatedly: redis-py loses a cancellation that arrives while it connects. If
        # the caller is cancelled during this wait, the activity is cancelled but may not have ended.
        waiting = {task, stopping}
        while waiting:
            task.cancel()
            _, waiting = await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_S)
    if not task.cancelled():
        task.result()
