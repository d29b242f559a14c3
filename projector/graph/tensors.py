"""Graphs in tensors, such as those of a torch-geometric `Data`. torch-geometric itself is not needed."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.raw_graph import NO_EDGES, RawGraph
from projector.graph.sparse_parts import from_compressed, from_coordinates

MASKS = ("train_mask", "val_mask", "test_mask")
#: Attributes read from a `Data`.
ATTRIBUTES = ("edge_index", "edge_weight", "x", "y", *MASKS, "node_ids")
#: Those, and a sparse tensor in place of `edge_index` and `edge_weight`.
TENSORS = (*ATTRIBUTES, "adj_t")
#: Dense features with at most this share of non-zeros become CSR.
SPARSE_SHARE = 0.2
#: Similarity from which a name counts as a misspelling of another.
_NEARLY = 0.85
_NUMPY_FLOATS = (torch.float16, torch.float32, torch.float64)
_WEIGHTS = "weights or attributes of edges"
#: Attributes that a user would expect to be used: a lower-case pattern, its meaning, the remedy.
_MEANT = (
    (
        re.compile(r"weight|edge_?(attr|feat|val)"),
        _WEIGHTS,
        "Call one weight per edge edge_weight, and remove other attributes of edges.",
    ),
    (
        re.compile(
            r"mask|split|(^|_)(train|val|valid|validation|test)_?(idx|ids?|ind|index|indices|nodes)(_|$)|(^|_)idx_"
        ),
        "a split",
        f"Give the split as {', '.join(MASKS)}, one boolean per node each, and remove the rest.",
    ),
    (
        re.compile(r"(^|_)(node|n)?_?ids?(_|$)|^names?$|node_?(name|key)s?$"),
        "ids",
        "Call the ids of nodes node_ids, one string per node, and remove all others.",
    ),
)
_REMEDY = (
    "Give one plain torch_geometric.data.Data of tensors, and node_ids, if any, as a list of str: "
    "[str(name) for name in ids]."
)


def from_torch_geometric(data: Mapping[str, Any], origin: str) -> RawGraph:
    """Return the graph in the attributes of a torch-geometric `Data`. Sparse features become CSR.

    Reads only `x` (n, d), `y` (n,), and optionally `edge_index` (2, E), without which there are no edges, `edge_weight`
    (E,), the three masks (n,) bool and `node_ids`. A sparse `adj_t` (n, n) may replace `edge_index`; its values are the
    weights. Raises GraphError for attributes that are missing or not tensors, for repeated entries of `adj_t`, and as
    `refuse_unread` does.
    """
    by_matrix = data.get("adj_t") is not None
    for name in ("adj_t" if by_matrix else "edge_index", "x", "y"):
        if not isinstance(data.get(name), torch.Tensor) and not (name == "edge_index" and data.get(name) is None):
            raise GraphError(f"{origin}: the Data has no tensor {name!r}.", "Set edge_index, x and y.")
    if by_matrix and not (data.get("edge_index") is None and data.get("edge_weight") is None):
        raise GraphError(f"{origin} gives the edges as adj_t and as edge_index.", "Remove one of them.")
    refuse_unread(origin, {name: value for name, value in data.items() if name not in TENSORS})
    try:
        labels = _array(data["y"])
        if labels.shape[:1] != tuple(data["x"].shape[:1]):
            # Check before converting sparse features to CSR, which takes memory for every row they claim.
            raise GraphError(
                f"{origin}: x has shape {tuple(data['x'].shape)} and y has shape {labels.shape}.",
                "Give one row of features and one label per node.",
            )
        edges, weights = (
            _edges_of(data["adj_t"], len(labels), origin)
            if by_matrix
            else (data.get("edge_index"), data.get("edge_weight"))
        )
        return RawGraph.of(
            origin,
            edge_index=NO_EDGES if edges is None else _array(edges),
            features=_features(data["x"]),
            labels=labels,
            masks=tuple(None if data.get(name) is None else _array(data[name]) for name in MASKS),
            node_ids=None if data.get("node_ids") is None else _array(data["node_ids"]),
            edge_weight=None if weights is None else _array(weights),
        )
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise GraphError(f"{origin} has attributes that are not arrays: {reason}.", _REMEDY) from error


def _edges_of(adj_t: torch.Tensor, nodes: int, origin: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the edges (2, E) of a sparse tensor (n, n) and their weights (E,). Stored zeros are no edges."""
    if adj_t.layout is torch.strided or tuple(adj_t.shape) != (nodes, nodes):
        raise ValueError(f"adj_t is no sparse tensor of shape {(nodes, nodes)}")
    stored = adj_t._values() if adj_t.layout is torch.sparse_coo else adj_t.values()
    # A copy, because the tensor may share its values.
    matrix = sp.csr_array(_sparse(adj_t), copy=True)
    matrix.sum_duplicates()
    if matrix.nnz < stored.numel():
        raise GraphError(f"{origin}: adj_t gives an edge more than once.", "Give each one once, with its weight.")
    entries = sp.coo_array(matrix)
    kept = entries.data != 0
    # adj_t is transposed.
    return np.stack([entries.col[kept], entries.row[kept]]).astype(np.int64), entries.data[kept]


