"""Graphs from library users' data: arrays, or a torch-geometric `Data`."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from projector.errors import GraphError
from projector.graph.graph import Graph
from projector.graph.raw_graph import Masks, RawGraph
from projector.graph.tensors import MASKS, TENSORS, from_torch_geometric


def from_arrays(
    edge_index: ArrayLike,
    features: Any,
    labels: ArrayLike,
    *,
    edge_weight: ArrayLike | None = None,
    train_mask: ArrayLike | None = None,
) -> Graph:
    """Return a graph made of arrays.

    `edge_index` is (2, E), with weights `edge_weight` (E,) if they are not 1, or a scipy sparse adjacency (n, n), whose
    values are the weights; repeated entries add up, unless all are 1. `features` (n, d) are dense or scipy CSR.
    `labels` (n,) are integers, -1 for none. Float labels are real-valued targets (n,) or (n, C) for the squared loss,
    NaN for none. `train_mask` is (n,) bool (default: every node with a label). An edge given in one direction counts in
    both. Raises GraphError that names the problem.
    """
    weights = None if edge_weight is None else _array("edge_weight", edge_weight)
    if not hasattr(features, "tocsr"):
        features = _array("features", features)
    if hasattr(edge_index, "tocoo"):
        if weights is not None:
            raise GraphError("Weights are given twice.", "Give them as values of the adjacency, or as edge_weight.")
        pairs, weights = _edges_of(edge_index, features.shape[0])
    else:
        pairs = _array("edge_index", edge_index)
        if pairs.ndim != 2 or pairs.shape[0] != 2:
            raise GraphError(f"edge_index has shape {pairs.shape}.", "Give a 2 x E array of row numbers.")
    raw = RawGraph.of(
        "the graph", edge_index=pairs, edge_weight=weights, features=features, labels=_array("labels", labels),
        masks=(), node_ids=None,
    ).in_both_directions()  # fmt: skip
    return _with_masks(raw, None if train_mask is None else _array("train_mask", train_mask), dedupe=True)


def _array(name: str, given: Any) -> NDArray[Any]:
    try:
        return np.asarray(given)
    except (TypeError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise GraphError(f"{name} cannot be read as an array: {reason}.", "Give a numpy array.") from error


def _edges_of(adjacency: Any, nodes: int) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """Return the pairs (2, E) of a scipy sparse adjacency, and their values (E,). Stored zeros are no edges."""
    if adjacency.shape != (nodes, nodes):
        raise GraphError(
            f"The adjacency has shape {adjacency.shape} for {nodes} rows of features.",
            f"Give one of shape ({nodes}, {nodes}), with nodes in the order of the feature rows.",
        )
    entries = adjacency.tocoo(copy=True)
    kept = entries.data != 0
    if (entries.data[kept] != 1).any():
        entries.data = entries.data.astype(np.float64)
        entries.sum_duplicates()
        kept = entries.data != 0
    return np.stack([entries.row, entries.col]).astype(np.int64)[:, kept], entries.data[kept]


def graph_of(data: Any, *, needs_edges: bool = False) -> Graph:
    """Return the graph in a torch-geometric `Data`, or in any object with its attributes or keys.

    Raises GraphError, also for an object without edges that `needs_edges`; a graph may have none.
    """
    given: Mapping[str, Any]
    if isinstance(data, Mapping):
        given = data
    elif hasattr(data, "to_dict"):
        given = data.to_dict()
    else:
        given = {**getattr(data, "__dict__", {}), **{name: getattr(data, name, None) for name in TENSORS}}
    if needs_edges and given.get("edge_index") is None and given.get("adj_t") is None:
        raise GraphError("The data has no edges.", "Set edge_index or adj_t, or use hops=0 for the features alone.")
    raw = from_torch_geometric({**given, **dict.fromkeys(MASKS)}, "data")
    mask = given.get("train_mask")
    return _with_masks(raw, None if mask is None else np.asarray(mask.cpu() if hasattr(mask, "cpu") else mask))


def _with_masks(raw: RawGraph, train: NDArray[Any] | None, *, dedupe: bool = False) -> Graph:
    if train is None:
        train = raw.labels >= 0
    if train.shape == (raw.nodes, 1):
        train = train[:, 0]
    if train.dtype != np.bool_ or train.shape != (raw.nodes,):
        raise GraphError(
            f"{raw.origin}: train_mask is {train.dtype} of shape {train.shape} for {raw.nodes} nodes.",
            "Give one boolean per node.",
        )
    nobody = np.zeros(raw.nodes, dtype=np.bool_)
    # The caller's array may change; the model's must not.
    return replace(raw, features=raw.features.copy(), node_ids=None).graph(Masks(train, nobody, nobody), dedupe=dedupe)
