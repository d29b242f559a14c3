"""Benchmark datasets in the `.npz` files that their authors publish, recognised by the names of their arrays.

- Shchur et al., "Pitfalls of Graph Neural Network Evaluation" (2018), repository shchur/gnn-benchmark: adjacency and
  features as CSR parts `adj_*` and `attr_*`, and `labels`.
- Platonov et al., "A critical look at the evaluation of GNNs under heterophily" (2023), repository
  yandex-research/heterophilous-graphs: `node_features`, `node_labels`, `edges` (E, 2), each edge once, and ten splits
  as `train_masks`, `val_masks` and `test_masks` (10, n).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.datasets.files import read_npz
from model_store.disk import untrusted_arrays
from model_store.disk.untrusted_arrays import ArraysUnreadable, HoldsObjects, first_line
from projector.errors import GraphError
from projector.graph.raw_graph import Masks, RawGraph
from projector.graph.sparse_parts import from_compressed

_PARTS = ("data", "indices", "indptr", "shape")
_ADJACENCY, _ATTRIBUTES = (tuple(f"{name}_{part}" for part in _PARTS) for name in ("adj", "attr"))
_PLATONOV = ("node_features", "node_labels", "edges")
_SPLITS = ("train_masks", "val_masks", "test_masks")
_CONVERT = (
    "Only plain arrays are read. If you trust the file, use `f = numpy.load(path, allow_pickle=True)`, then "
    "`numpy.savez('plain.npz', edge_index=…, x=…, y=…)` with arrays from it."
)


def read_any_npz(path: Path) -> RawGraph:
    """Return the dataset in an `.npz` of Lethe's own layout, of Shchur et al. or of Platonov et al.

    Raises as `read_npz` does.
    """
    names = untrusted_arrays.names_in(path)
    if names.issuperset(_PLATONOV):
        return _platonov(path)
    if names.issuperset(_ADJACENCY):
        return _shchur(path, names)
    return read_npz(path)


def without_loops(raw: RawGraph) -> RawGraph:
    """Return the graph without edges from a node to itself, with a note of their number."""
    rows, columns = raw.edge_index
    kept = rows != columns
    if kept.all():
        return raw
    weights = None if raw.edge_weight is None else raw.edge_weight[kept]
    note = f"{int((~kept).sum())} self loop(s) were left out: propagation adds its own."
    return replace(raw, edge_index=raw.edge_index[:, kept], edge_weight=weights, notes=(*raw.notes, note))


def _shchur(path: Path, names: frozenset[str]) -> RawGraph:
    dense = "attr_matrix" in names
    if "labels" not in names or not (dense or names.issuperset(_ATTRIBUTES)):
        missing = "labels" if "labels" not in names else "features"
        raise GraphError(
            f"{path} has the layout of gnn-benchmark without {missing} in one row per node.",
            _CONVERT,
        )
    wanted = (*_ADJACENCY, *(("attr_matrix",) if dense else _ATTRIBUTES), "labels")
    arrays = _arrays(path, wanted)
    A = sp.coo_array(_csr(path, arrays, _ADJACENCY))
    there = A.data != 0
    weights = A.data[there]
    node_ids, notes = _names(path, names)
    raw = RawGraph.of(
        str(path),
        edge_index=np.stack([A.row[there], A.col[there]]).astype(np.int64),
        features=arrays["attr_matrix"] if dense else _csr(path, arrays, _ATTRIBUTES),
        labels=arrays["labels"],
        masks=(),
        node_ids=node_ids,
        edge_weight=weights,
    )
    return without_loops(replace(raw, notes=notes))


def _names(path: Path, names: frozenset[str]) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    """Return the ids of nodes if they can be read and are distinct, and notes on names that are not used."""
    notes = [f"{name} are not used: classes and columns have numbers." for name in ("class_names", "attr_names")]
    notes = [note for note in notes if note.split(" ", 1)[0] in names]
    if "node_names" not in names:
        return None, tuple(notes)
    try:
        found = _arrays(path, ("node_names",))["node_names"]
    except GraphError as error:
        if not isinstance(error.__cause__, HoldsObjects):
            raise
        return None, (*notes, "node_names are pickled objects and are not read: the ids are row numbers.")
    if found.dtype.kind != "U" or np.unique(found).size != found.size:
        return None, (*notes, "node_names are not distinct texts and are not used: the ids are row numbers.")
    return found, tuple(notes)


def _platonov(path: Path) -> RawGraph:
    arrays = _arrays(path, (*_PLATONOV, *_SPLITS))
    edges = arrays["edges"]
    if edges.ndim != 2 or edges.shape[1] != 2:
        raise GraphError(f"{path}: edges have shape {edges.shape}.", "Give pairs of row numbers, (E, 2).")
    splits = _splits(path, arrays)
    raw = RawGraph.of(
        str(path),
        edge_index=edges.T,
        features=arrays["node_features"],
        labels=arrays["node_labels"],
        masks=(),
        node_ids=None,
    )
    # The format lists every edge once, in either direction.
    raw = without_loops(raw).in_both_directions()
    return replace(raw, masks=splits[0] if splits else None, splits=splits)


def _splits(path: Path, arrays: Mapping[str, NDArray[Any]]) -> tuple[Masks, ...]:
    given = [arrays[name] for name in _SPLITS if name in arrays]
    nodes = arrays["node_labels"].shape[0]
    if not given:
        return ()
    first = given[0]
    if len(given) < len(_SPLITS) or any(
        each.dtype != np.bool_ or each.ndim != 2 or each.shape != first.shape or each.shape[1] != nodes
        for each in given
    ):
        shapes = ", ".join(f"{each.dtype} {each.shape}" for each in given)
        raise GraphError(
            f"{path}: the splits are {shapes} for {nodes} nodes.",
            f"Give {', '.join(_SPLITS)}, each with one row of booleans per split.",
        )
    return tuple(Masks(*parts) for parts in zip(*given, strict=True))


def _arrays(path: Path, wanted: tuple[str, ...]) -> dict[str, NDArray[Any]]:
    try:
        return untrusted_arrays.read_npz(path, wanted)
    except ArraysUnreadable as error:
        raise GraphError(error.detail, _CONVERT) from error


def _csr(path: Path, arrays: Mapping[str, NDArray[Any]], names: tuple[str, ...]) -> sp.csr_array:
    data, indices, indptr, shape = (arrays[name] for name in names)
    try:
        return from_compressed(indptr, indices, data, shape.tolist())
    except (ValueError, TypeError, OverflowError) as error:
        raise GraphError(
            f"{path}: {names[0].split('_')[0]}_* do not fit together: {first_line(error)}.", "Download the file again."
        ) from error
