"""Convert a graph, its public nodes and its span coefficients to the tables of `base/` and back.

| table | a slot is | arrays |
| --- | --- | --- |
| nodes | a row | id_bytes (length of the id) |
| labels | a row | labels, masks (bits: training, validation, test, public); targets, real |
| layout | a row | id_slots (how many slots the id takes in `ids`); never blanked |
| ids | 16 bytes of an id | utf8 |
| features | a row when dense, a stored value when sparse | values; rows, columns, values |
| adjacency | an edge in one direction | rows, columns; values, if edges have weights |
| beta | a row of one feature block, block after block | values |
| label_beta | a row of one label block, block after block | values |

Stored values and edges are in random order within their chunk, each with its own row. So the gap of a blanked one
reveals neither its row nor its column, unlike in CSR. Rows added after the import are in the tables of `late.py`.
"""

import itertools
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.arrays import LATE, NewArray, NewTable
from model_store.base.edit import PUBLIC, TEST, TRAIN, VAL
from model_store.base.index import NO_ROW, Index
from model_store.base.late import entries_per_chunk
from model_store.disk.durable import TRAIN_AGAIN
from model_store.errors import NotAStore
from model_store.manifest import FeatureLayout, Manifest
from projector.graph.external_ids import SLOT_BYTES
from projector.graph.graph import Features, Graph

_ZERO, _MINUS_ONE = 0x00, 0xFF
_ALTERED = f"It was altered, or another program wrote it; {TRAIN_AGAIN}"


def encode_graph(
    graph: Graph, public: NDArray[np.bool_], chunk_rows: int, random: np.random.Generator
) -> dict[str, NewTable]:
    """Return all tables except span coefficients; `public` (n,) masks the nodes that are never deleted."""
    row_starts = starts_of_rows(graph.nodes, chunk_rows)
    masks = graph.train_mask * TRAIN + graph.val_mask * VAL + graph.test_mask * TEST + public * PUBLIC
    ids = graph.node_ids
    labels = {
        "labels": NewArray(graph.labels.astype("<i8"), _MINUS_ONE),
        "masks": NewArray(masks.astype("u1"), _ZERO),
    }
    if graph.values is not None:
        labels["targets"] = NewArray(graph.values.astype("<f8"), _ZERO)
    return {
        "nodes": NewTable(row_starts, {"id_bytes": NewArray(ids.lengths.astype("<u4"), _ZERO)}),
        "labels": NewTable(row_starts, labels),
        "layout": NewTable(row_starts, {"id_slots": NewArray(np.diff(ids.starts).astype("<u4"), _ZERO)}),
        "ids": NewTable(ids.starts[row_starts], {"utf8": NewArray(ids.utf8, _ZERO)}),
        "features": _encode_features(graph.features, chunk_rows, random),
        "adjacency": _encode_sparse(graph.adjacency, chunk_rows, random, values=graph.weighted),
    }


