"""Gradients, Hessians and their powers against sums over rows and eigendecompositions of dense matrices."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.sparse.linalg import aslinearoperator

from benchmarks.baselines.newton.logistic import Curvature, OneAgainstRest
from projector import fit
from tests.support.mathematics.baselines import OVR, dense_propagation, signs, small_graph, sum_gradient, sum_hessian

pytestmark = pytest.mark.ci

SHAPES = {"more rows": (9, 4), "more columns": (4, 9), "one row": (1, 3)}


def rows(kind: str) -> NDArray[np.float64]:
    random = np.random.default_rng(0)
    if kind in SHAPES:
        return random.normal(size=SHAPES[kind])
    tall = random.normal(size=(8, 3))
    left, right = (np.linalg.qr(random.normal(size=(size, 30)))[0] for size in (60, 40))
    return {
        "two eigenvalues": left @ right.T,
        "duplicated": np.vstack([tall, tall]),
        "zero rows": np.vstack([tall, np.zeros((3, 3))]),
        "rank deficient": np.hstack([tall, tall @ random.normal(size=(3, 9))]),
        "ill conditioned": tall * np.array([1.0, 1e-4, 1e-8]),
    }[kind]


KINDS = [*SHAPES, "duplicated", "zero rows", "rank deficient", "ill conditioned", "two eigenvalues"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("formed", [True, False])
def test_powers_of_the_hessian_are_those_of_the_dense_one(kind: str, formed: bool) -> None:
    Y, shift = rows(kind), 1e-3
    curvature = Curvature(Y if formed else aslinearoperator(Y), shift)
    values, vectors = np.linalg.eigh(Y.T @ Y + shift * np.eye(Y.shape[1]))
    v = np.random.default_rng(1).normal(size=(Y.shape[1],))
    for found, power in ((curvature.solve(v), -1.0), (curvature.inverse_quarter(v), -0.25)):
        np.testing.assert_allclose(found, vectors @ (values**power * (vectors.T @ v)), rtol=0, atol=1e-9 * shift**power)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_and_hessian_are_sums_over_rows(kind: str) -> None:
    H, lam = rows(kind), 0.1
    random = np.random.default_rng(2)
    s, w = random.choice([-1.0, 1.0], len(H)), random.normal(size=(H.shape[1],))
    one = OneAgainstRest(H, s, lam)
    np.testing.assert_allclose(one.gradient(w), sum_gradient(H, s, w, lam), atol=1e-13)
    curvature = one.curvature(w)
    dense = curvature.Y.T @ curvature.Y + curvature.shift * np.eye(w.size)
    np.testing.assert_allclose(dense, sum_hessian(H, s, w, lam), atol=1e-13)


def test_the_gradient_is_the_slope_of_the_value() -> None:
    one = OneAgainstRest(rows("more rows"), np.tile([1.0, -1.0, -1.0], 3), 0.1)
    w, direction = np.array([0.3, -1.0, 2.0, 0.1]), np.array([1.0, 0.5, -0.2, 0.7])
    slope = (one.value(w + 1e-5 * direction) - one.value(w - 1e-5 * direction)) / 2e-5
    assert slope == pytest.approx(one.gradient(w) @ direction, rel=1e-8)


def test_the_minimum_is_that_of_the_library_and_moves_with_a_linear_term() -> None:
    graph = small_graph()
    training = np.flatnonzero(graph.train_mask)
    P = dense_propagation(graph)
    H, W = (P @ P @ graph.features)[training], fit(graph, OVR).weights[0]
    for c in range(graph.num_classes):
        one = OneAgainstRest(H, signs(graph, training)[:, c], OVR.regularization)
        nothing = np.zeros(W.shape[0])
        np.testing.assert_allclose(one.minimum(nothing, nothing, 1e-10), W[:, c], atol=1e-8)
        linear = np.linspace(-1.0, 1.0, W.shape[0])
        np.testing.assert_allclose(one.gradient(one.minimum(W[:, c], linear, 1e-10)), -linear, atol=1e-9)
