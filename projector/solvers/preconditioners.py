"""Preconditioners for minimising near a point: the Hessian there, factorised as a whole or class by class.

The Hessian of F is (1/n) sum_i S_i (x) h_i h_i^T + lambda I, with S_i (C, C) that of row i's loss by its logits. The
block of class c is H^T D_c H / n + lambda I, with D_c the entries (c, c) of all S_i: the *class blocks*. One-vs-rest
losses have nothing outside the blocks. Softmax couples the classes, and along the direction that moves all classes
alike its Hessian is lambda I. So class blocks act on the rest, and along that direction the inverse is 1 / lambda.

If it is small enough, the whole Hessian gets a *factor*, including the parts outside the blocks. [Amazon Photo, lambda
1e-4, one node deleted: 5 products instead of 22 to 28.]

A block needs few rows: those with curvature in its class, drawn in proportion to it. (A row's curvatures over all
classes sum to at most 1, so a row counts in two or three classes.) [arXiv, p = 800, C = 40, 64 nodes deleted, float32
products to a relative gradient of 5e-9: 38 from 1,000 rows a class, 32 from 3,000, 30 from 6,000; from 12,000 rows
drawn alike for all classes 35, at four times the time.]
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeAlias

import torch
from torch import Tensor

from projector.network.losses import LinearMap, Loss
from projector.network.product_costs import dense_seconds
from projector.network.representation import Representation
from projector.parallel.workers import together
from projector.solvers.kernel import KernelFactor, KernelObjective
from projector.solvers.normal_equations import NormalFactor, NormalObjective
from projector.solvers.objective import Objective, OfObjective, Point

#: Rows drawn for a block, per column and at least; and for the whole Hessian, per column of H.
_ROWS_PER_COLUMN, _FEWEST_ROWS = 2, 2_000
_ROWS_OF_WHOLE = 40
#: Largest order of a whole Hessian to factorise, and the most products that reading its factor may cost.
_LARGEST_ORDER, _WORTH_WHOLE = 8_192, 4.0
#: Columns factorised in one step.
_PANEL = 1_024
#: Largest size of a preconditioner.
_LARGEST_BYTES = 1 << 30
#: Applying a preconditioner reads it once; it does not pay if a product with H reads this many times less.
_WORTH = 10.0
#: Largest rounding of a block in single precision, as a share of lambda. Above it, all blocks use double precision.
_ROUNDING = 0.1
#: Newton's method from far off builds class blocks after products that took this many times as long.
_CLEARLY = 2.0


@dataclass(frozen=True, eq=False)
class ClassBlocks:
    """The inverses of the class blocks at one point; a trace of every row of H behind them."""

    #: (C, p, p), float32 or float64, precise enough to stay positive when rounded.
    inverses: Tensor
    #: Whether the loss couples the classes.
    coupled: bool
    regularization: float

    def solve(self, gradient: Tensor) -> Tensor:
        """Return the inverse applied to (p, C), in its dtype."""
        mean = gradient.mean(dim=1, keepdim=True) if self.coupled else None
        columns = gradient if mean is None else gradient - mean
        # The inverses are symmetric: from the left they are read in order. [p = 800, C = 40: 8 ms instead of 35.]
        solved = torch.bmm(columns.T[:, None].to(self.inverses.dtype), self.inverses)[:, 0].T
        result: Tensor = solved.to(gradient.dtype)
        if mean is None:
            return result
        return result - result.mean(dim=1, keepdim=True) + mean / self.regularization


@dataclass(frozen=True, eq=False)
class HessianFactor:
    """A Cholesky factor of the whole Hessian at one point; a trace of every row of H behind it."""

    #: (C p, C p), in the lower triangle, float32 or float64, precise enough for the rounded Hessian to stay positive.
    cholesky: Tensor

    def solve(self, gradient: Tensor) -> Tensor:
        """Return the inverse of the Hessian applied to (p, C), in its dtype."""
        stacked = gradient.T.reshape(-1, 1).to(self.cholesky.dtype)
        half = torch.linalg.solve_triangular(self.cholesky, stacked, upper=False)
        solved = torch.linalg.solve_triangular(self.cholesky.T, half, upper=True)
        result: Tensor = solved.to(gradient.dtype).reshape(gradient.shape[1], -1).T
        return result


#: An approximate inverse Hessian.
Inverse: TypeAlias = ClassBlocks | HessianFactor | NormalFactor | KernelFactor


def takes_whole(representation: Representation, classes: int, loss: Loss) -> bool:
    """Return whether to factorise the whole Hessian, so that a repair takes only a few products with it."""
    order = representation.columns * classes
    if not loss.coupled or order > _LARGEST_ORDER:
        return False
    return 4 * order**2 <= _WORTH_WHOLE * representation.bytes_of_product(classes)


def fits(inverse: Inverse, objective: Objective) -> bool:
    """Return whether `inverse` can precondition `objective`: a kernel's factor needs a kernel."""
    return not isinstance(inverse, KernelFactor) or isinstance(objective, KernelObjective)


