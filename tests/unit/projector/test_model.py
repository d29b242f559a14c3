"""The library's public interface, against retraining and against the service's own path."""

import contextlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from model_store.datasets.load import load_dataset
from projector import Certificate, Model, ModelSpec, ProjectorError, fit, from_arrays
from projector.errors import DeviceError, GraphError, TrainingError
from projector.forgetting.status import RepairStatus
from projector.graph.graph import Graph, validate
from projector.network.blocks import side_by_side
from projector.network.spec import Combine, LossKind, SolverKind
from tests.support.everyday import every_pair, everyday
from tests.support.mathematics.retraining import Problem
from tests.support.models.small_graphs import dense

#: Packages that an api process must not load, and that the library alone must not require.
NOT_NEEDED = ("fastapi", "sqlalchemy", "redis", "pydantic", "structlog", "torch_geometric", "model_store", "service")


@pytest.fixture(scope="module")
def small() -> Graph:
    return load_dataset("synthetic:n=120,d=30,classes=3,seed=2", data_dirs=[])


@pytest.fixture(scope="module")
def model(small: Graph) -> Model:
    return fit(small)


def retrained(small: Graph, spec: ModelSpec, nodes: list[int], features: list[int]) -> np.ndarray:
    """Return W of the remaining graph by another solver, (d, C)."""
    X = dense(small.features)
    live = np.ones(small.nodes, dtype=bool)
    live[nodes] = False
    X[[*nodes, *features]] = 0.0
    A = small.adjacency.toarray() * np.outer(live, live) + np.diag(live.astype(float))
    scale = np.sqrt(np.divide(1.0, A.sum(axis=1), out=np.zeros(len(A)), where=live))
    P = A * np.outer(scale, scale)
    H = (P @ P @ X)[small.train_mask & live]
    labels = small.labels[small.train_mask & live]
    return Problem(H, labels, small.num_classes, spec.loss, spec.regularization).minimum(1e-10)


@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED])
def test_what_is_left_is_the_model_of_retraining(small: Graph, loss: LossKind) -> None:
    spec = ModelSpec(loss=loss)
    before = fit(small, spec)
    kept = before.weights
    after, report = before.forget(nodes=[3, 14], features=[20])
    best = retrained(small, spec, [3, 14], [20])
    distance = float(np.linalg.norm(after.weights[0] - best))
    assert report.bound_after is not None
    assert distance <= report.bound_after.bound + 1e-8 * np.linalg.norm(best)
    assert report.bound_after.retrained
    assert report.bound_before is not None
    assert report.bound_before.bound >= np.linalg.norm(before.weights[0] - best) * 0.999
    assert (report.repair, report.nodes, report.edges, report.features) == (RepairStatus.CONVERGED, 2, 0, 1)
    assert (report.injected_norm_before or 0) > 0.0 == report.injected_norm_after
    assert after.certificate is not None
    # Computed by other products with other rounding: sums over rows round several times as much as the rows.
    most = 10.0 if loss is LossKind.SQUARED else 1.5
    assert after.certificate.bound / 1.5 <= report.bound_after.bound <= most * after.certificate.bound
    assert np.array_equal(before.weights, kept)
    assert before.live.all()
    assert np.flatnonzero(~after.live).tolist() == [3, 14]


def test_a_sequence_of_deletions_equals_one(model: Model) -> None:
    one, _ = model.forget(nodes=[1, 2, 3])
    step = model
    for node in (3, 1, 2):
        step, report = step.forget(nodes=[node])
        assert report.bound_after is not None
        assert report.bound_after.retrained
    assert np.linalg.norm(one.weights - step.weights) <= 2e-8 * np.linalg.norm(one.weights)
    assert np.abs(one.predict() - step.predict()).max() <= 1e-7


def test_the_projection_alone_moves_nothing_where_no_direction_is_lost(model: Model) -> None:
    after, report = model.forget(nodes=[5], repair=False)
    assert report.repair is RepairStatus.NONE
    assert np.array_equal(after.weights, model.weights)
    assert report.bound_before == report.bound_after
    assert report.bound_after is not None
    assert not report.bound_after.retrained


def test_figures_of_the_span_are_those_that_forgetting_reports(small: Graph) -> None:
    X = np.hstack([dense(small.features), np.zeros((small.nodes, 1))])
    X[7, -1] = 1.0
    model = fit(replace(small, features=X))
    figures = model.span([7, 8])
    _, report = model.forget(nodes=[7, 8])
    assert figures.directions == report.directions_removed == 1
    assert figures.lost_direction_norm == report.lost_direction_norm_before
    assert figures.injected_norm == report.injected_norm_before
    assert figures.leverages[0] == pytest.approx(1.0)
    assert 0.0 < figures.leverages[1] < 1.0


