"""Span coefficients against dense matrices, and against training with a channel injected."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
import scipy.sparse as sp

from projector.forgetting.coefficients import span_coefficients, span_residual
from projector.forgetting.injection import inject_channel
from projector.graph.graph import Features, Graph
from projector.network.spec import Combine, ModelSpec, PropagationKind, SolverKind
from projector.training.fit import Trained, train
from tests.support.models.small_graphs import GRAPHS, dense, dense_features, dense_propagation, sparse_features

SPECS = [
    ModelSpec(),
    ModelSpec(combine=Combine.CONCAT, propagation=PropagationKind.ROW, hops=3, self_loops=0.5),
    ModelSpec(combine=Combine.CONCAT, solver=SolverKind.SGD, learning_rate=0.05, batch_size=5, epochs=20),
]


@dataclass(frozen=True, eq=False)
class Rows:
    X: Features
    beta: np.ndarray


def coefficients_of(trained: Trained) -> np.ndarray:
    return span_coefficients(trained.representation, trained.dual)[0].numpy()


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("make", GRAPHS)
def test_coefficients_are_the_transposed_powers_of_p_on_the_dual_variable(
    make: Callable[[], Graph], spec: ModelSpec
) -> None:
    graph = make()
    trained = train(spec, graph)
    beta = coefficients_of(trained)
    P = dense_propagation(graph.adjacency, spec.propagation, spec.self_loops)
    spread = np.zeros((graph.nodes, graph.num_classes))
    spread[graph.train_mask] = trained.dual.numpy()
    for block, hop in enumerate(spec.block_hops):
        expected = np.linalg.matrix_power(P.T, hop) @ spread
        assert np.allclose(beta[block], expected, rtol=1e-11, atol=1e-13 * np.abs(expected).max())
        W_b = trained.weights[block].numpy()
        assert np.linalg.norm(W_b - dense(graph.features).T @ beta[block]) <= 1e-9 * np.linalg.norm(W_b)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("extra_class", [False, True])
@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_the_coefficients_of_a_channel_present_in_training_sum_to_its_row_of_w(
    make: Callable[[], Graph], extra_class: bool, spec: ModelSpec
) -> None:
    rows = np.array([0, 3, 8, 21])
    graph = make()
    graph = inject_channel(graph, [graph.node_ids[row] for row in rows], extra_class=extra_class)
    trained = train(spec, graph)
    channel = trained.weights[:, -1].numpy()
    sums = coefficients_of(trained)[:, rows].sum(axis=1)
    assert np.linalg.norm(channel - sums) <= 1e-10 * np.linalg.norm(channel)
    assert np.linalg.norm(channel) > 0


@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_without_retraining_coefficients_give_the_weight_of_a_small_injected_channel(
    make: Callable[[], Graph],
) -> None:
    """The limit of training with a channel of size s, over s, as s falls to 0; the error is of order s^2."""
    size, rows, spec = 1e-4, np.array([2, 5, 30]), ModelSpec(combine=Combine.CONCAT, tolerance=1e-13)
    graph = make()
    beta = coefficients_of(train(spec, graph))
    channel = np.zeros((graph.nodes, 1))
    channel[rows] = size
    widened = replace(graph, features=np.hstack([dense(graph.features), channel]))
    measured = train(spec, widened).weights[:, -1].numpy() / size
    assert np.linalg.norm(measured - beta[:, rows].sum(axis=1)) <= 1e-6 * np.linalg.norm(measured)


def test_every_training_node_has_coefficients_on_a_citation_graph(cora: Graph, trained_cora: Trained) -> None:
    beta = coefficients_of(trained_cora)
    assert (np.linalg.norm(beta[0, cora.train_mask], axis=1) > 0).all()


def chunked(features: Features, beta: np.ndarray, size: int) -> list[Rows]:
    return [Rows(features[i : i + size], beta[:, i : i + size]) for i in range(0, features.shape[0], size)]


@pytest.mark.parametrize("size", [1, 7, 1000])
@pytest.mark.parametrize("make", [dense_features, sparse_features])
def test_the_span_residual_is_a_rounding_error_whatever_the_chunks(make: Callable[[], Graph], size: int) -> None:
    graph, spec = make(), SPECS[1]
    trained = train(spec, graph)
    beta = coefficients_of(trained)
    chunks = chunked(graph.features, beta, size)
    weights = trained.weights.numpy()
    assert span_residual(weights, np.zeros_like(weights), chunks) <= 1e-10


def test_the_span_residual_adds_the_lazy_correction_of_the_coefficients() -> None:
    rng = np.random.default_rng(0)
    X, T, beta = rng.standard_normal((20, 5)), rng.standard_normal((2, 5, 3)), rng.standard_normal((2, 20, 3))
    weights = np.stack([X.T @ (beta[b] + X @ T[b]) for b in range(2)])
    assert span_residual(weights, T, chunked(X, beta, 6)) <= 1e-14
    assert span_residual(weights, T, chunked(sp.csr_array(X), beta, 6)) <= 1e-14
    assert span_residual(weights, 0 * T, chunked(X, beta, 6)) > 0.1


def test_the_span_residual_is_that_of_the_worst_block() -> None:
    X, beta = np.eye(3), np.ones((2, 3, 2))
    weights = np.ones((2, 3, 2))
    weights[1] += 0.5
    expected = np.linalg.norm(weights[1] - 1) / np.linalg.norm(weights[1])
    assert span_residual(weights, np.zeros((2, 3, 2)), chunked(X, beta, 2)) == pytest.approx(expected)


def test_a_row_missing_from_the_chunks_shows_in_the_span_residual(cora: Graph, trained_cora: Trained) -> None:
    beta = coefficients_of(trained_cora)
    weights = trained_cora.weights.numpy()
    T = np.zeros_like(weights)
    assert span_residual(weights, T, chunked(cora.features, beta, 512)) <= 1e-11
    heaviest = int(np.linalg.norm(beta[0], axis=1).argmax())
    live = np.arange(cora.nodes) != heaviest
    assert span_residual(weights, T, [Rows(cora.features[live], beta[:, live])]) > 1e-4


def test_weights_of_zero_are_explained_by_nothing_or_by_rounding() -> None:
    zero = np.zeros((1, 2, 2))
    assert span_residual(zero, zero, []) == 0.0
    X = np.array([[0.1, 0.0], [0.1, 0.0], [0.1, 0.0]])
    beta = np.array([[[0.3, 0.0], [-0.1, 0.0], [-0.2, 0.0]]])
    assert span_residual(zero, zero, [Rows(X, beta)]) <= 1e-9
    assert span_residual(zero, zero, [Rows(X, np.abs(beta))]) > 0.1
    # Many cancelling rows round more.
    third, value = 10_000, np.full((30_000, 1), 0.1)
    beta = (np.repeat(np.eye(3), third, axis=0) - 1 / 3)[None] / 30_000
    assert span_residual(np.zeros((1, 1, 3)), np.zeros((1, 1, 3)), [Rows(value, beta)]) <= 1e-8
    beta = np.array([[[0.3, 0.0], [-0.1, 0.0], [-0.2, 0.0]]])
    # The same for the remains of rounding and of a solver's tolerance: their own size does not explain them.
    tiny = np.array([[[1e-14, 0.0], [0.0, 0.0]]])
    beta[0, 2, 0] += 1e-13
    assert 1e-6 < np.linalg.norm(X.T @ beta[0] - tiny[0]) / np.linalg.norm(tiny) < 1e-2
    assert span_residual(tiny, zero, [Rows(X, beta)]) <= 1e-9
    assert span_residual(tiny, zero, [Rows(X, np.abs(beta))]) > 0.1
    assert span_residual(1 + zero, zero, []) == 1.0
