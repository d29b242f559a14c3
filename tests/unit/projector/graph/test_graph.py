"""Requirements on a graph before a model is trained on it."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from projector.errors import GraphError
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Graph, feature_rows, validate
from tests.support.everyday import every_case
from tests.support.models.small_graphs import GRAPHS, dense, dense_features, graph_of, isolated_nodes, sparse_features


@pytest.mark.parametrize("make", GRAPHS)
def test_graphs_of_every_shape_are_valid(make: Callable[[], Graph]) -> None:
    validate(make())


def test_a_graph_without_edges_keeps_the_others() -> None:
    graph = isolated_nodes()
    after = graph.without_edges(np.array([[1, 0], [0, 1], [0, 2], [5, 6]]))
    expected = np.zeros((8, 8))
    expected[[1, 2], [2, 1]] = 1.0
    assert np.array_equal(after.adjacency.toarray(), expected)
    assert (after.edges, graph.edges) == (1, 2)
    validate(after)


def test_feature_rows_are_dense_float64_in_the_order_asked() -> None:
    rows = np.array([7, 2, 2], dtype=np.int64)
    for graph in (dense_features(), sparse_features()):
        chosen = feature_rows(graph.features, rows)
        assert chosen.dtype == np.float64
        assert np.array_equal(chosen, dense(graph.features)[rows])


def _adjacency(change: Callable[[np.ndarray], None]) -> Callable[[Graph], Graph]:
    def changed(graph: Graph) -> Graph:
        adjacency = graph.adjacency.toarray()
        change(adjacency)
        return replace(graph, adjacency=sp.csr_array(adjacency))

    return changed


def _one_way(adjacency: np.ndarray) -> None:
    adjacency[:] = 0
    adjacency[4, 9] = 1


def _self_loop(adjacency: np.ndarray) -> None:
    adjacency[5, 5] = 1


def _twice(adjacency: np.ndarray) -> None:
    adjacency[:] = 0
    adjacency[4, 9] = adjacency[9, 4] = 2


def _unsorted(graph: Graph) -> Graph:
    adjacency = sp.csr_array((np.ones(4), np.array([2, 1, 0, 0]), np.array([0, 2, 3, 4])), shape=(3, 3))
    small = graph_of([], np.ones((3, 1)), [0, 1, 0])
    return replace(small, adjacency=adjacency)


def _features(change: Callable[[np.ndarray], None]) -> Callable[[Graph], Graph]:
    def changed(graph: Graph) -> Graph:
        features = dense(graph.features).copy()
        change(features)
        return replace(graph, features=features)

    return changed


def _nan(features: np.ndarray) -> None:
    features[11, 2] = np.nan


def _infinite(features: np.ndarray) -> None:
    features[11, 2] = -np.inf


def _huge(features: np.ndarray) -> None:
    features[11, 2] = -1e200


def _tiny(features: np.ndarray) -> None:
    features *= 1e-200


def _sparse_nan(graph: Graph) -> Graph:
    features = dense(graph.features).copy()
    features[11, 2] = np.nan
    return replace(graph, features=sp.csr_array(features))


def _repeated_columns(graph: Graph) -> Graph:
    features = sp.csr_array((np.ones(2), np.array([0, 0]), np.array([0, 2, 2])), shape=(2, 1))
    return replace(graph_of([], np.ones((2, 1)), [0, 1]), features=features)


def _label(value: int) -> Callable[[Graph], Graph]:
    def changed(graph: Graph) -> Graph:
        labels = graph.labels.copy()
        labels[3] = value
        return replace(graph, labels=labels)

    return changed


def _id(value: str) -> Callable[[Graph], Graph]:
    return lambda graph: replace(graph, node_ids=NodeIds.of([*graph.node_ids[:6], value, *graph.node_ids[7:]]))


def _masked(rows: list[int], **others: list[int]) -> Callable[[Graph], Graph]:
    def changed(graph: Graph) -> Graph:
        def mask(chosen: list[int]) -> np.ndarray:
            return np.isin(np.arange(graph.nodes), chosen)

        masks: dict[str, Any] = {name: mask(chosen) for name, chosen in others.items()}
        return replace(graph, train_mask=mask(rows), **masks)

    return changed


def _labelled(graph: Graph) -> int:
    return int(np.flatnonzero(graph.labels >= 0)[0])


def _overlapping(graph: Graph) -> Graph:
    row = _labelled(graph)
    return _masked([row], val_mask=[row])(graph)


def _unlabelled_in_training(graph: Graph) -> Graph:
    return _masked([int(np.flatnonzero(graph.labels < 0)[0])])(graph)


BROKEN: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "an edge in one direction": (_adjacency(_one_way), "node-4 -> node-9"),
    "a self loop": (_adjacency(_self_loop), "node-5"),
    "an edge given twice": (
        _adjacency(_twice),
        "1 edge(s) are repeated, such as node-4 -> node-9, given 2",
    ),
    "features whose squares overflow": (_features(_huge), "1.0e+200"),
    "features whose squares vanish": (_features(_tiny), "-200 in size"),
    "unsorted columns": (_unsorted, "canonical"),
    "a float32 adjacency": (lambda g: replace(g, adjacency=g.adjacency.astype(np.float32)), "float32"),
    "an adjacency that is not square": (lambda g: replace(g, adjacency=sp.csr_array((40, 39))), "square"),
    "no node": (lambda g: replace(g, adjacency=sp.csr_array((0, 0))), "at least one node"),
    "NaN features": (_features(_nan), "node-11"),
    "infinite features": (_features(_infinite), "node-11"),
    "NaN in sparse features": (_sparse_nan, "node-11"),
    "repeated columns in sparse features": (_repeated_columns, "ascending"),
    "integer features": (lambda g: replace(g, features=np.ones((40, 2), dtype=np.int64)), "int64"),
    "features of other nodes": (lambda g: replace(g, features=np.ones((39, 2))), "(39, 2)"),
    "no feature column": (lambda g: replace(g, features=np.ones((40, 0))), "(40, 0)"),
    "a label out of range": (_label(3), "3 of node node-3"),
    "a negative label": (_label(-2), "-2 of node node-3"),
    "too few labels": (lambda g: replace(g, labels=g.labels[:-1]), "(39,)"),
    "one class": (lambda g: replace(g, class_names=("only",)), "two classes"),
    "repeated class names": (lambda g: replace(g, class_names=("a", "a", "b")), "repeated"),
    "an empty node id": (_id(""), "rows 6"),
    "a node id that is too long for a request": (_id("a" * 513), "1 to 512 characters"),
    "a node id of two lines": (_id("a\r\nb"), "rows 6"),
    "a node id with a control character": (_id("a\x00b"), "control character"),
    "a node id with a line separator": (_id("a\u2028b"), "line break"),
    "a repeated node id": (_id("node-2"), "node-2"),
    "a node id that is not Unicode": (_id("\ud800"), "rows 6"),
    "too few node ids": (lambda g: replace(g, node_ids=NodeIds.of(g.node_ids[:-1])), "39 node ids"),
    "no training node": (_masked([]), "no training node"),
    "overlapping masks": (_overlapping, "more than one"),
    "a training node without a label": (_unlabelled_in_training, "no label"),
    "a mask of another size": (lambda g: replace(g, test_mask=np.zeros(3, dtype=bool)), "(3,)"),
    "a mask of integers": (lambda g: replace(g, val_mask=np.zeros(40, dtype=np.int64)), "int64"),
}


@every_case("case", BROKEN)
def test_a_broken_graph_is_refused_with_what_is_wrong_and_what_to_do(case: str) -> None:
    change, named = BROKEN[case]
    with pytest.raises(GraphError) as refused:
        validate(change(dense_features()))
    assert named in str(refused.value)
    assert refused.value.remedy.endswith(".")
