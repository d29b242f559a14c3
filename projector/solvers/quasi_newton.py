"""Minimisation of F next to a known optimum, where a factor of the Hessian is at hand.

L-BFGS (Nocedal and Wright, 2006, algorithm 7.5) whose first inverse Hessian is that factor: each step costs one
gradient, which is as much as one product with the Hessian, where Newton's method spends a product and a gradient.
[Amazon Photo and Pubmed: half the time of preconditioned Newton steps.]
"""

import math
from collections import deque
from dataclasses import dataclass

from torch import Tensor

from projector.solvers.line_search import step_length
from projector.solvers.newton import Preconditioner
from projector.solvers.objective import Objective, Point

#: Pairs of steps and changes of the gradient that are remembered.
_MEMORY = 30
#: A step is long enough when F's slope along it has fallen to this share of what it was.
_REMAINING_SLOPE = 0.9
#: Steps in which the relative gradient, once below this one, must halve; else rounding is at work.
_PATIENCE = 20
_NEAR_ROUNDING = 1e-6


@dataclass(frozen=True, eq=False)
class _Pair:
    """A step, the change of the gradient along it, and their product's inverse."""

    step: Tensor
    change: Tensor
    inverse: float


class QuasiNewton:
    """A minimisation of F from `start`, a gradient at a time."""

    def __init__(self, objective: Objective, start: Point, tolerance: float, precondition: Preconditioner) -> None:
        """`precondition` applies a symmetric positive semidefinite approximation of the inverse Hessian to (p, C).

        Iterates stay in `start` plus its range.
        """
        self._objective = objective
        self._tolerance = tolerance
        self._precondition = precondition
        self._pairs: deque[_Pair] = deque(maxlen=_MEMORY)
        self._point = start
        self._stalled = 0
        self._halved_at = math.inf
        #: The point of smallest relative gradient.
        self.best = start
        self.iterations = 0
        self.finished = self.converged

    @property
    def converged(self) -> bool:
        """Whether the best relative gradient is within the tolerance."""
        return self.best.relative_gradient <= self._tolerance

    def step(self) -> None:
        """One step; nothing once `finished`, which is at the tolerance or where rounding allows no more."""
        if self.finished:
            return
        direction = self._direction(self._point.gradient)
        decrease = -float((self._point.gradient * direction).sum())
        self.iterations += 1
        if not decrease > 0.0:
            self.finished = True
            return
        following = self._searched(direction, decrease)
        self._remember(following)
        self._point = following
        if following.relative_gradient < self.best.relative_gradient:
            self.best = following
        self._stalled += 1
        if self.best.relative_gradient > _NEAR_ROUNDING or self.best.relative_gradient <= self._halved_at / 2:
            self._stalled, self._halved_at = 0, self.best.relative_gradient
        self.finished = self.converged or self._stalled == _PATIENCE

    def _direction(self, gradient: Tensor) -> Tensor:
        """-B gradient, B the approximation of the inverse Hessian by the two loops over the remembered pairs."""
        remainder = gradient.clone()
        shares = []
        for pair in reversed(self._pairs):
            shares.append(pair.inverse * float((pair.step * remainder).sum()))
            remainder.add_(pair.change, alpha=-shares[-1])
        direction = self._precondition(remainder)
        for pair, share in zip(self._pairs, reversed(shares), strict=True):
            direction = direction.add(pair.step, alpha=share - pair.inverse * float((pair.change * direction).sum()))
        return -direction

    def _searched(self, direction: Tensor, decrease: float) -> Point:
        """The point at step 1, or where the slope vanishes if the slope at 1 has not fallen enough."""
        candidate = self._objective.at(self._point.W + direction)
        slope = float((candidate.gradient * direction).sum())
        if abs(slope) <= _REMAINING_SLOPE * decrease:
            return candidate
        length = step_length(self._objective, self._point, direction, _REMAINING_SLOPE)
        return self._objective.at(self._point.W + length * direction)

    def _remember(self, following: Point) -> None:
        step, change = following.W - self._point.W, following.gradient - self._point.gradient
        curvature = float((step * change).sum())
        # Strong convexity makes it at least lambda |step|^2; below half of that it is rounding.
        if curvature > self._objective.regularization / 2 * float((step * step).sum()) and math.isfinite(curvature):
            self._pairs.append(_Pair(step, change, 1.0 / curvature))
