"""Publish weights with noise that hides whether they were unlearned or retrained.

Lethe's weights W lie within a proven distance of the optimum W_u on the live graph, |W - W_u| <= cap
(`projector.forgetting.certificate`). So do the weights of a service that trained on the live graph alone. The two lie
at most 2 cap apart, close enough for noise to hide. Cap, noise and grid depend only on values fixed beforehand, so they
reveal nothing about the data.
"""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from projector.certified.gaussian import largest_mu
from projector.certified.noise import ERROR, LARGEST_BITS, rounded_normal
from projector.certified.publication import Mechanism, Promise, Publication
from projector.errors import PromiseError
from projector.forgetting.batch import ModelState
from projector.forgetting.certificate import Certificate, certifiable
from projector.forgetting.optimum import stacked
from projector.network.blocks import by_block, side_by_side
from projector.network.losses import Loss, Regression

_EPSILON = float(np.finfo(np.float64).eps)
#: Largest contribution of the grid to the sensitivity, as a share of the noise's part in it.
_SHARE_OF_GRID = 2.0**-10


def radius(loss: Loss, classes: int, regularization: float, largest_target: float | None = None) -> float:
    """Return R with |W_u| <= R for any data: sqrt(2 F(0) / lambda), since lambda/2 |W_u|^2 <= F(W_u) <= F(0).

    F(0) is the loss of one row of zero logits: log C (softmax), C log 2 (ovr), C/2 (smoothed hinge), 1/2 (squared).

    With real-valued targets F(0) depends on the data. `largest_target` bounds every node's |y|_2 and must be declared
    without looking at them; F(0) is then half its square (1 suits one target of 1 or -1). Raises PromiseError if it is
    missing, and for an objective that does not bound the distance to retraining.
    """
    if not certifiable(loss, regularization):
        raise PromiseError(
            "The distance to retraining cannot be bounded for this objective.",
            "Use a positive lambda and not the plain hinge.",
        )
    zeros = torch.zeros((1, classes), dtype=torch.float64)
    if isinstance(loss, Regression):
        if largest_target is None or not 0 < largest_target < math.inf:
            raise PromiseError(
                "The size of the weights depends on the real-valued targets.",
                "Declare the largest |y| that a node may have, without looking at the data.",
            )
        return largest_target / math.sqrt(regularization)
    largest = max(loss.value(zeros, torch.tensor([label])) for label in range(classes))
    return math.sqrt(2 * largest / regularization)


def calibrate(promise: Promise, R: float, weights: int, tolerance: float) -> Mechanism:
    """Return the mechanism with the least noise that keeps `promise` for `weights` numbers W with |W_u| <= R.

    A repair to the relative bound `tolerance` meets the cap, tolerance R / (1 - tolerance): the bound is at most
    tolerance |W|, and |W| is at most R plus the bound. Rounding moves each number by at most half a step g, and
    dividing by the step errs by at most eps |W| / 2 in all. So two services lie at most

        Delta = 2 cap + g sqrt(weights) + eps (R + cap)

    apart. With mu from epsilon and delta, sigma = Delta sqrt(K) / mu. The step is small against cap rather than against
    sigma, which far exceeds Delta when many publications are planned.

    `ERROR` of each published number is subtracted from delta: a sample at most tau from its law in total variation adds
    (1 + e^epsilon) tau. Raises PromiseError if that leaves nothing of delta, or if float64 cannot represent the grid.
    """
    if promise.publications < 1 or weights < 1:
        raise PromiseError("At least one publication of at least one number is required.", "Plan more.")
    # Epsilon above 100 leaves nothing of delta.
    error = (1 + math.exp(min(promise.epsilon, 100.0))) * promise.publications * weights * ERROR
    if error >= promise.delta:
        raise PromiseError(
            f"The noise of {promise.publications} publications is drawn to {error:.0e}, delta is {promise.delta:g}.",
            "Promise a larger delta, a smaller epsilon or fewer publications.",
        )
    budget = largest_mu(promise.epsilon, promise.delta - error)
    cap = tolerance * R / (1 - tolerance)
    ratio = math.sqrt(promise.publications) / budget
    bits = max(math.ceil(math.log2(ratio * math.sqrt(weights) / _SHARE_OF_GRID)), 0)
    of_grid = ratio * math.sqrt(weights) * 2.0**-bits
    without_grid = 2 * cap + _EPSILON * (R + cap)
    sigma = ratio * without_grid / (1 - of_grid) * (1 + 1e-12)
    sensitivity = without_grid + math.ldexp(sigma, -bits) * math.sqrt(weights)
    if bits > LARGEST_BITS or (R + cap) * _EPSILON > math.ldexp(sigma, -bits):
        raise PromiseError(
            f"Steps of {math.ldexp(sigma, -bits):.0e} are too small for weights up to {R:.0e}.",
            "Certify a larger distance to retraining (`tolerance`), or a smaller model.",
        )
    return Mechanism(cap, weights, sensitivity, sigma, bits, budget)


