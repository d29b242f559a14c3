"""A graph and its span coefficients as the tables of `base/`, and back.

| table | a slot is | arrays |
| --- | --- | --- |
| nodes | a row | labels, masks (bits: training, validation, test), id_bytes (length of the id) |
| layout | a row | id_slots (how many slots the id takes in `ids`); never blanked |
| ids | 16 bytes of an id | utf8 |
| features | a row when dense, a stored value when sparse | values; rows, columns, values |
| adjacency | an edge in one direction | rows, columns |
| beta | a row of one block, block after block | values |

Stored values and edges lie in random order within their chunk, each with its own row: the gap that a blanked one
leaves tells neither its row nor its column, as it would in CSR.
"""

from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base_arrays import BaseArrays, NewArray, NewTable
from model_store.graph import Features, Graph
from model_store.manifest import FeatureLayout, Manifest

#: Row of a blanked slot of a sparse table, counted within its chunk; chunks must therefore have fewer rows.
NO_ROW = 0xFFFF
#: Bytes by which ids are cut, so that the length of a deleted id shows only as a multiple of it.
ID_SLOT_BYTES = 16
_ZERO, _MINUS_ONE = 0x00, 0xFF
_TRAIN, _VAL, _TEST = 1, 2, 4


def encode_graph(graph: Graph, chunk_rows: int, random: np.random.Generator) -> dict[str, NewTable]:
    """All tables of a graph but beta."""
    row_starts = starts_of_rows(graph.nodes, chunk_rows)
    masks = graph.train_mask * _TRAIN + graph.val_mask * _VAL + graph.test_mask * _TEST
    encoded = [name.encode() for name in graph.node_ids]
    lengths = np.asarray([len(name) for name in encoded], dtype=np.uint32)
    id_slots = (lengths + ID_SLOT_BYTES - 1) // ID_SLOT_BYTES
    padded = b"".join(
        name.ljust(int(slots) * ID_SLOT_BYTES, b"\0") for name, slots in zip(encoded, id_slots, strict=True)
    )
    return {
        "nodes": NewTable(
            row_starts,
            {
                "labels": NewArray(graph.labels.astype("<i8"), _MINUS_ONE),
                "masks": NewArray(masks.astype("u1"), _ZERO),
                "id_bytes": NewArray(lengths.astype("<u4"), _ZERO),
            },
        ),
        "layout": NewTable(row_starts, {"id_slots": NewArray(id_slots.astype("<u4"), _ZERO)}),
        "ids": NewTable(
            np.concatenate([[0], np.cumsum(id_slots, dtype=np.int64)])[row_starts],
            {"utf8": NewArray(np.frombuffer(padded, dtype=np.uint8).reshape(-1, ID_SLOT_BYTES), _ZERO)},
        ),
        "features": _encode_features(graph.features, chunk_rows, random),
        "adjacency": _encode_sparse(graph.adjacency, chunk_rows, random, values=False),
    }


def encode_beta(beta: NDArray[np.float64], chunk_rows: int) -> NewTable:
    """The table of span coefficients (blocks, n, C)."""
    blocks, nodes, classes = beta.shape
    within = starts_of_rows(nodes, chunk_rows)[:-1]
    starts = np.concatenate([*(within + block * nodes for block in range(blocks)), [blocks * nodes]])
    return NewTable(
        starts, {"values": NewArray(beta.reshape(blocks * nodes, classes).astype("<f8", copy=False), _ZERO)}
    )


def starts_of_rows(nodes: int, chunk_rows: int) -> NDArray[np.int64]:
    """First row of each chunk of rows, and the number of rows at the end, (chunks + 1,)."""
    return np.append(np.arange(0, nodes, chunk_rows, dtype=np.int64), np.int64(nodes))


def decode_graph(base: BaseArrays, manifest: Manifest) -> Graph:
    """The graph as it is now: blanked rows have no id, label, features or edges."""
    chunks = range(base.index.row_chunks)
    masks = base.read_all("nodes", "masks")[:, 0]
    return Graph(
        adjacency=decode_adjacency(base, chunks),
        features=decode_features(base, manifest, chunks),
        labels=base.read_all("nodes", "labels")[:, 0].astype(np.int64, copy=False),
        train_mask=(masks & _TRAIN) > 0,
        val_mask=(masks & _VAL) > 0,
        test_mask=(masks & _TEST) > 0,
        node_ids=_decode_ids(base),
        class_names=manifest.classes,
    )


