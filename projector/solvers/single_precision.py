"""Products with the Hessian in single precision, by H itself, for the inner solves of Newton's method.

An inner solve need not be more precise than the step it is for: what single precision leaves over is found by the next
gradient, which is in double precision, as is every value that is accepted or certified. [arXiv, 90,941 x 800, C = 40:
a product in a quarter of the time.]
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from projector.network.losses import LinearMap
from projector.network.representation import DenseRepresentation, transposed_product
from projector.solvers.objective import Objective, Point


class SinglePrecision:
    """H (n_train, p) in float32, and the Hessians of one objective made with it."""

    def __init__(self, objective: Objective, H: Tensor) -> None:
        """`H` (n_train, p) float64 is that of `objective`."""
        self._objective = objective
        self._H = H.to(torch.float32)

    @classmethod
    def of(cls, objective: Objective) -> "SinglePrecision | None":
        """For an objective that keeps H; None for one that goes through its factors."""
        representation = objective.representation
        return cls(objective, representation.dense()) if isinstance(representation, DenseRepresentation) else None

    def hessian(self, point: Point) -> LinearMap:
        """The Hessian of F at `point`, as a map of directions (p, C) float32."""
        objective, H = self._objective, self._H
        of_loss = objective.loss.hessian(point.logits.to(torch.float32), objective.labels)

        def product(direction: Tensor) -> Tensor:
            with _without_tf32():
                product = transposed_product(H, of_loss(H @ direction).div_(objective.weighted_rows))
            return product.add_(direction, alpha=objective.regularization)

        return product


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
