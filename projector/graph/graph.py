"""The graph that a model is trained on, and its validation."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from typing import TypeAlias

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.columns import NamedColumns
from projector.graph.edges import Edges
from projector.graph.external_ids import NodeIds
from projector.graph.node_ids import MAX_CHARACTERS, RULE, is_allowed
from projector.graph.ranges import parts_of_rows

#: X, (n, d): dense, or CSR when sparse.
Features: TypeAlias = NDArray[np.float32] | NDArray[np.float64] | sp.csr_array

#: Label of an unlabelled node.
NO_LABEL = -1
#: The largest feature must lie between this and its inverse, so that fourth powers and their sums neither vanish nor
#: overflow.
_SMALLEST_LARGEST = 1e-60
#: The range of edge weights: their sums and products stay far from the ends of double precision.
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-30, 1e30
#: Largest number of examples in an error message.
_EXAMPLES = 3


@dataclass(frozen=True, eq=False)
class Graph:
    """n nodes, the edges between them, their features, labels and split. `validate` checks the conditions."""

    #: A, (n, n) float64: symmetric, without self loops, column indices sorted. Its values are ones, or edge weights.
    adjacency: sp.csr_array
    #: X, (n, d) float32 or float64.
    features: Features
    #: y, (n,) int64; -1 for unlabelled nodes.
    labels: NDArray[np.int64]
    #: (n,) bool, disjoint; every node in one of them has a label.
    train_mask: NDArray[np.bool_]
    val_mask: NDArray[np.bool_]
    test_mask: NDArray[np.bool_]
    #: External ids, one per row.
    node_ids: NodeIds
    #: Public names of the classes or targets.
    class_names: tuple[str, ...]
    #: Real-valued targets instead of classes, (n, C) float64. `labels` are then 0 for nodes with targets, otherwise -1.
    values: NDArray[np.float64] | None = None
    #: Whether edges may have other weights than 1.
    weighted: bool = False
    #: The columns of the table that the features come from, which fill the first columns of X; None without names.
    columns: NamedColumns | None = None

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.adjacency.shape[0])

    @property
    def edges(self) -> int:
        """Number of undirected edges."""
        return int(self.adjacency.nnz) // 2

    def without_edges(self, pairs: NDArray[np.int64]) -> "Graph":
        """Return the graph without the edges `pairs` (k, 2), each in either or both directions; ignore missing ones."""
        edges = Edges(self.adjacency, np.ones(self.nodes, dtype=np.bool_))
        entries = edges.entries(np.concatenate([pairs, pairs[:, ::-1]]))
        gone = entries[entries >= 0]
        if not gone.size:
            return self
        adjacency = self.adjacency.copy()
        adjacency.data[gone] = 0.0
        adjacency.eliminate_zeros()
        return replace(self, adjacency=adjacency)

    def without_any_edges(self) -> "Graph":
        """Return the graph of the nodes alone."""
        return replace(self, adjacency=sp.csr_array((self.nodes, self.nodes), dtype=np.float64), weighted=False)

    @property
    def num_features(self) -> int:
        """d."""
        return int(self.features.shape[1])

    @property
    def num_classes(self) -> int:
        """C, the number of classes, or of real-valued targets per node."""
        return len(self.class_names)


def feature_rows(features: Features, rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the features of the given rows, dense, (m, d) float64."""
    chosen = features[rows]
    return np.asarray(chosen if isinstance(chosen, np.ndarray) else chosen.toarray(), dtype=np.float64)


def one_hot(labels: NDArray[np.int64], training: NDArray[np.bool_], classes: int) -> sp.csr_array:
    """Return Y (n, C), float64: one-hot labels of the nodes in `training` (n,), zero rows for all others.

    Labels of validation and test nodes are never an input. (The official code feeds those of validation nodes.)
    """
    rows = np.flatnonzero(training)
    indptr = np.concatenate([[0], np.cumsum(training, dtype=np.int64)])
    return sp.csr_array((np.ones(rows.size), labels[rows], indptr), shape=(labels.size, classes))


