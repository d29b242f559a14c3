"""Shards as cut by hand, importance as by trying every mixture, and retraining of the affected shards alone."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
from numpy.typing import NDArray

from benchmarks.baselines.graph_eraser import Aggregator, GraphEraser, induced, learned_importance
from benchmarks.baselines.nonlinear import Kind, Network
from benchmarks.baselines.partition import (
    at_random,
    balanced_k_means,
    propagate_labels,
)
from benchmarks.baselines.retraining import Retraining
from projector.graph.graph import Graph
from tests.support.mathematics.baselines import OVR, small_graph

pytestmark = pytest.mark.ci


def path(nodes: int) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([np.ones(nodes - 1)] * 2, offsets=[1, -1]))


def halves(graph: Graph, shards: int, seed: int) -> NDArray[np.int64]:
    return np.arange(graph.nodes) % shards


def test_labels_move_where_most_neighbours_are_while_there_is_room() -> None:
    start = np.array([0, 1, 0, 1])
    # Profiles by number of neighbours: (1 -> 0: 2), (2 -> 1: 2), (0 -> 1: 1), (3 -> 0: 1).
    np.testing.assert_array_equal(propagate_labels(path(4), start, 2, capacity=3, rounds=1), [1, 0, 1, 0])
    # Both shards are full: nothing moves.
    np.testing.assert_array_equal(propagate_labels(path(4), start, 2, capacity=2, rounds=9), start)
    # A node with most neighbours in its own shard stays, although others are elsewhere.
    at_home = np.array([0, 0, 0, 1])
    np.testing.assert_array_equal(propagate_labels(path(4), at_home, 2, capacity=3, rounds=1), [0, 0, 0, 1])


def test_points_go_to_the_nearest_centroid_with_room() -> None:
    points = np.array([[0.0], [1.0], [2.0], [10.0]])
    # By distance: 0 and 1 to the first, 10 to the second; 2 finds the first full.
    found = balanced_k_means(points, np.array([[0.0], [10.0]]), capacity=2, rounds=1)
    np.testing.assert_array_equal(found, [0, 0, 1, 1])
    np.testing.assert_array_equal(balanced_k_means(points, np.array([[0.0], [10.0]]), 3, 1), [0, 0, 0, 1])
    # The next round starts from the means, 0.5 and 6.
    np.testing.assert_array_equal(balanced_k_means(points, np.array([[0.0], [1.0]]), 3, 9), [0, 0, 0, 1])


@pytest.mark.parametrize("trainer", [Retraining(OVR), Network(Kind.GCN, epochs=30)])
def test_answers_are_means_of_models_trained_on_induced_graphs(trainer: Retraining | Network) -> None:
    graph = small_graph()
    fitted = GraphEraser(trainer, halves, shards=2).fit(graph)
    training = np.flatnonzero(graph.train_mask)
    alone = [trainer.fit(induced(graph, training[shard::2]), graph) for shard in (0, 1)]
    expected = np.mean([model.predict_on(graph) for model in alone], axis=0)
    np.testing.assert_allclose(fitted.predict(), expected, atol=1e-12)
    if isinstance(trainer, Retraining):
        first, second = (each.weights for each in alone)
        assert fitted.weights is not None
        assert first is not None
        assert second is not None
        np.testing.assert_allclose(fitted.weights, (first + second) / 2)
    else:
        assert fitted.weights is None
        # The whole graph's validation nodes have chosen the epochs.
        last = np.mean([trainer.fit(each.graph).predict_on(graph) for each in alone], axis=0)
        assert not np.allclose(expected, last)


@pytest.mark.parametrize("trainer", [Retraining(OVR), Network(Kind.SAGE, epochs=3)])  # none judged
def test_only_the_shards_of_deleted_nodes_are_trained_anew_and_leave_no_trace(trainer: Retraining | Network) -> None:
    graph = small_graph()
    training = np.flatnonzero(graph.train_mask)
    nodes = training[[0, 3]]
    eraser = GraphEraser(trainer, halves, shards=3)
    fitted = eraser.fit(graph)
    left = fitted.unlearn(nodes)
    assert left.retrained == (0,)
    assert left.models[1] is fitted.models[1]
    assert left.models[2] is fitted.models[2]
    X, y = np.array(graph.features), graph.labels.copy()
    X[nodes], y[nodes] = 50.0, (y[nodes] + 1) % 3
    other = eraser.fit(replace(graph, features=X, labels=y)).unlearn(nodes)
    np.testing.assert_array_equal(left.predict(), other.predict())
    assert not left.predict()[nodes].any()


@pytest.mark.parametrize("seed", range(3))
def test_importance_is_the_best_of_all_mixtures(seed: int) -> None:
    right = np.random.default_rng(seed).random((2, 30)) ** np.array([[1.0], [6.0]])

    def objective(alpha: NDArray[np.float64]) -> float:
        return float(-np.log(alpha @ right).mean() + np.linalg.norm(alpha))

    shares = np.linspace(0, 1, 2_001)
    best = min(objective(np.array([share, 1 - share])) for share in shares)
    found = learned_importance(right)
    assert found.sum() == pytest.approx(1.0)
    assert objective(found) <= best + 1e-6


def test_sisa_cuts_uniformly_votes_and_trains_the_shards_of_the_deleted_nodes_again() -> None:
    graph, spec = small_graph(nodes=60), OVR
    sisa = GraphEraser(Retraining(spec), at_random, Aggregator.VOTE, shards=5, seed=3)
    fitted = sisa.fit(graph)
    training = np.flatnonzero(graph.train_mask)
    sizes = np.bincount(fitted.shard_of[training])
    assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(fitted.shard_of[training], replace(sisa, seed=4).fit(graph).shard_of[training])
    votes = np.stack([model.predict_on(graph).argmax(axis=1) for model in fitted.models if model is not None])
    expected = np.stack([(votes == c).mean(axis=0) for c in range(3)], axis=1)
    np.testing.assert_allclose(fitted.predict(), expected, atol=1e-12)
    node = training[:1]
    left = fitted.unlearn(node)
    assert left.retrained == (fitted.shard_of[node[0]],)
    same = [before is after for before, after in zip(fitted.models, left.models, strict=True)]
    assert same.count(False) == 1
