"""Changing graphs: additions, corrections and withdrawals, and their traps; each trap has its mutant."""

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from projector import Model, ModelSpec, fit, from_arrays
from projector.errors import GraphError, TrainingError
from projector.forgetting.optimum import stacked
from projector.forgetting.projection import coefficient_residual
from projector.forgetting.rank import RANK_TOLERANCE
from projector.forgetting.status import RepairStatus
from projector.graph.graph import Graph
from projector.network.spec import Combine, LossKind, PropagationKind, SolverKind
from projector.training.mlp import train_mlp
from tests.support.everyday import every_pair
from tests.support.mathematics.living_models import LOSSES, Living, check
from tests.support.mathematics.retraining import Problem
from tests.support.models.small_graphs import dense, with_weights

SPEC = ModelSpec(hops=2, regularization=1e-3)


def small(
    n: int = 40, d: int = 6, *, seed: int = 0, dtype: type = np.float64, weighted: bool = False
) -> tuple[Graph, np.ndarray]:
    """Return three classes on a random graph; only node 7 has the last feature column."""
    rng = np.random.default_rng(seed)
    X: np.ndarray = rng.standard_normal((n, d)).astype(dtype)
    X[:, -1] = 0.0
    X[7, -1] = 1.0
    upper = np.triu(rng.random((n, n)) < 3.0 / n, 1)
    adjacency = sp.csr_array((upper | upper.T).astype(float))
    adjacency = with_weights(adjacency) if weighted else adjacency
    graph = from_arrays(adjacency, X, np.arange(n) % 3, train_mask=rng.random(n) < 0.8)
    return graph, X.astype(np.float64)


def living_of(graph: Graph, X: np.ndarray, spec: ModelSpec) -> Living:
    targets = np.where(graph.train_mask, graph.labels, -1)
    return Living(spec, X, graph.adjacency.toarray(), targets, graph.num_classes)


def rank_of(rows: np.ndarray, sigma_ref_squared: float) -> int:
    return int((np.linalg.svd(rows, compute_uv=False) ** 2 > RANK_TOLERANCE * sigma_ref_squared).sum())


def gram_of(model: Model) -> Any:
    return model._held.state.features.gram


EVERYTHING: dict[str, Any] = {
    "remove_nodes": [3, 14],
    "remove_features": [20],
    "add_labels": [1, -1, 2],
    "add_edges": [[40, 1], [41, 40], [42, 7], [8, 31]],
    "set_labels": {11: 0, 30: 2},
}


WAYS: dict[str, dict[str, Any]] = {
    "last": {},
    "concat, labels": {"combine": Combine.CONCAT, "label_hops": 2},
    "row": {"propagation": PropagationKind.ROW, "hops": 3, "self_loops": 0.0},
    "diffusion": {"diffusion": True},
}


@every_pair(dtype=[np.float32, np.float64], sparse=[False, True], way=list(WAYS), loss=LOSSES, weighted=[False, True])
def test_all_at_once_leads_to_the_model_of_the_graph_that_is_left(
    weighted: bool, loss: LossKind, way: str, sparse: bool, dtype: type
) -> None:
    graph, X = small(dtype=dtype, weighted=weighted)
    if sparse:
        graph = replace(graph, features=sp.csr_array(graph.features))
    spec = replace(SPEC, loss=loss, **WAYS[way])
    living = living_of(graph, X, spec)
    rows = np.random.default_rng(1).standard_normal((4, 6)).astype(dtype).astype(float)
    given = sp.csr_array(rows[:3]) if sparse else rows[:3]
    model = fit(graph, spec)
    trained = np.flatnonzero(living.targets >= 0)
    update: dict[str, Any] = {**EVERYTHING, "set_features": {9: rows[3]}}
    update["remove_labels"] = [int(trained[trained > 31][0])]
    update["remove_edges"] = [edge for edge in np.argwhere(np.triu(living.adjacency)) if not {3, 14} & set(edge)][:2]
    if weighted:
        # The first edge that leaves joins again with another weight.
        update["add_edges"] = [*update["add_edges"][1:], update["remove_edges"][0]]
        update["add_edge_weight"] = [0.25, 1.0, 30.0, 7.0]
    after, report = model.update(**update, add_nodes=given)
    living.apply({**update, "add_nodes": rows[:3]})
    check(after, living, report)
    assert report.repair is RepairStatus.CONVERGED
    assert (report.nodes, report.edges, report.features) == (2, 2, 2)
    assert (report.nodes_joined, report.edges_joined, report.features_joined, report.labels_joined) == (3, 4, 1, 2)
    assert np.array_equal(model.live, np.ones(40, dtype=bool)), "the model before stays as it was"


