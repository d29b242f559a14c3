"""How far long work has come: which step is under way, how much of it is done, and about how long the rest takes.

Whoever works begins steps and counts; whoever shows it asks, from any thread, when it likes. So counting costs an
addition, and what reads and writes knows nothing of bars, lines or rows of a database.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

#: Seconds before anything is said of a step: those that end sooner are nothing to wait for, and a share of them is no
#: measure yet.
_SILENT_S = 2.0
#: More than was to be done: then it was not known, and is not told any more.
_TOO_MUCH = 1.05


@dataclass
class _Step:
    what: str
    began_at: float
    #: In any unit, the same for both; 0 where it is not known beforehand.
    amount: float
    done: float = 0.0
    #: Whether `what` says all there is to say.
    is_whole: bool = False


class Work:
    """What one thread is doing, for others to ask."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._step: _Step | None = None

    def begin(self, what: str, amount: float = 0) -> None:
        """Goes on to the step `what`, of which `amount` is to be counted where that is known beforehand."""
        self._step = _Step(what, self._clock(), amount)

    def count(self, amount: float) -> None:
        """So much more of the step is done."""
        if self._step is not None:
            self._step.done += amount

    def relay(self, said: str) -> None:
        """Says, of this step, what another process says of its own."""
        if self._step is not None:
            self._step = _Step(said, self._step.began_at, 0, is_whole=True)

    def end(self) -> None:
        """Nothing is under way."""
        self._step = None

    @property
    def what(self) -> str:
        """The step under way; empty between steps."""
        step = self._step
        return "" if step is None else step.what

    @property
    def share(self) -> float | None:
        """How much of the step is done, below 1; None where that is not known."""
        step = self._step
        if step is None or not 0 < step.done <= step.amount * _TOO_MUCH:
            return None
        return min(step.done / step.amount, 0.99)

    @property
    def pace(self) -> str:
        """How much is done and about how long the rest takes or, where that would be a guess, how long it has taken.

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
        """Step and pace in one line; None while there is nothing to say yet."""
        step, pace = self._step, self.pace
        if step is None or not (pace or step.is_whole):
            return None
        if not pace:
            return step.what
        return f"{step.what}, {pace}" if self.share is None else f"{step.what}: {pace}"


def _duration(seconds: float) -> str:
    """So rounded that it does not change with every look."""
    if seconds < 10:
        return "a few seconds"
    if seconds < 90:
        return f"about {10 * round(seconds / 10)} s"
    if seconds < 5400:
        return f"about {round(seconds / 60)} min"
    return f"about {seconds / 3600:.1f} h"
