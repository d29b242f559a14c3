"""The squared loss by its normal equations: G = H^T H and b = H^T Y over the training rows, updated as rows change.

With class weights D (diagonal, one weight per row) they are H^T D H and H^T D Y, and below |H W - Y|^2 is weighted.

The minimum of (1/2n) |H W - Y|^2 + lambda/2 |W|^2 solves (G/n + lambda I) W = b/n, with one matrix for all targets.
When rows of H change, the old rows are subtracted and the new rows added, or a block is recomputed if that is cheaper.
This happens per pair of hop blocks, since few rows change except in the last hop's.

Each subtraction and addition of m rows R rounds. By the model of `projector.forgetting.certificate`, the error of G has
a standard deviation tau with

    tau^2 += eps^2 (|G|_F^2 / 12 + (m / 6) |R|_F^4 / 4),

and that of b likewise. [Random rows at condition numbers of 1e2 to 1e6: 1.5 times the measured error. After 10,000
updates the gradient from G alone understates the true one 20 to 30 times.]
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import one_hot

from projector.network.losses import LinearMap, row_weights
from projector.parallel.workers import ALONE, Workers, together
from projector.solvers.objective import Objective, Point

#: Largest size of G in bytes.
LARGEST_MATRIX = 1 << 30
#: Largest size in bytes of H, from which G is formed.
LARGEST_ROWS = 2 << 30
#: Rows added up at a time; fewer would round less and take longer.
CHUNK = 1_024
_EPSILON = float(torch.finfo(torch.float64).eps)
_WORD = 8


def takes_normal_equations(rows: int, columns: int) -> bool:
    """Return whether G is kept for H (rows, columns): at least as many rows as columns, within the memory limits."""
    return columns <= rows and columns**2 * _WORD <= LARGEST_MATRIX and rows * columns * _WORD <= LARGEST_ROWS


def targets_of(labels: Tensor, classes: int) -> Tensor:
    """Return Y, (n, C) float64: labels (n,) as one-hot, real-valued targets unchanged."""
    return labels if labels.dim() == 2 else one_hot(labels, classes).to(torch.float64)


@dataclass(frozen=True, eq=False)
class ChangedRows:
    """Rows that H loses or gains, ordered so that those that differ in a block come first."""

    #: (m, p) float64, bit for bit as in H.
    H: Tensor
    #: Their targets, (m, C) float64. Rows with only another target differ in every block.
    Y: Tensor
    #: For each block, the number of leading rows that differ in it.
    leading: tuple[int, ...]
    #: Their weights in the loss, (m,) float64; None if all are 1.
    weights: Tensor | None = None


@dataclass(frozen=True, eq=False)
class NormalFactor:
    """The Cholesky factor of G/n + lambda I; a trace of every row of H behind it."""

    #: (p, p) float64, lower triangular.
    cholesky: Tensor

    def solve(self, gradient: Tensor) -> Tensor:
        """Return (G/n + lambda I)^-1 applied to (p, C)."""
        return torch.cholesky_solve(gradient, self.cholesky)


@dataclass(frozen=True, eq=False)
class NormalEquations:
    """G and b of one set of training rows, and their rounding errors' variances; only `forget` changes them."""

    #: H^T D H, (p, p) float64.
    G: Tensor
    #: H^T D Y, (p, C) float64.
    b: Tensor
    #: The columns of each block.
    blocks: tuple[slice, ...]
    #: tau^2 of each pair of blocks, (blocks, blocks), the later one second; and of b, (blocks,).
    variances: NDArray[np.float64]
    target_variances: NDArray[np.float64]

    @classmethod
    def of(
        cls,
        H: Tensor,
        Y: Tensor,
        blocks: tuple[slice, ...],
        workers: Workers = ALONE,
        weights: Tensor | None = None,
    ) -> "NormalEquations":
        """Form them from the rows H (n, p) with targets Y (n, C) and `weights` (n,), None if all are 1.

        With several workers each passes its own rows.
        """
        G, b = H.new_zeros((H.shape[1], H.shape[1])), H.new_zeros((H.shape[1], Y.shape[1]))
        empty = cls(G, b, blocks, np.zeros((len(blocks), len(blocks))), np.zeros(len(blocks)))
        nothing, every = ((0,) * len(blocks), (H.shape[0],) * len(blocks))
        all_rows = ChangedRows(H, Y, every, weights)
        return empty.after(ChangedRows(H[:0], Y[:0], nothing), all_rows, lambda: H, Y, workers, weights)

    def after(
        self,
        was: ChangedRows,
        now: ChangedRows,
        all_rows: Callable[[], Tensor],
        Y: Tensor,
        workers: Workers = ALONE,
        weights: Tensor | None = None,
    ) -> "NormalEquations":
        """Return the equations after the rows `was` became the rows `now`.

        `all_rows` returns the current H (n, p), with targets Y (n, C) and `weights` (n,). A pair of blocks is formed
        again from them if it loses and gains at least n rows in all. With several workers each passes its own rows.
        """
        moved = [lost + gained for lost, gained in zip(was.leading, now.leading, strict=True)]
        *moved, rows = workers.sum(torch.tensor([*moved, Y.shape[0]], device=Y.device)).tolist()
        anew = cache(lambda: ChangedRows(all_rows(), Y, (), weights))
        G, b = self.G.clone(), self.b.clone()
        variances, target_variances = self.variances.copy(), self.target_variances.copy()

        def summed(left: slice, right: slice | None, by: int, held: Tensor, variance: float) -> tuple[Tensor, float]:
            """Return the block of G, or of b without `right`, that changes in the same rows as block `by`."""
            changes = [(-1.0, was, was.leading[by]), (1.0, now, now.leading[by])]
            if moved[by] >= rows:
                held, variance, changes = torch.zeros_like(held), 0.0, [(1.0, anew(), Y.shape[0])]
            factors = [
                _Product(
                    sign,
                    each.H[:count, left],
                    each.Y[:count] if right is None else each.H[:count, right],
                    None if each.weights is None else each.weights[:count],
                )
                for sign, each, count in changes
            ]
            return _updated(held, variance, factors, workers)

        for one, columns in enumerate(self.blocks):
            found = summed(columns, None, one, b[columns], float(target_variances[one]))
            b[columns], target_variances[one] = found
            for other, others in enumerate(self.blocks[one:], start=one):
                by = max(one, other, key=moved.__getitem__)
                found = summed(columns, others, by, G[columns, others], float(variances[one, other]))
                G[columns, others], variances[one, other] = found
                if other != one:
                    G[others, columns] = found[0].T
        return NormalEquations(G, b, self.blocks, variances, target_variances)

    @property
    def tau(self) -> float:
        """The standard deviation of the error of G, in the Frobenius norm."""
        return math.sqrt(2 * self.variances.sum() - np.trace(self.variances))

    @property
    def target_tau(self) -> float:
        """The standard deviation of the error of b."""
        return math.sqrt(self.target_variances.sum())

    def drift(self, size: float) -> float:
        """Return the standard deviation of the accumulated error of G W - b, for |W|_F = `size`."""
        return self.tau * size + self.target_tau

    def factor(self, rows: int, regularization: float) -> NormalFactor:
        """Return the factor of G/n + lambda I, n = `rows`. Raises ArithmeticError if none exists."""
        shifted = self.G / rows
        shifted.diagonal().add_(regularization)
        cholesky, failed = torch.linalg.cholesky_ex(shifted)
        if bool(failed):
            raise ArithmeticError("the normal equations have no Cholesky factor")
        return NormalFactor(cholesky)

    def forget(self) -> None:
        """Overwrite both sums in place because they hold rows that must go. The object is unusable afterwards."""
        self.G.zero_()
        self.b.zero_()


