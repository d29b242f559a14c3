"""DeltaGrad's quasi-Newton matrix against the BFGS updates it abbreviates, and its replay against descending again."""

import numpy as np
import pytest

from benchmarks.baselines.linear import remaining, representation, stacked
from benchmarks.baselines.newton import deltagrad
from benchmarks.baselines.newton.deltagrad import DeltaGrad, Secants
from tests.support.mathematics.baselines import OVR, signs, small_graph, sum_gradient

pytestmark = pytest.mark.ci


def test_the_compact_product_is_that_of_the_bfgs_updates() -> None:
    random = np.random.default_rng(0)
    A = random.normal(size=(6, 6))
    A = A @ A.T + np.eye(6)
    steps = random.normal(size=(3, 6))
    secants = Secants.none(6)
    np.testing.assert_array_equal(secants.product(np.ones(6)), np.zeros(6))
    for s in steps:
        secants = secants.extended(s, A @ s)
    # The last two pairs remain.
    s = steps[-1]
    B = (s @ A @ s) / (s @ s) * np.eye(6)
    for s in steps[1:]:
        y = A @ s
        B = B - np.outer(B @ s, B @ s) / (s @ B @ s) + np.outer(y, y) / (y @ s)
    v = random.normal(size=6)
    np.testing.assert_allclose(secants.product(v), B @ v, rtol=1e-10)
    np.testing.assert_allclose(secants.product(steps[-1]), A @ steps[-1], rtol=1e-10)
    assert secants.extended(v, -v) is secants


def test_training_is_gradient_descent_from_zero() -> None:
    graph = small_graph()
    fitted = DeltaGrad(OVR).fit(graph)
    training = np.flatnonzero(graph.train_mask)
    H, s = representation(graph, OVR, training), signs(graph, training)
    rate = 1 / (np.linalg.norm(H, 2) ** 2 / 4 / training.size + 1e-2)
    W = np.zeros((5, 3))
    for _ in range(500):
        slopes = [sum_gradient(H, s[:, c], W[:, c], 1e-2) / training.size for c in range(3)]
        W = W - rate * np.stack(slopes, axis=1)
    np.testing.assert_allclose(stacked(fitted.weights), W, atol=1e-9)


def test_with_every_gradient_exact_it_descends_on_the_remaining_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph()
    first, second = np.flatnonzero(graph.train_mask)[[0, 5]], np.flatnonzero(graph.train_mask)[[3]]
    again = DeltaGrad(OVR, again=True).fit(graph).unlearn(first)
    fitted = DeltaGrad(OVR).fit(graph)
    left = fitted.unlearn(first)
    # Its own graph and rows, at the learning rate of before.
    assert left.graph.train_mask.sum() == remaining(graph, first).train_mask.sum()
    away, unchanged = (np.linalg.norm(each.weights - again.weights) for each in (left, fitted))
    assert 0 < away < 0.5 * unchanged
    monkeypatch.setattr(deltagrad, "_PERIOD", 1)
    exact = fitted.unlearn(first)
    np.testing.assert_allclose(exact.weights, again.weights, atol=1e-12)
    np.testing.assert_allclose(exact.unlearn(second).weights, again.unlearn(second).weights, atol=1e-12)
