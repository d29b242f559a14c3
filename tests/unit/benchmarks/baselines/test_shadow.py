"""Sampled rows equal those of networks on each node's own graph."""

from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp

from benchmarks.baselines.linear import logits, probabilities, train_linear
from benchmarks.baselines.protocol import Nodes, accuracy
from benchmarks.baselines.shadow import sampled_hops, scope, shadow_accuracy
from projector.graph.graph import Graph
from projector.network.spec import Combine
from tests.support.mathematics.baselines import OVR, dense_propagation, small_graph

pytestmark = pytest.mark.ci

GRAPH = small_graph()
EVERY = np.arange(GRAPH.nodes)


def test_a_scope_that_holds_the_whole_graph_gives_the_rows_of_the_whole_graph() -> None:
    far = GRAPH.nodes
    P = dense_propagation(GRAPH)
    # A node sees only its component, with the degrees of the graph.
    for hop, found in enumerate(sampled_hops(GRAPH, EVERY, 3, seed=0, depth=far, neighbours=far)):
        np.testing.assert_allclose(found.toarray(), np.linalg.matrix_power(P, hop), atol=1e-14)


@pytest.mark.parametrize(("depth", "neighbours"), [(1, 1), (2, 2), (3, 1)])
def test_a_scope_is_connected_starts_at_its_root_and_is_as_small_as_asked(depth: int, neighbours: int) -> None:
    A = GRAPH.adjacency.toarray()
    most = sum(neighbours**hop for hop in range(depth + 1))
    for root in EVERY.tolist():
        nodes = scope(GRAPH, root, depth, neighbours, np.random.default_rng(root))
        assert nodes[0] == root
        assert len(set(nodes.tolist())) == nodes.size <= most
        inside = A[np.ix_(nodes, nodes)] + np.eye(nodes.size)
        assert (np.linalg.matrix_power(inside, depth)[0] > 0).all()


def test_a_sampled_row_is_the_power_of_its_own_graphs_matrix_whatever_the_depth() -> None:
    root, depth, neighbours = 3, 1, 2
    nodes = scope(GRAPH, root, depth, neighbours, np.random.default_rng(7))
    A = GRAPH.adjacency.toarray()[np.ix_(nodes, nodes)] + np.eye(nodes.size)
    P = A / np.sqrt(np.outer(A.sum(axis=1), A.sum(axis=1)))
    found = sampled_hops(GRAPH, np.array([root]), 4, seed=7, depth=depth, neighbours=neighbours)
    for hop, C in enumerate(found):
        expected = np.zeros(GRAPH.nodes)
        expected[nodes] = np.linalg.matrix_power(P, hop)[0]
        np.testing.assert_allclose(C.toarray()[0], expected, atol=1e-15)


def test_with_whole_neighbourhoods_it_is_the_linear_model(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = small_graph(nodes=90)
    spec = replace(OVR, hops=2, combine=Combine.CONCAT)
    model = train_linear(graph, spec)
    expected = accuracy(probabilities(logits(graph, spec, model.weights), spec.loss), graph, graph.test_mask)
    monkeypatch.setattr("benchmarks.baselines.shadow.sampled_hops.__defaults__", (graph.nodes, graph.nodes))
    # The draws are then the same, and rows that occur three times have the optimum of rows that occur once.
    assert shadow_accuracy(graph, 2, OVR.regularization, seed=0) == expected
    monkeypatch.undo()
    assert 1 / 3 < shadow_accuracy(graph, 3, OVR.regularization, seed=0) <= 1


def test_training_nodes_are_drawn_three_times_and_test_nodes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, asked = small_graph(nodes=90), []

    def recorded(graph: Graph, roots: Nodes, hops: int, seed: tuple[int, int]) -> list[sp.csr_array]:
        asked.append((seed, roots.tolist()))
        return sampled_hops(graph, roots, hops, seed, neighbours=1)

    monkeypatch.setattr("benchmarks.baselines.shadow.sampled_hops", recorded)
    shadow_accuracy(graph, 2, OVR.regularization, seed=4)
    training, test = (np.flatnonzero(mask).tolist() for mask in (graph.train_mask, graph.test_mask))
    assert asked == [*(((4, draw), training) for draw in range(3)), ((4, 3), test)]
    one, other = (sampled_hops(graph, np.array(training), 2, (4, draw), neighbours=1)[2] for draw in (0, 1))
    assert abs(one - other).max() > 0