def solution(inverse: Inverse, objective: Objective) -> LinearMap:
    """Return `inverse` as a map of (p, C). It must fit `objective`."""
    if not isinstance(inverse, KernelFactor):
        return inverse.solve
    if not isinstance(objective, KernelObjective):
        raise RuntimeError("a kernel's factor was given to an objective without a kernel")
    return partial(objective.solve, inverse)


class RowsOfH(Protocol):
    """A source of H."""

    def H(self) -> Tensor:
        """Return this worker's rows, (n_own, p) float64, read only."""


def preconditioner_steps(objective: Objective, point: Point, rows: RowsOfH, whole: bool) -> Iterator[Inverse | None]:
    """Build the preconditioner of a repair near `point` in short steps: yield None after each, finally the result.

    `rows` belong to `objective`. `whole` is the result of `takes_whole` for the repair's products through the features.
    For the squared loss the result is the factor of its normal equations or kernel. Raises ArithmeticError if none
    exists.
    """
    if isinstance(objective, NormalObjective):
        return iter([objective.equations.factor(objective.weighted_rows, objective.regularization)])
    if isinstance(objective, KernelObjective):
        return iter([objective.factor()])
    return (factor_steps if whole else block_steps)(objective, point, rows)


def factor_steps(objective: Objective, point: Point, rows: RowsOfH) -> Iterator[HessianFactor | None]:
    """Build the Hessian at `point`, a column of blocks at a time, then its factor."""
    p, classes = point.W.shape
    sample = drawn_for_whole(objective, point, rows)
    hessian = torch.zeros((classes * p, classes * p), dtype=sample.dtype, device=point.W.device)
    for second in range(classes):
        columns = slice(second * p, (second + 1) * p)
        for first in range(second, classes):
            hessian[first * p : (first + 1) * p, columns] = sample.block(first, second)
            yield None
    hessian.diagonal().add_(objective.regularization)
    for _ in _factorise(hessian):
        yield None
    yield HessianFactor(hessian)


def block_steps(objective: Objective, point: Point, rows: RowsOfH) -> Iterator[ClassBlocks | None]:
    """Build the class blocks at `point`, one at a time: yield None after each, finally all of them.

    `rows` belong to `objective`. Raises ArithmeticError if the Hessian is not made of finite numbers. The same inputs
    give the same bits on the CPU.
    """
    p, classes = point.W.shape
    sample = drawn_for_classes(objective, point, rows)
    inverses = torch.empty((classes, p, p), dtype=sample.dtype, device=point.W.device)
    for number in range(classes):
        inverses[number] = _inverse(sample.block(number), objective.regularization)
        yield None
    yield ClassBlocks(inverses, objective.loss.coupled, objective.regularization)


