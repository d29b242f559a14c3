"""Small graphs of every shape that breaks naive code, and dense recomputations for comparison."""

from collections.abc import Callable, Sequence

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.graph.external_ids import NodeIds
from projector.graph.graph import Features, Graph
from projector.network.spec import ModelSpec, PropagationKind

Matrix = NDArray[np.float64]


def graph_of(
    edges: Sequence[tuple[int, int]],
    features: Features,
    labels: Sequence[int],
    *,
    train: Sequence[int] | None = None,
    val: Sequence[int] = (),
    test: Sequence[int] = (),
    classes: int = 2,
) -> Graph:
    """Build a graph from undirected edges; all labelled nodes are for training unless `train` selects some."""
    n = features.shape[0]
    adjacency = np.zeros((n, n))
    for i, j in edges:
        adjacency[i, j] = adjacency[j, i] = 1.0
    y = np.array(labels, dtype=np.int64)

    def mask(rows: Sequence[int]) -> NDArray[np.bool_]:
        return np.isin(np.arange(n), rows)

    return Graph(
        adjacency=sp.csr_array(adjacency),
        features=features,
        labels=y,
        train_mask=mask(train if train is not None else [int(i) for i in np.flatnonzero(y >= 0)]),
        val_mask=mask(val),
        test_mask=mask(test),
        node_ids=NodeIds.of(f"node-{i}" for i in range(n)),
        class_names=tuple(f"class-{c}" for c in range(classes)),
    )


def _edges(rng: np.random.Generator, n: int, density: float) -> list[tuple[int, int]]:
    return [(i, j) for i in range(n) for j in range(i) if rng.random() < density]


def dense_features() -> Graph:
    rng = np.random.default_rng(1)
    labels = rng.integers(-1, 3, 40)
    return graph_of(_edges(rng, 40, 0.1), rng.standard_normal((40, 6)), labels.tolist(), classes=3)


def float32_features() -> Graph:
    rng = np.random.default_rng(2)
    features = rng.standard_normal((25, 5)).astype(np.float32)
    return graph_of(_edges(rng, 25, 0.15), features, rng.integers(0, 2, 25).tolist())


def sparse_features() -> Graph:
    rng = np.random.default_rng(3)
    features = sp.csr_array((rng.random((50, 20)) < 0.15).astype(np.float32))
    return graph_of(_edges(rng, 50, 0.06), features, rng.integers(0, 4, 50).tolist(), train=range(35), classes=4)


def fewer_nodes_than_features() -> Graph:
    rng = np.random.default_rng(4)
    return graph_of(_edges(rng, 12, 0.2), rng.standard_normal((12, 30)), rng.integers(0, 2, 12).tolist())


def single_node() -> Graph:
    return graph_of([], np.array([[1.0, -2.0, 0.5]]), [1])


def isolated_nodes() -> Graph:
    rng = np.random.default_rng(5)
    return graph_of([(0, 1), (1, 2)], rng.standard_normal((8, 3)), [0, 1, 0, 1, 0, 1, 0, 1])


def no_edges() -> Graph:
    rng = np.random.default_rng(6)
    return graph_of([], rng.standard_normal((9, 4)), rng.integers(0, 3, 9).tolist(), classes=3)


def zero_rows() -> Graph:
    rng = np.random.default_rng(7)
    features = rng.standard_normal((20, 4))
    features[::3] = 0.0
    return graph_of(_edges(rng, 20, 0.1), features, rng.integers(0, 2, 20).tolist())


def duplicate_rows() -> Graph:
    rng = np.random.default_rng(8)
    features = np.repeat(rng.standard_normal((6, 5)), 4, axis=0)
    return graph_of(_edges(rng, 24, 0.1), features, rng.integers(0, 2, 24).tolist())


GRAPHS: list[Callable[[], Graph]] = [
    dense_features,
    float32_features,
    sparse_features,
    fewer_nodes_than_features,
    single_node,
    isolated_nodes,
    no_edges,
    zero_rows,
    duplicate_rows,
]


def dense(features: Features) -> Matrix:
    """Return features as a float64 array (n, d)."""
    return np.asarray(features if isinstance(features, np.ndarray) else features.toarray(), dtype=np.float64)


def with_weights(adjacency: sp.csr_array, seed: int = 0) -> sp.csr_array:
    """Return the adjacency with a random weight for every edge, over three orders of magnitude."""
    n = adjacency.shape[0]
    draws = np.triu(10.0 ** np.random.default_rng([seed, n]).uniform(-2, 1, (n, n)), 1)
    return sp.csr_array(adjacency.toarray() * (draws + draws.T))


def dense_propagation(
    adjacency: sp.csr_array, kind: PropagationKind, self_loops: float, live: NDArray[np.bool_] | None = None
) -> Matrix:
    """Return P (n, n), node by node."""
    n = adjacency.shape[0]
    alive = np.ones(n, dtype=bool) if live is None else live
    looped = (adjacency.toarray() + self_loops * np.eye(n)) * np.outer(alive, alive)
    P = np.zeros((n, n))
    degrees = looped.sum(axis=1)
    for i in range(n):
        for j in range(n):
            if looped[i, j]:
                scale = np.sqrt(degrees[i] * degrees[j]) if kind is PropagationKind.SYM else degrees[i]
                P[i, j] = looped[i, j] / scale
    return P


def dense_blocks(graph: Graph, spec: ModelSpec) -> list[Matrix]:
    """Return P^h X (n, d) for each feature block, then (P^l - diag P^l) Y (n, C) for each label block."""
    P = dense_propagation(graph.adjacency, spec.propagation, spec.self_loops)
    powers = [np.linalg.matrix_power(P, hop) for hop in range(max(spec.hops, spec.label_hops) + 1)]
    Y = np.zeros((graph.nodes, graph.num_classes))
    training = np.flatnonzero(graph.train_mask)
    Y[training, graph.labels[training]] = 1.0
    labels = [(powers[hop] - np.diag(np.diag(powers[hop]))) @ Y for hop in range(1, spec.label_hops + 1)]
    return [powers[hop] @ dense(graph.features) for hop in spec.block_hops] + labels


def dense_representation(graph: Graph, spec: ModelSpec) -> Matrix:
    """Return H on training rows, blocks side by side, (n_train, blocks * d)."""
    return np.hstack(dense_blocks(graph, spec))[graph.train_mask]


def side_by_side(weights: Matrix) -> Matrix:
    """Reshape (blocks, d, C) to (blocks * d, C)."""
    return weights.reshape(-1, weights.shape[-1])


def dense_residual(graph: Graph, H: Matrix, weights: Matrix) -> Matrix:
    """Return p - onehot(y) on training rows, (n_train, C)."""
    logits = H @ side_by_side(weights)
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    return p - np.eye(graph.num_classes)[graph.labels[graph.train_mask]]
