"""A deleted node's features from two versions: exact if the method is, and the results elsewhere."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.attacks.black_box import recorded
from benchmarks.attacks.knowledge import Hessian
from benchmarks.attacks.reconstruction import (
    by_row,
    change_of_weights,
    deleted_row,
)
from projector.network.spec import LossKind
from tests.support.mathematics.attacks import SPECS, attacked, dense_hessian, predictions

pytestmark = pytest.mark.ci

LOSSES = list(SPECS)
Matrix = NDArray[np.float64]


def cosine(one: Matrix, other: Matrix) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("case", ["random", "more features than rows", "duplicated", "a zero row", "a single row"])
def test_the_hessian_is_that_of_the_objective(loss: LossKind, case: str) -> None:
    random, spec = np.random.default_rng(5), SPECS[loss]
    H = random.normal(size=(1 if case == "a single row" else 9, 14 if case == "more features than rows" else 4))
    if case == "duplicated":
        H[5:] = H[:4]
    if case == "a zero row":
        H[2] = 0.0
    W, V = random.normal(size=(2, H.shape[1], 3))
    hessian = Hessian.at(H, W, loss, spec.regularization)
    np.testing.assert_allclose(hessian.times(V).ravel(), dense_hessian(H, W, spec) @ V.ravel(), atol=1e-13)
    by_class = np.linalg.solve(dense_hessian(H, W, spec, coupled=False), V.ravel())
    np.testing.assert_allclose(hessian.solve(V).ravel(), by_class, rtol=1e-9, atol=1e-9)


def test_a_row_taken_out_of_a_ridge_regression_is_found_exactly() -> None:
    """The paper's case: squares, the Hessian on the remaining nodes, and one output or several."""
    random, lam = np.random.default_rng(0), 1e-2
    for outputs in (1, 3):
        H, Y = random.normal(size=(30, 6)) + 1.0, random.normal(size=(30, outputs))

        def minimum(H: Matrix, Y: Matrix) -> Matrix:
            return np.asarray(np.linalg.solve(H.T @ H / len(H) + lam * np.eye(6), H.T @ Y / len(H)))

        W, left = minimum(H, Y), minimum(H[1:], Y[1:])
        squares = Hessian(H[1:], np.ones((29, outputs)), np.zeros((29, outputs)), lam)
        _, known = attacked(SPECS[LossKind.OVR])
        known = replace(known, H=H, W=W, hessian=squares, asked=np.arange(1, 30), candidates=np.arange(30), training=30)
        row = deleted_row(left - W, known)
        assert abs(cosine(row, H[0])) == pytest.approx(1, abs=1e-12)
        assert np.abs(by_row(row, known)).argmax() == 0
        # Its sign is that of the others' mean.
        assert row @ H[1:].mean(axis=0) > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_regression_gives_the_change_of_the_weights_from_exact_answers(loss: LossKind) -> None:
    spec = SPECS[loss]
    _, known = attacked(spec)
    dW = np.random.default_rng(3).normal(size=known.W.shape) * 1e-6
    before, after = (predictions(known.H @ W, spec) for W in (known.W, known.W + dW))
    # A deleted node's neighbour, with another row.
    after[known.asked[0]] = predictions(np.ones((1, 3)) * np.arange(3), spec)[0]
    found = change_of_weights(recorded(before), recorded(after), known)
    shared = 0.0 if loss is LossKind.OVR else dW.mean(axis=1, keepdims=True)
    np.testing.assert_allclose(found, dW - shared, atol=1e-9 if loss is LossKind.OVR else 1e-12)
