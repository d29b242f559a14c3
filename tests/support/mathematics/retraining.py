"""Retraining from zero by a solver independent of the code under test: losses, gradient and search written out."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import expit

from projector.network.spec import LossKind

#: In double precision, or in extended precision if H is.
Matrix: TypeAlias = NDArray[Any]
#: Extended precision.
Precise: TypeAlias = NDArray[np.longdouble]


@dataclass(frozen=True)
class Problem:
    """(1/n) sum_i w_i loss(h_i W, y_i) + (lambda/2) |W|^2 for H (n, p) and y (n,) of C classes; w_i = 1 by default."""

    H: Matrix
    labels: NDArray[np.int64]
    classes: int
    loss: LossKind
    regularization: float
    #: Real-valued targets in place of classes, (n, C), for the squared loss.
    values: Matrix | None = None
    #: Weights of the rows, (n,).
    weights: Matrix | None = None

    @property
    def signs(self) -> Matrix:
        return 2.0 * np.eye(self.classes)[self.labels] - 1.0

    def slopes(self, Z: Matrix) -> Matrix:
        """Return the weighted loss' derivative by the logits, (n, C)."""
        return self._weighted(self._slopes(Z))

    def _weighted(self, rows: Matrix) -> Matrix:
        return rows if self.weights is None else rows * self.weights[:, None]

    def _slopes(self, Z: Matrix) -> Matrix:
        if self.loss is LossKind.SOFTMAX:
            E = np.exp(Z - Z.max(axis=1, keepdims=True))
            others = E / E.sum(axis=1, keepdims=True)
            # p_y - 1 would cancel for p_y near 1.
            own = (np.arange(len(Z)), self.labels)
            others[own] = 0.0
            others[own] = -others.sum(axis=1)
            return others
        if self.loss is LossKind.OVR:
            return -self.signs * expit(-self.signs * Z)
        if self.loss is LossKind.SQUARED:
            return Z - (np.eye(self.classes)[self.labels] if self.values is None else self.values)
        return -self.signs * np.clip(1.0 - self.signs * Z, 0.0, 1.0)

    def curved(self, Z: Matrix, V: Matrix) -> Matrix:
        """Return the weighted loss' Hessian by the logits applied to V (n, C)."""
        return self._weighted(self._curved(Z, V))

    def _curved(self, Z: Matrix, V: Matrix) -> Matrix:
        if self.loss is LossKind.SOFTMAX:
            E = np.exp(Z - Z.max(axis=1, keepdims=True))
            P = E / E.sum(axis=1, keepdims=True)
            return P * (V - (P * V).sum(axis=1, keepdims=True))
        if self.loss is LossKind.OVR:
            return V * expit(Z) * expit(-Z)
        if self.loss is LossKind.SQUARED:
            return V
        margins = self.signs * Z
        return np.where((margins >= 0.0) & (margins < 1.0), V, 0.0)

    def gradient(self, W: Matrix) -> Matrix:
        """Return the objective's gradient, in the precision of W and H."""
        return self.H.T @ self.slopes(self.H @ W) / max(len(self.H), 1) + self.regularization * W

    def distance_bound(self, W: Matrix) -> float:
        return float(np.linalg.norm(self.gradient(W))) / self.regularization

    def minimum(self, tolerance: float) -> Matrix:
        """Minimise by Newton's method from zero, to a relative gradient of `tolerance` or the limit of rounding."""
        W = best = np.zeros((self.H.shape[1], self.classes))
        bound, since = np.inf, 0
        while since < 10:
            G = self.gradient(W)
            found = self.distance_bound(W)
            best, bound, since = (W, found, 0) if found < bound / 2 else (best, bound, since + 1)
            if found <= tolerance * np.linalg.norm(W):
                return W
            D = self._direction(W, G)
            W = W + _root(partial(self._slope, W, D)) * D
        return best

    def precise_minimum(self, start: Matrix | None = None) -> tuple[Precise, float]:
        """Minimise by Newton's method with a dense Hessian and gradients in extended precision. Returns W and its
        error.

        Starts from `start` (p, C) or zero, since the minimum is unique. H must be small, and in extended precision if
        it should count exactly. The error is the distance bound of the last gradient.
        """
        precise, rough = (replace(self, H=self.H.astype(dtype)) for dtype in (np.longdouble, np.float64))
        nothing = np.zeros((self.H.shape[1], self.classes))
        W = best = (nothing if start is None else start).astype(np.longdouble)
        bound, since = np.inf, 0
        while since < 10:
            G = precise.gradient(W)
            found = float(np.linalg.norm(G)) / self.regularization
            best, bound, since = (W, found, 0) if found < bound / 2 else (best, bound, since + 1)
            if found == 0.0:
                break
            D = -np.linalg.solve(rough.hessian(W), G.astype(np.float64).ravel()).reshape(W.shape)
            W = W + _root(partial(precise._slope, W, D)) * D
        return best, precise.distance_bound(best)

    def hessian(self, W: Matrix) -> Matrix:
        """Return the objective's Hessian, (p C, p C)."""
        p, C = W.shape
        Z = self.H @ W.astype(np.float64)
        hessian = np.zeros((p, C, p, C))
        for second, direction in enumerate(np.eye(C)):
            curved = self.curved(Z, np.tile(direction, (len(Z), 1)))
            for first in range(C):
                hessian[:, first, :, second] = self.H.T @ (curved[:, first : first + 1] * self.H) / max(len(Z), 1)
        return np.asarray(hessian.reshape(p * C, p * C)) + self.regularization * np.eye(p * C)

    def _slope(self, W: Matrix, D: Matrix, t: float) -> float:
        return float((self.gradient(W + t * D) * D).sum())

    def _direction(self, W: Matrix, G: Matrix) -> Matrix:
        Z = self.H @ W

        def product(flat: Matrix) -> Matrix:
            V = flat.reshape(W.shape)
            return (self.H.T @ self.curved(Z, self.H @ V) / max(len(self.H), 1) + self.regularization * V).ravel()

        operator = LinearOperator((W.size, W.size), matvec=product, dtype=np.float64)
        return cg(operator, -G.ravel(), rtol=1e-4, maxiter=5_000)[0].reshape(W.shape)


def _root(slope: Callable[[float], float]) -> float:
    """Return the approximate root of an increasing function that is negative at 0; 1 if it is already small there."""
    first = abs(slope(0.0))
    low, high = 0.0, 1.0
    if abs(slope(1.0)) <= 0.5 * first:
        return 1.0
    while slope(high) < 0.0:
        low, high = high, 2 * high
    for _ in range(30):
        middle = (low + high) / 2
        found = slope(middle)
        if abs(found) <= 0.1 * first:
            return middle
        low, high = (middle, high) if found < 0.0 else (low, middle)
    return high