def validate(graph: Graph) -> None:
    """Raise GraphError with examples unless a model can be trained on `graph`."""
    _check_node_ids(graph)
    check_adjacency(graph)
    _check_features(graph)
    _check_labels(graph)
    _check_split(graph)


def validate_live(graph: Graph, live: NDArray[np.bool_]) -> None:
    """Raise GraphError unless a model could have been trained on `graph` when the nodes `live` (n,) were its only ones.

    Rows of deleted nodes have no ids, edges, features or labels, and pass. The split may be missing entirely.
    """
    if not live.any():
        return
    _check_names(graph.node_ids.take(np.flatnonzero(live)))
    check_adjacency(graph)
    _check_features(graph)
    _check_labels(graph)
    if graph.train_mask.any():
        _check_split(graph)


def _check_node_ids(graph: Graph) -> None:
    ids = graph.node_ids
    if graph.adjacency.shape != (graph.nodes, graph.nodes) or graph.nodes == 0:
        raise GraphError(
            f"The adjacency matrix has shape {graph.adjacency.shape}.", "Give a square matrix of at least one node."
        )
    if len(ids) != graph.nodes:
        raise GraphError(f"{len(ids)} node ids are given for {graph.nodes} nodes.", "Give one id per node.")
    _check_names(ids)


def _check_names(ids: NodeIds) -> None:
    if repeated := some(ids.repeated()):
        raise GraphError(f"Node ids are not unique: {repeated}.", "Give every node an id of its own.")
    doubtful = np.flatnonzero(~(ids.plain() & ids.named & (ids.lengths <= MAX_CHARACTERS)))
    refused = [row for row, name in zip(doubtful, ids.take(doubtful), strict=True) if not is_allowed(name)]
    if refused:
        raise GraphError(
            f"{len(refused)} node id(s) cannot be used in requests, such as those in rows {some(refused)}.",
            f"Give every node an id of {RULE}, in valid Unicode.",
        )


def check_adjacency(graph: Graph) -> None:
    """Raise GraphError with examples unless the edges and their weights are those of an undirected graph."""
    adjacency, ids = graph.adjacency, graph.node_ids
    if not isinstance(adjacency, sp.csr_array) or adjacency.dtype != np.float64:
        raise GraphError(
            f"The adjacency is a {type(adjacency).__name__} of {adjacency.dtype}.",
            "Give a scipy csr_array of float64.",
        )
    if adjacency.nnz and (adjacency.indices.min() < 0 or adjacency.indices.max() >= graph.nodes):
        raise GraphError("An edge names a node that does not exist.", "Give edges between existing nodes only.")
    ascending = True
    loops, weighted = [], []
    for rows, columns, weights in _entries(adjacency):
        ascending &= bool(((np.diff(columns) > 0) | (np.diff(rows) > 0)).all())
        loops.append(rows[rows == columns])
        odd = ~((weights >= SMALLEST_WEIGHT) & (weights <= LARGEST_WEIGHT)) if graph.weighted else weights != 1.0
        weighted.append((rows[odd], columns[odd], weights[odd]))
    if looped := np.concatenate([*loops, np.empty(0, dtype=np.int64)]).tolist():
        raise GraphError(
            f"{len(looped)} self loop(s) are stored, such as at {some(ids[i] for i in looped)}.",
            "Remove them; propagation adds self loops of its own (`self_loops`).",
        )
    if not ascending:
        raise GraphError(
            "The columns of the adjacency are repeated or unsorted in some rows.",
            "Give a CSR matrix in canonical format.",
        )
    odd_rows, odd_columns, odd_weights = (np.concatenate(parts) for parts in zip(*weighted, strict=True))
    if odd_rows.size:
        i, j, weight = odd_rows[0], odd_columns[0], odd_weights[0]
        # Each edge appears in both directions, as far as the graph is symmetric.
        repeated = np.unique(np.sort(np.column_stack([odd_rows, odd_columns]), axis=1), axis=0)
        if graph.weighted:
            raise GraphError(
                f"{repeated.shape[0]} edge(s) have a weight that cannot be used, such as {ids[i]} -> {ids[j]} with "
                f"{weight:g}.",
                f"Give weights from {SMALLEST_WEIGHT:g} to {LARGEST_WEIGHT:g}, and leave out edges of weight 0.",
            )
        raise GraphError(
            f"{repeated.shape[0]} edge(s) are repeated, such as {ids[i]} -> {ids[j]}, given {weight:g} times.",
            "Give every edge once in either direction, or take each of them once with --dedupe. If these are weights, "
            "give them as edge_weight.",
        )
    # Compare positions only, which takes an eighth of the memory.
    pattern = sp.csr_array(
        (np.ones(adjacency.nnz, dtype=np.int8), adjacency.indices, adjacency.indptr), shape=adjacency.shape
    )
    other = pattern.T.tocsr()
    if not (np.array_equal(other.indptr, pattern.indptr) and np.array_equal(other.indices, pattern.indices)):
        one_way = sp.coo_array(pattern > other)
        pairs = zip(one_way.row[:_EXAMPLES], one_way.col[:_EXAMPLES], strict=True)
        raise GraphError(
            f"{one_way.nnz} edge(s) are given in one direction only, such as "
            f"{', '.join(f'{ids[i]} -> {ids[j]}' for i, j in pairs)}.",
            "Give every edge in both directions, or let --undirected add the other one: Lethe works on undirected "
            "graphs.",
        )
    if graph.weighted:
        _check_symmetric_weights(graph)


