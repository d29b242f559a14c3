"""Training against dense recomputation, automatic differentiation and torch's own optimiser."""

import itertools
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from projector.errors import TrainingError
from projector.graph.features import FeatureMatrix
from projector.graph.graph import Graph, one_hot
from projector.network.inputs import inputs_of
from projector.network.losses import Softmax
from projector.network.propagation import Propagator
from projector.network.representation import DenseRepresentation, Representation
from projector.network.spec import Combine, ModelSpec, PropagationKind, SolverKind
from projector.solvers.objective import Objective
from projector.training.fit import Trained, TrainingProgress, train
from tests.support.everyday import every_case, everyday
from tests.support.models.small_graphs import (
    GRAPHS,
    dense,
    dense_features,
    dense_representation,
    dense_residual,
    duplicate_rows,
    graph_of,
    side_by_side,
    sparse_features,
    zero_rows,
)

CONCAT_ROW = ModelSpec(combine=Combine.CONCAT, propagation=PropagationKind.ROW, hops=3, self_loops=0.5)
LABELS_CONCAT_ROW = replace(CONCAT_ROW, label_hops=2)
SPECS = [ModelSpec(), ModelSpec(combine=Combine.CONCAT), CONCAT_ROW, ModelSpec(label_hops=3), LABELS_CONCAT_ROW]


def representation_of(graph: Graph, spec: ModelSpec, kind: type[Representation] = Representation) -> Representation:
    propagator = Propagator.build(graph.adjacency, spec.propagation, spec.self_loops)
    rows = np.flatnonzero(graph.train_mask).astype(np.int64)
    labels = one_hot(graph.labels, graph.train_mask, graph.num_classes)
    features = graph.features.astype(np.float64)
    return kind(inputs_of(spec, FeatureMatrix(features), labels, propagator), rows)


def objective_of(graph: Graph, spec: ModelSpec) -> Objective:
    labels = torch.from_numpy(graph.labels[graph.train_mask])
    return Objective(representation_of(graph, spec), Softmax(), labels, spec.regularization)


def random_weights(graph: Graph, spec: ModelSpec, seed: int = 0) -> torch.Tensor:
    rows = len(spec.block_hops) * graph.num_features + spec.label_hops * graph.num_classes
    shape = (rows, graph.num_classes)
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def stacked(trained: Trained) -> np.ndarray:
    """Return W (p, C): the weights of the feature blocks, then those of the label blocks."""
    classes = trained.weights.shape[2]
    return np.vstack([trained.weights.reshape(-1, classes), trained.label_weights.reshape(-1, classes)])


def relative_gradient(graph: Graph, spec: ModelSpec, weights: np.ndarray) -> float:
    H = dense_representation(graph, spec)
    W = side_by_side(weights)
    gradient = H.T @ dense_residual(graph, H, weights) / len(H) + spec.regularization * W
    return float(np.linalg.norm(gradient) / spec.regularization / np.linalg.norm(W))


# The representation and the objective


@every_case("kind", [Representation, DenseRepresentation])
@every_case("spec", SPECS)
@every_case("make", GRAPHS)
def test_products_with_h_are_those_of_the_dense_h(
    make: Callable[[], Graph], spec: ModelSpec, kind: type[Representation]
) -> None:
    graph = make()
    representation = representation_of(graph, spec, kind)
    H = dense_representation(graph, spec)
    W = random_weights(graph, spec)
    R = torch.from_numpy(np.random.default_rng(1).standard_normal((len(H), 2)))
    scale = max(float(np.linalg.norm(H)), 1.0)
    assert np.abs(representation.dense().numpy() - H).max() <= 1e-14 * scale
    assert np.abs(representation.logits(W).numpy() - H @ side_by_side(W.numpy())).max() <= 1e-13 * scale
    assert np.abs(side_by_side(representation.transposed(R).numpy()) - H.T @ R.numpy()).max() <= 1e-13 * scale


