"""Line search: F is convex along a direction and the logits are linear, so a trial costs no product."""

from collections.abc import Callable
from dataclasses import dataclass

from scipy.optimize import brentq
from torch import Tensor

from projector.parallel.workers import together
from projector.solvers.objective import Objective, OfObjective, Point

_LONGEST_STEP = 2.0**20


@dataclass(frozen=True, eq=False)
class Slopes(OfObjective):
    """F's slope along a direction (p, C) from a point."""

    point: Point
    direction: Tensor
    #: Change of this worker's logits, (n_own, C).
    moved: Tensor

    @together
    def __call__(self, t: float) -> float:
        """Return the slope at `t` times the direction."""
        objective, direction = self.objective, self.direction
        residual = objective.loss.residual(self.point.logits + t * self.moved, objective.labels)
        of_loss = objective.representation.total(float((residual * self.moved).sum())) / objective.weighted_rows
        along, squared = float((self.point.W * direction).sum()), float((direction * direction).sum())
        return of_loss + objective.regularization * (along + t * squared)


@together
def slopes(objective: Objective, point: Point, direction: Tensor) -> Slopes:
    """Return F's slopes from `point` along `direction` (p, C)."""
    return Slopes(objective, point, direction, objective.representation.logits(direction))


def step_length(objective: Objective, point: Point, direction: Tensor, remaining_slope: float) -> float:
    """Return the t > 0 at which F's slope along `direction` (p, C) is down to the share `remaining_slope`.

    Returns 1 if the slope has fallen that far at t = 1. `direction` must be a descent direction. The slope grows with t
    and has one root, and t is near it.
    """
    slope = slopes(objective, point, direction)
    small = remaining_slope * abs(slope(0.0))
    shortest, longest, found = 0.0, 1.0, slope(1.0)
    while found < -small and longest < _LONGEST_STEP:
        shortest, longest = longest, 2 * longest
        found = slope(longest)
    # Rounding alone can flip the sign of the slope at the shorter end.
    if found <= small or not slope(shortest) < 0.0:
        return longest
    # Pass it as an argument: scipy leaves a cycle around its function, which must not hold the objective and its graph.
    return float(brentq(_called, shortest, longest, args=(slope,), rtol=1e-2, xtol=1e-12))


def _called(t: float, function: Callable[[float], float]) -> float:
    return function(t)
