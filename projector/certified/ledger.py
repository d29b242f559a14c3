"""What publications after a deletion have told together, against what was promised.

A version counts for everybody deleted with it or before it, and for nobody deleted later: until then both services
that are compared had the same data. Published again from the same secret it tells nothing new and is counted once.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction

from projector.certified.publication import Mechanism
from projector.errors import PromiseError

#: A share of the budget from which on is told that it runs out.
_NEARLY_USED = 0.9
#: mu^2 is counted in units of 2^-120, rounded up: sums are exact, in whatever order, and never too small.
_UNIT = 2**120


@dataclass(frozen=True)
class Spent:
    """What everybody deleted with one version or later stands at, at most."""

    publications: int
    #: What was published since is together mu-GDP.
    mu: float
    #: mu^2 as a share of that of the budget: how many of K equal publications that is.
    share: float

    @property
    def nearly_used(self) -> bool:
        """Whether the promise soon allows no further publication; with more of them planned, each takes less."""
        return self.share >= _NEARLY_USED


class Ledger:
    """The publications of one model, in the order of their versions."""

    def __init__(self) -> None:
        self._versions: list[int] = []
        self._costs: list[int] = []
        #: Those before each version together, and at the end all.
        self._before: list[int] = [0]

    @property
    def newest(self) -> int:
        """The last version counted; -1 before any."""
        return self._versions[-1] if self._versions else -1

    def since(self, version: int, budget: float) -> Spent:
        """What the publications of `version` and those after it have told; `budget` is the mu that was promised."""
        first = bisect_left(self._versions, version)
        told = Fraction(self._before[-1] - self._before[first], _UNIT)
        share = told / Fraction(budget) ** 2
        return Spent(len(self._versions) - first, _root(told), float(share))

    def add(self, version: int, mechanism: Mechanism, oldest_deletion: int) -> None:
        """Counts the publication of `version`, before it is made; one that was counted already stays as it is.

        `oldest_deletion` is the first version without somebody to whom `mechanism.budget` is promised. Raises
        PromiseError when the publication would exceed it, or comes after a later version or with other noise.
        """
        cost = _cost(mechanism.mu)
        if self._versions and version <= self._versions[-1]:
            known = bisect_left(self._versions, version)
            if self._versions[known] != version or self._costs[known] != cost:
                raise PromiseError(
                    f"Version {version} is not what was counted as published.", "Publish it as it was, or a later one."
                )
            return
        first = bisect_left(self._versions, oldest_deletion)
        told = self._before[-1] - self._before[first] + cost
        if told > Fraction(mechanism.budget) ** 2 * _UNIT:
            raise PromiseError(
                f"Version {version} would reveal more about deletions of version {oldest_deletion} than promised.",
                "Stay with the version before, or promise less: a larger epsilon.",
            )
        self.record(version, mechanism.mu)

    def record(self, version: int, mu: float) -> None:
        """Takes a publication over that was counted before, whatever was promised then; later than those so far."""
        # The version last: other threads ask `since` meanwhile.
        self._costs.append(_cost(mu))
        self._before.append(self._before[-1] + self._costs[-1])
        self._versions.append(version)


def _cost(mu: float) -> int:
    return math.ceil(Fraction(mu) ** 2 * _UNIT)


def _root(square: Fraction) -> float:
    """The root as a float that is not below it."""
    root = math.sqrt(float(square))
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