def test_arrays_mappings_and_data_are_the_same_graph(small: Graph) -> None:
    assert isinstance(small.features, sp.csr_array)
    edges = np.stack(small.adjacency.nonzero())
    arrays = from_arrays(small.adjacency, small.features, small.labels, train_mask=small.train_mask)
    one_way = from_arrays(edges[:, edges[0] < edges[1]], small.features, small.labels, train_mask=small.train_mask)
    tensors = {
        "edge_index": torch.from_numpy(edges.astype(np.int64)),
        "x": torch.from_numpy(small.features.toarray()),
        "y": torch.from_numpy(small.labels),
        "train_mask": torch.from_numpy(small.train_mask),
    }
    expected = fit(small).weights
    for data in (arrays, one_way, tensors, SimpleNamespace(**tensors)):
        assert np.array_equal(fit(data).weights, expected)


def test_training_goes_on_from_pretrained_weights(small: Graph) -> None:
    spec = ModelSpec(solver=SolverKind.SGD, epochs=5, combine=Combine.CONCAT, seed=3)
    rough = fit(small, spec)
    assert rough.certificate is not None
    assert not rough.certificate.retrained
    fine = fit(small, spec, weights=rough.weights)
    assert fine.certificate is not None
    assert fine.certificate.relative is not None
    assert fine.certificate.relative <= 1e-9