@pytest.mark.parametrize("spec", SPECS)
def test_value_gradient_and_hessian_are_those_of_automatic_differentiation(spec: ModelSpec) -> None:
    graph = dense_features()
    spec = replace(spec, regularization=0.03)
    H = torch.from_numpy(dense_representation(graph, spec))
    labels = torch.from_numpy(graph.labels[graph.train_mask])
    W = random_weights(graph, spec).requires_grad_()
    direction = random_weights(graph, spec, seed=1)
    value = cross_entropy(H @ W.reshape(-1, 3), labels) + 0.03 / 2 * (W * W).sum()
    (gradient,) = torch.autograd.grad(value, W, create_graph=True)
    (product,) = torch.autograd.grad((gradient * direction).sum(), W)

    objective = objective_of(graph, spec)
    point = objective.at(W.detach())
    assert point.value == pytest.approx(float(value.detach()), rel=1e-13)
    assert torch.allclose(point.gradient, gradient, rtol=1e-11, atol=1e-14)
    assert torch.allclose(objective.hessian(point)(direction), product, rtol=1e-11, atol=1e-13)


# Newton


#: Each graph with one of the specifications, and one with all.
TRAINED = [*zip(GRAPHS, itertools.cycle(SPECS), strict=False), *((duplicate_rows, spec) for spec in SPECS)]


@every_case(("make", "spec"), TRAINED)
def test_newton_reaches_the_optimum_and_the_dual_variable_spans_its_weights(
    make: Callable[[], Graph], spec: ModelSpec
) -> None:
    graph = make()
    trained = train(spec, graph)
    H, weights = dense_representation(graph, spec), stacked(trained)
    assert trained.relative_gradient <= spec.tolerance
    assert relative_gradient(graph, spec, weights) <= 1e-10
    assert np.linalg.norm(side_by_side(weights) - H.T @ trained.dual.numpy()) <= 1e-10 * np.linalg.norm(weights)
    assert trained.identity_error <= 1e-10
    expected = -dense_residual(graph, H, weights) / (spec.regularization * len(H))
    assert np.allclose(trained.dual.numpy(), expected, rtol=1e-6, atol=1e-9 * np.abs(expected).max())


@pytest.mark.parametrize("spec", [*SPECS, ModelSpec(combine=Combine.CONCAT, diffusion=True)])
def test_products_with_h_itself_and_through_its_factors_train_the_same_model(
    spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    for dense_products in (False, True):
        for module in ("fit", "diffusion_learning"):
            monkeypatch.setattr(
                f"projector.training.{module}.keeps_dense", lambda spec, sizes, kept=dense_products: kept
            )
        found.append(train(spec, sparse_features()))
    through_factors, with_h = found
    assert type(with_h.representation) is Representation, "H is not kept once training has ended"
    for of in ("weights", "label_weights", "dual", "logits"):
        one, other = getattr(through_factors, of), getattr(with_h, of)
        assert torch.allclose(one, other, rtol=1e-8, atol=1e-9 * float(one.abs().max()) if one.numel() else 0.0)
    assert (through_factors.diffusion is None) == (with_h.diffusion is None)


@pytest.mark.parametrize("make", [dense_features, sparse_features])
@pytest.mark.parametrize("regularization", [1e-2, 1e-4, 1e-6])
def test_asked_for_more_than_rounding_allows_newton_stops_at_the_floor(
    make: Callable[[], Graph], regularization: float
) -> None:
    spec = ModelSpec(tolerance=1e-300, regularization=regularization)
    trained = train(spec, make())
    assert 0 < trained.relative_gradient <= 1e-11
    assert trained.identity_error <= 1e-11


@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_features_of_any_size_are_learnt_to_the_tolerance(scale: float) -> None:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 60)
    columns = np.logspace(0, -3, 8) * scale
    features = (rng.standard_normal((3, 8))[labels] + rng.standard_normal((60, 8))) * columns
    edges = [(i, j) for i in range(60) for j in range(i) if labels[i] == labels[j] and rng.random() < 0.1]
    trained = train(ModelSpec(), graph_of(edges, features, labels.tolist(), classes=3))
    assert trained.relative_gradient <= 1e-11


def test_a_floor_too_high_to_certify_anything_is_an_error() -> None:
    spec = ModelSpec(regularization=1e-22)
    with pytest.raises(TrainingError, match="Rounding stops training") as refused:
        train(spec, zero_rows())
    assert "relative gradient" in refused.value.detail
    assert "--lambda" in refused.value.remedy


