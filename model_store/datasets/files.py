"""Datasets in files: `.npz` of named arrays, and saved torch-geometric `Data`."""

import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray

from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable, first_line
from model_store.errors import DatasetNotFound
from projector.errors import GraphError
from projector.graph.raw_graph import RawGraph
from projector.graph.sparse_parts import from_compressed
from projector.graph.tensors import MASKS, from_torch_geometric

_SPARSE_PARTS = ("x_indptr", "x_indices", "x_data", "x_shape")
_PLAIN = (
    "Save one plain torch_geometric.data.Data of tensors with torch.save, and node_ids, if any, as a list of str: "
    "[str(name) for name in ids]."
)
#: What torch calls an object that it does not unpickle.
_UNSAFE = re.compile(r"GLOBAL (\S+)")


def read_npz(path: Path) -> RawGraph:
    """The dataset in an `.npz`: `edge_index`, `y`, `x` or the CSR parts `x_indptr, x_indices, x_data, x_shape`,
    optionally `train_mask, val_mask, test_mask` and `node_ids`. Pickled objects are refused.

    Raises DatasetNotFound when there is no such file, GraphError when it is not such a dataset.
    """
    arrays = _npz_arrays(path)
    for name in ("edge_index", "y"):
        if name not in arrays:
            raise GraphError(f"{path}: there is no array {name!r}.", "Save edge_index, y, and x or its CSR parts.")
    return RawGraph.of(
        str(path),
        edge_index=arrays["edge_index"],
        features=_npz_features(path, arrays),
        labels=arrays["y"],
        masks=tuple(arrays.get(name) for name in MASKS),
        node_ids=arrays.get("node_ids"),
    )


def write_npz(path: Path, graph: RawGraph) -> None:
    """Writes `graph` so that `read_npz` returns it; the file appears at `path` only when it is whole."""
    arrays: dict[str, NDArray[Any]] = {"edge_index": graph.edge_index.astype(np.int32), "y": graph.labels}
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
    """The dataset in a `torch_geometric.data.Data` saved with `torch.save`; nothing but data is unpickled.

    Reads `edge_index`, `x`, `y`, optionally the three masks and `node_ids`. Raises as `read_npz` does.
    """
    if not path.is_file():
        raise DatasetNotFound(f"There is no file {path}.", "Check the path.")
    _require_saved_by_torch(path)
    with warnings.catch_warnings():
        # torch-geometric calls deprecated functions of torch while it is imported.
        warnings.simplefilter("ignore", DeprecationWarning)
        from torch_geometric.data import Data
        from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
        from torch_geometric.data.storage import GlobalStorage
    try:
        with torch.serialization.safe_globals([Data, GlobalStorage, DataEdgeAttr, DataTensorAttr]):
            data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise GraphError(
            f"{path} cannot be read as a saved torch-geometric Data: {_first_line(error)}.", _PLAIN
        ) from error
    if isinstance(data, tuple | list):
        raise GraphError(
            f"{path} holds a {type(data).__name__} of {len(data)}, as a whole dataset is saved, and no Data.",
            "Save its one graph: torch.save(dataset[0], path).",
        )
    if not isinstance(data, Data):
        raise GraphError(f"{path} holds a {type(data).__name__}.", _PLAIN)
    return from_torch_geometric(data.to_dict(), str(path))


def _npz_arrays(path: Path) -> dict[str, NDArray[Any]]:
    if not path.is_file():
        raise DatasetNotFound(f"There is no file {path}.", "Check the path.")
    try:
        return untrusted_arrays.read_npz(path, ("edge_index", "x", "y", "node_ids", *MASKS, *_SPARSE_PARTS))
    except ArraysUnreadable as error:
        raise GraphError(error.detail, error.remedy) from error


def _npz_features(path: Path, arrays: Mapping[str, NDArray[Any]]) -> NDArray[Any] | sp.csr_array:
    if "x" in arrays:
        if arrays["x"].ndim != 2:
            raise GraphError(f"{path}: x has shape {arrays['x'].shape}.", "Give one row of features per node.")
        return arrays["x"]
    if not all(part in arrays for part in _SPARSE_PARTS):
        raise GraphError(
            f"{path}: there are no features.", f"Save them as x, or in CSR form as {', '.join(_SPARSE_PARTS)}."
        )
    indptr, indices, data, shape = (arrays[part] for part in _SPARSE_PARTS)
    try:
        return from_compressed(indptr, indices, data, shape.tolist())
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphError(
            f"{path}: the CSR parts of x do not fit together: {first_line(error)}.", "Save them again."
        ) from error


def _require_saved_by_torch(path: Path) -> None:
    """Raises GraphError for what torch.save did not write, at which torch fails in many ways, and for too much."""
    if not zipfile.is_zipfile(path):
        with path.open("rb") as file:
            if file.read(1) == pickle.PROTO:
                return
        raise GraphError(f"{path} was not written by torch.save.", _PLAIN)
    try:
        with zipfile.ZipFile(path) as archive:
            untrusted_arrays.require_room(path, (info.file_size for info in archive.infolist()))
    except (OSError, zipfile.BadZipFile) as error:
        raise GraphError(f"{path} cannot be read as a file of torch.save: {first_line(error)}.", _PLAIN) from error
    except ArraysUnreadable as error:
        raise GraphError(error.detail, error.remedy) from error


def _first_line(error: Exception) -> str:
    """What torch says, in a line without the codes of a terminal."""
    unsafe = _UNSAFE.search(str(error))
    if unsafe is not None:
        return f"it holds Python objects ({unsafe[1]}), which are not read because they could run a program"
    return first_line(error)