def looks_meant(name: str) -> bool:
    """Return whether a name looks like edge weights, a split, ids, or a misspelled attribute."""
    return any(pattern.search(name.lower()) for pattern, _, _ in _MEANT) or _meant_by(name) is not None


def looks_like(name: str) -> str | None:
    """Return what a name looks like of edge weights, a split and ids, or None."""
    return next((what for pattern, what, _ in _MEANT if pattern.search(name.lower())), None)


def _meant_by(name: str) -> str | None:
    """Return the attribute that `name` probably misspells, or None."""
    near = get_close_matches(name.lower(), ATTRIBUTES, 1, _NEARLY)
    return near[0] if near else None


def refuse_unread(origin: str, others: Mapping[str, Any]) -> None:
    """Raise GraphError for an unread attribute that looks intended for use. Weights that are all 1 are accepted."""
    for name, value in others.items():
        if value is None or isinstance(value, str | int | float) or getattr(value, "ndim", 1) == 0:
            continue
        for pattern, what, remedy in _MEANT:
            if pattern.search(name.lower()) and not (what == _WEIGHTS and _all_ones(value)):
                raise GraphError(f"{origin}: {name} looks like {what} and would not be read.", remedy)
        if (meant := _meant_by(name)) is not None:
            raise GraphError(f"{origin}: {name} would not be read; did you mean {meant}?", "Correct it, or remove it.")


def _all_ones(value: object) -> bool:
    try:
        weights = _array(value)
    except (TypeError, ValueError, RuntimeError):
        return False
    return weights.dtype.kind in "biuf" and bool((weights == 1).all())


def _array(value: object) -> NDArray[Any]:
    """Return a tensor or list as an array. Raises ValueError for a tensor whose repeated values could fill any size."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    plain = value.detach().cpu()
    if plain.layout is not torch.strided:
        raise ValueError("a tensor other than x is sparse")
    if plain.numel() * plain.element_size() > plain.untyped_storage().nbytes():
        raise ValueError(f"a tensor of shape {tuple(plain.shape)} has more values than are stored")
    if plain.dtype.is_floating_point and plain.dtype not in _NUMPY_FLOATS:
        # Single precision represents every value of the shorter types that numpy lacks.
        plain = plain.float()
    return plain.numpy()


def _features(x: torch.Tensor) -> NDArray[Any] | sp.csr_array:
    if x.layout is torch.strided:
        dense = _array(x)
        sparse = dense.ndim == 2 and np.count_nonzero(dense) <= SPARSE_SHARE * dense.size
        return sp.csr_array(dense) if sparse else dense
    return _sparse(x)


def _sparse(x: torch.Tensor) -> sp.csr_array:
    if x.layout is torch.sparse_coo:
        return from_coordinates(_array(x._indices()), _array(x._values()), x.shape)
    by_columns = x.layout in (torch.sparse_csc, torch.sparse_bsc)
    pointers, indices = (x.ccol_indices(), x.row_indices()) if by_columns else (x.crow_indices(), x.col_indices())
    return from_compressed(_array(pointers), _array(indices), _array(x.values()), x.shape, by_columns=by_columns)
