"""Preconditioners for what is minimised near a point: the Hessian there, factorised whole, or class by class.

The Hessian of F is (1/n) sum_i S_i (x) h_i h_i^T + lambda I, with S_i (C, C) that of row i's loss by its logits. The
block of class c is H^T D_c H / n + lambda I, D_c the entries (c, c) of all S_i: the *class blocks*. For one-vs-rest
losses nothing lies beside them. Softmax couples the classes, and along the direction in which all classes move alike
its Hessian is lambda I: so class blocks act on what is left of that direction, and along it the inverse is 1 / lambda.
Where it is small enough there is a *factor* of the whole Hessian, with what lies beside the blocks. [Amazon Photo,
lambda 1e-4, one node deleted: 5 products instead of 22 to 28.]

A block needs few rows: those with curvature in its class, drawn in proportion to it (their sum over all classes is at
most 1 in a row, so that a row counts in two or three of them). [arXiv, p = 800, C = 40, 64 nodes deleted, float32
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

#: Rows drawn for a block, for each of its columns, and at least; and for the whole Hessian, for each column of H.
_ROWS_PER_COLUMN, _FEWEST_ROWS = 2, 2_000
_ROWS_OF_WHOLE = 40
#: The whole Hessian is factorised up to this order, if reading the factor takes no longer than this many products.
_LARGEST_ORDER, _WORTH_WHOLE = 8_192, 4.0
#: Columns of it that are factorised in one step.
_PANEL = 1_024
#: A preconditioner takes at most so many bytes.
_LARGEST_BYTES = 1 << 30
#: Applying it reads it once; it is not worth that when a product with H reads this many times less.
_WORTH = 10.0
#: Rounding of a block in single precision, as a share of lambda, above which all are in double precision.
_ROUNDING = 0.1
#: Class blocks are made for Newton's method from far off after products that took this many times as long.
_CLEARLY = 2.0


@dataclass(frozen=True, eq=False)
class ClassBlocks:
    """The inverses of the class blocks at one point; a trace of every row of H that it was made from."""

    #: (C, p, p), float32 or float64: so precise that rounded they are positive still.
    inverses: Tensor
    #: Whether the loss couples the classes.
    coupled: bool
    regularization: float

    def solve(self, gradient: Tensor) -> Tensor:
        """The inverse applied to (p, C), in its dtype."""
        mean = gradient.mean(dim=1, keepdim=True) if self.coupled else None
        columns = gradient if mean is None else gradient - mean
        columns = columns.T[:, :, None].to(self.inverses.dtype)
        solved = torch.bmm(self.inverses, columns)[:, :, 0].T
        result: Tensor = solved.to(gradient.dtype)
        if mean is None:
            return result
        return result - result.mean(dim=1, keepdim=True) + mean / self.regularization


@dataclass(frozen=True, eq=False)
class HessianFactor:
    """A Cholesky factor of the whole Hessian at one point; a trace of every row of H that it was made from."""

    #: (C p, C p), in the lower triangle, float32 or float64: so precise that rounded the Hessian is positive still.
    cholesky: Tensor

    def solve(self, gradient: Tensor) -> Tensor:
        """The inverse of the Hessian applied to (p, C), in its dtype."""
        stacked = gradient.T.reshape(-1, 1).to(self.cholesky.dtype)
        half = torch.linalg.solve_triangular(self.cholesky, stacked, upper=False)
        solved = torch.linalg.solve_triangular(self.cholesky.T, half, upper=True)
        result: Tensor = solved.to(gradient.dtype).reshape(gradient.shape[1], -1).T
        return result


#: What stands for the inverse of the Hessian.
Inverse: TypeAlias = ClassBlocks | HessianFactor | NormalFactor | KernelFactor


def takes_whole(representation: Representation, classes: int, loss: Loss) -> bool:
    """Whether the Hessian is factorised whole, so that a few products with it are all that a repair takes."""
    order = representation.columns * classes
    if not loss.coupled or order > _LARGEST_ORDER:
        return False
    return 4 * order**2 <= _WORTH_WHOLE * representation.bytes_of_product(classes)


def fits(inverse: Inverse, objective: Objective) -> bool:
    """Whether `inverse` can precondition `objective`: a kernel's factor needs a kernel."""
    return not isinstance(inverse, KernelFactor) or isinstance(objective, KernelObjective)