@pytest.mark.parametrize("gone", [[], [7, 12, 13]], ids=["as trained", "after a deletion"])
def test_adding_and_deleting_the_same_nodes_returns_the_model(gone: list[int]) -> None:
    graph, _ = small()
    model = fit(replace(graph, features=np.c_[dense(graph.features), np.zeros(graph.nodes)]), SPEC)
    if gone:
        model, _ = model.forget(nodes=gone, repair=False)
        assert bool(model._held.state.features.T.any())
    rows = np.random.default_rng(1).standard_normal((5, 7))
    gained = 7 - gram_of(model).rank
    edges = [[40, 1], [41, 40], [42, 9], [43, 8], [44, 8]]
    for repair, tolerance in ((False, 1e-13), (True, 1e-8)):
        if repair and gone:
            continue  # the repaired model is another than the one that was projected
        larger, report = model.update(add_nodes=rows, add_labels=[0, 1, 2, -1, 0], add_edges=edges, repair=repair)
        assert report.directions_gained == gained
        assert gram_of(larger).rank == 7
        if not repair:
            assert np.array_equal(larger.weights, model.weights), "what joins changes no bit of the weights"
            assert report.weight_change == 0.0
            assert larger.span([41]).injected_norm <= 1e-12, "nothing was learned from it yet"
            assert coefficient_residual(larger._held.state.features) <= 1e-13
        again, report = larger.forget(nodes=range(40, 45), repair=repair)
        assert report.directions_removed == gained
        assert gram_of(again).rank == gram_of(model).rank
        assert np.linalg.norm(again.weights - model.weights) <= tolerance * np.linalg.norm(model.weights)
        assert np.abs(again.predict()[:40] - model.predict()).max() <= 10 * tolerance


def test_a_later_carrier_of_a_column_inherits_nothing_of_one_that_leaves() -> None:
    """Remove first, add second: in the other order the column would keep its weight."""
    graph, X = small()
    model = fit(graph, SPEC)
    assert np.linalg.norm(model.weights[0, -1]) > 1e-2
    carrier = np.where(np.arange(6) == 5, 1.0, X[8])
    after, report = model.update(remove_nodes=[7], add_nodes=[carrier], add_edges=[[40, 8]], repair=False)
    assert np.linalg.norm(after.weights[0, -1]) <= 1e-12
    assert (report.directions_removed, report.directions_gained) == (1, 1)
    assert gram_of(after).rank == gram_of(model).rank


def test_what_left_is_measured_before_what_joins() -> None:
    graph, X = small()
    model = fit(graph, SPEC)
    carrier = np.where(np.arange(6) == 5, 1.0, X[8])
    after, report = model.update(remove_nodes=[7], add_nodes=[carrier], add_labels=[2], add_edges=[[40, 8]])
    assert np.linalg.norm(after.weights[0, -1]) > 1e-2
    assert report.lost_direction_norm_before is not None
    assert report.lost_direction_norm_before > 1e-2
    assert report.lost_direction_norm_after is not None
    assert report.lost_direction_norm_after <= 1e-12


@pytest.mark.parametrize("repair", [False, True])
def test_a_correction_counts_as_a_deletion_of_what_was_there(repair: bool) -> None:
    graph, X = small()
    model = fit(graph, SPEC)
    _, alone = model.forget(features=[7], repair=repair)
    after, report = model.update(set_features={7: X[7] + 0.5}, repair=repair)
    assert report.injected_norm_before == alone.injected_norm_before
    assert (report.injected_norm_before or 0) > 0.0 == report.injected_norm_after
    assert report.lost_direction_norm_after is not None
    assert report.lost_direction_norm_after <= 1e-12
    assert (report.features, report.features_joined) == (1, 1)
    # A node without features needs the adding half alone.
    without, _ = after.forget(features=[7], repair=repair)
    back, report = without.update(set_features={7: X[7]}, repair=repair)
    assert report.injected_norm_before is None
    assert (report.features, report.features_joined) == (0, 1)
    if repair:
        assert np.linalg.norm(back.weights - model.weights) <= 2e-8 * np.linalg.norm(model.weights)