def decode_features(base: BaseArrays, manifest: Manifest, chunks: range) -> Features:
    """Features of the rows in consecutive chunks, (k, d), in the layout and type they are stored in."""
    values = base.read("features", "values", chunks)
    if manifest.feature_layout is FeatureLayout.DENSE:
        return values
    rows, columns, kept = _decode_sparse(base, "features", chunks)
    return _csr(values[kept, 0], rows, columns, (_rows_in(base, chunks), manifest.features))


def decode_adjacency(base: BaseArrays, chunks: range) -> sp.csr_array:
    """Rows of the adjacency in consecutive chunks, (k, n) float64 ones."""
    rows, columns, _ = _decode_sparse(base, "adjacency", chunks)
    return _csr(np.ones(rows.size), rows, columns, (_rows_in(base, chunks), base.index.nodes))


def decode_beta(base: BaseArrays, chunks: range) -> NDArray[np.float64]:
    """Span coefficients of the rows in consecutive chunks, (blocks, k, C)."""
    per_block = base.index.row_chunks
    blocks = range(base.index.tables["beta"].chunks // per_block)
    if len(chunks) == per_block:
        return base.read_all("beta", "values").reshape(len(blocks), base.index.nodes, -1)
    shifted = [range(chunks.start + block * per_block, chunks.stop + block * per_block) for block in blocks]
    return np.stack([base.read("beta", "values", part) for part in shifted])


def _encode_features(features: Features, chunk_rows: int, random: np.random.Generator) -> NewTable:
    if not isinstance(features, np.ndarray):
        return _encode_sparse(features, chunk_rows, random, values=True)
    little_endian = features.astype(features.dtype.newbyteorder("<"), copy=False)
    return NewTable(starts_of_rows(features.shape[0], chunk_rows), {"values": NewArray(little_endian, _ZERO)})


def _encode_sparse(matrix: sp.csr_array, chunk_rows: int, random: np.random.Generator, *, values: bool) -> NewTable:
    """A table of the stored values of a CSR matrix, shuffled within each chunk of rows."""
    nodes, width = matrix.shape
    rows = np.repeat(np.arange(nodes, dtype=np.int64), np.diff(matrix.indptr))
    order = random.permutation(rows.size)
    order = order[np.argsort(rows[order] // chunk_rows, kind="stable")]
    column_type = "<i4" if width <= np.iinfo(np.int32).max else "<i8"
    arrays = {
        "rows": NewArray((rows[order] % chunk_rows).astype("<u2"), _MINUS_ONE),
        "columns": NewArray(matrix.indices[order].astype(column_type), _MINUS_ONE),
    }
    if values:
        arrays["values"] = NewArray(matrix.data[order].astype(matrix.dtype.newbyteorder("<"), copy=False), _ZERO)
    return NewTable(matrix.indptr.astype(np.int64)[starts_of_rows(nodes, chunk_rows)], arrays)


def _decode_sparse(
    base: BaseArrays, table_name: str, chunks: range
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """Rows, counted from the first of `chunks`, and columns of the slots that are kept, and which are."""
    starts = base.index.tables[table_name].starts[chunks.start : chunks.stop + 1]
    rows = base.read(table_name, "rows", chunks)[:, 0]
    columns = base.read(table_name, "columns", chunks)[:, 0]
    kept = rows != NO_ROW
    first_rows = np.repeat(np.arange(len(chunks), dtype=np.int64) * base.index.chunk_rows, np.diff(starts))
    return rows[kept] + first_rows[kept], columns[kept].astype(np.int64), kept


def _csr(
    values: NDArray[Any], rows: NDArray[np.int64], columns: NDArray[np.int64], shape: tuple[int, int]
) -> sp.csr_array:
    """The CSR matrix of stored values in any order, with the index type that scipy prefers for its size."""
    index_type = sp.get_index_dtype(maxval=max(*shape, values.size))
    places = (rows.astype(index_type), columns.astype(index_type))
    return sp.csr_array(sp.coo_array((values, places), shape=shape))


def _decode_ids(base: BaseArrays) -> tuple[str, ...]:
    lengths = base.read_all("nodes", "id_bytes")[:, 0].astype(np.int64)
    id_slots = base.read_all("layout", "id_slots")[:, 0].astype(np.int64)
    text = base.read_all("ids", "utf8").tobytes()
    firsts = np.concatenate([[0], np.cumsum(id_slots)])[:-1] * ID_SLOT_BYTES
    bounds = zip(firsts.tolist(), (firsts + lengths).tolist(), strict=True)
    return tuple(text[first:last].decode() for first, last in bounds)


def _rows_in(base: BaseArrays, chunks: range) -> int:
    return min(chunks.stop * base.index.chunk_rows, base.index.nodes) - chunks.start * base.index.chunk_rows
