"""A graph as read from files, before it is split and checked."""

from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.columns import NamedColumns
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Features, Graph, some
from projector.graph.ranges import index_type

#: The `edge_index` of a graph without edges.
NO_EDGES = np.empty((2, 0), dtype=np.int64)
#: Integers up to this size are exact in single precision.
WHOLE = 2**24


@dataclass(frozen=True, eq=False)
class Masks:
    """A split provided with the data, (n,) bool each."""

    train: NDArray[np.bool_]
    val: NDArray[np.bool_]
    test: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class RawGraph:
    """Arrays of a dataset with the right types; `origin` names it in errors."""

    origin: str
    #: (2, E) of a signed type, each undirected edge in both directions.
    edge_index: NDArray[np.signedinteger]
    features: Features
    #: (n,) int64, -1 for unlabelled nodes.
    labels: NDArray[np.int64]
    #: None if the dataset has no split of its own.
    masks: Masks | None
    #: None to use row numbers.
    node_ids: NodeIds | None
    #: Real-valued targets, (n, C) float64, if the labels were given as such: see `Graph.values`.
    values: NDArray[np.float64] | None = None
    #: Whether an edge that is given in one direction counts in both; for a graph without weights.
    undirected: bool = False
    #: The weight of each column of `edge_index`, (E,) float64, the same in both directions; None if all are 1.
    edge_weight: NDArray[np.float64] | None = None
    #: All splits of a dataset that has several; `masks` is the first.
    splits: tuple[Masks, ...] = ()
    #: What was left out or is not used, for the operator.
    notes: tuple[str, ...] = ()
    #: Names of classes or targets; None to number them.
    names: tuple[str, ...] | None = None
    #: The table's columns; None if the features have no names.
    columns: NamedColumns | None = None

    @classmethod
    def of(
        cls,
        origin: str,
        *,
        edge_index: NDArray[np.generic],
        features: NDArray[np.generic] | sp.csr_array,
        labels: NDArray[np.generic],
        masks: tuple[NDArray[np.generic] | None, ...],
        node_ids: NDArray[np.generic] | NodeIds | None,
        edge_weight: NDArray[np.generic] | None = None,
        names: tuple[str, ...] | None = None,
        columns: NamedColumns | None = None,
    ) -> "RawGraph":
        """Convert arrays of any integer or float type. Raises GraphError naming an array that cannot be converted.

        Float `labels`, (n,) or (n, C), are real-valued targets, with NaN for nodes without any. `edge_weight` is (E,)
        or (E, 1).
        """
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
            raise GraphError(
                f"{origin}: edge_index is {edge_index.dtype} of shape {edge_index.shape}.",
                "Give a 2 x E array of row numbers.",
            )
        nodes = features.shape[0]
        wide = np.promote_types(edge_index.dtype, np.int32) if edge_index.dtype.kind == "i" else np.dtype(np.int64)
        edges: NDArray[np.signedinteger] = edge_index.astype(wide, copy=False)
        if edges.size and (edges.min() < 0 or edges.max() >= nodes):
            wrong = int(edges.max()) if edges.max() >= nodes else int(edges.min())
            raise GraphError(
                f"{origin}: an edge names row {wrong}, but there are {nodes} nodes.",
                "Number the nodes from 0, in the order of the features.",
            )
        values = _values(origin, labels, nodes) if labels.dtype.kind == "f" else None
        return cls(
            origin=origin,
            edge_index=edges,
            features=_floats(origin, features),
            labels=_labels(origin, labels if values is None else _there(values), nodes),
            masks=_masks(origin, masks, nodes),
            node_ids=None if node_ids is None else _names(origin, node_ids, nodes),
            values=values,
            edge_weight=None if edge_weight is None else _weights(origin, edge_weight, edges.shape[1]),
            names=names,
            columns=columns,
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes or targets, by default numbers from 0."""
        if self.names is not None:
            return self.names
        count = int(self.labels.max(initial=-1)) + 1 if self.values is None else self.values.shape[1]
        return tuple(map(str, range(count)))

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.features.shape[0])

    def in_both_directions(self) -> "RawGraph":
        """Return the graph with every edge that is given in one direction also in the other, with the same weight."""
        if self.edge_weight is None:
            return replace(self, undirected=True)
        rows, columns = self.edge_index.astype(np.int64, copy=False)
        alone = ~np.isin(columns * self.nodes + rows, rows * self.nodes + columns)
        if not alone.any():
            return self
        return replace(
            self,
            edge_index=np.concatenate([self.edge_index, self.edge_index[::-1, alone]], axis=1),
            edge_weight=np.concatenate([self.edge_weight, self.edge_weight[alone]]),
        )

    def graph(self, masks: Masks, *, dedupe: bool = False) -> Graph:
        """Return the graph with the split `masks`, unchecked. `dedupe` is as in `adjacency`."""
        return Graph(
            adjacency=self.adjacency(dedupe=dedupe),
            features=self.features,
            labels=self.labels,
            train_mask=masks.train,
            val_mask=masks.val,
            test_mask=masks.test,
            node_ids=self.node_ids if self.node_ids is not None else NodeIds.of(map(str, range(self.nodes))),
            class_names=self.class_names,
            values=self.values,
            weighted=self.edge_weight is not None,
            columns=self.columns,
        )

    def adjacency(self, *, dedupe: bool = False) -> sp.csr_array:
        """Return A, (n, n) float64.

        Without weights, an edge given k times has the value k, or 1 with `dedupe`. With weights, raises GraphError for
        a repeated edge; with `dedupe`, only if its weights differ.
        """
        rows, columns = self.edge_index.astype(index_type(max(self.nodes, 2 * self.edge_index.shape[1])), copy=False)
        shape = (self.nodes, self.nodes)
        if self.edge_weight is None:
            # In integers, which take less memory until the last step.
            counts = sp.csr_array(sp.coo_array((np.ones(rows.size, dtype=np.int32), (rows, columns)), shape=shape))
            counts.sum_duplicates()
            if self.undirected:
                counts = counts.maximum(counts.T.tocsr())
            values = np.ones(counts.nnz) if dedupe else counts.data.astype(np.float64)
            return sp.csr_array((values, counts.indices, counts.indptr), shape=shape)
        order = np.lexsort((columns, rows))
        rows, columns, values = rows[order], columns[order], self.edge_weight[order]
        again = np.zeros(rows.size, dtype=np.bool_)
        again[1:] = (rows[1:] == rows[:-1]) & (columns[1:] == columns[:-1])
        self._refuse_repeated(rows, columns, again, again & (values != np.roll(values, 1)), dedupe=dedupe)
        entries = (values[~again], (rows[~again], columns[~again]))
        adjacency = sp.csr_array(sp.coo_array(entries, shape=shape))
        adjacency.sum_duplicates()
        return adjacency

    def _refuse_repeated(
        self,
        rows: NDArray[np.integer],
        columns: NDArray[np.integer],
        again: NDArray[np.bool_],
        other: NDArray[np.bool_],
        *,
        dedupe: bool,
    ) -> None:
        """Raise GraphError for sorted edges that occur `again`, and for those whose weight is then an `other` one."""
        if (dedupe and not other.any()) or not again.any():
            return
        wrong = other if other.any() else again
        names = self.node_ids or range(self.nodes)
        examples = some(f"{names[i]} -> {names[j]}" for i, j in zip(rows[wrong], columns[wrong], strict=True))
        if other.any():
            raise GraphError(
                f"{self.origin}: edges are repeated with different weights, such as {examples}.",
                "Give every edge one weight: add them up, or choose one.",
            )
        raise GraphError(
            f"{self.origin}: edges are repeated, such as {examples}.",
            "Give every edge once in either direction, or take each of them once with --dedupe.",
        )


def _floats(origin: str, features: NDArray[np.generic] | sp.csr_array) -> Features:
    if features.dtype.kind not in "biuf":
        raise GraphError(f"{origin}: the features are {features.dtype}.", "Give numbers.")
    values = features if isinstance(features, np.ndarray) else features.data
    short = features.dtype.kind in "iu" and values.size and values.min() >= -WHOLE and values.max() <= WHOLE
    dtype = np.float32 if short or np.can_cast(features.dtype, np.float32) else np.float64
    if isinstance(features, np.ndarray):
        return np.ascontiguousarray(features, dtype=dtype)
    converted = sp.csr_array(features, dtype=dtype, copy=True)
    # Repeated entries add up, as elsewhere; products require a single one.
    converted.sum_duplicates()
    return converted


def _weights(origin: str, weights: NDArray[np.generic], edges: int) -> NDArray[np.float64] | None:
    """Return the weights of edges as (E,) float64; None if all are 1."""
    flat = weights.reshape(-1) if weights.shape == (edges, 1) else weights
    if flat.dtype.kind not in "biuf" or flat.shape != (edges,):
        raise GraphError(
            f"{origin}: edge_weight is {weights.dtype} of shape {weights.shape} for {edges} columns of edge_index.",
            "Give one number per column.",
        )
    return None if (flat == 1).all() else flat.astype(np.float64)


def _values(origin: str, labels: NDArray[np.generic], nodes: int) -> NDArray[np.float64]:
    if labels.ndim not in (1, 2) or labels.shape[0] != nodes or labels.size == 0:
        raise GraphError(
            f"{origin}: the targets are {labels.dtype} of shape {labels.shape} for {nodes} nodes.",
            "Give one real number per node, or one row of them; classes are integers.",
        )
    values = labels.reshape(nodes, -1).astype(np.float64)
    if np.isinf(values).any():
        raise GraphError(f"{origin}: some targets are infinite.", "Give finite numbers, or NaN for a node without one.")
    return values


def _there(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return 0 for nodes with targets, -1 for the others."""
    return np.where(np.isnan(values).all(axis=1), -1, 0)


def _labels(origin: str, labels: NDArray[np.generic], nodes: int) -> NDArray[np.int64]:
    flat = labels.reshape(-1) if labels.shape == (nodes, 1) else labels
    if flat.dtype.kind not in "iu" or flat.shape != (nodes,):
        raise GraphError(
            f"{origin}: the labels are {labels.dtype} of shape {labels.shape} for {nodes} nodes.",
            "Give one integer per node, -1 for a node without a label.",
        )
    # The largest label sets the number of classes, so a stray one must not create a million.
    if flat.size and int(flat.max()) >= max(nodes, 2):
        raise GraphError(
            f"{origin}: the label {flat.max()} of row {flat.argmax()} is out of range.",
            "Number the classes from 0 without gaps.",
        )
    return flat.astype(np.int64)


def _masks(origin: str, masks: tuple[NDArray[np.generic] | None, ...], nodes: int) -> Masks | None:
    given = [mask for mask in masks if mask is not None]
    if not given:
        return None
    if len(given) < len(masks):
        raise GraphError(
            f"{origin}: only some of train_mask, val_mask and test_mask are present.", "Give all three, or none."
        )
    flat = [mask.reshape(-1) if mask.shape == (nodes, 1) else mask for mask in given]
    for mask in flat:
        if mask.dtype != np.bool_ or mask.shape != (nodes,):
            raise GraphError(
                f"{origin}: a mask is {mask.dtype} of shape {mask.shape} for {nodes} nodes.",
                "Give one boolean per node; of several splits, choose one.",
            )
    return Masks(*(mask.astype(np.bool_) for mask in flat))


def _names(origin: str, node_ids: NDArray[np.generic] | NodeIds, nodes: int) -> NodeIds:
    if isinstance(node_ids, NodeIds):
        return node_ids
    if node_ids.ndim != 1 or node_ids.dtype.kind not in "Uiu":
        raise GraphError(
            f"{origin}: node_ids are {node_ids.dtype} of shape {node_ids.shape}.", "Give one string per node."
        )
    if node_ids.size != nodes:
        raise GraphError(f"{origin}: {node_ids.size} node ids are given for {nodes} nodes.", "Give one id per node.")
    return NodeIds.of(map(str, node_ids))