def test_the_training_norm_is_what_withdrawn_labels_add_to_the_weights() -> None:
    graph, X = small()
    spec = replace(SPEC, label_hops=1)
    living, model = living_of(graph, X, spec), fit(graph, spec)
    nodes = np.flatnonzero(graph.train_mask)[[2, 9]]
    H, W = living.representation(None, None), stacked(model._held.state).numpy()
    trained = living.targets >= 0
    problem = Problem(H[trained], living.targets[trained], 3, spec.loss, spec.regularization)
    dual = -problem.slopes(problem.H @ W) / (spec.regularization * trained.sum())
    theirs = np.isin(np.flatnonzero(trained), nodes)
    expected = np.linalg.norm(problem.H[theirs].T @ dual[theirs])
    after, report = model.update(remove_labels=nodes)
    assert report.training_norm_before == pytest.approx(expected, rel=1e-9)
    assert report.training_norm_after == 0.0
    assert (report.labels, report.nodes) == (2, 0)
    assert after.live.all()
    living.apply({"remove_labels": nodes})
    check(after, living, report)
    assert model.update(add_edges=[[0, 39]])[1].training_norm_before is None


def test_labels_leave_by_the_repair_alone() -> None:
    graph, _ = small()
    model, node = fit(graph, SPEC), int(np.flatnonzero(graph.train_mask)[0])
    withdrawn: list[dict[str, Any]] = [{"remove_labels": [node]}, {"set_labels": {node: 1}}]
    for update in withdrawn:
        with pytest.raises(TrainingError, match="needs the repair"):
            model.update(**update, repair=False)


def test_rows_much_longer_than_those_of_the_import_are_refused_by_name() -> None:
    graph, X = small()
    model = fit(graph, SPEC)
    unit = gram_of(model).sigma_ref_squared ** 0.5 * np.eye(6)[0]
    long: list[dict[str, Any]] = [{"add_nodes": [X[1], 101 * unit]}, {"set_features": {4: 101 * unit}}]
    for update in long:
        with pytest.raises(GraphError, match="times as long") as refused:
            model.update(**update)
        assert "row 1 of add_nodes" in refused.value.detail or "node 4" in refused.value.detail
    assert model.update(add_nodes=[99 * unit], repair=False)[0].live.size == 41


def test_the_scale_rises_with_rows_that_are_much_longer() -> None:
    """A direction that one node alone supports must count, and its deletion be reported."""
    graph, X = small()
    model = fit(graph, SPEC)
    reference = gram_of(model).sigma_ref_squared
    long = 90 * reference**0.5 * np.ones(6) / 6**0.5
    model, _ = model.update(add_nodes=[long], repair=False)
    assert gram_of(model).sigma_ref_squared == reference
    model, _ = model.update(add_nodes=[long, -long], repair=False)
    rows = np.vstack([X, long, long, -long])
    largest = np.linalg.svd(rows, compute_uv=False)[0] ** 2
    assert largest > 1e4 * reference
    assert gram_of(model).sigma_ref_squared == pytest.approx(largest)
    assert gram_of(model).rank == rank_of(rows, largest)
    assert coefficient_residual(model._held.state.features) <= 1e-11


def test_faint_rows_become_strong_together() -> None:
    rng = np.random.default_rng(0)
    X = np.c_[rng.standard_normal((50, 7)), np.zeros(50)]
    model = fit(from_arrays(np.empty((2, 0), dtype=np.int64), X, np.arange(50) % 2), ModelSpec(hops=1))
    reference = gram_of(model).sigma_ref_squared
    row = np.eye(8)[7] * (0.02 * RANK_TOLERANCE * reference) ** 0.5
    for count in range(1, 101):
        model, _ = model.update(add_nodes=[row], repair=False)
        X = np.vstack([X, row])
        if abs(0.02 * count - 1.0) > 0.01:
            assert gram_of(model).rank == rank_of(X, reference), count
    assert gram_of(model).rank == 8


def test_what_a_barely_supported_direction_has_made_large_does_not_stay() -> None:
    graph, X = small()
    X[8, -1] = 1e-4
    model = fit(replace(graph, features=X), SPEC)
    model, _ = model.forget(nodes=[7], repair=False)
    assert float(model._held.state.features.T.norm()) > 1e5
    model, _ = model.update(add_nodes=[np.eye(6)[5]], repair=False)
    assert coefficient_residual(model._held.state.features) <= 1e-11
    held = model._held
    effective = held.features.beta[0] + held.features.rows.matmul(held.state.features.T)
    assert float(effective[40].norm()) <= 1e-12
    explained = held.features.rows.transposed_matmul(effective, held.state.features.in_span)
    assert float((explained - held.state.features.W).norm()) <= 1e-11 * float(held.state.features.W.norm())


@pytest.mark.parametrize(("size", "inexact"), [(1e25, 1e-18 / 7), (1e-25, 1e15)], ids=["digits lost", "overflow"])
def test_values_that_the_column_scales_make_inexact_are_refused(size: float, inexact: float) -> None:
    graph, _ = small(dtype=np.float32)
    features = (dense(graph.features) * size * [2e4, 1, 1, 1, 1, 1]).astype(np.float32)
    model = fit(replace(graph, features=features), SPEC)
    assert model.exponents is not None
    fine = features[4].astype(float)
    for value in (inexact, 1e300, np.nan):
        wrong = np.where(np.arange(6) == 1, value, fine)
        updates: list[dict[str, Any]] = [{"add_nodes": [fine, wrong]}, {"set_features": {4: wrong}}]
        for update in updates:
            with pytest.raises(GraphError, match="not finite, or leave the range"):
                model.update(**update)
    larger, _ = model.update(add_nodes=[fine], repair=False)
    rows = larger._held.features.rows.dense_rows(np.array([4, 40]))
    assert bool((rows[0] == rows[1]).all())


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize(
    ("spec", "update"),
    [
        (SPEC, "swap"),
        (SPEC, "correct"),
        (replace(SPEC, label_hops=1), "withdraw"),
        (replace(SPEC, diffusion=True), "withdraw"),
        (replace(SPEC, label_hops=1), "relabel"),
        (replace(SPEC, loss=LossKind.SQUARED), "swap"),
        (replace(SPEC, loss=LossKind.SQUARED, combine=Combine.CONCAT), "correct"),
        (replace(SPEC, loss=LossKind.SQUARED, label_hops=1), "relabel"),
        (SPEC, "reweight"),
        (replace(SPEC, loss=LossKind.SQUARED, combine=Combine.CONCAT, label_hops=1), "reweight"),
    ],
)
def test_rows_of_h_that_changed_without_a_change_of_counts_are_computed_again(
    spec: ModelSpec, update: str, partly: bool
) -> None:
    graph, _ = small(weighted=update == "reweight")
    A, trained = graph.adjacency.toarray(), np.flatnonzero(graph.train_mask)
    edges = np.argwhere(np.triu(A))
    (a, b), (c, d) = next(
        (first, second)
        for first in edges
        for second in edges
        if len({*first, *second}) == 4 and not A[first[0], second[1]] and not A[second[0], first[1]]
    )
    updates: dict[str, dict[str, Any]] = {
        "swap": {"remove_edges": [[a, b], [c, d]], "add_edges": [[a, d], [c, b]]},
        "correct": {"set_features": {int(trained[3]): np.ones(6)}},
        "reweight": {"remove_edges": [[a, b]], "add_edges": [[b, a]], "add_edge_weight": [9.0]},
        "withdraw": {"remove_labels": trained[:1]},
        "relabel": {"set_labels": {int(trained[3]): int((graph.labels[trained[3]] + 1) % 3)}},
    }
    with (
        patch("projector.forgetting.live_graph.keeps_dense", lambda *_: True),
        patch("projector.network.image_rows._WORTH", np.inf if partly else 0.5),
    ):
        model = fit(graph, spec)
        model._held.training_rows.H()
        after, _ = model.update(**updates[update])
        held = after._held
        expected = held.live_graph.representation().dense()
        assert float((held.training_rows.H() - expected).abs().max()) <= 1e-12


@pytest.mark.parametrize(
    ("weighted", "weights"),
    [(False, None), (True, None), (True, [[0.25, 30.0], [], [1.0]]), (False, [[0.25, 30.0], [], [1.0]])],
)
def test_predictions_of_a_node_that_is_not_there_are_those_with_it(
    weighted: bool, weights: list[list[float]] | None
) -> None:
    graph, _ = small(weighted=weighted)
    rows, neighbours = np.random.default_rng(3).standard_normal((3, 6)), [[1, 2], [], [7]]
    for spec in (
        SPEC,
        replace(SPEC, hops=1),
        replace(SPEC, label_hops=2, combine=Combine.CONCAT),
        replace(SPEC, diffusion=True),
    ):
        model = fit(graph, spec)
        before = model.predict()
        found = model.predict_new(rows, neighbours, edge_weight=weights)
        for place, (row, around, chances) in enumerate(zip(rows, neighbours, found, strict=True)):
            larger, _ = model.update(
                add_nodes=[row], add_edges=[[40, node] for node in around],
                add_edge_weight=weights and weights[place], repair=False,
            )  # fmt: skip
            np.testing.assert_allclose(chances, larger.predict([40])[0], atol=1e-12)
            np.testing.assert_allclose(larger.forget(nodes=[40], repair=False)[0].predict()[:40], before, atol=1e-12)
        assert np.array_equal(model.predict(), before)
    assert model.predict_new(np.empty((0, 6)), []).shape == (0, 3)
    with pytest.raises(GraphError, match="lists of neighbours"):
        model.predict_new(rows, [[1]])
    with pytest.raises(GraphError, match="no node 40"):
        model.predict_new(rows[:1], [[40]])
    with pytest.raises(GraphError, match="lists of weights"):
        model.predict_new(rows[:1], [[1]], edge_weight=[])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("propagation", list(PropagationKind))
def test_predictions_of_a_node_that_is_not_there_read_the_nodes_around_it_alone(
    propagation: PropagationKind, weighted: bool
) -> None:
    row, hops = np.random.default_rng(3).standard_normal((1, 6)), 3
    for spec in (
        replace(SPEC, hops=hops, propagation=propagation, self_loops=0.5),
        replace(SPEC, hops=hops, label_hops=2, combine=Combine.CONCAT, propagation=propagation),
        replace(SPEC, hops=hops, diffusion=True),
    ):
        # Anew, because the model shares the features.
        graph, _ = small(300, weighted=weighted)
        model = fit(graph, spec)
        first = int(graph.adjacency.indices[graph.adjacency.indptr[5]])
        second = next(node for node in graph.adjacency.indices[: graph.adjacency.indptr[300]] if node not in (5, first))
        model, _ = model.forget(nodes=[first], features=[int(second)], repair=False)
        larger, _ = model.update(add_nodes=row, add_edges=[[300, 5], [300, 9]], repair=False)
        A = larger._held.live_graph.propagator.edges.adjacency.toarray() * np.outer(larger.live, larger.live)
        near = np.linalg.matrix_power(A + np.eye(301), hops)[300, :300] > 0
        assert 4 < near.sum() < model.live.sum() / 2
        # What lies further away does not matter.
        model._held.live_graph.inputs.features.rows._matrix[torch.from_numpy(~near)] = np.nan
        np.testing.assert_allclose(model.predict_new(row, [[5, 9]])[0], larger.predict([300])[0], atol=1e-12)


