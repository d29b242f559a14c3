"""Convert a graph, its public nodes and its span coefficients to the tables of `base/` and back.

| table | a slot is | arrays |
| --- | --- | --- |
| nodes | a row | id_bytes (length of the id) |
| labels | a row | labels, masks (bits: training, validation, test, public); targets, real |
| layout | a row | id_slots (how many slots the id takes in `ids`); never blanked |
| ids | 16 bytes of an id | utf8 |
| features | a row when dense, a stored value when sparse | values; rows, columns, values |
| adjacency | an edge in one direction | rows, columns |
| beta | a row of one feature block, block after block | values |
| label_beta | a row of one label block, block after block | values |

Stored values and edges are in random order within their chunk, each with its own row. So the gap of a blanked one
reveals neither its row nor its column, unlike in CSR. What joined after the import is in the tables of `late.py`.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays, NewArray, NewTable
from model_store.base.index import Index
from model_store.disk.durable import TRAIN_AGAIN, damaged
from model_store.errors import NotAStore
from model_store.manifest import FeatureLayout, Manifest
from projector.device import seldom_read
from projector.graph.external_ids import SLOT_BYTES, NodeIds
from projector.graph.graph import Features, Graph, one_hot
from projector.graph.ranges import index_type, parts_of_rows

#: Row of a blanked slot of a sparse table, counted within its chunk. So chunks must have fewer rows.
NO_ROW = 0xFFFF
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
        "adjacency": _encode_sparse(graph.adjacency, chunk_rows, random, values=False),
    }


def check_index(index: Index, manifest: Manifest, path: Path) -> None:
    """Raise NotAStore, naming the index file `path`, unless its tables match the manifest."""
    chunk_rows, nodes = index.chunk_rows, manifest.nodes
    if index.nodes != nodes or nodes == 0 or not 0 < chunk_rows <= NO_ROW:
        raise _unfit(path, f"{index.nodes} nodes in chunks of {chunk_rows}")
    tables = _layouts(manifest)
    if index.tables.keys() != tables.keys():
        raise _unfit(path, f"tables {', '.join(sorted(index.tables))}")
    for name, (arrays, blocks) in tables.items():
        table = index.tables[name]
        found = {key: (array.dtype, array.width, array.blank) for key, array in table.arrays.items()}
        if found != arrays:
            raise _unfit(path, f"arrays of another kind in the table {name}")
        # Check the count before listing rows: the file may claim any number.
        chunks = index.row_chunks * (1 if blocks is None else blocks)
        starts = table.starts
        if starts.size != chunks + 1 or starts[0] != 0 or (np.diff(starts) < 0).any():
            raise _unfit(path, f"chunks in the table {name} that do not follow one another")
        if blocks is not None and not np.array_equal(starts, _starts_of_blocks(blocks, nodes, chunk_rows)):
            raise _unfit(path, f"chunks of other sizes in the table {name}")


def _layouts(manifest: Manifest) -> dict[str, tuple[dict[str, tuple[str, int, int]], int | None]]:
    """Return for each table its arrays' types, widths and blanks, and the number of row blocks in its slots.

    None replaces the number if the slots are not rows.
    """
    classes, spec = len(manifest.classes), manifest.spec
    row, edge, feature = ("<u2", 1, _MINUS_ONE), _column_type(manifest.nodes), _column_type(manifest.features)
    value = np.dtype(manifest.feature_dtype).newbyteorder("<").str
    is_dense = manifest.feature_layout is FeatureLayout.DENSE
    beta = {"values": ("<f8", classes, _ZERO)}
    nodes = {"labels": ("<i8", 1, _MINUS_ONE), "masks": ("|u1", 1, _ZERO), "id_bytes": ("<u4", 1, _ZERO)}
    if manifest.regression is not None:
        nodes["targets"] = ("<f8", classes, _ZERO)
    return {
        "nodes": (nodes, 1),
        "layout": ({"id_slots": ("<u4", 1, _ZERO)}, 1),
        "ids": ({"utf8": ("|u1", SLOT_BYTES, _ZERO)}, None),
        "features": ({"values": (value, manifest.features, _ZERO)}, 1)
        if is_dense
        else ({"rows": row, "columns": (feature, 1, _MINUS_ONE), "values": (value, 1, _ZERO)}, None),
        "adjacency": ({"rows": row, "columns": (edge, 1, _MINUS_ONE)}, None),
        "beta": (beta, len(spec.block_hops)),
        "label_beta": (beta, spec.label_hops),
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


def decode_graph(base: BaseArrays, manifest: Manifest) -> Graph:
    """Return the current graph. Blanked rows have no id, label, features or edges."""
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
        values=None if manifest.regression is None else base.read_all("nodes", "targets"),
    )


def decode_public(base: BaseArrays) -> NDArray[np.bool_]:
    """Return the mask of nodes that are never deleted, (n,)."""
    return np.asarray((base.read_all("nodes", "masks")[:, 0] & _PUBLIC) > 0)


def decode_training_labels(
    base: BaseArrays, manifest: Manifest, chunks: range, live: NDArray[np.bool_]
) -> sp.csr_array:
    """Return one-hot labels of live training nodes in consecutive chunks, (k, C) CSR; other rows are zero.

    `live` (k,) refers to these rows.
    """
    labels = base.read("nodes", "labels", chunks)[:, 0].astype(np.int64, copy=False)
    training = (base.read("nodes", "masks", chunks)[:, 0] & _TRAIN) > 0
    return one_hot(labels, training & live, len(manifest.classes))


def decode_features(base: BaseArrays, manifest: Manifest, chunks: range) -> Features:
    """Return the features of the rows in consecutive chunks, (k, d), in their stored layout and dtype."""
    found = stored_features(base, manifest, chunks)
    return found if isinstance(found, np.ndarray) else sp.csr_array(found)


def stored_features(base: BaseArrays, manifest: Manifest, chunks: range) -> NDArray[Any] | sp.coo_array:
    """Return the same features, sparse ones in stored order, which is enough for products."""
    values = base.read("features", "values", chunks)
    if manifest.feature_layout is FeatureLayout.DENSE:
        return values
    rows, columns, kept = _decode_sparse(base, "features", chunks, manifest.features)
    return _coo(values[kept, 0], rows, columns, (_rows_in(base, chunks), manifest.features))


def rows_of_feature_slots(base: BaseArrays, manifest: Manifest) -> NDArray[np.int64]:
    """Return the row of each slot of the feature table, (slots,); -1 for a blanked value."""
    if manifest.feature_layout is FeatureLayout.DENSE:
        return np.arange(base.index.nodes, dtype=np.int64)
    rows, _, kept = _decode_sparse(base, "features", range(base.index.row_chunks), manifest.features)
    found = np.full(base.index.tables["features"].slots, -1, dtype=np.int64)
    found[kept] = rows
    return found


def decode_adjacency(base: BaseArrays, chunks: range) -> sp.csr_array:
    """Return adjacency rows in consecutive chunks, (k, n) float64 ones; above one for a repeated edge."""
    starts = base.index.tables["adjacency"].starts[chunks.start : chunks.stop + 1]
    nodes, slots = base.index.nodes, int(starts[-1] - starts[0])
    index = index_type(max(nodes, slots))
    indices, values, filled = np.empty(slots, dtype=index), np.empty(slots), 0
    counts = np.zeros(_rows_in(base, chunks) + 1, dtype=index)
    for first, end in parts_of_rows(starts):
        part = range(chunks.start + first, chunks.start + end)
        rows, columns, _ = _decode_sparse(base, "adjacency", part, nodes)
        held = sp.csr_array(_coo(np.ones(rows.size), rows, columns, (_rows_in(base, part), nodes)))
        held.sort_indices()
        indices[filled : filled + held.nnz], values[filled : filled + held.nnz] = held.indices, held.data
        filled += held.nnz
        before = first * base.index.chunk_rows
        counts[before + 1 : before + 1 + held.shape[0]] = np.diff(held.indptr)
    starts_of_each = np.cumsum(counts, dtype=index)
    return sp.csr_array((values[:filled], indices[:filled], starts_of_each), shape=(counts.size - 1, nodes))


def decode_beta(base: BaseArrays, table_name: str, chunks: range) -> NDArray[np.float64]:
    """Return the span coefficients of the rows in consecutive chunks, (blocks, k, C)."""
    table, per_block = base.index.tables[table_name], base.index.row_chunks
    blocks, classes = range(table.chunks // per_block), table.arrays["values"].width
    beta: NDArray[np.float64] = seldom_read((len(blocks), _rows_in(base, chunks), classes)).numpy()
    for block in blocks:
        shifted = range(chunks.start + block * per_block, chunks.stop + block * per_block)
        base.read_raw(table_name, "values", shifted, out=beta[block].view(np.uint8))
    return beta


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


def _decode_sparse(
    base: BaseArrays, table_name: str, chunks: range, width: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_] | slice]:
    """Return the rows, counted from the first of `chunks`, and columns of the kept slots, and which slots those are.

    Raises StoreDamaged for a row outside of its chunk, where erasing would miss it, or a column not below `width`.
    """
    starts = base.index.tables[table_name].starts[chunks.start : chunks.stop + 1]
    rows = base.read(table_name, "rows", chunks)[:, 0]
    columns = base.read(table_name, "columns", chunks)[:, 0]
    places = np.arange(0, len(chunks) * base.index.chunk_rows, base.index.chunk_rows, dtype=columns.dtype)
    places = np.repeat(places, np.diff(starts))
    blank = rows == NO_ROW
    kept: NDArray[np.bool_] | slice = slice(None)
    if blank.any():
        kept = ~blank
        rows, columns, places = rows[kept], columns[kept], places[kept]
    places += rows
    if rows.size and (
        rows.max() >= base.index.chunk_rows
        or places.max() >= _rows_in(base, chunks)
        or columns.min() < 0
        or columns.max() >= width
    ):
        raise damaged(base.path_of(table_name, "columns"), "names rows or columns that its table does not have")
    return places, columns, kept


def _coo(values: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]) -> sp.coo_array:
    """Return the matrix of stored values in any order, with the index type that scipy prefers for its size."""
    index_type = sp.get_index_dtype(maxval=max(*shape, values.size))
    places = (rows.astype(index_type, copy=False), columns.astype(index_type, copy=False))
    return sp.coo_array((values, places), shape=shape)


def _decode_ids(base: BaseArrays) -> NodeIds:
    lengths = base.read_all("nodes", "id_bytes")[:, 0]
    id_slots = base.read_all("layout", "id_slots")[:, 0]
    ids = NodeIds(base.read_all("ids", "utf8"), id_slots, lengths)
    # Check each chunk too, since erasing relies on it.
    of_chunks = ids.starts[base.index.tables["layout"].starts]
    if (lengths > id_slots.astype(np.int64) * SLOT_BYTES).any() or (of_chunks != base.index.tables["ids"].starts).any():
        raise damaged(base.path_of("layout", "id_slots"), "does not locate the ids of the nodes")
    if not ids.are_text():
        raise damaged(base.path_of("ids", "utf8"), "contains invalid text")
    return ids


def _rows_in(base: BaseArrays, chunks: range) -> int:
    return min(chunks.stop * base.index.chunk_rows, base.index.nodes) - chunks.start * base.index.chunk_rows
