"""Progress of long work: the current step, its completed share, and an estimate of the remaining time.

The worker begins steps and counts. Observers read the progress from any thread at any time. So counting costs one
addition, and code that reads and writes needs no knowledge of progress bars, lines or database rows.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds before a step reports anything: shorter steps need no progress, and early shares are unreliable.
_SILENT_S = 2.0
#: If more than this share of the amount is done, the amount was unknown, and the share is no longer reported.
_TOO_MUCH = 1.05


@dataclass
class _Step:
    what: str
    began_at: float
    #: In any unit, the same for both; 0 if unknown in advance.
    amount: float
    done: float = 0.0
    #: Whether `what` is already the complete status.
    is_whole: bool = False


class Work:
    """The current work of one thread, readable by others."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step: _Step | None = None

    def begin(self, what: str, amount: float = 0) -> None:
        """Start the step `what`, with `amount` to count if known in advance."""
        self._step = _Step(what, self._clock(), amount)

    def count(self, amount: float) -> None:
        """Add to the completed amount of the step."""
        if self._step is not None:
            self._step.done += amount

    def relay(self, said: str) -> None:
        """Show another process's status as that of this step."""
        if self._step is not None:
            self._step = _Step(said, self._step.began_at, 0, is_whole=True)

    def end(self) -> None:
        """End the current step."""
        self._step = None

    @property
    def what(self) -> str:
        """The current step; empty between steps."""
        step = self._step
        return "" if step is None else step.what

    @property
    def share(self) -> float | None:
        """The completed share of the step, below 1; None if unknown."""
        step = self._step
        if step is None or not 0 < step.done <= step.amount * _TOO_MUCH:
            return None
        return min(step.done / step.amount, 0.99)

    @property
    def pace(self) -> str:
        """The completed share and the estimated remaining time or, if that would be a guess, the elapsed time.

        Empty in the first seconds of a step.
        """
        step, share = self._step, self.share
        seconds = 0.0 if step is None else self._clock() - step.began_at
        if step is None or step.is_whole or seconds < _SILENT_S:
            return ""
        if share is None:
            return f"for {_duration(seconds)}"
        return f"{100 * share:.0f} % done, {_duration(seconds * (1 - share) / share)} left"

    @property
    def status(self) -> str | None:
        """Step and pace in one line; None while there is nothing to report."""
        step, pace = self._step, self.pace
        if step is None or not (pace or step.is_whole):
            return None
        if not pace:
            return step.what
        return f"{step.what}, {pace}" if self.share is None else f"{step.what}: {pace}"


def _duration(seconds: float) -> str:
    """Format a duration, rounded so that it does not change on every read."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {10 * round(seconds / 10)} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"
