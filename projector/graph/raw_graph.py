"""A graph as read from files, before it is split and checked."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.external_ids import NodeIds
from projector.graph.graph import Features
from projector.graph.ranges import index_type

#: Integers up to this size are exact in single precision.
_WHOLE = 2**24


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

    @classmethod
    def of(
        cls,
        origin: str,
        *,
        edge_index: NDArray[np.generic],
        features: NDArray[np.generic] | sp.csr_array,
        labels: NDArray[np.generic],
        masks: tuple[NDArray[np.generic] | None, ...],
        node_ids: NDArray[np.generic] | None,
    ) -> "RawGraph":
        """Convert arrays of any integer or float type. Raises GraphError naming an array that cannot be converted.

        Float `labels`, (n,) or (n, C), are real-valued targets, with NaN for nodes without any.
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
        )

    @property
    def class_names(self) -> tuple[str, ...]:
        """Numbers from 0, one for each class or target."""
        count = int(self.labels.max(initial=-1)) + 1 if self.values is None else self.values.shape[1]
        return tuple(map(str, range(count)))

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.features.shape[0])

    def adjacency(self, *, dedupe: bool = False) -> sp.csr_array:
        """Return A, (n, n) float64. An edge given k times has the value k, or 1 with `dedupe`."""
        rows, columns = self.edge_index.astype(index_type(max(self.nodes, self.edge_index.shape[1])), copy=False)
        adjacency = sp.csr_array(sp.coo_array((np.ones(rows.size), (rows, columns)), shape=(self.nodes, self.nodes)))
        adjacency.sum_duplicates()
        if dedupe:
            adjacency.data[:] = 1.0
        return adjacency


def _floats(origin: str, features: NDArray[np.generic] | sp.csr_array) -> Features:
    if features.dtype.kind not in "biuf":
        raise GraphError(f"{origin}: the features are {features.dtype}.", "Give numbers.")
    values = features if isinstance(features, np.ndarray) else features.data
    short = features.dtype.kind in "iu" and values.size and values.min() >= -_WHOLE and values.max() <= _WHOLE
    dtype = np.float32 if short or np.can_cast(features.dtype, np.float32) else np.float64
    if isinstance(features, np.ndarray):
        return np.ascontiguousarray(features, dtype=dtype)
    converted = sp.csr_array(features, dtype=dtype, copy=True)
    # Repeated entries add up, as elsewhere; products require a single one.
    converted.sum_duplicates()
    return converted


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


def _names(origin: str, node_ids: NDArray[np.generic], nodes: int) -> NodeIds:
    if node_ids.ndim != 1 or node_ids.dtype.kind not in "Uiu":
        raise GraphError(
            f"{origin}: node_ids are {node_ids.dtype} of shape {node_ids.shape}.", "Give one string per node."
        )
    if node_ids.size != nodes:
        raise GraphError(f"{origin}: {node_ids.size} node ids are given for {nodes} nodes.", "Give one id per node.")
    return NodeIds.of(map(str, node_ids))