@dataclass(frozen=True, eq=False)
class _ForClasses(OfObjective):
    """Rows of H for the class blocks at one point."""

    H: Tensor
    #: Curvatures of this worker's rows in each class, (n_own, C).
    curvatures: Tensor
    dtype: torch.dtype

    @together
    def block(self, number: int) -> Tensor:
        """Return one class's block without lambda, (p, p), from rows drawn in proportion to their curvature."""
        column = self.curvatures[:, number]
        count = math.ceil(_rows_drawn(self.H.shape[1]) / self.workers.count)
        drawn, shares = _drawn(column, count, torch.Generator().manual_seed(number))
        G = self.H[drawn] * (column[drawn] / shares / self.objective.weighted_rows).sqrt()[:, None]
        G = G.to(self.dtype)
        return self.workers.sum(G.T @ G)


@together
def drawn_for_classes(objective: Objective, point: Point, rows: RowsOfH) -> _ForClasses:
    """Return the rows for the class blocks at `point`."""
    H = rows.H()
    curvatures = objective.loss.curvatures(point.logits, objective.labels)
    return _ForClasses(objective, H, curvatures, _precision(objective, H, H.shape[1]))


@dataclass(frozen=True, eq=False)
class _ForWhole(OfObjective):
    """Rows of H for the whole Hessian at one point."""

    #: The drawn rows, (a, p), and their probabilities.
    G: Tensor
    shares: Tensor
    #: Their Hessians by the logits, as a map of (a, C).
    of_loss: LinearMap
    classes: int
    dtype: torch.dtype

    @together
    def block(self, first: int, second: int) -> Tensor:
        """Return the block of one class's rows and another's columns, (p, p), without lambda."""
        unit = self.shares.new_zeros((self.shares.shape[0], self.classes))
        unit[:, second] = 1.0
        weights = self.of_loss(unit)[:, first] / (self.objective.weighted_rows * self.shares)
        return self.workers.sum(self.G.T @ (self.G * weights.to(self.dtype)[:, None]))


@together
def drawn_for_whole(objective: Objective, point: Point, rows: RowsOfH) -> _ForWhole:
    """Return the rows for the whole Hessian at `point`."""
    H, loss = rows.H(), objective.loss
    p, classes = point.W.shape
    curvatures = loss.curvatures(point.logits, objective.labels).sum(dim=1)
    count = math.ceil(max(_FEWEST_ROWS, _ROWS_OF_WHOLE * p) / objective.workers.count)
    drawn, shares = _drawn(curvatures, count, torch.Generator().manual_seed(0))
    dtype = _precision(objective, H, p * classes)
    of_loss = loss.hessian(point.logits[drawn], objective.labels[drawn])
    return _ForWhole(objective, H[drawn].to(dtype), shares, of_loss, classes, dtype)


def why_no_preconditioner(
    representation: Representation, classes: int, whole: bool, free: int | None = None
) -> str | None:
    """Return why the problem gets neither class blocks nor a factor; None if it gets one.

    `whole` is the result of `takes_whole`. `free` is the number of bytes that are unallocated or already used by H;
    None if unknown.
    """
    n, p = representation.rows, representation.columns
    if min(n, p) == 0:
        return "there is nothing to factorise"
    # In double precision, the larger case.
    size = 8 * classes * p**2 * (classes if whole else 1)
    if size > _LARGEST_BYTES:
        return f"it would take {size:,} bytes, above {_LARGEST_BYTES:,}"
    if size / 2 > _WORTH * representation.bytes_of_product(classes):
        return "conjugate gradients cost less: products with the features are cheaper than with a preconditioner"
    # The blocks, H and the memory to build one block; or the Hessian, H, its sample and the weighted sample.
    needed = size + 3 * 8 * n * p if whole else size + 8 * n * p + 3 * 8 * (_rows_drawn(p) + p) * p
    if free is not None and needed > free:
        return f"it needs {needed:,} bytes of memory and {free:,} are free"
    return None


