"""Blocks of the Hessian for repairs, and how long they may stay in memory once they predate a deletion.

They are made of rows of H, so those from before a deletion are a trace of what was deleted. They serve the repair as
well as new ones, and where deletions follow one another there is no time to make new ones: they stay for a while, in
memory only. What a repair converges to does not depend on them.
"""

import math
import time
from dataclasses import dataclass, replace

from projector.solvers.class_blocks import ClassBlocks, HessianFactor

#: Seconds for which blocks may be kept after the first deletion that they predate.
FACTOR_AGE_S = 60.0


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """Blocks, and when they must be gone."""

    blocks: ClassBlocks | HessianFactor
    #: `time.monotonic()`; infinite while they were made from the remaining data alone.
    until: float = math.inf

    @property
    def expired(self) -> bool:
        """Whether they must be gone."""
        return time.monotonic() >= self.until

    @property
    def fresh(self) -> bool:
        """Whether they were made from the remaining data alone."""
        return self.until == math.inf

    def outdated(self, age_s: float) -> "Preconditioner":
        """The same blocks beside a deletion that they predate, to be gone `age_s` after the first such."""
        return replace(self, until=min(self.until, time.monotonic() + age_s))
