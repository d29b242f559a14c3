"""Losses of the training objective: sums over rows of logits, their derivatives by the logits, and probabilities.

Confidently classified rows would cause cancellation (p_y - 1, log p_y near 0). These differences are never formed: with
them the gradient would stop falling orders of magnitude above the tolerance when features are large.

The one-vs-rest losses sum over classes a loss of the margins m = s z, where the sign s is 1 for the row's class and -1
for every other.
"""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from projector.network.spec import LossKind

#: A symmetric linear map of (n, C) that does not modify its argument.
LinearMap = Callable[[Tensor], Tensor]


#: Divisor of the squared loss's scores before the softmax if no validation node can fit a better one.
UNFITTED_TEMPERATURE = 0.2


class Loss(Protocol):
    """A convex loss of logits (n, C) float64 and labels y (n,) int64, summed over rows.

    The squared loss also takes real-valued targets (n, C) float64 in place of the labels.
    """

    #: Upper bound on the eigenvalues of any row's Hessian; 0 if the loss has no curvature.
    largest_curvature: float
    #: Whether the logits of a row interact; if so, adding a constant to a row changes nothing.
    coupled: bool
    #: Whether the loss is quadratic in the logits, so that its Hessian is constant.
    quadratic: bool

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return the sum of the rows' losses."""

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the gradient by the logits, (n, C)."""

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return the Hessian by the logits, as a map of directions (n, C)."""

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the diagonal of each row's Hessian by its logits, (n, C)."""

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return an upper bound on the eigenvalues of each row's Hessian by its logits, (n,)."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the predictions for logits (n, C): rows that sum to 1, larger where the logit is larger, (n, C)."""


