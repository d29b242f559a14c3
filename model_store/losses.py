"""Losses of the training objective: sums over rows of logits, their derivatives by the logits.

Differences that cancel for confidently classified rows (p_y - 1, log p_y near 0) are never formed: with them the
gradient would stop falling orders of magnitude above the tolerance when features are large.
"""

from typing import Protocol

import torch
from torch import Tensor

from model_store.spec import LossKind


class Loss(Protocol):
    """A convex loss of logits (n, C) float64 and labels y (n,) int64, summed over rows."""

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """The sum of the rows' losses."""

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Its gradient by the logits, (n, C)."""

    def hessian_product(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        """Its Hessian by the logits, applied to `direction` (n, C): (n, C)."""


class Softmax:
    """Cross-entropy of softmax probabilities p = exp(z) / sum exp(z)."""

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """- sum log p_y."""
        margins = logits - logits.gather(1, labels[:, None])
        largest, position = margins.max(dim=1, keepdim=True)
        others = (margins - largest).exp().scatter(1, position, 0.0).sum(dim=1)
        return float((largest[:, 0] + torch.log1p(others)).sum())

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """p - onehot(y), (n, C)."""
        others = torch.softmax(logits, dim=1).scatter(1, labels[:, None], 0.0)
        return others.scatter(1, labels[:, None], -others.sum(dim=1, keepdim=True))

    def hessian_product(self, logits: Tensor, labels: Tensor, direction: Tensor) -> Tensor:
        """(diag(p) - p p^T) applied to each row of `direction`, (n, C); the labels do not matter."""
        p = torch.softmax(logits, dim=1)
        # Adding a constant to a row of `direction` changes nothing; this one leaves the largest p no cancellation.
        shifted = direction - direction.gather(1, p.argmax(dim=1, keepdim=True))
        return p * (shifted - (p * shifted).sum(dim=1, keepdim=True))


def loss_of(kind: LossKind) -> Loss:
    """The loss a specification names."""
    match kind:
        case LossKind.SOFTMAX:
            return Softmax()