def published(mechanism: Mechanism, W: Tensor, certificate: Certificate, secret: bytes, version: int) -> Tensor:
    """Return the public weights of `version` in the shape of W: multiples of the step, with noise.

    The result is a function of the arguments. Keep `secret` (`SECRET_BYTES` from the system's generator) with the
    version to publish the same weights again. The secret is as confidential as W and must be erased with the version:
    it allows the noise to be removed. Raises PromiseError unless `certificate`, which must belong to W, bounds W within
    the cap.
    """
    if not certificate.bound <= mechanism.cap:
        raise PromiseError(
            f"The weights are up to {certificate.bound:.1e} from those of retraining, the cap is {mechanism.cap:.1e}.",
            "Repair them first.",
        )
    return _noisy(mechanism, W, secret, version)


def _noisy(mechanism: Mechanism, W: Tensor, secret: bytes, version: int) -> Tensor:
    if W.numel() != mechanism.weights:
        raise PromiseError(
            f"The noise is for {mechanism.weights} weights and these are {W.numel()}.", "Calibrate it for this model."
        )
    steps = np.rint(W.cpu().numpy().ravel() / mechanism.step).astype(np.int64)
    steps += rounded_normal(secret, version, mechanism.weights, mechanism.bits)
    return torch.from_numpy(steps * mechanism.step).reshape(W.shape).to(W.device)


def mechanism_for(
    promise: Promise, state: ModelState, loss: Loss, regularization: float, tolerance: float
) -> Mechanism:
    """Return the mechanism that keeps `promise` for a model whose repairs end at the relative bound `tolerance`.

    Only the number of weights of `state` matters. Raises PromiseError as `radius` and `calibrate` do.
    """
    R = radius(loss, state.classes, regularization)
    return calibrate(promise, R, stacked(state).numel(), tolerance)


def shown(publication: Publication, state: ModelState, certificate: Certificate | None) -> ModelState:
    """Return `state` with its public weights; its coefficients stay private.

    `certificate` belongs to `state`. Pass None if it was checked when the publication was drawn: a published version is
    published again, regardless of the last digits of a bound. Raises PromiseError as `published` does.
    """
    W, secret, mechanism = stacked(state), publication.secret, publication.mechanism
    if certificate is None:
        W = _noisy(mechanism, W, secret, state.version)
    else:
        W = published(mechanism, W, certificate, secret, state.version)
    spans, start = [], 0
    for span in state.spans:
        blocks = by_block(span.W, state.classes)
        rows = blocks.shape[0] * blocks.shape[1]
        spans.append(replace(span, W=side_by_side(W[start : start + rows].reshape(blocks.shape))))
        start += rows
    return replace(state, features=spans[0], labels=spans[1] if len(spans) > 1 else None)
