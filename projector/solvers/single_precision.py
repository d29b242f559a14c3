"""Products with the Hessian in single precision, by H itself, for the inner solves of Newton's method.

An inner solve need not be more precise than the step it is for: what single precision leaves over is found by the next
gradient, which is in double precision, as is every value that is accepted or certified. [arXiv, 90,941 x 800, C = 40:
a product in a quarter of the time.]
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
    """H (n_train, p) in float32, and the Hessians of one objective made with it."""

    def __init__(self, objective: Objective, H: Tensor) -> None:
        """`H` (n_train, p) float64 is that of `objective`."""
        self._objective = objective
        self._H = H.to(torch.float32)

    @property
    def workers(self) -> Workers:
        """Who has rows of H."""
        return self._objective.workers

    @together
    def hessian(self, point: Point) -> "SingleHessian":
        """The Hessian of F at `point`, as a map of directions (p, C) float32."""
        objective = self._objective
        of_loss = objective.loss.hessian(point.logits.to(torch.float32), objective.labels)
        return SingleHessian(objective, self._H, of_loss)


@dataclass(frozen=True, eq=False)
class SingleHessian(OfObjective):
    """The Hessian of F at one point, in float32."""

    H: Tensor
    #: That of the loss by the logits of one's own rows.
    of_loss: LinearMap

    @together
    def __call__(self, direction: Tensor) -> Tensor:
        """Its product with a direction (p, C) float32."""
        objective = self.objective
        with _without_tf32():
            product = transposed_product(self.H, self.of_loss(self.H @ direction).div_(objective.weighted_rows))
        return self.workers.sum(product).add_(direction, alpha=objective.regularization)


@together
def single_precision(objective: Objective) -> SinglePrecision | None:
    """For an objective whose products are with H; None for one through its factors or by normal equations."""
    representation = objective.representation
    dense = isinstance(representation, DenseRepresentation) and not isinstance(objective, NormalObjective)
    return SinglePrecision(objective, representation.dense()) if dense else None


@contextmanager
def _without_tf32() -> Iterator[None]:
    """Products of float32 with all its digits, whatever the process has asked of its GPU."""
    if not torch.cuda.is_available():
        yield
        return
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed
