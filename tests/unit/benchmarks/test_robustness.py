"""What is left after deletions: accuracies by share and degree, membership inference, requests in a row, SVMs.

For each claim that measurements refute, the smallest example of which that follows without any.
"""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.lethe import Lethe
from benchmarks.baselines.linear import logits, probabilities, remaining, stacked, train_linear
from benchmarks.baselines.nonlinear import Kind, Layers, tensors
from benchmarks.baselines.protocol import accuracy
from benchmarks.paper.forgetting.robustness import DENSE, SPARSE, by_degree, degrees, robustness
from benchmarks.paper.forgetting.sequential import sequential
from benchmarks.paper.forgetting.svm import Machine, svm
from benchmarks.paper.inference.membership import Attack, Split, membership, split_of, told
from benchmarks.paper.setting import PLAIN_HINGE, SMOOTHED_HINGE, spec_of
from benchmarks.paper.units import Unit, graph_of
from projector import ModelSpec, fit, from_arrays
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind, SolverKind
from tests.support.mathematics.baselines import OVR, small_graph

TINY = "synthetic:n=60,d=12,classes=3,seed=1"
#: More features than nodes, so that each deletion costs a direction.
WIDE = "synthetic:n=60,d=90,classes=3,seed=1"
#: Of four nodes.
PAIRS = np.array([[i, j] for i in range(4) for j in range(i)])
Matrix = NDArray[np.float64]


def without_split(graph: Graph) -> Graph:
    nobody = np.zeros(graph.nodes, dtype=np.bool_)
    return replace(graph, train_mask=nobody, val_mask=nobody, test_mask=nobody)


def measured(what: Any, method: str, dataset: str = TINY) -> dict[str, Any]:
    unit = Unit("any", dataset, method, 0)
    return dict(what(graph_of(unit), unit))


def test_each_share_has_the_nodes_of_the_smaller_ones_and_its_accuracy_is_that_of_training_without_them() -> None:
    found = measured(robustness, "retraining")
    assert list(found) == ["0.01", "0.02", "0.05", "0.1", "0.2"]
    graph = graph_of(Unit("any", TINY, "retraining", 0))
    spec = replace(spec_of(TINY), combine=Combine.CONCAT)
    order = np.random.default_rng(0).permutation(np.flatnonzero(graph.train_mask))
    for share, figures in found.items():
        count = max(1, round(float(share) * order.size))
        anew = train_linear(remaining(graph, order[:count]), spec)
        assert figures["nodes"] == count
        assert figures["accuracy_after"] == accuracy(anew.predict(), graph, graph.test_mask)
    assert found["0.2"]["accuracy_before"] == accuracy(train_linear(graph, spec).predict(), graph, graph.test_mask)


def test_dense_nodes_are_those_of_largest_degree_and_the_seed_decides_between_equal_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = graph_of(Unit("any", TINY, "retraining", 0))
    degree = graph.adjacency.toarray().sum(axis=1)
    order = by_degree(graph, 0)
    np.testing.assert_array_equal(np.sort(order), np.flatnonzero(graph.train_mask))
    assert (np.diff(degree[order]) >= 0).all()
    other = by_degree(graph, 1)
    np.testing.assert_array_equal(degree[order], degree[other])
    assert (order != other).any()

    deleted: list[NDArray[np.int64]] = []

    class Recorded:
        def fit(self, graph: Any) -> "Recorded":
            return self

        def unlearn(self, nodes: NDArray[np.int64]) -> "Recorded":
            deleted.append(nodes)
            return self

        def predict(self) -> Matrix:
            return np.eye(3)[graph.labels]

    monkeypatch.setattr("benchmarks.paper.forgetting.robustness.build", lambda *_: Recorded())
    assert {case: each["accuracy_after"] for case, each in measured(degrees, "any").items()} == {DENSE: 1, SPARSE: 1}
    dense, sparse = deleted
    training = np.sort(degree[graph.train_mask])
    np.testing.assert_array_equal(np.sort(degree[dense]), training[-dense.size :])
    np.testing.assert_array_equal(np.sort(degree[sparse]), training[: sparse.size])


def test_the_projection_ends_where_it_does_at_once_however_requests_come_and_the_repair_near_retraining() -> None:
    found = measured(sequential, "lethe, projection", WIDE)
    assert [(each["nodes"], each["requests"]) for each in found.values()] == [(1, 1), (2, 2), (4, 4)]
    for each in found.values():
        assert each["apart"] < 1e-12
        assert each["at_once"] > 1e-2
        assert each["one_by_one"] == pytest.approx(each["at_once"])
    for each in measured(sequential, "lethe, projection and repair", WIDE).values():
        assert max(each["one_by_one"], each["at_once"], each["apart"]) < 2e-8


def test_the_victims_half_and_the_adversarys_are_disjoint_and_half_of_each_is_trained_on() -> None:
    graph, spec = small_graph(nodes=80), OVR
    split = split_of(graph, spec, 0, 0)
    victim = split.victim
    assert victim.nodes == 40
    rows = [graph.node_ids.index(name) for name in victim.node_ids]
    np.testing.assert_array_equal(victim.adjacency.toarray(), graph.adjacency.toarray()[np.ix_(rows, rows)])
    np.testing.assert_array_equal(victim.features, np.asarray(graph.features)[rows])
    assert (int(victim.train_mask.sum()), split.deleted.size) == (20, 18)
    assert victim.train_mask[split.deleted].all()
    assert split_of(graph, spec, 0, 1).victim.node_ids != victim.node_ids


def test_an_attack_tells_answers_that_differ_and_is_repeatable() -> None:
    random = np.random.default_rng(0)
    members = random.random(60) < 0.5
    sure = np.where(members, 0.97, 0.7)
    answers = np.stack([sure, 1 - sure], axis=1)
    attack = Attack.learned(answers, members, 3)
    np.testing.assert_array_equal(attack.members(answers), members)
    # What says nothing of membership is told as often as chance allows.
    nothing = random.dirichlet([1.0, 1.0], 60)
    guessed = Attack.learned(nothing, members, 3).members(random.dirichlet([1.0, 1.0], 60))
    assert 0.3 < float((guessed == members).mean()) < 0.7
    again = Attack.learned(answers, members, 3)
    for one, other in zip(attack.layers.parameters(), again.layers.parameters(), strict=True):
        assert torch.equal(one, other)


class Sure(Attack):
    """Takes those for members whose first class has more than half."""

    def members(self, answers: Matrix) -> NDArray[np.bool_]:
        return answers[:, 0] > 0.5


def test_the_four_columns_are_shares_of_deleted_kept_and_others() -> None:
    graph = small_graph(nodes=40)
    training = np.flatnonzero(graph.train_mask)
    split = Split(graph, training[:5], Sure(torch.nn.Sequential()))
    weights = train_linear(graph, OVR).weights
    found = told(split, OVR, weights)
    member = probabilities(logits(graph, OVR, weights), OVR.loss)[:, 0] > 0.5
    assert found["deleted"] == pytest.approx(sum(not member[i] for i in training[:5]) / 5)
    assert found["kept"] == pytest.approx(sum(bool(member[i]) for i in training[5:]) / (training.size - 5))
    others = [i for i in range(40) if i not in training]
    assert found["others"] == pytest.approx(sum(not member[i] for i in others) / len(others))
    assert found["kept"] is not None
    assert found["others"] is not None
    assert found["balanced"] == pytest.approx((found["kept"] + found["others"]) / 2)