def all_equal_and_balanced() -> Graph:
    return graph_of([(0, 1), (2, 3)], np.full((4, 3), 0.1), [0, 1, 0, 1])


def all_zero() -> Graph:
    return graph_of([(0, 1)], np.zeros((3, 2)), [0, 1, 1])


@pytest.mark.parametrize("solver", list(SolverKind))
@pytest.mark.parametrize("make", [all_equal_and_balanced, all_zero])
def test_nodes_that_nothing_distinguishes_get_zero_weights(make: Callable[[], Graph], solver: SolverKind) -> None:
    trained = train(ModelSpec(solver=solver, epochs=3), make())
    assert trained.weights.abs().max() <= 1e-15
    assert trained.relative_gradient == 0.0 or solver is SolverKind.SGD
    assert np.isfinite(trained.identity_error)


# Descent


@pytest.mark.parametrize("combine", list(Combine))
def test_full_batch_descent_is_torchs_momentum_with_weight_decay(combine: Combine) -> None:
    graph = dense_features()
    spec = ModelSpec(
        solver=SolverKind.SGD, combine=combine, learning_rate=0.2, epochs=60, momentum=0.8, regularization=0.01
    )
    H = torch.from_numpy(dense_representation(graph, spec))
    labels = torch.from_numpy(graph.labels[graph.train_mask])
    W = torch.zeros((H.shape[1], 3), dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([W], lr=0.2, momentum=0.8, weight_decay=0.01)
    for _ in range(60):
        optimiser.zero_grad()
        torch.autograd.backward(cross_entropy(H @ W, labels))
        optimiser.step()
    trained = train(spec, graph)
    assert torch.allclose(trained.weights.reshape(-1, 3), W.detach(), rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(
    ("make", "batch_size"),
    everyday(
        [(dense_features, 0), (dense_features, 7), (sparse_features, 0), (sparse_features, 7)],
        (dense_features, 7),
        (sparse_features, 0),
    ),
)
def test_the_dual_variable_follows_hundreds_of_descent_steps_exactly(
    make: Callable[[], Graph], batch_size: int
) -> None:
    graph = make()
    spec = ModelSpec(
        solver=SolverKind.SGD, combine=Combine.CONCAT, learning_rate=0.05, batch_size=batch_size, epochs=300
    )
    trained = train(spec, graph)
    W, H = side_by_side(stacked(trained)), dense_representation(graph, spec)
    assert np.linalg.norm(W - H.T @ trained.dual.numpy()) <= 1e-12 * np.linalg.norm(W)
    assert trained.identity_error <= 1e-12
    assert trained.relative_gradient == pytest.approx(relative_gradient(graph, spec, stacked(trained)), rel=1e-6)


@pytest.mark.parametrize("batch_size", [0, 9])
def test_a_learning_rate_that_diverges_is_refused_with_one_that_works(batch_size: int) -> None:
    graph = dense_features()
    graph = replace(graph, features=dense(graph.features) * 100)
    spec = ModelSpec(solver=SolverKind.SGD, learning_rate=10.0, batch_size=batch_size)
    with pytest.raises(TrainingError) as refused:
        train(spec, graph)
    rate = re.search(r"of (\S+) or lower", refused.value.remedy)
    assert rate is not None
    seen: list[TrainingProgress] = []
    train(replace(spec, learning_rate=float(rate[1])), graph, progress=seen.append)
    assert seen[-1].objective < seen[0].objective


# User input and output.


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("hops", -1),
        ("regularization", 0.0),
        ("regularization", float("nan")),
        ("self_loops", -1.0),
        ("self_loops", float("inf")),
        ("tolerance", -1e-9),
        ("learning_rate", 0.0),
        ("momentum", 1.0),
        ("momentum", -0.1),
        ("batch_size", -1),
        ("epochs", 0),
    ],
)
def test_a_setting_out_of_range_is_named(name: str, value: float) -> None:
    setting: dict[str, Any] = {name: value}
    with pytest.raises(TrainingError, match=name):
        train(replace(ModelSpec(), **setting), dense_features())
