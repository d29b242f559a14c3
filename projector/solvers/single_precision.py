"""Hessian products in single precision, by H itself, for the inner solves of Newton's method.

An inner solve need not be more precise than its step. The next gradient captures what single precision leaves. It is in
double precision, as is every accepted or certified value.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from projector.network.losses import LinearMap
from projector.network.representation import DenseRepresentation, transposed_product
from projector.parallel.workers import Workers, together
from projector.solvers.normal_equations import NormalObjective
from projector.solvers.objective import Objective, OfObjective, Point


class SinglePrecision:
    """H (n_train, p) in float32, and the Hessians of one objective computed with it."""

    def __init__(self, objective: Objective, H: Tensor) -> None:
        """`H` (n_train, p) float64 belongs to `objective`."""
        self._objective = objective
        self._H = H.to(torch.float32)

    @property
    def workers(self) -> Workers:
        """The workers that hold rows of H."""
        return self._objective.workers

    @together
    def hessian(self, point: Point) -> "SingleHessian":
        """Return the Hessian of F at `point`, as a map of directions (p, C) float32."""
        objective = self._objective
        of_loss = objective.loss.hessian(point.logits.to(torch.float32), objective.labels)
        return SingleHessian(objective, self._H, of_loss)


@dataclass(frozen=True, eq=False)
class SingleHessian(OfObjective):
    """The Hessian of F at one point, in float32."""

    H: Tensor
    #: The loss's Hessian by the logits of this worker's rows.
    of_loss: LinearMap

    @together
    def __call__(self, direction: Tensor) -> Tensor:
        """Return the product with a direction (p, C) float32."""
        objective = self.objective
        with _without_tf32():
            product = transposed_product(self.H, self.of_loss(self.H @ direction).div_(objective.weighted_rows))
        return self.workers.sum(product).add_(direction, alpha=objective.regularization)


@together
def single_precision(objective: Objective) -> SinglePrecision | None:
    """Return the products for an objective that keeps H; None if it uses factors or normal equations."""
    representation = objective.representation
    dense = isinstance(representation, DenseRepresentation) and not isinstance(objective, NormalObjective)
    return SinglePrecision(objective, representation.dense()) if dense else None


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Compute float32 products in full precision, regardless of the process's GPU settings."""
    if not torch.cuda.is_available():
        yield
        return
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
