"""Samples of random walks, and GraphSAGE with three layers on them."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.baselines.nonlinear import Kind, tensors
from benchmarks.baselines.protocol import accuracy
from benchmarks.baselines.saint_walks import LENGTH, ThreeLayers, WalkedNetwork, walked
from projector import from_arrays
from projector.graph.graph import NO_LABEL, Graph
from tests.support.mathematics.baselines import small_graph

pytestmark = pytest.mark.ci


def path(nodes: int) -> Graph:
    ends = np.arange(nodes - 1)
    return from_arrays(np.stack([ends, ends + 1]), np.ones((nodes, 1)), np.arange(nodes) % 2)


def test_one_walk_is_connected_and_as_long_as_asked() -> None:
    graph, random = path(30), np.random.default_rng(0)
    found = [walked(graph, 1, random) for _ in range(200)]
    assert all(np.array_equal(each, np.arange(each[0], each[-1] + 1)) for each in found)
    assert {each.size for each in found} == set(range(2, LENGTH + 2))
    assert set(np.concatenate(found).tolist()) == set(range(30))


def test_steps_go_to_every_neighbour_alike() -> None:
    star = from_arrays(np.array([[0, 0, 0], [1, 2, 3]]), np.ones((4, 1)), [0, 1, 1, 1])
    random = np.random.default_rng(0)
    counts = np.bincount(np.concatenate([walked(star, 1, random) for _ in range(4_000)]), minlength=4)
    # Every walk visits the centre. From it, half of the walks step out twice, to one of three leaves each time.
    assert counts[0] == 4_000
    np.testing.assert_allclose(counts[1:] / counts[1:].mean(), 1, atol=0.06)


def test_nodes_without_edges_and_label_are_never_roots() -> None:
    graph = from_arrays(np.array([[0], [1]]), np.ones((4, 1)), [0, 1, 1, 0])
    graph = replace(graph, labels=np.array([0, 1, 1, NO_LABEL]), train_mask=np.arange(4) < 3)
    found = np.concatenate([walked(graph, 2, np.random.default_rng(seed)) for seed in range(50)])
    assert set(found.tolist()) == {0, 1, 2}


def test_the_network_is_three_layers_of_means_and_own_rows() -> None:
    graph = small_graph()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = ThreeLayers(graph.num_features, graph.num_classes).eval()
    A = graph.adjacency.toarray()
    mean = torch.from_numpy(A / np.maximum(A.sum(axis=1), 1)[:, None]).float()
    x = torch.from_numpy(np.asarray(graph.features)).float()
    for number, layer in enumerate((layers.first, layers.middle, layers.second)):
        x = mean @ x @ layer.lin_l.weight.T + layer.lin_l.bias + x @ layer.lin_r.weight.T
        x = torch.relu(x) if number < 2 else x
    torch.testing.assert_close(layers(*tensors(graph, Kind.SAGE)), x, rtol=1e-4, atol=1e-5)


def test_training_learns_is_repeatable_and_leaves_no_trace_of_the_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.baselines.saint_walks.ROOTS", 0.25)
    graph = small_graph(nodes=40, features=6)
    nodes = np.flatnonzero(graph.train_mask)[:3]
    network = WalkedNetwork(seed=1, epochs=5)
    fitted = network.fit(graph)
    assert accuracy(fitted.predict(), graph, graph.train_mask) > 0.5
    X, y = np.array(graph.features), graph.labels.copy()
    X[nodes], y[nodes] = 50.0, (y[nodes] + 1) % 3
    left, other = fitted.unlearn(nodes), network.fit(replace(graph, features=X, labels=y)).unlearn(nodes)
    np.testing.assert_array_equal(left.predict(), other.predict())
    assert not left.predict()[nodes].any()