def solution(inverse: Inverse, objective: Objective) -> LinearMap:
    """`inverse`, which fits `objective`, as a map of (p, C)."""
    if not isinstance(inverse, KernelFactor):
        return inverse.solve
    if not isinstance(objective, KernelObjective):
        raise RuntimeError("a kernel's factor was given to an objective without a kernel")
    return partial(objective.solve, inverse)


class RowsOfH(Protocol):
    """Who has H."""

    def H(self) -> Tensor:
        """One's own rows of it, (n_own, p) float64, not to be written to."""


def preconditioner_steps(objective: Objective, point: Point, rows: RowsOfH, whole: bool) -> Iterator[Inverse | None]:
    """Makes the preconditioner of a repair from about `point`, in short steps: None after each, and in the end it.

    `rows` are those of `objective`; `whole` is what `takes_whole` says of the products that the repair takes through
    the features. For the squared loss it is the factor of its normal equations or of its kernel. Raises ArithmeticError
    where there is none.
    """
    if isinstance(objective, NormalObjective):
        return iter([objective.equations.factor(objective.weighted_rows, objective.regularization)])
    if isinstance(objective, KernelObjective):
        return iter([objective.factor()])
    return (factor_steps if whole else block_steps)(objective, point, rows)


def factor_steps(objective: Objective, point: Point, rows: RowsOfH) -> Iterator[HessianFactor | None]:
    """The Hessian at `point`, a column of blocks at a time, and its factor."""
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
    """Makes the class blocks at `point`, one at a time: None after each, and in the end all of them.

    `rows` are those of `objective`. Raises ArithmeticError when the Hessian is not made of finite numbers. The same
    inputs give the same bits on the CPU.
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
    #: Of the loss of one's own rows in each class, (n_own, C).
    curvatures: Tensor
    dtype: torch.dtype

    @together
    def block(self, number: int) -> Tensor:
        """That of a class without lambda, (p, p), from rows drawn in proportion to their curvature in it."""
        column = self.curvatures[:, number]
        count = math.ceil(_rows_drawn(self.H.shape[1]) / self.workers.count)
        drawn, shares = _drawn(column, count, torch.Generator().manual_seed(number))
        G = self.H[drawn] * (column[drawn] / shares / self.objective.weighted_rows).sqrt()[:, None]
        G = G.to(self.dtype)
        return self.workers.sum(G.T @ G)


@together
def drawn_for_classes(objective: Objective, point: Point, rows: RowsOfH) -> _ForClasses:
    """For the class blocks at `point`."""
    H = rows.H()
    curvatures = objective.loss.curvatures(point.logits, objective.labels)
    return _ForClasses(objective, H, curvatures, _precision(objective, H, H.shape[1]))


@dataclass(frozen=True, eq=False)
class _ForWhole(OfObjective):
    """Rows of H for the whole Hessian at one point."""

    #: Those drawn, (a, p), and with which probability.
    G: Tensor
    shares: Tensor
    #: Their Hessians by the logits, as a map of (a, C).
    of_loss: LinearMap
    classes: int
    dtype: torch.dtype

    @together
    def block(self, first: int, second: int) -> Tensor:
        """Its rows of one class and columns of another, (p, p), without lambda."""
        unit = self.shares.new_zeros((self.shares.shape[0], self.classes))
        unit[:, second] = 1.0
        weights = self.of_loss(unit)[:, first] / (self.objective.weighted_rows * self.shares)
        return self.workers.sum(self.G.T @ (self.G * weights.to(self.dtype)[:, None]))


@together
def drawn_for_whole(objective: Objective, point: Point, rows: RowsOfH) -> _ForWhole:
    """For the Hessian at `point`."""
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
    """Why neither class blocks nor a factor are made for this problem; None if one of them is.

    `whole` is what `takes_whole` says. `free` are the bytes that can still be allocated, or that H takes already; None
    where that is not known.
    """
    n, p = representation.rows, representation.columns
    if min(n, p) == 0:
        return "there is nothing to factorise"
    # In double precision, should it come to that.
    size = 8 * classes * p**2 * (classes if whole else 1)
    if size > _LARGEST_BYTES:
        return f"it would take {size:,} bytes, above {_LARGEST_BYTES:,}"
    if size / 2 > _WORTH * representation.bytes_of_product(classes):
        return "conjugate gradients cost less: products with the features are cheaper than with a preconditioner"
    # The blocks, H, and what making one of them takes, or the Hessian, H, its sample and that weighted.
    needed = size + 3 * 8 * n * p if whole else size + 8 * n * p + 3 * 8 * (_rows_drawn(p) + p) * p
    if free is not None and needed > free:
        return f"it needs {needed:,} bytes of memory and {free:,} are free"
    return None


class AdaptiveBlocks:
    """A preconditioner for Newton's method from far off: the identity; class blocks once steps have cost as much."""

    def __init__(self, objective: Objective) -> None:
        """For an `objective` that keeps H."""
        self._objective = objective
        self._blocks: ClassBlocks | None = None
        #: Products since the blocks were made.
        self._products = 0

    def __call__(self, gradient: Tensor) -> Tensor:
        """The inverse applied to (p, C)."""
        return gradient if self._blocks is None else self._blocks.solve(gradient)

    def adapt(self, point: Point, products: int) -> None:
        """Takes the Hessian of `point`, reached in so many more `products`, if those since it was last taken cost more.

        Where no block can be made there is none.
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
    """Estimated, of the blocks of so many classes for H (n, p)."""
    drawn = min(n, _rows_drawn(p))
    # Each is made, factorised and inverted, in single precision, as the products are that this is compared with.
    return classes * (dense_seconds(drawn * p, p) + 2 * dense_seconds(p * p, p // 3)) / 2


def _rows_drawn(columns: int) -> int:
    return max(_FEWEST_ROWS, _ROWS_PER_COLUMN * columns)


def _drawn(curvature: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """About `count` rows drawn in proportion to `curvature` (n,), and the probability with which each was."""
    curved = torch.nonzero(curvature > 0)[:, 0]
    weights = curvature[curved]
    shares = torch.ones_like(weights)
    if curved.shape[0] > count:
        # Rows that would be drawn more than once are taken, and the others share the rest.
        shares = (weights * (count / weights.sum())).clamp_(max=1.0)
        taken = shares == 1.0
        left = max(count - int(taken.sum()), 1) / weights[~taken].sum()
        shares = torch.where(taken, 1.0, (weights * left).clamp(max=1.0))
        # Systematic sampling: the rows at which the sum of the shares passes a whole number.
        offset = torch.rand((), generator=generator, dtype=torch.float64).to(weights.device)
        passed = (shares.cumsum(0) + offset).floor()
        chosen = passed.diff(prepend=passed.new_zeros(1)) > 0
        curved, shares = curved[chosen], shares[chosen]
    return curved, shares


def _precision(objective: Objective, H: Tensor, order: int) -> torch.dtype:
    """Single, where the rounding of a block in it is small beside lambda, and what lambda alone curves is not lost."""
    squares = objective.workers.sum(torch.linalg.vector_norm(H, dim=0).square_())
    largest = float(squares.max()) / objective.weighted_rows * objective.loss.largest_curvature
    if not math.isfinite(largest):
        raise ArithmeticError("the Hessian is not made of finite numbers")
    rounding = math.sqrt(order) * torch.finfo(torch.float32).eps * largest
    return torch.float32 if rounding <= _ROUNDING * objective.regularization else torch.float64


def _inverse(block: Tensor, regularization: float) -> Tensor:
    """The inverse of block + lambda I, (p, p), in its dtype; the block is overwritten."""
    block.diagonal().add_(regularization)
    return torch.cholesky_inverse(_root(block))


def _factorise(hessian: Tensor) -> Iterator[None]:
    """Puts the Cholesky factor in the place of the lower triangle of (order, order), some columns at a step."""
    for start in range(0, hessian.shape[0], _PANEL):
        stop = start + _PANEL
        rows, before = hessian[start:stop], hessian[:, :start]
        hessian[start:, start:stop] -= before[start:] @ rows[:, :start].T
        rows[:, start:stop] = root = _root(rows[:, start:stop])
        below = hessian[stop:, start:stop]
        below.copy_(torch.linalg.solve_triangular(root.T, below, upper=True, left=False))
        yield


def _root(hessian: Tensor) -> Tensor:
    """The Cholesky factor of a Hessian, of which only the lower triangle is read."""
    root: Tensor
    root, failed = torch.linalg.cholesky_ex(hessian)
    if bool(failed):
        raise ArithmeticError("the Hessian has no Cholesky factor")
    return root
