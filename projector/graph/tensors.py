"""Graphs in tensors, such as those of a torch-geometric `Data`; torch-geometric itself is not needed."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.raw_graph import RawGraph

MASKS = ("train_mask", "val_mask", "test_mask")
#: Dense features with at most this share of non-zeros are turned into CSR.
_SPARSE_SHARE = 0.2
_REMEDY = (
    "Give one plain torch_geometric.data.Data of tensors, and node_ids, if any, as a list of str: "
    "[str(name) for name in ids]."
)


def from_torch_geometric(data: Mapping[str, Any], origin: str) -> RawGraph:
    """The graph in the attributes of a torch-geometric `Data`; sparse features become CSR.

    Reads `edge_index` (2, E), `x` (n, d), `y` (n,), optionally the three masks (n,) bool and `node_ids`, and nothing
    else. Raises GraphError for what is missing or no such tensor, and for weights of edges other than 1.
    """
    for name in ("edge_index", "x", "y"):
        if not isinstance(data.get(name), torch.Tensor):
            raise GraphError(f"{origin}: the Data has no tensor {name!r}.", "Set edge_index, x and y.")
    weights = data.get("edge_weight")
    if isinstance(weights, torch.Tensor) and bool((weights != 1).any()):
        raise GraphError(
            f"{origin}: edge_weight is not 1 everywhere.", "Leave it out: Lethe works on unweighted graphs."
        )
    try:
        return RawGraph.of(
            origin,
            edge_index=_array(data["edge_index"]),
            features=_features(data["x"]),
            labels=_array(data["y"]),
            masks=tuple(None if data.get(name) is None else _array(data[name]) for name in MASKS),
            node_ids=None if data.get("node_ids") is None else _array(data["node_ids"]),
        )
    except (TypeError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(". ")
        raise GraphError(f"{origin} has attributes that are no arrays: {reason}.", _REMEDY) from error


def _array(value: object) -> NDArray[Any]:
    """A tensor, or a list, as an array; ValueError for a tensor that repeats its values and may be of any size."""
    if not isinstance(value, torch.Tensor):
        return np.asarray(value)
    plain = value.detach().cpu()
    if plain.numel() * plain.element_size() > plain.untyped_storage().nbytes():
        raise ValueError(f"a tensor of shape {tuple(plain.shape)} has more values than are stored")
    return plain.numpy()


def _features(x: torch.Tensor) -> NDArray[Any] | sp.csr_array:
    if x.layout is not torch.strided:
        # By its coordinates: the dense matrix may not fit in memory.
        entries = x.detach().cpu().to_sparse().coalesce()
        if entries.sparse_dim() != 2 or entries.dense_dim():
            raise ValueError(f"the features have shape {tuple(x.shape)}")
        indices = entries.indices().numpy()
        return sp.csr_array(sp.coo_array((entries.values().numpy(), (indices[0], indices[1])), shape=tuple(x.shape)))
    dense = _array(x)
    if dense.ndim == 2 and np.count_nonzero(dense) <= _SPARSE_SHARE * dense.size:
        return sp.csr_array(dense)
    return dense
