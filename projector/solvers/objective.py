"""The training objective F(W) = (1/n_train) sum_i loss(h_i W, y_i) + (lambda/2) |W|_F^2."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from projector.network.losses import LinearMap, Loss
from projector.network.representation import Representation
from projector.parallel.workers import Workers, together

#: A relative gradient above this is not an optimum, regardless of why the iteration stopped.
LARGEST_FLOOR = 1e-8
_EPSILON = torch.finfo(torch.float64).eps


@dataclass(frozen=True, eq=False)
class Point:
    """F and its gradient at one W."""

    W: Tensor
    #: This worker's rows of H W, (n_own, C).
    logits: Tensor
    #: Gradient of the summed loss by the logits, (n_own, C).
    residual: Tensor
    value: float
    #: Gradient of F, (p, C).
    gradient: Tensor
    #: |gradient|_F / lambda / |W|_F; bounds the relative distance to the optimum. 0 if both vanish.
    relative_gradient: float


@dataclass(frozen=True, eq=False)
class Objective:
    """F, strongly convex for lambda > 0."""

    representation: Representation
    loss: Loss
    #: y of this worker's training rows, (n_own,) int64 on the representation's device.
    labels: Tensor
    #: lambda.
    regularization: float

    @property
    def workers(self) -> Workers:
        """The workers that hold parts of it, by rows of H."""
        return self.representation.workers

    def H(self) -> Tensor:
        """Return this worker's rows of H, (n_own, p); read only if H is kept."""
        return self.representation.dense()

    @property
    def weighted_rows(self) -> int:
        """n_train, the divisor of sums over rows; 1 without training rows, where F is (lambda/2) |W|_F^2."""
        return max(self.representation.rows, 1)

    @together
    def at(self, W: Tensor) -> Point:
        """Return F, its gradient and the relative gradient at W (p, C)."""
        return self.with_logits(W, self.representation.logits(W))

    def with_logits(self, W: Tensor, logits: Tensor) -> Point:
        """Return the same for known logits H W (n_own, C)."""
        representation, n = self.representation, self.weighted_rows
        residual = self.loss.residual(logits, self.labels)
        loss_gradient = representation.transposed(residual) / n
        gradient = loss_gradient + self.regularization * W
        of_loss = representation.total(self.loss.value(logits, self.labels))
        value = of_loss / n + self.regularization / 2 * float((W * W).sum())
        relative = self.relative(float(torch.linalg.norm(gradient)) / self.regularization, W, residual)
        return Point(W, logits, residual, value, gradient, relative)

    @together
    def hessian(self, point: Point) -> LinearMap:
        """Return the Hessian of F at `point`, as a map of directions (p, C)."""
        return Hessian(self, self.loss.hessian(point.logits, self.labels))

    @together
    def dual(self, point: Point) -> Tensor:
        """Return U = -residual / (lambda n_train), (n_train, C): W = H^T U where the gradient vanishes."""
        own = point.residual / (-self.regularization * self.weighted_rows)
        return self.workers.joined(own, self.representation.division)

    @together
    def identity_error(self, W: Tensor, U: Tensor) -> float:
        """Return |W - H^T U|_F / |W|_F for U (n_train, C)."""
        representation = self.representation
        error = float(torch.linalg.norm(W - representation.transposed(U[representation.own])))
        return self.relative(error, W, self.loss.residual(representation.logits(W), self.labels))

    def relative(self, error: float, W: Tensor, residual: Tensor) -> float:
        """Return `error` / |W|_F; for W = 0, 0 if `error` is at most the gradient's rounding over lambda, else inf."""
        size = float(torch.linalg.norm(W))
        if size > 0:
            return error / size
        return 0.0 if error * self.regularization <= 4 * self.rounding_of_products(residual) else float("inf")

    def rounding_of_products(self, residual: Tensor) -> float:
        """Return the standard deviation of rounding in (1/n) H^T R for the residual R (n_own, C); see `certify`."""
        norm, terms = self.representation.norm, self.representation.terms
        size = norm(self.representation.row_bounds) * norm(residual)
        return _EPSILON * math.sqrt(terms / 6) * size / self.weighted_rows


@dataclass(frozen=True, eq=False)
class OfObjective:
    """One worker's part of something derived from an objective."""

    objective: Objective

    @property
    def workers(self) -> Workers:
        """The workers that hold parts of it."""
        return self.objective.workers


@dataclass(frozen=True, eq=False)
class Hessian(OfObjective):
    """The Hessian of F at one point."""

    #: The loss's Hessian by the logits of this worker's rows.
    of_loss: LinearMap

    @together
    def __call__(self, direction: Tensor) -> Tensor:
        """Return the product with a direction (p, C)."""
        representation = self.objective.representation
        curved = self.of_loss(representation.logits(direction)).div_(self.objective.weighted_rows)
        return representation.transposed(curved).add_(direction, alpha=self.objective.regularization)
