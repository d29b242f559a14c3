"""Newton's method with conjugate gradients for the training objective.

F is lambda-strongly convex, so |grad F(W)|_F / lambda bounds the distance to the optimum, and the method is run until
that bound is a rounding error of W. No preconditioner: products with H through its sparse factors are so cheap that
plain conjugate gradients were faster than factors of the curvature, on Cora, Citeseer, Pubmed and Amazon Photo.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from model_store.errors import TrainingError
from model_store.objective import Objective, Point

#: A relative gradient above this is not an optimum, whatever stopped the iteration.
LARGEST_FLOOR = 1e-8
_MAX_ITERATIONS = 200
_MAX_CG_STEPS = 5_000
#: Share of the predicted decrease that a step must bring (Armijo).
_SUFFICIENT = 1e-4
#: Relative error of a value of F: below it, decreases of F are noise and slopes decide.
_VALUE_ROUNDING = 1e-14
_SHORTEST_STEP = 2.0**-30
#: Newton steps in a row that may fail to halve the best relative gradient once F itself cannot be told to fall.
_PATIENCE = 3


@dataclass(frozen=True, eq=False)
class Minimum:
    """Where the iteration stopped, with relative gradient at most max(tolerance, LARGEST_FLOOR)."""

    point: Point
    iterations: int


def minimise(
    objective: Objective, start: Tensor, tolerance: float, on_iteration: Callable[[int, Point], None]
) -> Minimum:
    """Minimises F from `start` (p, C) until the relative gradient is at most `tolerance`.

    Stops at the best point seen when rounding allows no further progress. Raises TrainingError when that point's
    relative gradient exceeds `LARGEST_FLOOR`, or when the iterations do not suffice.
    """
    point = best = objective.at(start)
    stalled = 0
    for iteration in range(_MAX_ITERATIONS):
        on_iteration(iteration, point)
        if best.relative_gradient <= tolerance:
            return Minimum(best, iteration)
        direction = _newton_direction(objective, point)
        decrease = -float((point.gradient * direction).sum())
        following = _search(objective, point, direction, decrease)
        at_floor = decrease <= _VALUE_ROUNDING * abs(point.value)
        halved = following is not None and following.relative_gradient <= best.relative_gradient / 2
        stalled = stalled + 1 if at_floor and not halved else 0
        if following is not None:
            point = following
            if point.relative_gradient < best.relative_gradient:
                best = point
        if following is None or stalled == _PATIENCE:
            return _at_floor(best, iteration + 1)
    raise TrainingError(
        f"Training did not converge in {_MAX_ITERATIONS} Newton steps; the relative gradient is "
        f"{best.relative_gradient:.1e}, the tolerance {tolerance:.1e}.",
        "Raise --lambda, or scale the features to similar sizes.",
    )


def _at_floor(best: Point, iterations: int) -> Minimum:
    if best.relative_gradient <= LARGEST_FLOOR:
        return Minimum(best, iterations)
    raise TrainingError(
        f"Rounding stops training at a relative gradient of {best.relative_gradient:.1e}, above {LARGEST_FLOOR:.0e}: "
        "the weights would not be a known optimum.",
        "Raise --lambda, or scale the features to similar sizes.",
    )


def _newton_direction(objective: Objective, point: Point) -> Tensor:
    """An approximate solution of Hessian @ direction = -gradient, by conjugate gradients from 0.

    Every step is a descent direction, so stopping early is safe; the accuracy asked for grows as the gradient falls,
    which makes convergence superlinear (Dembo, Eisenstat and Steihaug, 1982).
    """
    direction = torch.zeros_like(point.W)
    remainder = -point.gradient
    search = remainder.clone()
    squared = float((remainder * remainder).sum())
    goal = squared * min(0.25, max(point.relative_gradient**0.5, 1e-6)) ** 2
    for _ in range(_MAX_CG_STEPS):
        product = objective.hessian_product(point, search)
        curvature = float((search * product).sum())
        if curvature <= 0.0:
            # Only rounding does this to a positive definite Hessian.
            break
        length = squared / curvature
        direction.add_(search, alpha=length)
        remainder.sub_(product, alpha=length)
        previous, squared = squared, float((remainder * remainder).sum())
        if squared <= goal:
            break
        search.mul_(squared / previous).add_(remainder)
    return direction


def _search(objective: Objective, point: Point, direction: Tensor, decrease: float) -> Point | None:
    """The first of the steps 1, 1/2, 1/4, … along `direction` that is good enough, or None.

    Good enough is Armijo's condition, or, where F differs by no more than its rounding, the same condition on slopes
    (the approximate Wolfe condition of Hager and Zhang, 2005), which stays meaningful next to the optimum.
    """
    step = 1.0
    rounding = _VALUE_ROUNDING * abs(point.value)
    while step >= _SHORTEST_STEP:
        candidate = objective.at(point.W + step * direction)
        if candidate.value <= point.value - _SUFFICIENT * step * decrease:
            return candidate
        slope = float((candidate.gradient * direction).sum())
        if candidate.value <= point.value + rounding and slope <= (1 - 2 * _SUFFICIENT) * decrease:
            return candidate
        step /= 2
    return None
