"""The training objective F(W) = (1/n_train) sum_i loss(h_i W, y_i) + (lambda/2) |W|_F^2."""

from dataclasses import dataclass

import torch
from torch import Tensor

from projector.network.losses import LinearMap, Loss
from projector.network.representation import Representation

#: A relative gradient above this is not an optimum, whatever stopped the iteration.
LARGEST_FLOOR = 1e-8
_EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class Point:
    """F and its gradient at one W."""

    W: Tensor
    #: H W, (n_train, C).
    logits: Tensor
    #: Gradient of the summed loss by the logits, (n_train, C).
    residual: Tensor
    value: float
    #: Gradient of F, (p, C).
    gradient: Tensor
    #: |gradient|_F / lambda / |W|_F; bounds the relative distance to the optimum. 0 where both vanish.
    relative_gradient: float


@dataclass(frozen=True, eq=False)
class Objective:
    """F, strongly convex for lambda > 0."""

    representation: Representation
    loss: Loss
    #: y of the training rows, (n_train,) int64 on the representation's device.
    labels: Tensor
    #: lambda.
    regularization: float

    @property
    def weighted_rows(self) -> int:
        """n_train, by which sums over rows are divided; 1 where there are none and F is (lambda/2) |W|_F^2."""
        return max(self.representation.rows, 1)

    def at(self, W: Tensor, logits: Tensor | None = None) -> Point:
        """F, its gradient and the relative gradient at W (p, C); `logits` is H W, (n_train, C), where it is known."""
        n = self.weighted_rows
        if logits is None:
            logits = self.representation.logits(W)
        residual = self.loss.residual(logits, self.labels)
        loss_gradient = self.representation.transposed(residual) / n
        gradient = loss_gradient + self.regularization * W
        value = self.loss.value(logits, self.labels) / n + self.regularization / 2 * float((W * W).sum())
        relative = self.relative(float(torch.linalg.norm(gradient)) / self.regularization, W, residual)
        return Point(W, logits, residual, value, gradient, relative)

    def hessian(self, point: Point) -> LinearMap:
        """The Hessian of F at `point`, as a map of directions (p, C)."""
        of_loss = self.loss.hessian(point.logits, self.labels)

        def product(direction: Tensor) -> Tensor:
            curved = of_loss(self.representation.logits(direction))
            product = self.representation.transposed(curved.div_(self.weighted_rows))
            return product.add_(direction, alpha=self.regularization)

        return product

    def dual(self, point: Point) -> Tensor:
        """U = -residual / (lambda n_train), (n_train, C): W = H^T U where the gradient vanishes."""
        return point.residual / (-self.regularization * self.weighted_rows)

    def identity_error(self, W: Tensor, U: Tensor) -> float:
        """|W - H^T U|_F / |W|_F for U (n_train, C)."""
        error = float(torch.linalg.norm(W - self.representation.transposed(U)))
        return self.relative(error, W, self.loss.residual(self.representation.logits(W), self.labels))

    def relative(self, error: float, W: Tensor, residual: Tensor) -> float:
        """`error` / |W|_F; for W = 0, 0 when `error` is no more than the rounding of the gradient over lambda."""
        size = float(torch.linalg.norm(W))
        if size > 0:
            return error / size
        norm_of_H = float(torch.linalg.norm(self.representation.row_bounds))
        rounding = _EPSILON * norm_of_H * float(torch.linalg.norm(residual)) / self.weighted_rows
        return 0.0 if error * self.regularization <= 4 * rounding else float("inf")
