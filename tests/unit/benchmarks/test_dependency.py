"""Counts of affected nodes equal those of rows that change when a node is deleted."""

from typing import Any

import numpy as np
import pytest

from benchmarks.paper.theory.dependency import dependency
from benchmarks.paper.units import Unit
from projector import from_arrays
from projector.graph.graph import Graph
from tests.support.mathematics.baselines import dense_propagation

pytestmark = pytest.mark.ci

UNIT = Unit("dependency", "made", "all nodes", 0)


def random_graph(nodes: int, edges: int, seed: int) -> Graph:
    random = np.random.default_rng(seed)
    pairs = random.integers(nodes, size=(2, edges))
    pairs = pairs[:, pairs[0] != pairs[1]]
    return from_arrays(pairs, random.normal(size=(nodes, 3)), np.arange(nodes) % 2)


def affected(graph: Graph) -> dict[str, float | None]:
    return {layers: found["affected"] for layers, found in dependency(graph, UNIT)}


def changed_rows(graph: Graph, node: int, layers: int) -> int:
    """Count the rows of P^L X that differ once the node's features are gone, P being that of the whole graph."""
    X, without = np.asarray(graph.features), np.array(graph.features)
    without[node] = 0.0
    power = np.linalg.matrix_power(dense_propagation(graph), layers)
    return int((np.abs(power @ X - power @ without).max(axis=1) > 1e-12).sum())


@pytest.mark.parametrize(("nodes", "edges"), [(1, 0), (9, 0), (12, 6), (30, 25), (40, 120), (130, 140)])
def test_the_count_is_that_of_rows_that_change(nodes: int, edges: int) -> None:
    graph = random_graph(nodes, edges, seed=nodes)
    for layers in range(1, 6):
        expected = np.mean([changed_rows(graph, node, layers) for node in range(nodes)])
        assert affected(graph)[f"{layers} layers"] == pytest.approx(expected, rel=1e-12)


def test_nodes_in_several_groups_count_as_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(200, 260, seed=3)
    expected = affected(graph)
    monkeypatch.setattr("benchmarks.paper.theory.dependency._CHUNK", 64)
    assert affected(graph) == expected


def test_on_a_large_graph_the_mean_is_over_drawn_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_graph(200, 260, seed=3)
    drawn = np.random.default_rng(UNIT.seed).choice(np.arange(200), 50, replace=False)
    expected = np.mean([changed_rows(graph, node, 2) for node in drawn.tolist()])
    monkeypatch.setattr("benchmarks.paper.theory.dependency.MOST", 50)
    found: dict[str, Any] = dict(dependency(graph, UNIT))
    assert found["2 layers"] == {"affected": pytest.approx(expected), "nodes": 200}
