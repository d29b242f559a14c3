"""How far weights can be from those that retraining on the live graph would give.

F^u, the objective of the remaining graph, is lambda-strongly convex, so for every W, whatever led to it,

    |W - W_u|_F <= |grad F^u(W)|_F / lambda,

with W_u its minimum. The gradient is computed in float64 and carries rounding, which is bounded and added. Rounding
errors are taken to be independent with mean zero, so that those of a sum of L terms grow as sqrt(L) (Higham and Mary,
2019, "A new approach to probabilistic rounding error analysis"). Where the gradient of the squared loss comes from sums
that were updated many times, what these have drifted is part of it (`projector.solvers.normal_equations`).
"""

import math
from dataclasses import dataclass

import torch

from projector.forgetting.status import SMALLEST_TOLERANCE, TOLERANCE
from projector.network.losses import Loss
from projector.parallel.workers import together
from projector.solvers.normal_equations import NormalObjective
from projector.solvers.objective import Objective, Point

_EPSILON = torch.finfo(torch.float64).eps
#: Standard deviations of the rounding errors that the bound covers.
_CONFIDENCE = 4.0
#: How much of a bound the drift of normal equations may take.
_SHARE_OF_DRIFT = 0.1


@dataclass(frozen=True)
class Certificate:
    """A bound on the distance of weights W to the minimum W_u of the remaining graph's objective."""

    #: |W - W_u|_F is at most this.
    bound: float
    #: `bound` / |W|_F; for W = 0, 0 where the gradient is 0 up to a rounding small against the largest W_u, else None.
    relative: float | None

    @property
    def retrained(self) -> bool:
        """Whether the weights are those of retraining to a relative bound of 1e-8."""
        return self.within(TOLERANCE)

    def within(self, tolerance: float) -> bool:
        """Whether the weights are those of retraining to a relative bound of `tolerance`."""
        return self.relative is not None and self.relative <= tolerance


def certifiable(loss: Loss, regularization: float) -> bool:
    """Whether the objective of `loss` has a gradient that bounds the distance to its one minimum."""
    return regularization > 0 and loss.largest_curvature > 0


def certify(objective: Objective, point: Point) -> Certificate:
    """The certificate of the weights at `point`; `objective` is that of the live graph, with lambda > 0."""
    size = float(torch.linalg.norm(point.W))
    of_gradient = objective.rounding(point) if isinstance(objective, NormalObjective) else _rounding(objective, point)
    gradient, rounding = float(torch.linalg.norm(point.gradient)), _CONFIDENCE * of_gradient
    bound = (gradient + rounding) / objective.regularization
    if size > 0.0:
        return Certificate(bound, bound / size)
    # |W_u| is at most this, since lambda/2 |W_u|^2 <= F(W_u) <= F(0).
    largest = math.sqrt(2 * point.value / objective.regularization)
    return Certificate(bound, 0.0 if gradient <= rounding and bound <= SMALLEST_TOLERANCE * largest else None)


def drifted_too_far(objective: NormalObjective, size: float, tolerance: float) -> bool:
    """Whether the drift of the normal equations takes a tenth of the relative bound `tolerance`, for |W|_F = `size`.

    Then the gradient has to come from equations that are formed anew, or from the rows.
    """
    scale = objective.weighted_rows * objective.regularization
    return _CONFIDENCE * objective.equations.drift(size) > _SHARE_OF_DRIFT * tolerance * size * scale


@together
def _rounding(objective: Objective, point: Point) -> float:
    """The standard deviation of the computed gradient's error, (1/n) H^T R + lambda W with the residual R.

    Each of the L additions and multiplications of a scalar product a^T b errs by at most half a unit in the last place
    of what is at most |a| |b|, so their sum has a standard deviation of at most sqrt(L / 6) eps |a| |b|; sums over all
    rows of dense features are sums of chunks, with fewer terms one after another than rows. An error of a logit, with
    a = h_i, passes through the curvature of its row's loss and through H^T, and is there of size |h_i|^2: rows add up
    by their own norms, since one may be far larger than the others.
    """
    representation, size = objective.representation, float(torch.linalg.norm(point.W))
    rows = representation.row_bounds
    passed = rows * objective.loss.curvature(point.logits, objective.labels)
    from_logits = math.sqrt(1 / 6) * representation.logit_rounding(passed) * size
    from_products = objective.rounding_of_products(point.residual)
    return _EPSILON * (from_logits / objective.weighted_rows + objective.regularization * size) + from_products
