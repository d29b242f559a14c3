"""Stochastic gradient descent, with the dual variable of its weights.

Weights are linear combinations of the steps' minibatch gradients H_B^T r, with coefficients that depend neither on H
nor on the residuals r. So adding each step's residuals to U with that step's coefficient keeps W = H^T U, at an optimum
or not, at the cost of one batch per step.

The rows of H are propagated once. If they are large, a temporary file holds them, and memory holds only one batch.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import seldom_read
from projector.errors import TrainingError
from projector.network.spec import LossKind, ModelSpec
from projector.solvers.objective import Objective, Point

#: Training counts as diverged once the objective exceeds this many times its value at W = 0.
_DIVERGENCE = 1e3
_POWER_ITERATIONS = 20

#: (W, row numbers of a batch) -> the batch's residuals over its size (m, C), and H_B^T times them (p, C).
_GradientOf: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Descent:
    """Weights after the last epoch and their dual variable."""

    point: Point
    #: U, (n_train, C), with W = H^T U.
    dual: Tensor


class MomentumSteps:
    """v <- momentum v + gradient + lambda W, W <- W - rate v."""

    def __init__(self, start: Tensor, spec: ModelSpec) -> None:
        #: Current weights, (p, C); changed in place.
        self.W = start.clone()
        self._velocity = torch.zeros_like(start)
        self._rate, self._momentum, self._decay = spec.learning_rate, spec.momentum, spec.regularization

    def take(self, gradient: Tensor) -> None:
        """Take one step, given the gradient (p, C) of a batch's mean loss."""
        self._velocity.mul_(self._momentum).add_(self.W, alpha=self._decay).add_(gradient)
        self.W.sub_(self._velocity, alpha=self._rate)

    def shares(self, count: int) -> NDArray[np.float64]:
        """Return the coefficient of each step's gradient in W after `count` steps, (count,): the rule on scalars."""
        # Extended precision keeps every digit of float64 over hundreds of thousands of steps.
        rate, momentum, decay = (np.longdouble(each) for each in (self._rate, self._momentum, self._decay))
        velocity, weight = np.longdouble(1), -rate
        shares = np.empty(count)
        with np.errstate(over="ignore", invalid="ignore"):
            for step in range(count - 1, -1, -1):
                shares[step] = weight
                velocity = momentum * velocity + decay * weight
                weight = weight - rate * velocity
        return shares


class PegasosSteps:
    """W <- (1 - 1/t) W - gradient / (lambda t) in step t, that is W = -(sum of gradients) / (lambda t).

    The step sizes 1 / (lambda t) of Pegasos (Shalev-Shwartz, Singer, Srebro and Cotter, 2011) need no learning rate and
    converge for losses without curvature. Its optional projection onto a ball is omitted: with it, W would not be a sum
    of gradients with coefficients known beforehand.
    """

    def __init__(self, start: Tensor, spec: ModelSpec) -> None:
        self.W = start.clone()
        self._sum = torch.zeros_like(start)
        self._decay = spec.regularization
        self._taken = 0

    def take(self, gradient: Tensor) -> None:
        """Take one step, as `MomentumSteps.take`."""
        self._taken += 1
        self._sum.add_(gradient)
        torch.div(self._sum, -self._decay * self._taken, out=self.W)

    def shares(self, count: int) -> NDArray[np.float64]:
        """Return coefficients as `MomentumSteps.shares`, equal for every step."""
        return np.full(count, -1 / (self._decay * count))


def descend(
    objective: Objective,
    spec: ModelSpec,
    start: Tensor,
    on_epoch: Callable[[int, Point], None],
) -> Descent:
    """Run `spec.epochs` epochs from `start` = 0 (p, C): with momentum, or Pegasos' steps for the plain hinge.

    Minibatches of `spec.batch_size` rows (0: all of them) follow a new order each epoch, drawn from `spec.seed`. If
    their rows of H, n_train * p * 8 bytes, are large, an unnamed file holds them (`seldom_read`). Raises TrainingError
    if the objective diverges, and DeviceError if there is no room for the file.
    """
    count = objective.representation.rows
    batch_size = min(spec.batch_size, count) or count
    generator = torch.Generator().manual_seed(spec.seed)
    steps = PegasosSteps(start, spec) if spec.loss is LossKind.PLAIN_HINGE else MomentumSteps(start, spec)
    shares = iter(steps.shares(spec.epochs * -(-count // batch_size)).tolist())
    U = start.new_zeros((count, start.shape[1]))
    point = first = objective.at(start)
    gradient_of = _gradients(objective, batch_size)
    for epoch in range(spec.epochs):
        on_epoch(epoch, point)
        for rows in _batches(count, batch_size, generator):
            residual, gradient = gradient_of(steps.W, rows)
            steps.take(gradient)
            U.index_add_(0, rows.to(U.device), residual, alpha=next(shares))
        point = objective.at(steps.W.clone())
        _check_progress(objective, spec, epoch, first, point)
    on_epoch(spec.epochs, point)
    return Descent(point, U)


def _check_progress(objective: Objective, spec: ModelSpec, epoch: int, first: Point, point: Point) -> None:
    if spec.loss is LossKind.PLAIN_HINGE:
        # Its first steps are as long as 1 / lambda for any data, and come back.
        if not np.isfinite(point.value):
            raise TrainingError(
                f"Training left the range of numbers in epoch {epoch + 1}.",
                "Raise --lambda, whose inverse is the length of the first step, or scale the features down.",
            )
    elif not point.value <= _DIVERGENCE * first.value:
        raise TrainingError(
            f"Training diverged in epoch {epoch + 1} with a learning rate of {spec.learning_rate:g}.",
            f"Try a learning rate of {0.5 / _largest_curvature(objective, first.W):.1g} or lower.",
        )


def _batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield row numbers of each batch of one epoch, ascending; drawn on the CPU, the same for every device."""
    order = torch.arange(count) if batch_size == count else torch.randperm(count, generator=generator)
    for start in range(0, count, batch_size):
        yield order[start : start + batch_size].sort().values


def _gradients(objective: Objective, batch_size: int) -> _GradientOf:
    """Return the gradient function: through the factors of H for all rows, from stored rows of H for batches."""
    representation, loss, labels = objective.representation, objective.loss, objective.labels

    def through_factors(W: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        residual = loss.residual(representation.logits(W), labels) / rows.shape[0]
        return residual, representation.transposed(residual)

    if batch_size == representation.rows:
        return through_factors
    H = seldom_read((representation.rows, representation.columns))
    for start, columns in representation.column_chunks():
        H[:, start : start + columns.shape[1]] = columns

    def through_rows(W: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        batch = H[rows].to(W.device)
        residual = loss.residual(batch @ W, labels[rows.to(W.device)]) / rows.shape[0]
        return residual, batch.T @ residual

    return through_rows


def _largest_curvature(objective: Objective, direction: Tensor) -> float:
    """Estimate the largest eigenvalue of the Hessian anywhere, by power iteration on H^T H.

    `direction` (p, C) gives shape and device.
    """
    representation = objective.representation
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn((direction.shape[0], 1), dtype=torch.float64, generator=generator).to(direction.device)
    for _ in range(_POWER_ITERATIONS):
        direction = direction / torch.linalg.norm(direction)
        direction = representation.transposed(representation.logits(direction))
    squared = float(torch.linalg.norm(direction))
    return objective.loss.largest_curvature * squared / representation.rows + objective.regularization