@dataclass(frozen=True, eq=False)
class _Product:
    """sign * left^T D right, D the weights of the rows."""

    sign: float
    left: Tensor
    right: Tensor
    weights: Tensor | None

    def chunks(self) -> Iterator[tuple[Tensor, Tensor, int]]:
        """Yield rows of D left and right, with the number of roundings of each sum that they cause."""
        weights = (None,) * self.left.shape[0] if self.weights is None else torch.split(self.weights, CHUNK)
        for R, Q, D in zip(torch.split(self.left, CHUNK), torch.split(self.right, CHUNK), weights, strict=False):
            # Multiplying by the weights rounds as well, with all bits.
            yield (R, Q, R.shape[0]) if D is None else (R * D[:, None], Q, R.shape[0] + 2)


def _updated(held: Tensor, variance: float, changes: Sequence[_Product], workers: Workers) -> tuple[Tensor, float]:
    """Return `held` plus all `changes`, and its error's variance including that of `held`."""
    moved, of_moved = torch.zeros_like(held), 0.0
    for change in changes:
        for R, Q, roundings in change.chunks():
            moved.addmm_(R.T, Q, alpha=change.sign)
            product = float(torch.linalg.norm(R)) * float(torch.linalg.norm(Q))
            of_moved += _EPSILON**2 * (_square(moved) / 12 + roundings / 6 * product**2 / 4)
    if workers.count > 1:
        of_moved = float(workers.sum(torch.tensor([of_moved], dtype=torch.float64, device=held.device)))
        moved = workers.sum(moved)
    total = held + moved
    return total, variance + of_moved + workers.count * _EPSILON**2 * _square(total) / 12


