"""Preconditioning for losses that treat classes apart: the inverse Hessian of F at a point, class by class.

For these the Hessian by W (p, C) is block diagonal: that of class c is H^T D_c H / n + lambda I, with D_c the curvature
of the rows' losses by their logit of class c. Where lambda is small conjugate gradients need thousands of products; a
factor of each block takes as long as dozens, since it is as large as the number of rows that are curved at all, or as
p, and few rows are between the kinks of a smoothed hinge. So from the first step on that took more products than
factors are worth, every step gets its own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from projector.network.product_costs import dense_seconds
from projector.parallel.workers import Workers, together
from projector.solvers.objective import Objective, Point

#: Neither H nor the factors may take more bytes than this: without them training takes longer, and is no less right.
LARGEST_BYTES = 1 << 30
#: Factors are taken after a step whose products took this many times as long, by the estimate for products with H.
_CLEARLY = 2.0
_WORD = 8


def curvature_bytes(rows: int, columns: int, classes: int) -> int:
    """Bytes of H (rows, columns) and of the factors of all classes, at most; 0 where they are too large to be used."""
    representation, factors = rows * columns * _WORD, classes * min(rows, columns) ** 2 * _WORD
    return 0 if max(representation, factors) > LARGEST_BYTES else representation + factors


class ClassCurvature:
    """A preconditioner for `Newton`: the identity until a step was long, then the inverse Hessian of each point."""

    def __init__(self, objective: Objective) -> None:
        """For an `objective` whose loss treats classes apart."""
        self._objective = objective
        self._factors: list[_ClassFactor] = []

    @property
    def workers(self) -> Workers:
        """Who has a part of it."""
        return self._objective.workers

    @together
    def __call__(self, gradient: Tensor) -> Tensor:
        """The inverse applied to (p, C), class by class."""
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
        # (G^T G + s I)^-1 = (I - G^T (G G^T + s I)^-1 G) / s for the classes that are factorised by rows.
        return (outer - representation.transposed(inner)) / shift

    @together
    def adapt(self, point: Point, products: int) -> None:
        """Takes the Hessian of `point` if the step that led there took more `products` than that costs, or had one."""
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
        """The factors for `curvature` (n_train, C); none when rounding leaves a block without one."""
        H, factors = self._objective.representation.dense(), []
        for column in curvature.T:
            rows = torch.nonzero(column > 0)[:, 0]
            roots = (column[rows] / self._objective.weighted_rows).sqrt()
            G = H[rows] * roots[:, None]
            # Rows of several workers are not brought together.
            by_rows = self.workers.count == 1 and G.shape[0] < G.shape[1]
            block = G @ G.T if by_rows else self.workers.sum(G.T @ G)
            block.diagonal().add_(self._objective.regularization)
            cholesky, failed = torch.linalg.cholesky_ex(block)
            # Processors may differ in it, and workers must not.
            if int(self.workers.sum(failed)):
                return []
            factors.append(_ClassFactor(rows, roots, cholesky, by_rows))
        return factors


@together
def class_curvature(objective: Objective) -> ClassCurvature:
    """For an `objective` whose loss treats classes apart."""
    return ClassCurvature(objective)


@dataclass(frozen=True, eq=False)
class _ClassFactor:
    """Of one class: G G^T + lambda I or G^T G + lambda I, with G (a, p) the curved rows of H times their `roots`."""

    #: The rows with curvature, (a,), and the roots of their curvatures over n_train.
    rows: Tensor
    roots: Tensor
    #: Lower triangular, of the smaller of both.
    cholesky: Tensor
    by_rows: bool

    def solve(self, right: Tensor) -> Tensor:
        """The inverse of the factorised matrix, times a vector."""
        return torch.cholesky_solve(right[:, None], self.cholesky)[:, 0]


def _seconds(curved: int, columns: int) -> float:
    """Estimated, for the smaller of G G^T and G^T G with G (curved, columns), and its Cholesky factor."""
    smaller, larger = min(curved, columns), max(curved, columns)
    return dense_seconds(smaller * larger, smaller) + dense_seconds(smaller * smaller, smaller // 6)