def test_membership_inference_has_splits_that_are_the_same_for_every_method(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.paper.inference.membership._SPLITS", 2)
    found = {each: measured(membership, each) for each in ("retraining", "lethe, projection and repair")}
    assert all(list(each) == [f"split {number}" for number in range(2)] for each in found.values())
    for one, other in zip(*(each.values() for each in found.values()), strict=True):
        assert one["deleted_before"] == other["deleted_before"]
        # The repair is where retraining is, to 1e-8, so nobody can tell them apart.
        assert (one["deleted_after"], one["kept_after"]) == (other["deleted_after"], other["kept_after"])


def test_where_no_direction_is_lost_the_projection_hides_nobody() -> None:
    """The smallest example: every remaining feature is there twice, so the deleted nodes alone support none."""
    graph = without_split(small_graph(nodes=8, features=2))
    graph = replace(graph, features=np.tile(np.eye(2), (4, 1)), train_mask=np.ones(8, dtype=np.bool_))
    fitted = Lethe(OVR, repair=False).fit(graph)
    gone = np.arange(6)
    projected = fitted.unlearn(gone)
    assert projected.report is not None
    assert projected.report.directions_removed == 0
    np.testing.assert_allclose(projected.weights, fitted.weights, atol=1e-12)
    retrained = build("retraining", OVR, 0, OVR.regularization).fit(graph).unlearn(gone)
    # Any classifier of answers sees of the deleted what it saw before; of a model trained anew it does not.
    before, after, anew = (
        probabilities(logits(graph, OVR, W), OVR.loss)[gone]
        for W in (fitted.weights, projected.weights, retrained.weights)
        if W is not None
    )
    np.testing.assert_allclose(after, before, atol=1e-10)
    assert np.abs(anew - before).max() > 0.05


@pytest.mark.parametrize("diffusion", ["", ", with diffusion"])
def test_the_projection_can_be_worse_than_retraining(diffusion: str) -> None:
    """The smallest example: three nodes alike, two of which are deleted and taught the other class."""
    node = np.arange(5)
    graph = from_arrays(np.empty((2, 0), dtype=np.int64), np.ones((5, 1)), [0, 1, 1, 0, 0])
    # Diffusion is judged by a validation node.
    graph = replace(graph, train_mask=node < 3, val_mask=node == 3, test_mask=node == 4)
    right = {
        name: accuracy(
            build(name + diffusion, OVR, 0, 1e-2).fit(graph).unlearn(np.array([1, 2])).predict(), graph, graph.test_mask
        )
        for name in ("lethe, projection", "retraining")
    }
    assert right == {"lethe, projection": 0, "retraining": 1}


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


def test_fine_tuning_goes_to_the_optimum_of_what_remains() -> None:
    graph, spec = small_graph(), hinge(LossKind.HINGE)
    goal = stacked(fit(graph, spec).weights)
    machine = Machine.of(graph, spec)
    np.testing.assert_allclose(machine.tuned(np.zeros_like(goal), 0, 3000), goal, atol=1e-8)


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


def test_alphas_of_an_optimum_do_not_sum_to_zero_where_there_is_no_bias() -> None:
    graph, spec = small_graph(), hinge(LossKind.HINGE)
    machine, W = Machine.of(graph, spec), stacked(fit(graph, spec).weights)
    alpha = -machine.slopes(W) / (len(machine.H) * spec.regularization)
    # w = sum alpha_i y_i h_i: these are the dual's.
    np.testing.assert_allclose(machine.H.T @ alpha, W, atol=1e-9)
    assert machine.imbalance(W) == pytest.approx(abs(alpha.sum(axis=0)).sum() / abs(alpha).sum())
    assert machine.imbalance(W) > 1e-3


@pytest.mark.parametrize("method", [SMOOTHED_HINGE, PLAIN_HINGE])
def test_the_projection_takes_a_machines_channel_and_fine_tuning_alone_does_not(method: str) -> None:
    for found in measured(svm, method).values():
        assert found["outside_span"] < 1e-12
        assert found["channel_projected"] < 1e-12 * found["channel_before"]
        assert found["channel_tuned"] <= found["channel_projected"]
        assert found["channel_tuned_alone"] > 0.1 * found["channel_before"]
        assert found["channel_retrained"] == found["weights_retrained"] == 0
        assert (found["imbalance"] is None) == (method == PLAIN_HINGE)
        assert 0 < found["accuracy_projected"] <= 1