class Softmax:
    """Cross-entropy of softmax probabilities p = exp(z) / sum exp(z)."""

    largest_curvature = 0.5
    coupled = True
    quadratic = False

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return - sum log p_y."""
        margins = logits - logits.gather(1, labels[:, None])
        largest, position = margins.max(dim=1, keepdim=True)
        others = (margins - largest).exp().scatter(1, position, 0.0).sum(dim=1)
        return float((largest[:, 0] + torch.log1p(others)).sum())

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return p - onehot(y), (n, C)."""
        others = torch.softmax(logits, dim=1).scatter(1, labels[:, None], 0.0)
        return others.scatter(1, labels[:, None], -others.sum(dim=1, keepdim=True))

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return (diag(p) - p p^T) in each row; the labels do not matter."""
        p = torch.softmax(logits, dim=1)
        largest = p.argmax(dim=1, keepdim=True)

        def product(direction: Tensor) -> Tensor:
            # Adding a constant to a row of `direction` changes nothing; this one avoids cancellation at the largest p.
            shifted = direction - direction.gather(1, largest)
            return shifted.sub_(torch.linalg.vecdot(p, shifted)[:, None]).mul_(p)

        return product

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return p_c (1 - p_c), (n, C); the labels do not matter."""
        p = torch.softmax(logits, dim=1)
        return p * (p.sum(dim=1, keepdim=True) - p)

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return max_c 2 p_c (1 - p_c), by Gershgorin's theorem, (n,); the labels do not matter."""
        return 2 * self.curvatures(logits, labels).amax(dim=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return p, (n, C)."""
        return torch.softmax(logits, dim=1)


class OneVsRest:
    """One logistic regression per class against the rest, log(1 + exp(-m)): Equation 2 of the paper for each class."""

    largest_curvature = 0.25
    coupled = False
    quadratic = False

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return sum log(1 + exp(-m)) over rows and classes."""
        return float(-logsigmoid(logits * _signs(logits, labels)).sum())

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return -s / (1 + exp(m)), (n, C)."""
        signs = _signs(logits, labels)
        return torch.sigmoid(-signs * logits) * -signs

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return direction / (1 + exp(z)) / (1 + exp(-z)); the labels do not matter."""
        return self.curvatures(logits, labels).mul

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 / (1 + exp(z)) / (1 + exp(-z)), (n, C); the labels do not matter."""
        return torch.sigmoid(logits) * torch.sigmoid(-logits)

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the largest of `curvatures`, (n,); the labels do not matter."""
        return self.curvatures(logits, labels).amax(dim=1)

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the classes' 1 / (1 + exp(-z)) divided by their sum, (n, C)."""
        # Equals the softmax of the logarithms, which stays accurate even if every class is nearly ruled out.
        return torch.softmax(logsigmoid(logits), dim=1)


class SmoothHinge:
    """One support vector machine per class against the rest, with the quadratically smoothed hinge.

    0 for m >= 1, (1 - m)^2 / 2 between 0 and 1, 1/2 - m for m <= 0: max(0, 1 - m) smoothed over a width of h = 1
    (Zhang, 2004; for h = 1 the smooth hinge of Rennie and Srebro, 2005). Rows beyond the margin have residual 0, as in
    the primal SVM of the paper's appendix.
    """

    largest_curvature = 1.0
    coupled = False
    quadratic = False

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return the sum over rows and classes."""
        slack = 1 - logits * _signs(logits, labels)
        slope = slack.clamp(0, 1)
        return float((slope * (slack - slope / 2)).sum())

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return -s clamp(1 - m, 0, 1), (n, C)."""
        signs = _signs(logits, labels)
        return (1 - logits * signs).clamp(0, 1) * -signs

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return `direction` where 0 <= m < 1, else 0: a generalised Hessian, since the slope has kinks at 0 and 1.

        m = 0 counts as curved: at W = 0, where training starts, every margin is 0.
        """
        return self.curvatures(logits, labels).mul

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 where 0 <= m < 1, else 0, (n, C)."""
        margins = logits * _signs(logits, labels)
        return ((margins >= 0) & (margins < 1)).to(logits.dtype)

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 in every row, (n,): next to a kink the slope may change that much."""
        return torch.ones_like(logits[:, 0])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of the decision values z, (n, C): a support vector machine estimates no probabilities.

        They order the classes as the decision values do and sum to 1, but are not calibrated.
        """
        return torch.softmax(logits, dim=1)


class PlainHinge:
    """One support vector machine per class against the rest, max(0, 1 - m): for subgradient descent only."""

    largest_curvature = 0.0
    coupled = False
    quadratic = False

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return the sum over rows and classes."""
        return float((1 - logits * _signs(logits, labels)).clamp(min=0).sum())

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return a subgradient: -s where m < 1, else 0, (n, C)."""
        signs = _signs(logits, labels)
        return torch.where(logits * signs < 1, -signs, 0.0)

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return 0 everywhere: the loss is piecewise linear."""
        return torch.zeros_like

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 0 everywhere, (n, C)."""
        return torch.zeros_like(logits)

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 0 in every row, (n,)."""
        return torch.zeros_like(logits[:, 0])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the softmax of the decision values z, (n, C), with the same meaning as for `SmoothHinge`."""
        return torch.softmax(logits, dim=1)


class Squared:
    """Half the squared distance |z - y|^2 / 2 to the target y: the one-hot class, or real-valued targets (n, C).

    Its Hessian is constant and the same for all classes, so the optimum solves one linear system.
    """

    largest_curvature = 1.0
    coupled = False
    quadratic = True

    def __init__(self, temperature: float = UNFITTED_TEMPERATURE) -> None:
        """`temperature` is T in the probabilities softmax(z / T)."""
        self.temperature = temperature

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return sum |z - y|^2 / 2."""
        return float(self.residual(logits, labels).square().sum()) / 2

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return z - y, (n, C)."""
        if labels.dim() == 2:
            return logits - labels
        return logits.scatter_add(1, labels[:, None], torch.full_like(logits[:, :1], -1.0))

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return `direction`: the Hessian is constant."""
        return torch.clone

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 everywhere, (n, C)."""
        return torch.ones_like(logits)

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return 1 in every row, (n,)."""
        return torch.ones_like(logits[:, 0])

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return softmax(z / T), (n, C)."""
        return torch.softmax(logits / self.temperature, dim=1)


class Regression(Squared):
    """The squared loss of real-valued targets, whose predictions are the scores."""

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the predicted targets z, (n, C): a regression estimates no probabilities."""
        return logits


class ClassWeighted:
    """Another loss in which each row counts with the weight of its class, w_y > 0."""

    def __init__(self, loss: Loss, weights: Sequence[float]) -> None:
        """`weights` has one positive number per class."""
        self._loss = loss
        self._weights = torch.tensor(weights, dtype=torch.float64)
        self.largest_curvature = loss.largest_curvature * max(weights)
        self.coupled = loss.coupled
        self.quadratic = loss.quadratic

    def value(self, logits: Tensor, labels: Tensor) -> float:
        """Return sum w_y loss(z, y)."""
        values = [
            weight * self._loss.value(logits[labels == label], labels[labels == label])
            for label, weight in enumerate(self._weights.tolist())
        ]
        return math.fsum(values)

    def residual(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the rows of the loss's residual times w_y, (n, C)."""
        return self._loss.residual(logits, labels) * self._column(labels, logits)

    def hessian(self, logits: Tensor, labels: Tensor) -> LinearMap:
        """Return the loss's Hessian times w_y in each row."""
        product, weights = self._loss.hessian(logits, labels), self._column(labels, logits)
        return lambda direction: product(direction).mul_(weights)

    def curvatures(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss's curvatures times w_y, (n, C)."""
        return self._loss.curvatures(logits, labels) * self._column(labels, logits)

    def curvature(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the loss's bound times w_y, (n,)."""
        return self._loss.curvature(logits, labels) * self._column(labels, logits)[:, 0]

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the predictions, (n, C), which the weights do not change."""
        return self._loss.probabilities(logits)

    def of_rows(self, labels: Tensor) -> Tensor:
        """Return w_y of each row, (n,) float64."""
        return self._weights.to(labels.device)[labels]

    def _column(self, labels: Tensor, like: Tensor) -> Tensor:
        return self.of_rows(labels).to(like.dtype)[:, None]


def row_weights(loss: Loss, labels: Tensor) -> Tensor | None:
    """Return the weight of each row, (n,) float64; None if all are 1."""
    return loss.of_rows(labels) if isinstance(loss, ClassWeighted) else None


def _signs(logits: Tensor, labels: Tensor) -> Tensor:
    """Return 1 for each row's class and -1 for every other, (n, C)."""
    return torch.full_like(logits, -1.0).scatter_(1, labels[:, None], 1.0)


def loss_of(
    kind: LossKind,
    *,
    real_valued: bool = False,
    temperature: float | None = None,
    class_weights: Sequence[float] = (),
) -> Loss:
    """Return the loss that a specification names. `real_valued` targets take only the squared one.

    `temperature` is the one training fitted for the squared loss; None if it could not be fitted. `class_weights` are
    the specification's; empty if all classes count alike.
    """
    loss = _unweighted(kind, real_valued, temperature)
    return ClassWeighted(loss, class_weights) if class_weights else loss


def _unweighted(kind: LossKind, real_valued: bool, temperature: float | None) -> Loss:
    match kind:
        case LossKind.SOFTMAX:
            return Softmax()
        case LossKind.OVR:
            return OneVsRest()
        case LossKind.HINGE:
            return SmoothHinge()
        case LossKind.PLAIN_HINGE:
            return PlainHinge()
        case LossKind.SQUARED if real_valued:
            return Regression()
        case LossKind.SQUARED:
            return Squared(UNFITTED_TEMPERATURE if temperature is None else temperature)
