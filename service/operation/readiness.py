"""Whether what must work does: each thing looked at for itself, and named when it does not work."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from service.domain.lease_report import Check
from service.errors import LetheError

#: Seconds an answer is good for, so that those who ask often do not keep the servers busy.
_FRESH_FOR_S = 0.5

#: What was found to be in order; raises LetheError when it is not.
Probe = Callable[[], Awaitable[str]]
#: With their names, in the order in which they are told.
Probes = Sequence[tuple[str, Probe]]


class NotReady(LetheError):
    """A probe found something that is not as it must be."""


async def _none() -> tuple[Check, ...]:
    return ()


class Readiness:
    """Runs all probes at once, each within a time limit; callers at the same moment share one run.

    An answer is given again for a while, but not once `state`, which costs nothing to ask for, has changed: whoever
    waits for the model to be loaded is told at once.
    """

    def __init__(
        self,
        probes: Probes,
        *,
        timeout_s: float,
        state: Callable[[], object],
        others: Callable[[], Awaitable[tuple[Check, ...]]] = _none,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`others` are the checks of another process, told after those of the probes."""
        self._probes = tuple(probes)
        self._timeout_s = timeout_s
        self._state = state
        self._others = others
        self._clock = clock
        self._running = asyncio.Lock()
        self._checked_at = float("-inf")
        self._checked_in: object = None
        self._checks: tuple[Check, ...] = ()

    async def __call__(self) -> tuple[Check, ...]:
        """One check per probe, in their order, then those of the other process."""
        async with self._running:
            now = self._state()
            if now != self._checked_in or self._clock() - self._checked_at > _FRESH_FOR_S:
                own, others = await asyncio.gather(
                    asyncio.gather(*(self._check(*probe) for probe in self._probes)), self._others()
                )
                self._checks = (*own, *others)
                self._checked_at = self._clock()
                # As it was before the probes looked: one that changed amid them is looked at again.
                self._checked_in = now
            return self._checks

    async def _check(self, name: str, probe: Probe) -> Check:
        try:
            return Check(name, True, await asyncio.wait_for(probe(), self._timeout_s))
        except LetheError as error:
            return Check(name, False, error.detail, error.remedy)
        except TimeoutError:
            return Check(name, False, f"No answer within {self._timeout_s:g} s.", "Check whether it is overloaded.")
        except Exception as error:  # noqa: BLE001 - whatever is wrong, it is this that is not ready
            return Check(name, False, f"It failed with {type(error).__name__}.", "Check the log of the service.")
