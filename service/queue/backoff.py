"""How long to wait between attempts while something is out of order."""

import random
from dataclasses import dataclass


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
