"""The privacy budget that publications after a deletion have used.

A version counts against every deletion made with it or before it. It does not count against later deletions: until
then, both services under comparison had the same data. Publishing again from the same secret reveals nothing new, so it
counts once.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass
from fractions import Fraction

from projector.certified.publication import Mechanism
from projector.errors import PromiseError

#: Share of the budget from which `nearly_used` warns.
_NEARLY_USED = 0.9
#: Unit of mu^2, rounded up: sums are exact in any order, and never too small.
_UNIT = 2**120


@dataclass(frozen=True)
class Spent:
    """Upper bound on the budget used since one version, valid for deletions of that version or later."""

    publications: int
    #: The publications since then are together mu-GDP.
    mu: float
    #: mu^2 as a share of the budget's mu^2: the share of K equal publications.
    share: float

    @property
    def nearly_used(self) -> bool:
        """Return whether few publications are left under the promise; planning more now makes each cost less."""
        return self.share >= _NEARLY_USED


class Ledger:
    """The publications of one model, in the order of their versions."""

    def __init__(self) -> None:
        self._versions: list[int] = []
        self._costs: list[int] = []
        #: Cumulative cost before each version, then the total.
        self._before: list[int] = [0]

    @property
    def newest(self) -> int:
        """The last version counted; -1 if none exists."""
        return self._versions[-1] if self._versions else -1

    def since(self, version: int, budget: float) -> Spent:
        """Return what the publications from `version` on have used. `budget` is the promised mu."""
        first = bisect_left(self._versions, version)
        cost = Fraction(self._before[-1] - self._before[first], _UNIT)
        share = cost / Fraction(budget) ** 2
        return Spent(len(self._versions) - first, _root(cost), float(share))

    def add(self, version: int, mechanism: Mechanism, oldest_deletion: int) -> None:
        """Count the publication of `version` before it is made. Counting the same publication again changes nothing.

        `oldest_deletion` is the first version that lacks a node to which `mechanism.budget` is promised. Raises
        PromiseError if the publication would exceed that budget, follows a later version or uses other noise.
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
        total = self._before[-1] - self._before[first] + cost
        if total > Fraction(mechanism.budget) ** 2 * _UNIT:
            raise PromiseError(
                f"Version {version} would reveal more about deletions of version {oldest_deletion} than promised.",
                "Stay with the version before, or promise less: a larger epsilon.",
            )
        self.record(version, mechanism.mu)

    def record(self, version: int, mu: float) -> None:
        """Record an already counted publication, newer than all recorded so far, without checking any promise."""
        # Append the version last: other threads call `since` concurrently.
        self._costs.append(_cost(mu))
        self._before.append(self._before[-1] + self._costs[-1])
        self._versions.append(version)


def _cost(mu: float) -> int:
    return math.ceil(Fraction(mu) ** 2 * _UNIT)


def _root(square: Fraction) -> float:
    """Return the square root as a float, rounded up."""
    root = math.sqrt(float(square))
    while Fraction(root) ** 2 < square:
        root = math.nextafter(root, math.inf)
    return root
