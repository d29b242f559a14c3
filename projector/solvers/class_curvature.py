"""Preconditioning for losses without coupling between classes: the inverse Hessian of F at a point, class by class.

For these losses the Hessian by W (p, C) is block diagonal: class c has H^T D_c H / n + lambda I, with D_c the curvature
of the rows' losses by their logit of class c. For small lambda conjugate gradients need thousands of products. A factor
of each block costs as much as dozens, since its order is the smaller of p and the number of curved rows, and few rows
lie between the kinks of a smoothed hinge. So once a step takes more products than factors are worth, that step's point
and every later one get their own factors.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from projector.network.product_costs import dense_seconds
from projector.parallel.workers import Workers, together
from projector.solvers.objective import Objective, Point

#: Largest size of H, and of the factors. Without them training takes longer, with the same result.
LARGEST_BYTES = 1 << 30
#: Use factors after a step whose products took this many times as long, by the estimate for products with H.
_CLEARLY = 2.0
_WORD = 8


def curvature_bytes(rows: int, columns: int, classes: int) -> int:
    """Return an upper bound on the bytes of H (rows, columns) and all classes' factors; 0 if too large to be used."""
    representation, factors = rows * columns * _WORD, classes * min(rows, columns) ** 2 * _WORD
    return 0 if max(representation, factors) > LARGEST_BYTES else representation + factors


class ClassCurvature:
    """A preconditioner for `Newton`: the identity until a step was long, then the inverse Hessian of each point."""

    def __init__(self, objective: Objective) -> None:
        """Requires an `objective` whose loss does not couple classes."""
        self._objective = objective
        self._factors: list[_ClassFactor] = []

    @property
    def workers(self) -> Workers:
        """The workers that hold parts of it."""
        return self._objective.workers

    @together
    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the inverse applied to (p, C), class by class."""
        if not self._factors:
            return gradient
        representation, shift = self._objective.representation, self._objective.regularization
        images = representation.logits(gradient)
        inner, outer = torch.zeros_like(images), gradient.clone()
        for c, factor in enumerate(self._factors):
            if factor.by_rows:
                scaled = factor.roots * images[factor.rows, c]
                inner[factor.rows, c] = factor.roots * factor.solve(scaled)
            else:
                outer[:, c] = shift * factor.solve(gradient[:, c])
        # (G^T G + s I)^-1 = (I - G^T (G G^T + s I)^-1 G) / s for classes factorised by rows.
        return (outer - representation.transposed(inner)) / shift

    @together
    def adapt(self, point: Point, products: int) -> None:
        """Factorise the Hessian of `point` if reaching it took more `products` than that costs, or if factors exist."""
        rows, columns = self._objective.representation.rows, self._objective.representation.columns
        classes = point.W.shape[1]
        if not curvature_bytes(rows, columns, classes):
            return
        ones = torch.ones_like(point.logits)
        curvature = self._objective.loss.hessian(point.logits, self._objective.labels)(ones)
        curved_rows = self.workers.sum((curvature > 0).sum(dim=0)).tolist()
        costs = sum(_seconds(curved, columns) for curved in curved_rows)
        if self._factors or products * 2 * dense_seconds(rows * columns, classes) > _CLEARLY * costs:
            self._factors = self._factorised(curvature)

    def _factorised(self, curvature: Tensor) -> "list[_ClassFactor]":
        """Return the factors for `curvature` (n_train, C); none if rounding leaves a block without one."""
        H, factors = self._objective.representation.dense(), []
        for column in curvature.T:
            rows = torch.nonzero(column > 0)[:, 0]
            roots = (column[rows] / self._objective.weighted_rows).sqrt()
            G = H[rows] * roots[:, None]
            # Rows of different workers are never brought together.
            by_rows = self.workers.count == 1 and G.shape[0] < G.shape[1]
            block = G @ G.T if by_rows else self.workers.sum(G.T @ G)
            block.diagonal().add_(self._objective.regularization)
            cholesky, failed = torch.linalg.cholesky_ex(block)
            # Processors may differ in the outcome; workers must not.
            if int(self.workers.sum(failed)):
                return []
            factors.append(_ClassFactor(rows, roots, cholesky, by_rows))
        return factors


@together
def class_curvature(objective: Objective) -> ClassCurvature:
    """Return the preconditioner of an `objective` whose loss does not couple classes."""
    return ClassCurvature(objective)


@dataclass(frozen=True, eq=False)
class _ClassFactor:
    """One class's factor: G G^T + lambda I or G^T G + lambda I, G (a, p) the curved rows of H times their `roots`."""

    #: The rows with curvature, (a,), and the roots of their curvatures over n_train.
    rows: Tensor
    roots: Tensor
    #: Lower triangular, of the smaller of the two matrices.
    cholesky: Tensor
    by_rows: bool

    def solve(self, right: Tensor) -> Tensor:
        """Return the inverse of the factorised matrix times a vector."""
        return torch.cholesky_solve(right[:, None], self.cholesky)[:, 0]


def _seconds(curved: int, columns: int) -> float:
    """Estimate the time for the smaller of G G^T and G^T G, G (curved, columns), and its Cholesky factor."""
    smaller, larger = min(curved, columns), max(curved, columns)
    return dense_seconds(smaller * larger, smaller) + dense_seconds(smaller * smaller, smaller // 6)
