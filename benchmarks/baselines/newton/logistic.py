"""One class against the rest: the objective of certified removal, with its gradient and Hessian.

As in Guo et al. (2020), Eq. 1, sums over m rows rather than means: L(w) = sum_i log(1 + exp(-s_i w h_i)) + m lambda/2
|w|^2, which is m times the paper's Eq. 1. One-vs-rest training is one such problem for each class.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, eigh, eigh_tridiagonal
from scipy.sparse.linalg import LinearOperator, aslinearoperator, cg
from scipy.special import expit

from benchmarks.baselines.protocol import Array, BaselineError, Nodes
from projector import ModelSpec
from projector.network.spec import LossKind

#: Distance to a minimum, relative to |w|.
_TOLERANCE = 1e-9
#: Limits on Newton steps and on halvings of one. From zero it takes about eight steps.
_MOST_STEPS, _MOST_HALVINGS = 100, 40


#: Relative tolerance and limit of iterations, and limit on the vectors of a Krylov space.
_KRYLOV_TOLERANCE, _MOST_ITERATIONS, _KRYLOV_VECTORS = 1e-10, 10_000, 200
#: A Krylov space is exhausted if its next direction is smaller, relative to the curvature.
_EXHAUSTED = 1e3 * np.finfo(np.float64).eps


@dataclass(frozen=True, eq=False)
class Curvature:
    """H = Y^T Y + shift I, with Y (m, p) the rows times the roots of their curvatures; factorised on its smaller side.

    With m < p, Woodbury's identity in its dual form: H^-1 = (I - Y^T (Y Y^T + shift I)^-1 Y) / shift. If Y is an
    operator, nothing is factorised: conjugate gradients solve, and a Krylov space gives the power.
    """

    Y: Array | LinearOperator
    shift: float

    @property
    def dual(self) -> bool:
        """Whether (m, m) is factorised instead of (p, p)."""
        rows, columns = self.Y.shape
        return bool(rows < columns)

    def solve(self, v: Array) -> Array:
        """Return H^-1 v for v (p,). Raises BaselineError if conjugate gradients do not converge."""
        if isinstance(self.Y, LinearOperator):
            found, missed = cg(self._operator, v, rtol=_KRYLOV_TOLERANCE, maxiter=_MOST_ITERATIONS)
            if missed:
                raise BaselineError("A Hessian could not be solved with.", "Choose a larger lambda.")
            return np.asarray(found)
        if not self.dual:
            return np.asarray(cho_solve(self._cholesky, v))
        return np.asarray((v - self.Y.T @ cho_solve(self._cholesky, self.Y @ v)) / self.shift)

    def inverse_quarter(self, v: Array) -> Array:
        """Return H^-1/4 v for v (p,), by an eigendecomposition of the smaller side."""
        if isinstance(self.Y, LinearOperator):
            return _inverse_quarter(self._operator, v)
        values, vectors = eigh(self._gram)
        values = np.maximum(values, 0.0)
        if not self.dual:
            return np.asarray(vectors @ ((values + self.shift) ** -0.25 * (vectors.T @ v)))
        # H^-1/4 is shift^-1/4 outside the rows' span; along them the difference, over s since |Y^T u|^2 = s.
        flat = self.shift**-0.25
        difference = flat * np.expm1(-0.25 * np.log1p(values / self.shift))
        along = np.divide(difference, values, out=np.full_like(values, -0.25 * flat / self.shift), where=values > 0)
        return np.asarray(flat * v + self.Y.T @ (vectors @ (along * (vectors.T @ (self.Y @ v)))))

    def product(self, v: Array) -> Array:
        """Return H v for v (p,)."""
        return np.asarray(self.Y.T @ (self.Y @ v) + self.shift * v)

    @property
    def _operator(self) -> LinearOperator:
        p = self.Y.shape[1]
        return LinearOperator((p, p), matvec=self.product, dtype=np.float64)

    @cached_property
    def _gram(self) -> Array:
        return np.asarray(self.Y @ self.Y.T if self.dual else self.Y.T @ self.Y)

    @cached_property
    def _cholesky(self) -> tuple[Array, bool]:
        shifted = self._gram.copy()
        shifted[np.diag_indices_from(shifted)] += self.shift
        factor: tuple[Array, bool] = cho_factor(shifted, lower=True)
        return factor


def _inverse_quarter(A: LinearOperator, v: Array) -> Array:
    """Return A^-1/4 v by Lanczos' method. Scipy's drops the last vector of an exhausted Krylov space.

    Rounding error is the condition number of A times float64's, as in `solve`. Raises BaselineError if the maximum
    number of vectors is too small.
    """
    basis = np.zeros((min(v.size, _KRYLOV_VECTORS), v.size))
    basis[0] = v / np.linalg.norm(v)
    diagonal: list[float] = []
    beside: list[float] = []
    for k in range(len(basis)):
        w = A @ basis[k]
        diagonal.append(float(w @ basis[k]))
        for _ in range(2):
            w = w - basis[: k + 1].T @ (basis[: k + 1] @ w)
        beside.append(float(np.linalg.norm(w)))
        # The remainder of an exhausted space is rounding, not a direction.
        if k + 1 == v.size or beside[-1] <= _EXHAUSTED * max(diagonal):
            beside[-1] = 0.0
            break
        if k + 1 < len(basis):
            basis[k + 1] = w / beside[-1]
    values, vectors = eigh_tridiagonal(diagonal, beside[:-1])
    along = vectors @ (values**-0.25 * vectors[0])
    if beside[-1] and not abs(along[-1]) <= _KRYLOV_TOLERANCE * np.linalg.norm(along):
        raise BaselineError("A power of a Hessian was not reached.", "Choose a larger lambda.")
    return np.asarray(np.linalg.norm(v) * (along @ basis[: along.size]))


@dataclass(frozen=True, eq=False)
class OneAgainstRest:
    """L of one class on rows H (m, p) with signs s (m,): 1 for the class, -1 for any other."""

    H: Array | LinearOperator
    s: Array
    regularization: float

    def value(self, w: Array) -> float:
        """Return L(w) for w (p,)."""
        return float(np.logaddexp(0.0, -self.s * (self.H @ w)).sum() + self.shift / 2 * (w @ w))

    def slopes(self, w: Array) -> Array:
        """Return the derivative of each row's loss by its logit, (m,)."""
        return np.asarray(-self.s * expit(-self.s * (self.H @ w)))

    def gradient(self, w: Array) -> Array:
        """Return the gradient of L, (p,)."""
        return np.asarray(self.H.T @ self.slopes(w) + self.shift * w)

    def curvature(self, w: Array) -> Curvature:
        """Return the Hessian of L."""
        probability = expit(self.H @ w)
        roots = np.sqrt(probability * (1 - probability))
        if isinstance(self.H, LinearOperator):
            return Curvature(aslinearoperator(sp.diags_array(roots)) @ self.H, self.shift)
        return Curvature(roots[:, None] * self.H, self.shift)

    @property
    def shift(self) -> float:
        """m lambda, the smallest curvature."""
        return self.s.size * self.regularization

    def minimum(self, start: Array, linear: Array, tolerance: float) -> Array:
        """Minimise L(w) + linear w by Newton's method from `start` (p,).

        Stops at a gradient of `tolerance` times m lambda |w|, which bounds the relative distance to the minimum. Raises
        BaselineError if rounding prevents that.
        """
        w = start
        for _ in range(_MOST_STEPS):
            gradient = self.gradient(w) + linear
            if np.linalg.norm(gradient) <= tolerance * self.shift * np.linalg.norm(w):
                return w
            step = self.curvature(w).solve(gradient)
            decrease, before, length = float(gradient @ step), self.value(w) + float(linear @ w), 1.0
            for _ in range(_MOST_HALVINGS):
                trial = w - length * step
                # Near the minimum, decreases vanish in the rounding of L, and whole steps are right.
                slack = 1e-13 * abs(before)
                if self.value(trial) + float(linear @ trial) <= before - 0.25 * length * decrease + slack:
                    break
                length /= 2
            w = trial
        raise BaselineError(
            f"The minimum was not reached to {tolerance:g} of its norm.", "Choose a larger lambda or tolerance."
        )