def test_a_model_on_an_mlp_takes_its_outputs_of_new_nodes() -> None:
    """New nodes, public or not, do not retrain the MLP."""
    graph, X = small(60)
    mlp = train_mlp(X, graph.labels, np.flatnonzero(graph.train_mask)[:30], 3, replace(SPEC, mlp_width=8))
    living = Living(SPEC, mlp.outputs(X), graph.adjacency.toarray(), np.where(graph.train_mask, graph.labels, -1), 3)
    model = fit(replace(graph, features=mlp.outputs(X)), SPEC)
    update: dict[str, Any] = {"add_labels": [0, 2], "add_edges": [[60, 1], [61, 60]]}
    update["add_nodes"] = mlp.outputs(X[:2] + 0.1)
    model, report = model.update(**update)
    living.apply(update)
    check(model, living, report)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "update is empty"),
        ({"remove_nodes": [40]}, "no node 40"),
        ({"remove_labels": [1, 1]}, "twice"),
        ({"remove_nodes": [1], "remove_labels": [1]}, "both remove_nodes and remove_labels"),
        ({"remove_nodes": [1], "set_labels": {1: 0}}, "removed node cannot get"),
        ({"remove_features": [1], "set_features": {1: np.ones(6)}}, "both removed and replaced"),
        ({"set_features": {99: np.ones(6)}}, "no node 99"),
        ({"set_features": {1: np.ones(5)}}, "6 columns"),
        ({"set_features": {1: np.ones((2, 6))}}, "one row"),
        ({"set_features": {1: ["a"] * 6}}, "6 columns"),
        ({"set_labels": {-1: 0}}, "no node -1"),
        ({"set_labels": {1: 3}}, "no class 3"),
        ({"set_labels": {1: -1}}, "no class -1"),
        ({"set_labels": {1: 0.5}}, "one integer per node"),
        ({"add_nodes": np.ones((2, 7))}, "6 columns"),
        ({"add_nodes": np.ones(6)}, "6 columns"),
        ({"add_nodes": [[1.0], [1.0, 2.0]]}, "read as an array"),
        ({"add_nodes": np.full((1, 6), np.inf)}, "not finite"),
        ({"add_nodes": np.ones((2, 6)), "add_labels": [0]}, "for 2 new nodes"),
        ({"add_labels": [0]}, "for 0 new nodes"),
        ({"add_nodes": np.ones((1, 6)), "add_labels": [5]}, "no class 5"),
        ({"add_nodes": np.ones((1, 6)), "add_labels": [0.0]}, "one integer per new node"),
        ({"add_edges": [[0, 40]]}, "does not have"),
        ({"add_edges": [[1, 1]]}, "to itself"),
        ({"add_edges": [[0, 39], [39, 0]]}, "twice"),
        ({"remove_nodes": [3], "add_edges": [[0, 3]]}, "does not exist"),
        ({"remove_edges": [[0, 0]]}, "no edge"),
    ],
)
def test_what_does_not_fit_is_refused_with_a_remedy(wrong: dict[str, Any], said: str) -> None:
    model = fit(small()[0], SPEC)
    with pytest.raises(GraphError, match=said) as refused:
        model.update(**wrong)
    assert refused.value.remedy


def test_an_edge_that_is_there_joins_only_where_it_leaves_first() -> None:
    graph, _ = small()
    edge = np.argwhere(np.triu(graph.adjacency.toarray()))[:1]
    model = fit(graph, SPEC)
    for given in (edge, edge[:, ::-1]):
        with pytest.raises(GraphError, match="already"):
            model.update(add_edges=given)
        again, report = model.update(remove_edges=edge, add_edges=given)
        assert np.abs(again.predict() - model.predict()).max() <= 1e-7
        assert (report.edges, report.edges_joined) == (1, 1)
    without, _ = model.forget(edges=edge)
    back, _ = without.update(add_edges=edge)
    assert np.abs(back.predict() - model.predict()).max() <= 1e-7


def test_the_plain_hinge_grows_without_repair() -> None:
    graph, X = small()
    spec = replace(SPEC, loss=LossKind.PLAIN_HINGE, solver=SolverKind.SGD, epochs=20)
    living, model = living_of(graph, X, spec), fit(graph, spec)
    joins = {"add_nodes": X[:2], "add_labels": [0, 1], "add_edges": [[40, 1], [41, 8]]}
    update: dict[str, Any] = {"remove_nodes": [7], **joins}
    after, report = model.update(**update, repair=False)
    living.apply(update)
    check(after, living, report)
    assert report.bound_after is None


def regression(targets: int, n: int = 40) -> tuple[Graph, np.ndarray, np.ndarray]:
    """Return `small` with real-valued targets (n, targets); those of the last three nodes are missing."""
    graph, X = small(n)
    values = X[:, :targets] * 3.0 + np.random.default_rng(5).standard_normal((n, targets))
    values[-3:] = np.nan
    return from_arrays(graph.adjacency, X, values if targets > 1 else values[:, 0]), X, values


