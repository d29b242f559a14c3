"""Cauwenberghs and Poggio's exact unlearning of a support vector machine, by its dual variables (NeurIPS 2000).

The machine is the Projector paper's (its appendix "Existing SVM unlearning and its limitation"), without an intercept:

    lambda/2 |w|^2 + sum_i max(0, 1 - y_i w x_i),    w = sum_i alpha_i y_i x_i / lambda,    0 <= alpha_i <= 1.

With Q_ij = y_i y_j x_i x_j / lambda the slope of the dual is g = Q alpha - 1, the margin minus 1. At the optimum g >= 0
where alpha is 0 (outside), g <= 0 where it is 1 (inside), and g = 0 on the margin M. To learn or unlearn a point c, its
alpha_c moves and those on the margin follow, d alpha_M = -Q_MM^-1 Q_Mc d alpha_c, which leaves g_M at 0. Whenever a
point reaches the margin or leaves it, an iteration ends and M changes. Unlearning ends at alpha_c = 0, learning at
g_c = 0 or alpha_c = 1.

`RIDGE`, relative to the largest Q_ii, is added to the diagonal of Q, so that equal rows on the margin do not make Q_MM
singular. At the end of a path alpha_M is solved for again, so no error adds up.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from benchmarks.baselines.protocol import Array, BaselineError, Nodes

RIDGE = 1e-9
#: Limit on the iterations for one point, as a multiple of the points.
_MOST = 20


class Place(IntEnum):
    """Where a point lies; `ABSENT` points belong to no machine."""

    ABSENT = 0
    OUTSIDE = 1
    MARGIN = 2
    INSIDE = 3


@dataclass(frozen=True, eq=False)
class DualMachine:
    """One class against the rest; immutable."""

    #: Q, (m, m).
    Q: Array
    #: alpha, (m,).
    alpha: Array
    #: `Place` of each point, (m,).
    places: NDArray[np.int64]
    #: Iterations of the last path.
    iterations: int = 0

    @classmethod
    def of(cls, rows: Array, signs: Array, regularization: float) -> "DualMachine":
        """Return the machine that has learned every row (m, p) with its sign (m,), one by one."""
        Q = (rows @ rows.T) * np.outer(signs, signs) / regularization
        Q[np.diag_indices_from(Q)] += RIDGE * Q.diagonal().max()
        machine = cls(Q, np.zeros(signs.size), np.full(signs.size, Place.ABSENT))
        return machine.learned(range(signs.size))

    @property
    def slopes(self) -> Array:
        """g, (m,)."""
        return np.asarray(self.Q @ self.alpha - 1.0)

    @property
    def margin(self) -> Nodes:
        """M, the points on the margin."""
        return np.flatnonzero(self.places == Place.MARGIN)

    def weights(self, rows: Array, signs: Array, regularization: float) -> Array:
        """Return w (p,) from the rows (m, p) and signs (m,) that the machine was made of."""
        return np.asarray((self.alpha * signs) @ rows / regularization)

    def learned(self, points: Sequence[int]) -> "DualMachine":
        """Return the machine with `points`, which are absent."""
        machine = self
        for point in points:
            machine = machine._moved(point, 1.0)
        return machine

    def without(self, point: int) -> "DualMachine":
        """Return the machine without a point."""
        return self._moved(point, -1.0)

    def violation(self) -> float:
        """Return the largest violation of the conditions at the optimum, in units of the margin."""
        g, there = self.slopes, self.places != Place.ABSENT
        low = np.where(there & (self.alpha < 1), -g, 0.0)
        high = np.where(there & (self.alpha > 0), g, 0.0)
        return float(max(low.max(), high.max(), -self.alpha.min(), self.alpha.max() - 1, 0.0))

    def _moved(self, c: int, sign: float) -> "DualMachine":
        """Move alpha_c up to learn the point c, or down to unlearn it."""
        alpha, places, g = self.alpha.copy(), self.places.copy(), self.slopes
        places[c] = Place.ABSENT
        for iteration in range(_MOST * alpha.size):
            if sign > 0 and g[c] >= 0:
                end = Place.OUTSIDE if alpha[c] == 0 else Place.MARGIN
            elif alpha[c] == (sign > 0):
                end = Place.INSIDE if sign > 0 else Place.ABSENT
            else:
                self._step(c, sign, alpha, places, g)
                continue
            places[c] = end
            return replace(self, alpha=self._solved(alpha, places), places=places, iterations=iteration)
        raise BaselineError("A dual path did not end.", "Choose a larger lambda.")

    def _step(self, c: int, sign: float, alpha: Array, places: NDArray[np.int64], g: Array) -> None:
        """Move alpha_c and the margin, in place, until the first point reaches the margin or leaves it."""
        M = np.flatnonzero(places == Place.MARGIN)
        follow = np.zeros_like(alpha)
        follow[c] = sign
        if M.size:
            follow[M] = -sign * cho_solve(cho_factor(self.Q[np.ix_(M, M)]), self.Q[M, c])
        rate = self.Q @ follow
        rate[M] = 0.0
        moving = np.append(M, c)
        # How far each may go: alpha to 0 or 1, and g to 0.
        room = np.full(alpha.size, np.inf)
        bound = np.where(follow[moving] > 0, 1.0 - alpha[moving], alpha[moving])
        room[moving] = np.divide(
            bound, np.abs(follow[moving]), out=np.full(bound.size, np.inf), where=follow[moving] != 0
        )
        fixed = ((places == Place.OUTSIDE) & (rate < 0)) | ((places == Place.INSIDE) & (rate > 0))
        room[fixed] = np.maximum(-g[fixed] / rate[fixed], 0.0)
        reaches = sign > 0 and rate[c] > 0 and -g[c] / rate[c] <= room[c]
        if reaches:
            room[c] = -g[c] / rate[c]
        first = int(room.argmin())
        alpha += room[first] * follow
        g += room[first] * rate
        if first == c:
            if reaches:
                g[c] = 0.0
            else:
                alpha[c] = float(sign > 0)
        elif places[first] == Place.MARGIN:
            up = follow[first] > 0
            alpha[first], places[first] = (1.0, Place.INSIDE) if up else (0.0, Place.OUTSIDE)
        else:
            g[first], places[first] = 0.0, Place.MARGIN

    def _solved(self, alpha: Array, places: NDArray[np.int64]) -> Array:
        """Return `alpha` with the margin's solved for again."""
        M = np.flatnonzero(places == Place.MARGIN)
        alpha[M] = 0.0
        if M.size:
            alpha[M] = cho_solve(cho_factor(self.Q[np.ix_(M, M)]), 1.0 - self.Q[M] @ alpha)
        return alpha