def test_rescaled_columns_are_not_seen_from_outside(small: Graph) -> None:
    X = dense(small.features)
    X[:, 0] *= 1e6
    model = fit(replace(small, features=X))
    A = small.adjacency.toarray() + np.eye(small.nodes)
    scale = np.sqrt(1.0 / A.sum(axis=1))
    P = A * np.outer(scale, scale)
    logits = P @ P @ (X @ model.weights[0])
    chances = np.exp(logits - logits.max(axis=1, keepdims=True))
    assert np.allclose(model.predict(), chances / chances.sum(axis=1, keepdims=True), atol=1e-9)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"nodes": [120]}, "no node 120"),
        ({"nodes": [-1]}, "no node -1"),
        ({"nodes": [1, 1]}, "twice"),
        ({"nodes": ["1"]}, "row numbers"),
        ({"nodes": [1], "features": [1]}, "both remove_nodes and remove_features"),
        ({"edges": [[0, 0]]}, "no edge"),
        ({"edges": [[0, 500]]}, "row that the graph does not have"),
        ({"edges": [[0, 4, 9], [117, 99, 3]]}, "one edge per row"),
        ({"edges": [[0.5, 1.0]]}, "one edge per row"),
        ({}, "The update is empty"),
    ],
)
def test_what_is_not_there_is_refused_with_a_remedy(model: Model, wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(GraphError, match=said) as refused:
        model.forget(**wrong)
    assert refused.value.remedy


def test_what_was_forgotten_cannot_be_asked_for_again(small: Graph, model: Model) -> None:
    edge = [[10, int(small.adjacency[[10]].indices[0])]]
    after, _ = model.forget(nodes=[4], features=[5], edges=edge)
    for again in ({"nodes": [4]}, {"features": [5]}, {"edges": edge}, {"edges": [edge[0][::-1]]}):
        with pytest.raises(GraphError):
            after.forget(**again)
    with pytest.raises(GraphError, match="no node 4"):
        after.predict([4])
    with pytest.raises(GraphError, match="no node 4"):
        after.span([4])
    assert not after.predict()[4].any()


@pytest.mark.parametrize("loss", [LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE, LossKind.SQUARED])
@pytest.mark.parametrize("seed", everyday(range(4), 0))
def test_where_no_training_node_with_features_remains_the_weights_go(loss: LossKind, seed: int) -> None:
    """Other nodes have features along every direction, so the projection removes nothing."""
    rng = np.random.default_rng(seed)
    features, training = rng.standard_normal((40, 5)), np.arange(40) < 20
    features[10:20] = 0.0
    graph = from_arrays(np.array([[0], [1]]), features, np.arange(40) % 3, train_mask=training)
    model = fit(graph, ModelSpec(loss=loss, hops=1, regularization=1e-4))
    assert model.weights.any()
    model, report = model.forget(nodes=range(10))
    assert report.repair is RepairStatus.CONVERGED
    assert report.bound_after is not None
    assert report.bound_after.bound == 0.0
    assert not model.weights.any()


@pytest.mark.filterwarnings("ignore:Rounding limits the bound")
@every_pair(
    loss=[LossKind.SOFTMAX, LossKind.OVR, LossKind.HINGE],
    nodes=[3, 21, 201],
    columns=["a column of ones", "a column of zeros too", "more columns than rows"],
)
def test_where_as_many_of_each_class_see_the_same_the_weights_go(loss: LossKind, nodes: int, columns: str) -> None:
    rng, pairs = np.random.default_rng(0), nodes // 2
    features = {
        "a column of ones": np.ones((pairs, 1)),
        "a column of zeros too": np.ones((pairs, 2)) * [1.0, 0.0],
        "more columns than rows": rng.standard_normal((pairs, nodes + 5)),
    }[columns]
    X = np.concatenate([features, features, np.ones((1, features.shape[1]))])
    labels = np.r_[np.zeros(pairs, dtype=int), np.ones(pairs, dtype=int), 0]
    model = fit(from_arrays(np.empty((2, 0), dtype=np.int64), X, labels), ModelSpec(loss=loss))
    assert model.weights.any()
    model, report = model.forget(nodes=[nodes - 1])
    assert report.repair is RepairStatus.CONVERGED
    assert report.bound_after is not None
    assert report.bound_after.relative == 0.0
    assert not model.weights.any()
    _, report = model.forget(nodes=[0])
    assert report.repair is RepairStatus.CONVERGED


@pytest.mark.parametrize("nodes", [30, 300, 3000])
@pytest.mark.parametrize("value", [0.1, 0.3])
def test_weights_of_zero_are_trained_where_a_column_says_nothing(nodes: int, value: float) -> None:
    """Sums of 0.1 and 0.3 round, and with one third in each class they only cancel up to that."""
    X, labels = np.full((nodes, 1), value), np.repeat([0, 1, 2], nodes // 3)
    model = fit(from_arrays(np.empty((2, 0), dtype=np.int64), X, labels), ModelSpec(hops=1))
    assert model.certificate is not None
    assert model.certificate.relative == 0.0
    assert not model.weights.any()


@pytest.mark.parametrize("nodes", [10, 200])
def test_zero_is_not_the_optimum_where_rounding_hides_another(nodes: int) -> None:
    """A column of 1e15 hides the gradient along one of 0.4, the only difference between the classes."""
    labels = np.arange(nodes) % 2
    features = np.stack([np.full(nodes, 1e15), np.where(labels == 0, 0.4, -0.4)], axis=1)
    graph = from_arrays(np.empty((2, 0), dtype=np.int64), features, labels)
    model = fit(graph, ModelSpec(hops=1, regularization=1e-3))
    assert model.certificate is not None
    assert not model.certificate.retrained
    assert model.certificate.bound > np.hypot(5.3711, 5.3711)


def test_the_plain_hinge_has_no_certificate_and_no_repair(small: Graph) -> None:
    model = fit(small, ModelSpec(loss=LossKind.PLAIN_HINGE, solver=SolverKind.SGD, epochs=3))
    assert model.certificate is None
    with pytest.raises(TrainingError, match="kinks"):
        model.forget(nodes=[1])
    _, report = model.forget(nodes=[1], repair=False)
    assert report.bound_after is None


def test_data_that_cannot_be_trained_on_is_refused(small: Graph) -> None:
    for wrong in (
        {"edge_index": torch.zeros((2, 0), dtype=torch.int64)},
        SimpleNamespace(edge_index=None, x=None, y=None),
        replace(small, train_mask=np.zeros(small.nodes, dtype=bool)),
    ):
        with pytest.raises(ProjectorError):
            fit(wrong)
    with pytest.raises(GraphError, match="train_mask"):
        from_arrays(sp.csr_array(small.adjacency), small.features, small.labels, train_mask=[1, 0])
    with pytest.raises(GraphError, match="2 x E"):
        from_arrays([1, 2, 3], small.features, small.labels)
    with pytest.raises(TrainingError, match="public"):
        fit(small, ModelSpec(mlp_width=8))


@pytest.mark.parametrize(
    ("adjacency", "message"),
    [
        (lambda A: sp.csr_array(A.shape), None),
        (lambda A: -sp.csr_array(A), "weight"),
        (lambda A: sp.csr_array(A * np.nan), "weight"),
        (lambda A: sp.block_diag([A, np.eye(40)]).tocsr(), "shape"),
        (lambda A: sp.hstack([A, A[:, :7]]).tocsr(), "shape"),
        (lambda A: torch.ones((2, 3)).to_sparse(), "array"),
    ],
    ids=["no edges", "negative", "nan", "too large", "not square", "a sparse tensor"],
)
def test_an_adjacency_of_weights_for_these_nodes_alone_is_taken(
    small: Graph, adjacency: Callable[[sp.csr_array], Any], message: str | None
) -> None:
    with pytest.raises(GraphError, match=message) if message else contextlib.nullcontext():
        validate(from_arrays(adjacency(sp.csr_array(small.adjacency)), small.features, small.labels))


@pytest.mark.parametrize("unread", ["edge_weights", "edge_attr", "user_id", "val_idx"])
def test_what_an_object_has_and_is_not_read_is_refused(small: Graph, unread: str) -> None:
    edge_index = torch.tensor(np.stack(sp.coo_array(small.adjacency).coords))
    x, y = torch.tensor(dense(small.features)), torch.tensor(small.labels)
    with pytest.raises(GraphError, match=unread):
        fit(SimpleNamespace(edge_index=edge_index, x=x, y=y, **{unread: torch.full((edge_index.shape[1],), 0.5)}))


@pytest.mark.parametrize("device", ["auto", "mps", "cuda:99", "nowhere", None])
def test_a_device_that_is_not_there_is_refused(small: Graph, device: Any) -> None:
    with pytest.raises(DeviceError):
        fit(small, device=device)


@every_pair(dtype=[np.float32, np.float64], layout=[np.asarray, sp.csr_array], size=[30.0, 100.0, 300.0])
def test_features_too_large_to_prove_a_deletion_come_with_what_to_divide_them_by(
    size: float, layout: Callable[[Any], Any], dtype: type
) -> None:
    raw = load_dataset("synthetic:n=60,d=6,classes=3,seed=1", data_dirs=[])
    x: np.ndarray = (np.random.default_rng(0).normal(size=(raw.nodes, 6)) * size).astype(dtype)
    with pytest.warns(UserWarning, match="Divide all features by") as warned:
        model = fit(from_arrays(raw.adjacency, layout(x), raw.labels))
    assert model.forget(nodes=[3])[1].repair is not RepairStatus.CONVERGED
    divisor = int(str(warned[0].message).split("Divide all features by ")[1].split(",")[0])

    _, report = fit(from_arrays(raw.adjacency, layout(x / divisor), raw.labels)).forget(nodes=[3])

    assert report.bound_after is not None
    assert report.bound_after.retrained


def test_label_reuse_and_diffusion_are_forgotten_too(small: Graph) -> None:
    for spec in (ModelSpec(label_hops=2), ModelSpec(diffusion=True)):
        model, report = fit(small, spec).forget(nodes=[9, 11], features=[30])
        assert isinstance(report.bound_after, Certificate)
        assert report.bound_after.retrained
        model, report = model.forget(nodes=[31])
        assert report.bound_after is not None
        assert report.bound_after.retrained


def test_features_alone_take_no_label_along_without_a_repair_either(small: Graph) -> None:
    node = int(np.flatnonzero(small.train_mask)[0])
    model, _ = fit(small, ModelSpec(label_hops=1)).forget(features=[node], repair=False)
    held = model._held
    assert held.labels is not None
    span = held.state.labels
    assert span is not None
    Y = held.labels.rows.matmul(torch.eye(small.num_classes, dtype=torch.float64))
    Y[torch.from_numpy(~span.in_span)] = 0.0
    explained = Y.T @ (side_by_side(held.labels.beta) + Y @ span.T)
    assert torch.linalg.norm(span.W - explained) <= 1e-9 * torch.linalg.norm(span.W)


@pytest.mark.slow
def test_the_library_needs_nothing_of_the_service() -> None:
    code = (
        "import sys; from projector.forgetting.status import RepairStatus; print('torch' in sys.modules); "
        "from projector import fit, from_arrays, Model, ModelSpec; import projector.model; "
        f"print([name for name in {NOT_NEEDED!r} if name in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "[]"]


def test_a_model_with_no_hops_has_no_edges_and_refuses_them_by_name(small: Graph) -> None:
    spec = ModelSpec(hops=0)
    model = fit(small, spec)
    edges = [[0, 1]]
    alone = {"x": torch.from_numpy(dense(small.features)), "y": torch.from_numpy(small.labels)}
    assert np.array_equal(fit({**alone, "train_mask": torch.from_numpy(small.train_mask)}, spec).weights, model.weights)
    for refused in (
        lambda: fit(alone),
        lambda: model.forget(edges=edges),
        lambda: model.update(add_edges=edges),
        lambda: model.predict_new(dense(small.features)[:1], [[0]]),
    ):
        with pytest.raises(GraphError, match="no edges"):
            refused()
    assert np.allclose(model.predict_new(dense(small.features)[:2], [[], []]), model.predict([0, 1]))
    for spec in (ModelSpec(hops=0, label_hops=1), ModelSpec(hops=0, diffusion=True)):
        with pytest.raises(TrainingError, match="need edges"):
            fit(small, spec)
