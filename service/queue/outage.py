"""How long to wait between attempts, going on after an outage, and stopping at once when told to."""

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

    Drawing the whole delay at random keeps processes that failed together from coming back together
    (M. Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015).
    """

    #: Longest delay before the second attempt, in seconds.
    base_s: float = 0.1
    #: Longest delay before any attempt, in seconds.
    cap_s: float = 5.0

    def __post_init__(self) -> None:
        """Raise ValueError for delays that are negative or out of order."""
        if not 0 < self.base_s <= self.cap_s:
            raise ValueError(f"base and cap of a backoff must satisfy 0 < base <= cap, not {self}")

    def ceiling(self, failures: int) -> float:
        """The longest delay after `failures` failed attempts in a row (at least 1), in seconds."""
        # 2 ** 1024 does not fit a float; by 60 doublings any cap has been reached.
        return min(self.cap_s, self.base_s * 2.0 ** min(failures - 1, 60))

    def delay(self, failures: int, rng: random.Random) -> float:
        """A delay in seconds, uniform between 0 and the ceiling, after `failures` failed attempts in a row."""
        return rng.uniform(0.0, self.ceiling(failures))


T = TypeVar("T")

#: Seconds after which a cancellation that had no effect is repeated.
_CANCEL_AGAIN_S = 0.5


class Outage:
    """Counts the failures in a row of one activity and waits between its attempts."""

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
        #: When the first failure in a row was met.
        self._since: float | None = None
        #: What the activity waits for at present; None when it goes on.
        self.reason: str | None = None
        #: What to do about it.
        self.remedy: str | None = None
        self._log = structlog.get_logger(__name__)

    @property
    def lasts_s(self) -> float:
        """Seconds since the first failure in a row; 0 while the activity goes on."""
        return 0.0 if self._since is None else self._clock() - self._since

    def failed(self, error: ExplainedError | OSError) -> None:
        """Count a failure; the caller logs it and waits."""
        self._failures += 1
        if self._since is None:
            self._since = self._clock()
        error = as_outage(error)
        self.reason, self.remedy = error.detail, error.remedy

    async def pause(self, error: Unavailable | OSError) -> None:
        """Wait before the next attempt, longer with each failure in a row."""
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
        """Make attempts until one succeeds and return its result; what they do must bear to be repeated.

        Raises what an outage raised once `stop` is set, and any other error at once.
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
        """An attempt succeeded: the next failure counts as the first again."""
        self._since = self.reason = self.remedy = None
        if self._failures:
            self._log.info("outage.over", activity=self._activity, failures=self._failures)
            self._failures = 0


def as_outage(error: ExplainedError | OSError) -> Unavailable:
    """A disk that is full or away is waited for like a server that does not answer."""
    if isinstance(error, Unavailable):
        return error
    if isinstance(error, ExplainedError):
        return Unavailable(error.detail, error.remedy)
    return Unavailable(f"The disk cannot be used: {error.strerror or type(error).__name__}.", "Free or restore it.")


async def run_until(stop: asyncio.Event, activity: Coroutine[Any, Any, None]) -> None:
    """Run `activity` until it ends or `stop` is set, whichever is first; an error of the activity is raised.

    On `stop` the activity is cancelled wherever it waits, and has ended when this returns.
    """
    task = asyncio.ensure_future(activity)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({task, stopping}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
        # Both have ended when this returns. Asked for again and again: redis-py loses a cancellation that meets it
        # while it connects. A caller that is cancelled in this very wait leaves the activity cancelled, not ended.
        waiting = {task, stopping}
        while waiting:
            task.cancel()
            _, waiting = await asyncio.wait(waiting, timeout=_CANCEL_AGAIN_S)
    if not task.cancelled():
        task.result()