def _square(matrix: Tensor) -> float:
    return float(torch.linalg.norm(matrix)) ** 2


@together
def normal_factor(objective: Objective) -> NormalFactor:
    """Return the factor of H^T D H / n + lambda I for `objective`. Raises ArithmeticError if none exists."""
    H, weights = objective.H(), row_weights(objective.loss, objective.labels)
    equations = NormalEquations.of(H, H[:, :0], (slice(0, H.shape[1]),), objective.workers, weights)
    return equations.factor(objective.weighted_rows, objective.regularization)


@dataclass(frozen=True, eq=False)
class NormalObjective(Objective):
    """F of the squared loss, with values and gradients from the normal equations instead of the rows.

    Its points have no logits and no residuals.
    """

    equations: NormalEquations
    #: |Y|_F^2 of all workers' targets, weighted.
    targets_squared: float

    def at(self, W: Tensor) -> Point:
        """Return F, its gradient and the relative gradient at W (p, C)."""
        n, regularization, b = self.weighted_rows, self.regularization, self.equations.b
        product = self.equations.G @ W
        gradient = ((product - b) / n).add_(W, alpha=regularization)
        missed = self._missed(W, product)
        value = missed / (2 * n) + regularization / 2 * _square(W)
        size, error = float(torch.linalg.norm(W)), float(torch.linalg.norm(gradient))
        relative = error / regularization / size if size > 0 else math.inf
        if size == 0 and error <= 4 * self.equations.drift(0.0) / n:
            relative = 0.0
        nothing = W.new_empty((0, W.shape[1]))
        return Point(W, nothing, nothing, value, gradient, relative)

    def hessian(self, point: Point) -> LinearMap:
        """Return G/n + lambda I as a map of directions (p, C)."""
        return self._curved

    def _curved(self, direction: Tensor) -> Tensor:
        product = (self.equations.G @ direction).div_(self.weighted_rows)
        return product.add_(direction, alpha=self.regularization)

    def dual(self, point: Point) -> Tensor:
        """Return `Objective.dual`, computing the residuals from the rows."""
        return self.dual_of(point.W)

    @together
    def dual_of(self, W: Tensor) -> Tensor:
        """Return U = -residual / (lambda n_train), (n_train, C), at W (p, C)."""
        residual = self.loss.residual(self.representation.logits(W), self.labels)
        own = residual / (-self.regularization * self.weighted_rows)
        return self.workers.joined(own, self.representation.division)

    def rounding(self, point: Point) -> float:
        """Return the standard deviation of the gradient's error at `point`.

        It combines the errors of the sums, of the product with them, and of the rows behind them.
        """
        size, equations = float(torch.linalg.norm(point.W)), self.equations
        residual = math.sqrt(max(self._missed(point.W, equations.G @ point.W), 0.0))
        p = equations.G.shape[0]
        products = float(torch.linalg.norm(equations.G)) * size + float(torch.linalg.norm(equations.b))
        of_product = _EPSILON * (math.sqrt((p + 1) / 6) * products / self.weighted_rows + self.regularization * size)
        return equations.drift(size) / self.weighted_rows + of_product + self.rounding_of_rows(size, residual)

    @together
    def rounding_of_rows(self, size: float, residual: float) -> float:
        """Return the gradient error from rounding in the rows of H, for |W|_F and the weighted |H W - Y|_F."""
        representation, weights = self.representation, row_weights(self.loss, self.labels)
        rows = representation.row_bounds
        passed = rows if weights is None else rows * weights
        of_logits = math.sqrt(1 / 6) * representation.logit_rounding(passed) * size
        # |D (H W - Y)| is at most this many times the weighted |H W - Y|.
        largest = math.sqrt(self.loss.largest_curvature)
        of_residual = math.sqrt(representation.terms / 6) * representation.norm(rows) * largest * residual
        return _EPSILON * (of_logits + of_residual) / self.weighted_rows

    def _missed(self, W: Tensor, product: Tensor) -> float:
        """Return |H W - Y|_F^2, weighted, from `product` = G W."""
        return float((W * product).sum()) - 2 * float((W * self.equations.b).sum()) + self.targets_squared