class AdaptiveBlocks:
    """A preconditioner for Newton's method far from the optimum: the identity, then class blocks once they pay off."""

    def __init__(self, objective: Objective) -> None:
        """Requires an `objective` that keeps H."""
        self._objective = objective
        self._blocks: ClassBlocks | None = None
        #: Number of products since the blocks were built.
        self._products = 0

    def __call__(self, gradient: Tensor) -> Tensor:
        """Return the inverse applied to (p, C)."""
        return gradient if self._blocks is None else self._blocks.solve(gradient)

    def adapt(self, point: Point, products: int) -> None:
        """Build blocks at `point` once the products since the last blocks, `products` of them new, have cost more.

        Uses no blocks if they cannot be built.
        """
        p, classes = point.W.shape
        n = self._objective.representation.rows
        self._products += products
        if 8 * classes * p**2 > _LARGEST_BYTES:
            return
        if self._products * dense_seconds(n * p, classes) > _CLEARLY * _seconds(n, p, classes):
            self._products = 0
            try:
                *_, self._blocks = block_steps(self._objective, point, self._objective)
            except ArithmeticError:
                self._blocks = None


def _seconds(n: int, p: int, classes: int) -> float:
    """Estimate the time to build the blocks of all classes for H (n, p)."""
    drawn = min(n, _rows_drawn(p))
    # Each is built, factorised and inverted in single precision, like the products it is compared with.
    return classes * (dense_seconds(drawn * p, p) + 2 * dense_seconds(p * p, p // 3)) / 2


def _rows_drawn(columns: int) -> int:
    return max(_FEWEST_ROWS, _ROWS_PER_COLUMN * columns)


def _drawn(curvature: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return about `count` rows drawn in proportion to `curvature` (n,), and the probability of each."""
    curved = torch.nonzero(curvature > 0)[:, 0]
    weights = curvature[curved]
    shares = torch.ones_like(weights)
    if curved.shape[0] > count:
        # Rows whose share would exceed 1 are always taken, and the others divide the rest.
        shares = (weights * (count / weights.sum())).clamp_(max=1.0)
        taken = shares == 1.0
        left = max(count - int(taken.sum()), 1) / weights[~taken].sum()
        shares = torch.where(taken, 1.0, (weights * left).clamp(max=1.0))
        # Systematic sampling: take the rows at which the cumulative share passes an integer.
        offset = torch.rand((), generator=generator, dtype=torch.float64).to(weights.device)
        passed = (shares.cumsum(0) + offset).floor()
        chosen = passed.diff(prepend=passed.new_zeros(1)) > 0
        curved, shares = curved[chosen], shares[chosen]
    return curved, shares


def _precision(objective: Objective, H: Tensor, order: int) -> torch.dtype:
    """Return single precision if it rounds a block by little against lambda, the only curvature of some directions."""
    squares = objective.workers.sum(torch.linalg.vector_norm(H, dim=0).square_())
    largest = float(squares.max()) / objective.weighted_rows * objective.loss.largest_curvature
    if not math.isfinite(largest):
        raise ArithmeticError("the Hessian is not made of finite numbers")
    rounding = math.sqrt(order) * torch.finfo(torch.float32).eps * largest
    return torch.float32 if rounding <= _ROUNDING * objective.regularization else torch.float64


def _inverse(block: Tensor, regularization: float) -> Tensor:
    """Return the inverse of block + lambda I, (p, p), in its dtype; overwrites the block."""
    block.diagonal().add_(regularization)
    return torch.cholesky_inverse(_root(block))


def _factorise(hessian: Tensor) -> Iterator[None]:
    """Overwrite the lower triangle of (order, order) with its Cholesky factor, some columns at a step."""
    for start in range(0, hessian.shape[0], _PANEL):
        stop = start + _PANEL
        rows, before = hessian[start:stop], hessian[:, :start]
        hessian[start:, start:stop] -= before[start:] @ rows[:, :start].T
        rows[:, start:stop] = root = _root(rows[:, start:stop])
        below = hessian[stop:, start:stop]
        below.copy_(torch.linalg.solve_triangular(root.T, below, upper=True, left=False))
        yield


def _root(hessian: Tensor) -> Tensor:
    """Return the Cholesky factor of a Hessian, reading only the lower triangle."""
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(hessian)
    if bool(failed):
        raise ArithmeticError("the Hessian has no Cholesky factor")
    return root
