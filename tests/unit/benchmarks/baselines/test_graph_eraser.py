"""Shards cut as by hand, importance as by trying every mixture, and retraining of the shards concerned alone."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from benchmarks.baselines.graph_eraser import Aggregator, GraphEraser, induced, learned_importance
from benchmarks.baselines.nonlinear import Kind, Network
from benchmarks.baselines.partition import (
    Partition,
    balanced_k_means,
    bekm,
    blpa,
    capacity,
    metis,
    propagate_labels,
)
from benchmarks.baselines.retraining import Retraining
from benchmarks.paper.setting import drawn
from projector import from_arrays
from projector.graph.graph import Graph
from tests.support.mathematics.baselines import OVR, small_graph


def path(nodes: int) -> sp.csr_array:
    return sp.csr_array(sp.diags_array([np.ones(nodes - 1)] * 2, offsets=[1, -1]))


def cliques() -> Graph:
    """Two complete graphs of six nodes, joined by one edge."""
    adjacency = np.kron(np.eye(2), np.ones((6, 6))) - np.eye(12)
    adjacency[5, 6] = adjacency[6, 5] = 1
    features = np.repeat(np.eye(2), 6, axis=0) + 0.01 * np.arange(24).reshape(12, 2)
    return from_arrays(sp.csr_array(adjacency), features, np.arange(12) // 6)


def halves(graph: Graph, shards: int, seed: int) -> NDArray[np.int64]:
    return np.arange(graph.nodes) % shards


def test_labels_move_where_most_neighbours_are_while_there_is_room() -> None:
    start = np.array([0, 1, 0, 1])
    # Profiles by number of neighbours: (1 -> 0: 2), (2 -> 1: 2), (0 -> 1: 1), (3 -> 0: 1).
    np.testing.assert_array_equal(propagate_labels(path(4), start, 2, capacity=3, rounds=1), [1, 0, 1, 0])
    # Both shards are full: nothing moves.
    np.testing.assert_array_equal(propagate_labels(path(4), start, 2, capacity=2, rounds=9), start)
    # A node with most neighbours at home stays, though others are elsewhere.
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


@pytest.mark.parametrize("partition", [blpa, metis])
def test_every_node_has_a_shard_and_no_shard_is_too_large(partition: Partition) -> None:
    graph = small_graph(nodes=40)
    found = partition(graph, 4, 0)
    sizes = np.bincount(found, minlength=4)
    assert sizes.sum() == 40
    # METIS balances by itself, to a few percent.
    assert sizes.max() <= capacity(40, 4) + (1 if partition is metis else 0)
    np.testing.assert_array_equal(found, partition(graph, 4, 0))


def test_metis_and_k_means_find_the_halves_of_two_cliques() -> None:
    for partition in (metis, bekm):
        found = partition(cliques(), 2, 0)
        assert len(set(found[:6].tolist())) == len(set(found[6:].tolist())) == 1
        assert found[0] != found[6]


def test_a_shard_holds_its_share_and_half_a_percent_of_the_others() -> None:
    assert capacity(1_208, 8) == int(np.ceil(151 + 0.005 * (1_208 - 151)))


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


def test_a_node_outside_training_concerns_no_shard_and_an_empty_shard_answers_nothing() -> None:
    graph = small_graph()
    fitted = GraphEraser(Retraining(OVR), halves, shards=8).fit(graph)
    assert fitted.unlearn(np.flatnonzero(graph.test_mask)[:1]).retrained == ()
    members = np.flatnonzero(fitted.shard_of == 5)
    emptied = fitted.unlearn(members)
    assert emptied.models[5] is None
    assert emptied.importance[5] == 0
    assert emptied.importance.sum() == pytest.approx(1.0)
    assert np.isfinite(emptied.predict()).all()


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


class Numbered:
    """Makes of every node its number."""

    weights = None

    def fit(self, _: Graph) -> "Numbered":
        return self

    def logits_on(self, graph: Graph) -> torch.Tensor:
        return torch.arange(graph.nodes)[:, None]

    def predict_on(self, graph: Graph) -> NDArray[np.float64]:
        return np.arange(graph.nodes, dtype=np.float64)[:, None]


def test_what_an_eraser_draws_follows_nothing_that_the_experiments_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of more than 10,000 nodes numpy draws a share by the first steps of a permutation, alike for all of one stream.
    nodes = 12_000
    graph = from_arrays(sp.csr_array((nodes, nodes)), np.ones((nodes, 1)), np.zeros(nodes, dtype=np.int64))
    graph = replace(graph, train_mask=np.ones(nodes, dtype=np.bool_))
    samples: list[NDArray[np.float64]] = []
    monkeypatch.setattr("benchmarks.baselines.partition.Network", lambda *_: Numbered())
    monkeypatch.setattr("benchmarks.baselines.partition.propagate_labels", lambda _, start, *rest: start)
    monkeypatch.setattr("benchmarks.baselines.partition.balanced_k_means", lambda _, first, *rest: first[:, 0])
    first: list[bool] = []

    def of_one(right: NDArray[np.float64]) -> NDArray[np.float64]:
        samples.append(right[0])
        return np.ones(1)

    monkeypatch.setattr("benchmarks.baselines.graph_eraser.learned_importance", of_one)
    for seed in range(5):
        deleted = drawn(graph, 0.1, seed)
        parts = blpa(graph, 8, seed)
        np.testing.assert_allclose(np.bincount(parts[deleted]) / np.bincount(parts), 0.1, atol=0.03)
        GraphEraser(Retraining(OVR), blpa, Aggregator.LEARNED, seed=seed).importance(graph, [Numbered()])
        assert np.isin(samples[-1], deleted).mean() == pytest.approx(0.1, abs=0.03)
        first += np.isin(bekm(graph, 8, seed), deleted).tolist()
    assert np.mean(first) == pytest.approx(0.1, abs=0.1)


def test_the_learned_aggregator_is_learned_again_after_a_deletion() -> None:
    graph = small_graph()
    fitted = GraphEraser(Retraining(OVR), halves, Aggregator.LEARNED, shards=2).fit(graph)
    # An eraser that answers by means has the same models, trained once, though the injection test has two graphs.
    GraphEraser(Retraining(OVR), halves, Aggregator.LEARNED, shards=2).fit(small_graph())
    assert GraphEraser(Retraining(OVR), halves, shards=2).fit(graph).models is fitted.models
    nodes = np.flatnonzero(graph.train_mask)[:4:2]
    left = fitted.unlearn(nodes)
    training = np.flatnonzero(left.graph.train_mask)
    models = [model for model in left.models if model is not None]
    assert len(models) == 2
    right = np.stack([model.predict_on(left.graph)[training, graph.labels[training]] for model in models])
    np.testing.assert_allclose(left.importance, learned_importance(right), atol=1e-5)
    assert np.abs(left.importance - fitted.importance).max() > 1e-6