def _check_symmetric_weights(graph: Graph) -> None:
    """Raise GraphError if the two directions of an edge have different weights."""
    adjacency, ids = graph.adjacency, graph.node_ids
    other = adjacency.T.tocsr()
    places = np.flatnonzero(other.data != adjacency.data)
    if places.size:
        i = int(np.searchsorted(adjacency.indptr, places[0], side="right")) - 1
        j = int(adjacency.indices[places[0]])
        raise GraphError(
            f"{places.size // 2} edge(s) have different weights in their two directions, such as {ids[i]} -> {ids[j]} "
            f"with {adjacency.data[places[0]]:g} and back with {other.data[places[0]]:g}.",
            "Give both directions the same weight: Lethe works on undirected graphs.",
        )


def _entries(matrix: sp.csr_array) -> Iterator[tuple[NDArray[np.int64], NDArray[np.integer], NDArray[np.float64]]]:
    """Yield rows, columns and values of the stored entries, some rows at a time, to limit memory."""
    for first, end in parts_of_rows(matrix.indptr):
        part = slice(matrix.indptr[first], matrix.indptr[end])
        rows = np.repeat(np.arange(first, end), np.diff(matrix.indptr[first : end + 1]))
        yield rows, matrix.indices[part], matrix.data[part]


def _check_features(graph: Graph) -> None:
    features = graph.features
    if features.ndim != 2 or features.shape[0] != graph.nodes or features.shape[1] == 0:
        raise GraphError(
            f"The features have shape {features.shape} for {graph.nodes} nodes.",
            "Give one row of at least one feature per node.",
        )
    if features.dtype not in (np.float32, np.float64):
        raise GraphError(f"The features are {features.dtype}.", "Give float32 or float64 features.")
    if isinstance(features, np.ndarray):
        bad = np.flatnonzero(~np.isfinite(features).all(axis=1))
    else:
        if not features.has_canonical_format or (features.nnz and features.indices.max() >= features.shape[1]):
            raise GraphError(
                "The sparse features have repeated, unsorted or out-of-range column indices.",
                "Give each row's columns once, in ascending order.",
            )
        rows = np.repeat(np.arange(graph.nodes), np.diff(features.indptr))
        bad = np.unique(rows[~np.isfinite(features.data)])
    if bad.size:
        raise GraphError(
            f"{bad.size} node(s) have NaN or infinite features, such as {some(graph.node_ids[i] for i in bad)}.",
            "Replace these values by finite numbers.",
        )
    stored = features if isinstance(features, np.ndarray) else features.data
    largest = max(float(stored.max(initial=0.0)), -float(stored.min(initial=0.0)))
    if largest and not _SMALLEST_LARGEST <= largest <= 1 / _SMALLEST_LARGEST:
        raise GraphError(
            f"The largest feature is {largest:.1e} in size, and powers of it leave the range of double precision.",
            "Multiply all features by one number, so that the largest is near 1.",
        )


