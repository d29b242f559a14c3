"""An upper bound on the distance of weights from retraining on the live graph.

F^u, the objective of the remaining graph, is lambda-strongly convex. So for every W, however it was obtained,

    |W - W_u|_F <= |grad F^u(W)|_F / lambda,

where W_u is its minimum. The gradient is computed in float64, and a bound on its rounding error is added. The bound
assumes independent rounding errors with mean zero, so those of a sum of L terms grow as sqrt(L) (Higham and Mary, 2019,
"A new approach to probabilistic rounding error analysis"). If the gradient of the squared loss comes from sums that
were updated many times, their drift is included (`projector.solvers.normal_equations`).
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
#: Largest share of the tolerance that the drift of normal equations may take.
_SHARE_OF_DRIFT = 0.1


@dataclass(frozen=True)
class Certificate:
    """An upper bound on the distance of weights W from the minimum W_u of the remaining graph's objective."""

    #: Upper bound on |W - W_u|_F.
    bound: float
    #: `bound` / |W|_F. For W = 0: 0 if the gradient is 0 up to a rounding error small against the largest W_u, else
    #: None.
    relative: float | None

    @property
    def retrained(self) -> bool:
        """Return whether the weights equal retraining up to a relative bound of 1e-8."""
        return self.within(TOLERANCE)

    def within(self, tolerance: float) -> bool:
        """Return whether the weights equal retraining up to a relative bound of `tolerance`."""
        return self.relative is not None and self.relative <= tolerance


def certifiable(loss: Loss, regularization: float) -> bool:
    """Return whether the gradient of this objective bounds the distance to its unique minimum."""
    return regularization > 0 and loss.largest_curvature > 0


def certify(objective: Objective, point: Point) -> Certificate:
    """Return the certificate of the weights at `point`. `objective` is that of the live graph, with lambda > 0."""
    size = float(torch.linalg.norm(point.W))
    of_gradient = objective.rounding(point) if isinstance(objective, NormalObjective) else _rounding(objective, point)
    gradient, rounding = float(torch.linalg.norm(point.gradient)), _CONFIDENCE * of_gradient
    bound = (gradient + rounding) / objective.regularization
    if size > 0.0:
        return Certificate(bound, bound / size)
    # Upper bound on |W_u|, since lambda/2 |W_u|^2 <= F(W_u) <= F(0).
    largest = math.sqrt(2 * point.value / objective.regularization)
    return Certificate(bound, 0.0 if gradient <= rounding and bound <= SMALLEST_TOLERANCE * largest else None)


def drifted_too_far(objective: NormalObjective, size: float, tolerance: float) -> bool:
    """Return whether drift of the normal equations takes a tenth of the relative bound `tolerance`, for |W|_F = `size`.

    If so, the gradient must come from newly formed equations, or from the rows.
    """
    scale = objective.weighted_rows * objective.regularization
    return _CONFIDENCE * objective.equations.drift(size) > _SHARE_OF_DRIFT * tolerance * size * scale


@together
def _rounding(objective: Objective, point: Point) -> float:
    """Return the standard deviation of the error in the computed gradient (1/n) H^T R + lambda W, with residual R.

    Each of the L additions and multiplications in a scalar product a^T b errs by at most half a unit in the last place
    of a value of at most |a| |b|. So their sum has a standard deviation of at most sqrt(L / 6) eps |a| |b|. Sums over
    all rows of dense features are sums of chunks, with fewer consecutive terms than rows.

    A logit's error, with a = h_i, passes through the curvature of its row's loss and through H^T, and there has size
    |h_i|^2. Rows add up by their own norms, since one may be far larger than the others.
    """
    representation, size = objective.representation, float(torch.linalg.norm(point.W))
    rows = representation.row_bounds
    passed = rows * objective.loss.curvature(point.logits, objective.labels)
    from_logits = math.sqrt(1 / 6) * representation.logit_rounding(passed) * size
    from_products = objective.rounding_of_products(point.residual)
    return _EPSILON * (from_logits / objective.weighted_rows + objective.regularization * size) + from_products
