"""The preconditioner of repairs, and how long it may stay in memory once it predates a deletion.

It is made of rows of H, so one from before a deletion is a trace of what was deleted. It serves the repair as well as
a new one, and where deletions follow one another there is no time to make another: it stays for a while, in memory
only. What a repair converges to does not depend on it.
"""

import math
import time
from dataclasses import dataclass, replace

from projector.solvers.preconditioners import Inverse

#: Seconds for which one may be kept after the first deletion that it predates.
FACTOR_AGE_S = 60.0


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """What stands for the inverse of the Hessian in a repair, and when it must be gone."""

    inverse: Inverse
    #: `time.monotonic()`; infinite while it was made from the remaining data alone.
    until: float = math.inf

    @property
    def expired(self) -> bool:
        """Whether it must be gone."""
        return time.monotonic() >= self.until

    @property
    def fresh(self) -> bool:
        """Whether it was made from the remaining data alone."""
        return self.until == math.inf

    def outdated(self, age_s: float) -> "Preconditioner":
        """The same beside a deletion that it predates, to be gone `age_s` after the first such."""
        return replace(self, until=min(self.until, time.monotonic() + age_s))