def against_rest(H: Array | LinearOperator, labels: Nodes, classes: int, regularization: float) -> list[OneAgainstRest]:
    """Return the problem of every class on the rows H (m, p) with labels (m,)."""
    return [OneAgainstRest(H, np.where(labels == c, 1.0, -1.0), regularization) for c in range(classes)]


def chosen(H: Array | LinearOperator, mask: NDArray[np.bool_]) -> Array | LinearOperator:
    """Return the rows of H (m, p) in `mask` (m,)."""
    if isinstance(H, LinearOperator):
        return aslinearoperator(sp.eye_array(mask.size, format="csr")[mask]) @ H
    return H[mask]


def columns(found: Iterable[Array]) -> Array:
    """Build W (p, C) from its columns, one for each class."""
    return np.stack(list(found), axis=1)


def minima(classes: Iterable[OneAgainstRest], W: Array, b: Array) -> Array:
    """Minimise L(w) + b w for every class, from W; W and b are (p, C)."""
    return columns(one.minimum(w, each, _TOLERANCE) for one, w, each in zip(classes, W.T, b.T, strict=True))


def normal(deviation: float, seed: int | tuple[int, ...], shape: tuple[int, ...]) -> Array:
    """Draw independent normal entries; zeros for a deviation of 0."""
    return np.random.default_rng(seed).normal(scale=deviation, size=shape)


def check_one_against_rest(spec: ModelSpec) -> None:
    """Raise BaselineError unless the model is trained with one logistic regression for each class."""
    if spec.loss is not LossKind.OVR:
        raise BaselineError(
            f"The loss is {spec.loss}: second-order removal is defined for logistic regression.", "Use the loss ovr."
        )