@pytest.mark.parametrize("targets", [1, 2])
@pytest.mark.parametrize("hops", [1, 5], ids=["normal equations", "kernel"])
def test_a_regression_follows_every_change_of_its_graph(hops: int, targets: int) -> None:
    """One kind of change after another, then all together; each ends at the least squares of the current graph."""
    graph, X, values = regression(targets, 34 if hops == 5 else 40)
    n, rng = graph.nodes, np.random.default_rng(2)
    spec = replace(SPEC, loss=LossKind.SQUARED, combine=Combine.CONCAT, hops=hops)
    model, known = fit(graph, spec), np.where(graph.train_mask, 0, -1)
    living = Living(spec, X, graph.adjacency.toarray(), known, targets, values)
    held = model._held.live_graph
    assert (held.keeps_equations, held.keeps_kernel) == (hops == 1, hops == 5)
    edges = np.argwhere(np.triu(living.adjacency))
    one, several = rng.standard_normal((1, 6)), rng.standard_normal((3, 6))
    some_known = rng.standard_normal((3, targets))
    some_known[1] = np.nan
    updates: list[dict[str, Any]] = [
        {"add_nodes": one, "add_labels": rng.standard_normal(1 if targets == 1 else (1, targets))},
        {"add_nodes": one, "add_edges": [[n + 1, 2]]},
        {"set_features": {4: rng.standard_normal(6)}},
        {"set_labels": {6: rng.standard_normal(targets), n - 1: rng.standard_normal(targets)}},
        {"remove_labels": [8, n - 1]},
        {"remove_edges": edges[:2]},
        {"add_edges": edges[:1]},
        {"set_labels": {8: np.zeros(targets)}},
        {
            "remove_nodes": [3, n],
            "remove_features": [10],
            "remove_labels": [11, 12],
            "remove_edges": edges[-1:],
            "add_nodes": several,
            "add_labels": some_known,
            "add_edges": [[n + 2, 1], [n + 3, n + 4]],
            "set_features": {13: rng.standard_normal(6)},
            "set_labels": {14: rng.standard_normal(targets)},
        },
    ]
    for update in updates:
        model, report = model.update(**update)
        living.apply(update)
        assert report.repair is RepairStatus.CONVERGED
        check(model, living, report)
    # More training nodes than columns of H: the sums over them are smaller than the kernel.
    rows, labels = rng.standard_normal((40, 6)), rng.standard_normal((40, targets))
    for update in ({"add_nodes": rows, "add_labels": labels}, {"remove_nodes": [1]}):
        model, report = model.update(**update)
        living.apply(update)
        check(model, living, report)
    held = model._held.live_graph
    assert (held.keeps_equations, held.keeps_kernel) == (True, False)
    found = model.predict_new(rows[:1], [[2]])
    larger, _ = model.update(add_nodes=rows[:1], add_edges=[[len(living.X), 2]], repair=False)
    np.testing.assert_allclose(found, larger.predict([len(living.X)]), atol=1e-12)


@pytest.mark.parametrize(
    ("targets", "wrong", "said"),
    [
        (2, {"add_nodes": np.ones((1, 6)), "add_labels": [1.0]}, "float64 of shape \\(1,\\) for 1 new"),
        (2, {"add_nodes": np.ones((1, 6)), "add_labels": [[1.0, 2.0, 3.0]]}, "shape \\(1, 3\\)"),
        (2, {"add_nodes": np.ones((1, 6)), "add_labels": [[1, 2]]}, "int64"),
        (2, {"add_nodes": np.ones((1, 6)), "add_labels": [[1.0, np.nan]]}, "targets of 40 are infinite or missing"),
        (1, {"add_nodes": np.ones((1, 6)), "add_labels": [np.inf]}, "infinite or missing"),
        (1, {"add_nodes": np.ones((2, 6)), "add_labels": [1.0]}, "for 2 new nodes"),
        (1, {"add_nodes": np.ones((1, 6)), "add_labels": [[1.0], [1.0, 2.0]]}, "read as an array"),
        (1, {"add_labels": [1.0]}, "for 0 new nodes"),
        (1, {"set_labels": {3: np.nan}}, "targets of 3 are infinite or missing"),
        (1, {"set_labels": {3: [1.0, 2.0]}}, "shape \\(2,\\)"),
        (2, {"set_labels": {3: 1.0}}, "shape \\(\\)"),
        (2, {"set_labels": {3: [1.0, np.inf]}}, "infinite or missing"),
        (2, {"set_labels": {3: ["a", "b"]}}, "The target of node 3"),
        (1, {"remove_labels": [39]}, "not trained on"),
    ],
)
def test_targets_that_do_not_fit_are_refused_with_a_remedy(targets: int, wrong: dict[str, Any], said: str) -> None:
    model = fit(regression(targets)[0], replace(SPEC, loss=LossKind.SQUARED))
    with pytest.raises(GraphError, match=said) as refused:
        model.update(**wrong)
    assert refused.value.remedy
