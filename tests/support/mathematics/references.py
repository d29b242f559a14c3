"""Reference solutions of the same objective by scikit-learn and scipy, on a dense representation.

For C = 1 / (lambda n), `LogisticRegression` and `LinearSVC` without an intercept minimise (1/n) sum_i loss(h_i W, y_i)
+ (lambda/2) |W|^2. A row of zeros adds a constant to it and declares a class to scikit-learn: a class without remaining
training nodes stays in the model.
"""

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import lsq_linear

from projector.network.spec import LossKind, ModelSpec, PropagationKind
from tests.support.mathematics.retraining import Matrix, Problem

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

#: Entries of H above which active sets and joint Hessians of all classes take too long.
LARGE = 100_000


def dense_representation(spec: ModelSpec, X: Matrix, adjacency: Matrix, live: NDArray[np.bool_]) -> Matrix:
    """Return H of every node, (n, p), without diffusion and label blocks, in the precision of X (n, d)."""
    A = adjacency.astype(X.dtype) * np.outer(live, live) + spec.self_loops * np.diag(live.astype(X.dtype))
    degrees = A.sum(axis=1)
    scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
    root = np.sqrt(scale)
    P = scale[:, None] * A if spec.propagation is PropagationKind.ROW else root[:, None] * A * root[None, :]
    images = [X * live[:, None]]
    for _ in range(spec.hops):
        images.append(P @ images[-1])
    return np.hstack([images[hop] for hop in spec.block_hops])


def reference(problem: Problem) -> Matrix:
    """Return the weights (p, C) of scikit-learn, or of scipy for the smoothed hinge, which scikit-learn lacks.

    If H is too large for scipy, the smoothed hinge uses Newton's method as written out in `Problem`.
    """
    if problem.loss is LossKind.HINGE and problem.H.size > LARGE:
        return problem.minimum(1e-10)
    if problem.loss is LossKind.SOFTMAX:
        return _softmax(problem)
    if problem.loss is LossKind.SQUARED:
        return least_squares(problem.H, np.eye(problem.classes)[problem.labels], problem.regularization)
    per_class = {
        LossKind.OVR: _logistic,
        LossKind.HINGE: _smoothed_hinge,
        LossKind.PLAIN_HINGE: _plain_hinge,
    }[problem.loss]
    H, strength = _given(problem)
    return np.column_stack([per_class(H, signs, strength) for signs in problem.signs.T])


def least_squares(H: Matrix, Y: Matrix, regularization: float) -> Matrix:
    """Return the minimum of (1/2n) |H W - Y|^2 + lambda/2 |W|^2, (p, C), by decomposing H above sqrt(n lambda) I."""
    H, root = H.astype(np.float64), np.sqrt(regularization * max(len(H), 1))
    rows = np.vstack([H, root * np.eye(H.shape[1])])
    return np.asarray(np.linalg.lstsq(rows, np.vstack([Y, np.zeros((H.shape[1], Y.shape[1]))]), rcond=None)[0])


def _given(problem: Problem) -> tuple[Matrix, float]:
    """Return H in scikit-learn's precision, and its C."""
    return problem.H.astype(np.float64), 1.0 / (problem.regularization * max(len(problem.H), 1))


def _softmax(problem: Problem) -> Matrix:
    H, strength = _given(problem)
    if problem.classes > 2:
        return np.asarray(_regression(H, strength).fit(*_with_zeros(H, problem.labels, problem.classes)).coef_.T)
    # For two classes it fits the difference v of both columns: the optimum is v/2 and -v/2, with |W|^2 = |v|^2 / 2.
    v = _regression(H, 2.0 * strength).fit(*_with_zeros(H, problem.labels, 2)).coef_[0]
    return np.column_stack([-v / 2, v / 2])


def _logistic(H: Matrix, signs: Matrix, strength: float) -> Matrix:
    return np.asarray(_regression(H, strength).fit(*_with_zeros(H, (signs > 0).astype(np.int64), 2)).coef_[0])


def _regression(H: Matrix, strength: float) -> "LogisticRegression":
    # Every process that collects tests imports this module, and few need what takes a second.
    from sklearn.linear_model import LogisticRegression

    # Near rounding, conjugate gradients are less accurate than a factor.
    solver, tolerance = ("newton-cg", 1e-12) if H.size > LARGE else ("newton-cholesky", 1e-14)
    return LogisticRegression(C=strength, fit_intercept=False, solver=solver, tol=tolerance, max_iter=1_000)


def _plain_hinge(H: Matrix, signs: Matrix, strength: float) -> Matrix:
    from sklearn.svm import LinearSVC

    machine = LinearSVC(loss="hinge", C=strength, fit_intercept=False, tol=1e-9, max_iter=1_000_000, random_state=0)
    return np.asarray(machine.fit(*_with_zeros(H, (signs > 0).astype(np.int64), 2)).coef_[0])


def _smoothed_hinge(H: Matrix, signs: Matrix, strength: float) -> Matrix:
    """By its dual, a least-squares problem in a box: with G = diag(s) H, the w = C G^T a of

    min |sqrt(C) G^T a|^2 + |a - 1|^2 over 0 <= a <= 1, since the conjugate of the smoothed hinge is a^2/2 - a there.
    """
    n, G = len(H), signs[:, None] * H
    if n == 0:
        return np.zeros(H.shape[1])
    rows = np.vstack([np.sqrt(strength) * G.T, np.eye(n)])
    sides = np.concatenate([np.zeros(H.shape[1]), np.ones(n)])
    found = lsq_linear(rows, sides, (0.0, 1.0), method="bvls", tol=1e-16, max_iter=50 * n)
    return np.asarray(strength * (G.T @ found.x))


def _with_zeros(H: Matrix, labels: NDArray[np.int64], classes: int) -> tuple[Matrix, NDArray[np.int64]]:
    return np.vstack([H, np.zeros((classes, H.shape[1]))]), np.concatenate([labels, np.arange(classes)])