def _check_labels(graph: Graph) -> None:
    if graph.values is not None:
        _check_values(graph, graph.values)
    elif graph.num_classes < 2:
        raise GraphError(f"There are {graph.num_classes} class(es).", "Give labels of at least two classes.")
    if len(set(graph.class_names)) != graph.num_classes or not all(graph.class_names):
        raise GraphError("Class names are empty or repeated.", "Give every class a name of its own.")
    if graph.labels.shape != (graph.nodes,) or graph.labels.dtype != np.int64:
        raise GraphError(
            f"The labels are {graph.labels.dtype} of shape {graph.labels.shape} for {graph.nodes} nodes.",
            "Give one int64 label per node, -1 for a node without one.",
        )
    classes = 1 if graph.values is not None else graph.num_classes
    outside = np.flatnonzero((graph.labels < -1) | (graph.labels >= classes))
    if outside.size:
        first = outside[0]
        raise GraphError(
            f"{outside.size} label(s) are out of range, such as {graph.labels[first]} of node {graph.node_ids[first]}.",
            f"Give labels from 0 to {classes - 1}, or -1 for a node without one.",
        )


def _check_values(graph: Graph, values: NDArray[np.float64]) -> None:
    if values.dtype != np.float64 or values.shape != (graph.nodes, graph.num_classes) or not graph.num_classes:
        raise GraphError(
            f"The targets are {values.dtype} of shape {values.shape} for {graph.nodes} nodes and "
            f"{graph.num_classes} name(s).",
            "Give one row of float64 targets per node, and a name for each column.",
        )
    bad = np.flatnonzero((graph.labels >= 0) & ~np.isfinite(values).all(axis=1))
    if bad.size:
        raise GraphError(
            f"{bad.size} node(s) have an infinite or missing target, such as {some(graph.node_ids[i] for i in bad)}.",
            "Give finite numbers, or NaN for every target of a node without any.",
        )


def _check_split(graph: Graph) -> None:
    masks = {"training": graph.train_mask, "validation": graph.val_mask, "test": graph.test_mask}
    for name, mask in masks.items():
        if mask.shape != (graph.nodes,) or mask.dtype != np.bool_:
            raise GraphError(
                f"The {name} mask is {mask.dtype} of shape {mask.shape} for {graph.nodes} nodes.",
                "Give one boolean per node.",
            )
        unlabelled = np.flatnonzero(mask & (graph.labels < 0))
        if unlabelled.size:
            raise GraphError(
                f"{unlabelled.size} node(s) of the {name} set have no label, "
                f"such as {some(graph.node_ids[i] for i in unlabelled)}.",
                "Take nodes without a label out of the masks.",
            )
    shared = np.flatnonzero(graph.train_mask.astype(int) + graph.val_mask + graph.test_mask > 1)
    if shared.size:
        raise GraphError(
            f"{shared.size} node(s) are in more than one of the training, validation and test sets, "
            f"such as {some(graph.node_ids[i] for i in shared)}.",
            "Give each node to one set at most.",
        )
    if not graph.train_mask.any():
        raise GraphError("There is no training node.", "Give a training mask with at least one labelled node.")


def some(names: Iterable[object]) -> str:
    """Return the first few of `names`, comma separated, for an error message."""
    listed = [str(name) for name in islice(names, _EXAMPLES + 1)]
    return ", ".join(listed[:_EXAMPLES]) + (", …" if len(listed) > _EXAMPLES else "")