def check_index(index: Index, manifest: Manifest, path: Path) -> None:
    """Raise NotAStore, naming the index file `path`, unless its tables match the manifest."""
    chunk_rows, imported = index.chunk_rows, manifest.nodes
    if imported == 0 or not imported <= index.nodes <= index.beta_rows or not 0 < chunk_rows <= NO_ROW:
        raise _unfit(path, f"{index.nodes} nodes in chunks of {chunk_rows}, with {index.beta_rows} span coefficients")
    tables = layouts(manifest, index)
    late = {name for name in tables if name.startswith(LATE)}
    if index.tables.keys() not in ((tables.keys(),) if index.grown_version else (tables.keys() - late,)):
        raise _unfit(path, f"tables {', '.join(sorted(index.tables))}")
    if not index.grown_version and index.nodes != imported:
        raise _unfit(path, f"{index.nodes} nodes")
    for name, table in index.tables.items():
        layout = tables[name]
        found = {key: (array.dtype, array.width, array.blank) for key, array in table.arrays.items()}
        if found != layout.arrays:
            raise _unfit(path, f"arrays of another kind in the table {name}")
        starts = table.starts
        if not starts.size or starts[0] != 0 or (np.diff(starts) < 0).any():
            raise _unfit(path, f"chunks in the table {name} that do not follow one another")
        rows = table.slots if layout.rows is None else layout.rows
        # Check the count before listing rows: the file may claim any number.
        chunks = layout.blocks * -(-rows // layout.chunk_rows)
        if table.chunks != chunks:
            raise _unfit(path, f"{table.chunks} chunks in the table {name}")
        if layout.even and not np.array_equal(starts, _starts_of_blocks(layout.blocks, rows, layout.chunk_rows)):
            raise _unfit(path, f"chunks of other sizes in the table {name}")


@dataclass(frozen=True)
class Layout:
    """What a table must be."""

    #: Type, width and blank of each array.
    arrays: dict[str, tuple[str, int, int]]
    #: Rows that its chunks are about; None if its slots are.
    rows: int | None
    chunk_rows: int
    #: How often its slots are about each row.
    blocks: int = 1
    #: Whether chunks have equally many slots.
    even: bool = True


def layouts(manifest: Manifest, index: Index) -> dict[str, Layout]:
    """Return what each table must be, those of what joined later included."""
    classes, spec, rows = len(manifest.classes), manifest.spec, index.chunk_rows
    value = np.dtype(manifest.feature_dtype).newbyteorder("<").str
    is_dense = manifest.feature_layout is FeatureLayout.DENSE
    row, edge, feature = ("<u2", 1, _MINUS_ONE), _column_type(manifest.nodes), _column_type(manifest.features)
    any_row = ("<i8", 1, _MINUS_ONE)
    id_bytes, id_slots = ({name: ("<u4", 1, _ZERO)} for name in ("id_bytes", "id_slots"))
    utf8 = {"utf8": ("|u1", SLOT_BYTES, _ZERO)}
    beta = {"values": ("<f8", classes, _ZERO)}
    labels = {"labels": ("<i8", 1, _MINUS_ONE), "masks": ("|u1", 1, _ZERO)}
    if manifest.regression is not None:
        labels["targets"] = ("<f8", classes, _ZERO)
    features = (
        {"values": (value, manifest.features, _ZERO)}
        if is_dense
        else {"columns": (feature, 1, _MINUS_ONE), "values": (value, 1, _ZERO)}
    )
    edge_weight = {"values": ("<f8", 1, _ZERO)} if index.weighted else {}
    imported, late = manifest.nodes, index.nodes - manifest.nodes
    entries = entries_per_chunk(rows, whole_rows=False)
    return {
        "nodes": Layout(id_bytes, imported, rows),
        "labels": Layout(labels, imported, rows),
        "layout": Layout(id_slots, imported, rows),
        "ids": Layout(utf8, imported, rows, even=False),
        "features": Layout(features if is_dense else {"rows": row} | features, imported, rows, even=is_dense),
        "adjacency": Layout({"rows": row, "columns": (edge, 1, _MINUS_ONE)} | edge_weight, imported, rows, even=False),
        "beta": Layout(beta, index.beta_rows, rows, len(spec.block_hops)),
        "label_beta": Layout(beta, index.beta_rows, rows, spec.label_hops),
        "late_nodes": Layout(id_bytes, late, rows),
        "late_layout": Layout(id_slots, late, rows),
        "late_ids": Layout(utf8, late, rows, even=False),
        "late_labels": Layout({"rows": any_row} | labels, None, entries),
        "late_features": Layout({"rows": any_row} | features, None, entries_per_chunk(rows, whole_rows=is_dense)),
        "late_adjacency": Layout({"rows": any_row, "columns": any_row} | edge_weight, None, entries),
    }


def _unfit(path: Path, what: str) -> NotAStore:
    return NotAStore(f"{path} contains {what}, which contradicts the manifest.", _ALTERED)


def encode_beta(beta: NDArray[np.float64], chunk_rows: int) -> NewTable:
    """Return the table of span coefficients (blocks, n, C); without blocks, a table without chunks."""
    blocks, nodes, classes = beta.shape
    values = beta.reshape(blocks * nodes, classes).astype("<f8", copy=False)
    return NewTable(_starts_of_blocks(blocks, nodes, chunk_rows), {"values": NewArray(values, _ZERO)})


def _starts_of_blocks(blocks: int, nodes: int, chunk_rows: int) -> NDArray[np.int64]:
    """Return the first row of each chunk in `blocks` blocks of all rows, then the total number of rows."""
    within = starts_of_rows(nodes, chunk_rows)[:-1]
    return np.append((np.arange(blocks)[:, None] * nodes + within).reshape(-1), np.int64(blocks * nodes))


def starts_of_rows(nodes: int, chunk_rows: int) -> NDArray[np.int64]:
    """Return the first row of each chunk of rows, then the number of rows, (chunks + 1,)."""
    return np.append(np.arange(0, nodes, chunk_rows, dtype=np.int64), np.int64(nodes))


def _encode_features(features: Features, chunk_rows: int, random: np.random.Generator) -> NewTable:
    if not isinstance(features, np.ndarray):
        return _encode_sparse(features, chunk_rows, random, values=True)
    little_endian = features.astype(features.dtype.newbyteorder("<"), copy=False)
    return NewTable(starts_of_rows(features.shape[0], chunk_rows), {"values": NewArray(little_endian, _ZERO)})


def _encode_sparse(matrix: sp.csr_array, chunk_rows: int, random: np.random.Generator, *, values: bool) -> NewTable:
    """Return a table of the stored values of a CSR matrix, shuffled within each chunk of rows."""
    nodes, width = matrix.shape
    bounds = starts_of_rows(nodes, chunk_rows)
    arrays = {
        "rows": NewArray(np.empty(matrix.nnz, dtype="<u2"), _MINUS_ONE),
        "columns": NewArray(np.empty(matrix.nnz, dtype=_column_type(width)), _MINUS_ONE),
    }
    if values:
        arrays["values"] = NewArray(np.empty(matrix.nnz, dtype=matrix.dtype.newbyteorder("<")), _ZERO)
    for first, end in itertools.pairwise(bounds):
        part = slice(matrix.indptr[first], matrix.indptr[end])
        order = random.permutation(part.stop - part.start)
        rows = np.repeat(np.arange(end - first), np.diff(matrix.indptr[first : end + 1]))
        for name, held in (("rows", rows), ("columns", matrix.indices[part]), ("values", matrix.data[part])):
            if name in arrays:
                arrays[name].values[part] = held[order]
    return NewTable(matrix.indptr.astype(np.int64)[bounds], arrays)


def _column_type(width: int) -> str:
    return "<i4" if width <= np.iinfo(np.int32).max else "<i8"
