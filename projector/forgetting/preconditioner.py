"""The preconditioner of repairs, and how long it may stay in memory once it predates a deletion.

It is built from rows of H, so one that predates a deletion is a trace of the deleted data. It serves the repair as well
as a new one, and consecutive deletions leave no time to build another. So it stays for a limited time, in memory only.
It does not affect what a repair converges to.
"""

import math
import time
from dataclasses import dataclass, replace

from projector.solvers.preconditioners import Inverse

#: Seconds that a preconditioner may outlive the first deletion it predates.
FACTOR_AGE_S = 60.0


@dataclass(frozen=True, eq=False)
class Preconditioner:
    """An approximate inverse Hessian for a repair, and its expiry."""

    inverse: Inverse
    #: On the `time.monotonic()` clock; infinite while only remaining data is in it.
    until: float = math.inf

    @property
    def expired(self) -> bool:
        """Return whether it must be discarded."""
        return time.monotonic() >= self.until

    @property
    def fresh(self) -> bool:
        """Return whether it was built from remaining data only."""
        return self.until == math.inf

    def outdated(self, age_s: float) -> "Preconditioner":
        """Return this preconditioner after a deletion it predates, to expire `age_s` after the first such deletion."""
        return replace(self, until=min(self.until, time.monotonic() + age_s))
