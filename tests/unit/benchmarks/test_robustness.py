"""Results after deletions: accuracies by share and degree, membership inference, consecutive requests, SVMs.

For each claim that measurements refute, the smallest example that needs no measurement.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.linear import logits, probabilities
from benchmarks.baselines.nonlinear import Kind, Layers, tensors
from benchmarks.baselines.protocol import accuracy
from benchmarks.paper.forgetting.svm import Machine
from projector import ModelSpec, from_arrays
from projector.graph.graph import Graph
from projector.network.spec import LossKind, SolverKind
from tests.support.mathematics.baselines import OVR, small_graph

pytestmark = pytest.mark.ci

#: All pairs of four nodes.
PAIRS = np.array([[i, j] for i in range(4) for j in range(i)])
Matrix = NDArray[np.float64]


def without_split(graph: Graph) -> Graph:
    nobody = np.zeros(graph.nodes, dtype=np.bool_)
    return replace(graph, train_mask=nobody, val_mask=nobody, test_mask=nobody)


def test_where_no_direction_is_lost_the_projection_hides_nobody() -> None:
    """The smallest example: every remaining feature occurs twice, so the deleted nodes alone support none."""
    graph = without_split(small_graph(nodes=8, features=2))
    graph = replace(graph, features=np.tile(np.eye(2), (4, 1)), train_mask=np.ones(8, dtype=np.bool_))
    fitted = Lethe(OVR, repair=False).fit(graph)
    gone = np.arange(6)
    projected = fitted.unlearn(gone)
    assert projected.report is not None
    assert projected.report.directions_removed == 0
    np.testing.assert_allclose(projected.weights, fitted.weights, atol=1e-12)
    retrained = build("retraining", OVR, 0, OVR.regularization).fit(graph).unlearn(gone)
    # To a classifier of answers, the deleted look as before; with a retrained model they do not.
    before, after, anew = (
        probabilities(logits(graph, OVR, W), OVR.loss)[gone]
        for W in (fitted.weights, projected.weights, retrained.weights)
        if W is not None
    )
    np.testing.assert_allclose(after, before, atol=1e-10)
    assert np.abs(anew - before).max() > 0.05


def test_without_noise_the_projection_has_no_privacy_bound_and_retraining_has() -> None:
    """P[A(D) in S] <= exp(epsilon) P[A(D') in S] + delta, where both are points: S is the first of them."""
    graph = replace(without_split(small_graph(nodes=8, features=2)), train_mask=np.ones(8, dtype=np.bool_))
    gone = np.arange(3)
    ends = {
        method: [build(method, OVR, 0, OVR.regularization).fit(graph).unlearn(gone).weights for _ in range(2)]
        for method in ("retraining", "lethe, projection", "projector, option 1 as printed")
    }
    for first, again in ends.values():  # nothing is random
        np.testing.assert_array_equal(first, again)
    anew = ends.pop("retraining")[0]
    assert anew is not None
    for projected, _ in ends.values():
        # P[A(D) in S] is 1 and P[A(D') in S] is 0, so delta is at least 1. For retraining both are 1.
        assert projected is not None
        assert np.linalg.norm(projected - anew) > 0.01 * np.linalg.norm(anew)


@pytest.mark.parametrize("diffusion", ["", ", with diffusion"])
def test_the_projection_can_be_worse_than_retraining(diffusion: str) -> None:
    """The smallest example: three identical nodes, two of which were taught the other class and are deleted."""
    node = np.arange(5)
    graph = from_arrays(np.empty((2, 0), dtype=np.int64), np.ones((5, 1)), [0, 1, 1, 0, 0])
    # A validation node judges the diffusion.
    graph = replace(graph, train_mask=node < 3, val_mask=node == 3, test_mask=node == 4)
    right = {
        name: accuracy(
            build(name + diffusion, OVR, 0, 1e-2).fit(graph).unlearn(np.array([1, 2])).predict(), graph, graph.test_mask
        )
        for name in ("lethe, projection", "retraining")
    }
    assert right == {"lethe, projection": 0, "retraining": 1}


def test_no_weighting_of_the_remaining_nodes_leads_to_the_projected_weights() -> None:
    """The smallest example: three identical nodes, of which the two of class 1 are deleted."""
    graph = without_split(from_arrays(np.empty((2, 0), dtype=np.int64), np.ones((3, 1)), [0, 1, 1]))
    graph = replace(graph, train_mask=np.ones(3, dtype=np.bool_))
    w = float(Lethe(OVR, repair=False).fit(graph).unlearn(np.array([1, 2])).weights[0, 0, 1])
    assert w > 0.1
    # Node 0 is not of class 1: with any importance c >= 0 the slope lambda w + c sigma(w) is positive at w, and not 0.
    for importance in (0.0, 1e-6, 1.0, 1e6):
        assert OVR.regularization * w + importance * expit(w) > 0


def test_a_network_can_be_better_than_every_linear_model() -> None:
    """The smallest example: opposite points of one class. z = w x is odd, so one of the two is always wrong."""
    X, labels = np.array([[1.0, 1.0], [-1.0, -1.0], [1.0, -1.0], [-1.0, 1.0]]), np.array([0, 0, 1, 1])
    graph = replace(small_graph(nodes=4, features=2, classes=2).without_edges(PAIRS), features=X, labels=labels)
    for W in np.random.default_rng(0).normal(size=(50, 1, 2, 2)):
        assert accuracy(logits(graph, OVR, W), graph, np.ones(4, dtype=np.bool_)) == 0.5
    layers = Layers(Kind.GCN, 2, 2).eval()
    with torch.no_grad():
        for parameter in layers.parameters():
            parameter.zero_()
        # Hidden units relu(x_1 - x_2) and relu(x_2 - x_1): 2 in one of them for class 1, nothing for class 0.
        layers.first.lin.weight[:2] = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
        layers.second.lin.weight[1, :2] = 1.0
        layers.second.bias[0] = 1.0
        found = layers(*tensors(graph, Kind.GCN)).numpy()
    assert accuracy(found, graph, np.ones(4, dtype=np.bool_)) == 1


def hinge(loss: LossKind) -> ModelSpec:
    solver = SolverKind.SGD if loss is LossKind.PLAIN_HINGE else SolverKind.NEWTON
    return ModelSpec(loss=loss, solver=solver, regularization=1e-1, epochs=20)


@pytest.mark.parametrize("loss", [LossKind.HINGE, LossKind.PLAIN_HINGE])
@pytest.mark.parametrize("case", ["random", "more features than rows", "duplicated", "a zero row", "a single row"])
def test_a_machines_slopes_span_and_steps_are_those_of_its_formulas(loss: LossKind, case: str) -> None:
    random = np.random.default_rng(5)
    H = random.normal(size=(1 if case == "a single row" else 9, 20 if case == "more features than rows" else 4))
    if case == "duplicated":
        H[5:] = H[:4]
    if case == "a zero row":
        H[2] = 0.0
    m, p = H.shape
    labels, spec = np.arange(m) % 3, hinge(loss)
    machine = Machine(H, torch.from_numpy(labels), spec)
    W, y = random.normal(size=(p, 3)), 2.0 * (labels[:, None] == np.arange(3)) - 1

    def slopes(W: Matrix) -> Matrix:
        margin = y * (H @ W)
        return -y * (np.clip(1 - margin, 0, 1) if loss is LossKind.HINGE else (margin < 1))

    np.testing.assert_allclose(machine.slopes(W), slopes(W), atol=1e-14)
    found = np.linalg.svd(H.T, full_matrices=False)
    Q = found.U[:, found.S > 1e-12]
    outside = np.linalg.norm(W - Q @ (Q.T @ W)) / np.linalg.norm(W)
    assert machine.outside(W) == pytest.approx(outside, abs=1e-12)
    assert machine.outside(H.T @ random.normal(size=(m, 3))) < 1e-12
    ours, steepest = machine.tuned(W, 7, 5), np.linalg.eigvalsh(H.T @ H)[-1] / m
    for t in range(8, 13):
        rate = 1 / (0.1 + steepest) if loss is LossKind.HINGE else 1 / (0.1 * t)
        W = W - rate * (H.T @ slopes(W) / m + 0.1 * W)
    np.testing.assert_allclose(ours, W, rtol=1e-10)


@pytest.mark.parametrize("loss", [LossKind.HINGE, LossKind.PLAIN_HINGE])
def test_dual_coordinate_ascent_stays_in_the_rows_span_and_ends_at_the_primal_optimum(loss: LossKind) -> None:
    """The dual half of Proposition 4, without the printed constraint; eight rows span a part of twenty features."""
    random = np.random.default_rng(6)
    H, labels, spec = random.normal(size=(8, 20)), np.arange(8) % 3, hinge(loss)
    machine, scale = Machine(H, torch.from_numpy(labels), spec), spec.regularization * len(H)
    y, smooth = 2.0 * (labels[:, None] == np.arange(3)) - 1, float(loss is LossKind.HINGE)
    alpha, W = np.zeros_like(y), np.zeros((20, 3))
    for _ in range(300):
        for i, row in enumerate(H):
            rise = (1 - y[i] * (row @ W) - smooth * alpha[i]) / (row @ row / scale + smooth)
            moved = np.clip(alpha[i] + rise, 0, 1) - alpha[i]
            alpha[i] += moved
            W += np.outer(row, moved * y[i]) / scale
            assert machine.outside(W) < 1e-12
    np.testing.assert_allclose(W, H.T @ (alpha * y) / scale, atol=1e-12)
    margins = y * (H @ W)
    if smooth:  # its coefficients follow from the margins
        np.testing.assert_allclose(alpha, -y * machine.slopes(W), atol=1e-10)
    # Only at the primal's optimum does its value equal the dual's.
    short = np.maximum(1 - margins, 0)
    losses = np.where(short < 1, short**2 / 2, short - 0.5) if smooth else short
    primal = scale / 2 * (W**2).sum() + losses.sum()
    assert primal == pytest.approx((alpha - smooth * alpha**2 / 2).sum() - scale / 2 * (W**2).sum(), abs=1e-9)


def test_the_printed_dual_of_the_svm_gives_one_point_nothing_while_the_primal_solution_is_not_zero() -> None:
    """The smallest example: x = y = lambda = 1. Its constraint sum alpha_i y_i = 0 leaves alpha = 0, of value 0."""
    primal = minimize(lambda w: w[0] ** 2 / 2 + max(0.0, 1 - w[0]), [0.3], method="Nelder-Mead", tol=1e-12)
    assert (primal.x[0], primal.fun) == (pytest.approx(1, abs=1e-6), pytest.approx(0.5))
    # Without it, the dual -alpha^2 / 2 + alpha on [0, 1] has the primal's value at alpha = 1, and w = alpha x y = 1.
    alpha = np.linspace(0, 1, 1001)
    dual = alpha - alpha**2 / 2
    assert (alpha[dual.argmax()], dual.max()) == (1, pytest.approx(primal.fun))
    assert np.flatnonzero(alpha == 0).tolist() == [0]
    assert dual[0] == 0 < primal.fun
