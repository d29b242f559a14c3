"""Datasets in files: `.npz` of named arrays, and saved torch-geometric `Data`."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.datasets.inert_pickles import Unread
from model_store.datasets.torch_files import StoredTensor, TorchFile
from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable, first_line
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from projector.graph.raw_graph import NO_EDGES, RawGraph
from projector.graph.sparse_parts import from_compressed
from projector.graph.tensors import ATTRIBUTES, MASKS, TENSORS, from_torch_geometric, looks_meant, refuse_unread

_SPARSE_PARTS = ("x_indptr", "x_indices", "x_data", "x_shape")
_READ = (*ATTRIBUTES, *_SPARSE_PARTS)
_PLAIN = (
    "Save one plain torch_geometric.data.Data of tensors with torch.save, and node_ids, if any, as a list of str: "
    "[str(name) for name in ids]."
)
#: The class name of a graph, unchanged since torch-geometric's first version.
_DATA = "torch_geometric.data.data.Data"


def read_npz(path: Path) -> RawGraph:
    """Return the dataset in an `.npz`. Pickled objects are refused.

    The file has `y`, `x` or the CSR parts `x_indptr, x_indices, x_data, x_shape`, and optionally `edge_index` (without
    it the graph has no edges), `edge_weight`, `train_mask, val_mask, test_mask` and `node_ids`. Raises DatasetNotFound
    if the file is missing, and GraphError if it is not a dataset.
    """
    arrays = _npz_arrays(path)
    refuse_unread(str(path), {name: array for name, array in arrays.items() if name not in _READ})
    if "y" not in arrays:
        raise GraphError(f"{path}: the array 'y' is missing.", "Save y, x or its CSR parts, and edge_index.")
    return RawGraph.of(
        str(path),
        edge_index=arrays.get("edge_index", NO_EDGES),
        features=_npz_features(path, arrays),
        labels=arrays["y"],
        masks=tuple(arrays.get(name) for name in MASKS),
        node_ids=arrays.get("node_ids"),
        edge_weight=arrays.get("edge_weight"),
    )


def write_npz(path: Path, graph: RawGraph) -> None:
    """Write `graph` in the format of `read_npz`. The file appears at `path` only once complete."""
    arrays: dict[str, NDArray[Any]] = {"edge_index": graph.edge_index.astype(np.int32), "y": graph.labels}
    if graph.edge_weight is not None:
        arrays["edge_weight"] = graph.edge_weight
    if isinstance(graph.features, np.ndarray):
        arrays["x"] = graph.features
    else:
        X = graph.features
        parts = (X.indptr, X.indices, X.data, np.array(X.shape))
        arrays |= dict(zip(_SPARSE_PARTS, parts, strict=True))
    if graph.masks is not None:
        arrays |= dict(zip(MASKS, (graph.masks.train, graph.masks.val, graph.masks.test), strict=True))
    if graph.node_ids is not None:
        longest = int(graph.node_ids.lengths.max(initial=1))
        arrays["node_ids"] = np.fromiter(graph.node_ids, f"<U{longest}", graph.nodes)
    partial = path.with_name(f".{path.name}.partial.npz")
    np.savez_compressed(partial, allow_pickle=False, **arrays)
    partial.replace(path)


def read_torch_geometric(path: Path) -> RawGraph:
    """Return the dataset in a `torch_geometric.data.Data` saved with `torch.save`, unpickling only data.

    Reads `edge_index`, `x`, `y`, optionally `edge_weight`, the three masks and `node_ids`. Raises as `read_npz` does.
    """
    if not path.is_file():
        raise DatasetNotFound(f"The file {path} does not exist.", "Check the path.")
    try:
        saved = TorchFile(path)
        attributes = {name: saved.tensor(value) for name, value in _attributes(path, saved.content).items()}
    except ArraysUnreadable as error:
        raise GraphError(error.detail, error.remedy) from error
    except GraphError:
        raise
    except Exception as error:
        # Damage can raise any exception.
        raise GraphError(
            f"{path} cannot be read as a saved torch-geometric Data: {first_line(error)}.", _PLAIN
        ) from error
    return from_torch_geometric(attributes, str(path))


def _attributes(path: Path, content: object) -> dict[str, Any]:
    """Return the attributes of the `Data` in a torch.save file."""
    if isinstance(content, tuple | list):
        raise GraphError(
            f"{path} holds a {type(content).__name__} of {len(content)}, as for a whole dataset, instead of one Data.",
            "Save its one graph: torch.save(dataset[0], path).",
        )
    if not isinstance(content, Unread) or content.kind != _DATA:
        raise GraphError(f"{path} holds a {_kind(content)}.", _PLAIN)
    # Before 2.0, a Data stored the graph's attributes itself.
    attributes: Any = content.state
    if isinstance(attributes, dict) and "_store" in attributes:
        attributes = attributes["_store"].state["_mapping"]
    if not isinstance(attributes, dict) or not all(isinstance(name, str) for name in attributes):
        raise ValueError("its Data has no attributes")
    for name in TENSORS:
        value = attributes.get(name)
        for held in value if isinstance(value, list | tuple) else [value]:
            if isinstance(held, Unread):
                raise GraphError(
                    f"{path}: {name} holds a {held.kind}, which is not read because it could run a program.", _PLAIN
                )
    return attributes


def _kind(content: object) -> str:
    if isinstance(content, StoredTensor):
        return "tensor"
    return content.kind if isinstance(content, Unread) else type(content).__name__


def _npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise DatasetNotFound(f"The file {path} does not exist.", "Check the path.")
    try:
        return untrusted_arrays.read_npz(path, _READ, also=looks_meant)
    except ArraysUnreadable as error:
        raise GraphError(error.detail, error.remedy) from error


def _npz_features(path: Path, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any] | sp.csr_array:
    if "x" in arrays:
        if any(part in arrays for part in _SPARSE_PARTS):
            raise GraphError(f"{path} gives the features as x and in CSR form.", "Remove one of them.")
        if arrays["x"].ndim != 2:
            raise GraphError(f"{path}: x has shape {arrays['x'].shape}.", "Give one row of features per node.")
        return arrays["x"]
    if not all(part in arrays for part in _SPARSE_PARTS):
        raise GraphError(
            f"{path}: the features are missing.", f"Save them as x, or in CSR form as {', '.join(_SPARSE_PARTS)}."
        )
    indptr, indices, data, shape = (arrays[part] for part in _SPARSE_PARTS)
    try:
        return from_compressed(indptr, indices, data, shape.tolist())
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphError(
            f"{path}: the CSR parts of x do not fit together: {first_line(error)}.", "Save them again."
        ) from error
