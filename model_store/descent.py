"""Stochastic gradient descent with momentum, with the dual variable of its weights.

Velocity and weights are linear combinations of minibatch gradients H_B^T r with coefficients that do not depend on H,
so the same recursion on the rows' residuals r gives U with W = H^T U, at an optimum or not.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor

from model_store.errors import TrainingError
from model_store.objective import Objective, Point
from model_store.spec import ModelSpec

#: The objective may grow to this many times its value at W = 0 before training counts as diverged.
_DIVERGENCE = 1e3
_POWER_ITERATIONS = 20

#: (W, row numbers of a batch) -> mean residuals of the batch (m, C), and H_B^T of them (p, C).
_GradientOf: TypeAlias = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Descent:
    """Weights after the last epoch and their dual variable."""

    point: Point
    #: U, (n_train, C), with W = H^T U.
    dual: Tensor


def descend(objective: Objective, spec: ModelSpec, start: Tensor, on_epoch: Callable[[int, Point], None]) -> Descent:
    """`spec.epochs` epochs of descent with weight decay lambda, from `start` = 0 (p, C).

    Minibatches of `spec.batch_size` rows (0: all of them) follow an order drawn anew each epoch from `spec.seed`; they
    materialise H. Raises TrainingError when the objective diverges.
    """
    count = objective.representation.rows
    batch_size = min(spec.batch_size, count) or count
    gradient_of = _through_factors(objective) if batch_size == count else _through_rows(objective)
    generator = torch.Generator().manual_seed(spec.seed)
    W, U = start.clone(), start.new_zeros((count, start.shape[1]))
    velocity, dual_velocity = torch.zeros_like(W), torch.zeros_like(U)
    point = first = objective.at(start)
    for epoch in range(spec.epochs):
        on_epoch(epoch, point)
        for rows in _batches(count, batch_size, generator):
            residual, gradient = gradient_of(W, rows.to(W.device))
            velocity.mul_(spec.momentum).add_(W, alpha=objective.regularization).add_(gradient)
            dual_velocity.mul_(spec.momentum).add_(U, alpha=objective.regularization)
            dual_velocity.index_add_(0, rows.to(U.device), residual)
            W.sub_(velocity, alpha=spec.learning_rate)
            U.sub_(dual_velocity, alpha=spec.learning_rate)
        point = objective.at(W.clone())
        if not point.value <= _DIVERGENCE * first.value:
            raise TrainingError(
                f"Training diverged in epoch {epoch + 1} with a learning rate of {spec.learning_rate:g}.",
                f"Try a learning rate of {0.5 / _largest_curvature(objective, first):.1g} or lower.",
            )
    on_epoch(spec.epochs, point)
    return Descent(point, U)


def _batches(count: int, batch_size: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Row numbers of each batch of one epoch; the order is drawn on the CPU, the same for every device."""
    order = torch.arange(count) if batch_size == count else torch.randperm(count, generator=generator)
    for start in range(0, count, batch_size):
        yield order[start : start + batch_size]


def _through_factors(objective: Objective) -> _GradientOf:
    """Gradients of the whole batch, without forming H."""

    def gradient(W: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        residual = objective.loss.residual(objective.representation.logits(W), objective.labels) / rows.shape[0]
        return residual, objective.representation.transposed(residual)

    return gradient


def _through_rows(objective: Objective) -> _GradientOf:
    """Gradients of minibatches, from rows of H."""
    H = objective.representation.dense()

    def gradient(W: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        batch = H[rows]
        residual = objective.loss.residual(batch @ W, objective.labels[rows]) / rows.shape[0]
        return residual, batch.T @ residual

    return gradient


def _largest_curvature(objective: Objective, point: Point) -> float:
    """An estimate of the largest eigenvalue of the Hessian at `point`, by power iteration."""
    direction = point.gradient
    for _ in range(_POWER_ITERATIONS):
        direction = objective.hessian_product(point, direction / torch.linalg.norm(direction))
    return float(torch.linalg.norm(direction))
