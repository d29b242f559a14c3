"""From the tables of `base/` back to a graph and its span coefficients, whole or some chunks of rows at a time."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays
from model_store.base.edit import PUBLIC, TEST, TRAIN, VAL, FeatureSlots
from model_store.base.index import NO_ROW
from model_store.base.late import LateEntries
from model_store.disk.durable import damaged
from model_store.manifest import FeatureLayout, Manifest
from projector.device import seldom_read
from projector.graph.columns import NamedColumns
from projector.graph.external_ids import SLOT_BYTES, NodeIds
from projector.graph.graph import NO_LABEL, Features, Graph, one_hot
from projector.graph.ranges import index_type, parts_of_rows


class BaseReader:
    """A reader of the rows of `base/`, imported or added later."""

    def __init__(self, base: BaseArrays, manifest: Manifest) -> None:
        self.base = base
        self.index = base.index
        self._manifest = manifest

    def graph(self) -> tuple[Graph, NDArray[np.bool_]]:
        """Return the current graph and the mask of nodes that are never deleted, (n,).

        Blanked rows have no id, label, features or edges.
        """
        chunks = range(self.index.row_chunks)
        labels, masks, targets = self._labels(chunks)
        graph = Graph(
            adjacency=self.adjacency(),
            features=self.features(chunks),
            labels=labels,
            train_mask=(masks & TRAIN) > 0,
            val_mask=(masks & VAL) > 0,
            test_mask=(masks & TEST) > 0,
            node_ids=self._ids(),
            class_names=self._manifest.classes,
            values=targets,
            weighted=self.index.weighted,
            columns=NamedColumns.of(self._manifest.columns),
        )
        return graph, np.asarray((masks & PUBLIC) > 0)

    def training_labels(self, chunks: range, live: NDArray[np.bool_]) -> sp.csr_array:
        """Return one-hot labels of live training nodes in consecutive chunks, (k, C) CSR; other rows are zero.

        `live` (k,) refers to these rows.
        """
        labels, masks, _ = self._labels(chunks)
        return one_hot(labels, ((masks & TRAIN) > 0) & live, len(self._manifest.classes))

    def features(self, chunks: range) -> Features:
        """Return the features of the rows in consecutive chunks, (k, d), in their stored layout and dtype."""
        found = self.stored_features(chunks)
        return found if isinstance(found, np.ndarray) else sp.csr_array(found)

    def stored_features(self, chunks: range) -> NDArray[Any] | sp.coo_array:
        """Return the same features, sparse ones in stored order, which is enough for products."""
        base, d, rows = self.base, self._manifest.features, self.index.rows(chunks)
        imported = self.index.imported_chunks(chunks)
        slots, late = self._late_features.of(rows)
        if self._manifest.feature_layout is FeatureLayout.DENSE:
            stored = base.index.tables["features"].arrays["values"]
            dense = np.zeros((rows.stop - rows.start, d), dtype=stored.dtype)
            base.read_raw("features", "values", imported, out=dense[: self._imported(imported)].view(np.uint8))
            if slots.size:
                dense[late] = self._late_features.read("values", slots)
            return dense
        places, columns, kept = self._sparse("features", imported, d)
        values = base.read("features", "values", imported)[kept, 0]
        if slots.size:
            places = np.concatenate([places, late])
            columns = np.concatenate([columns, self._columns(self._late_features, slots, d)])
            values = np.concatenate([values, self._late_features.read("values", slots)[:, 0]])
        return _coo(values, places, columns, (rows.stop - rows.start, d))

    def feature_slots(self) -> Iterator[FeatureSlots]:
        """Yield the slots of each file of feature values."""
        for name in ("features", "late_features"):
            if name not in self.index.tables:
                continue
            table = self.index.tables[name]
            if name == "late_features":
                found = self._late_features.rows
            elif self._manifest.feature_layout is FeatureLayout.DENSE:
                found = np.arange(table.slots, dtype=np.int64)
            else:
                rows, _, kept = self._sparse(name, range(self._import_chunks), self._manifest.features)
                found = np.full(table.slots, -1, dtype=np.int64)
                found[kept] = rows
            values = table.arrays["values"]
            yield FeatureSlots(self.base.folder / values.file, 0, values.slot_bytes, found)

    def adjacency(self) -> sp.csr_array:
        """Return the adjacency, (n, n) float64 ones or weights; the sum for a repeated edge."""
        late, nodes = LateEntries(self.base, "late_adjacency"), self.index.nodes
        starts = self.index.tables["adjacency"].starts
        slots = int(starts[-1]) + int((late.rows >= 0).sum())
        index = index_type(max(nodes, slots))
        indices, values, filled = np.empty(slots, dtype=index), np.empty(slots), 0
        counts = np.zeros(nodes + 1, dtype=index)
        joined = [(self._import_chunks, self._import_chunks)] if nodes > self.index.imported else []
        for first, end in [*parts_of_rows(starts), *joined]:
            part = range(first, end)
            begin = self.index.imported if first == end else first * self.index.chunk_rows
            stop = nodes if first == end else begin + self._imported(part)
            rows, columns, kept = self._sparse("adjacency", part, self.index.imported)
            weights = self.base.read("adjacency", "values", part)[kept, 0] if self.index.weighted else None
            added, at = late.of(slice(begin, stop))
            if added.size:
                rows = np.concatenate([rows, at])
                columns = np.concatenate([columns, self._columns(late, added, nodes)])
                weights = None if weights is None else np.concatenate([weights, late.read("values", added)[:, 0]])
            held = sp.csr_array(
                _coo(np.ones(rows.size) if weights is None else weights, rows, columns, (stop - begin, nodes))
            )
            if weights is not None and held.nnz < rows.size:
                raise damaged(self.base.path_of("adjacency", "columns"), "holds an edge twice")
            held.sort_indices()
            indices[filled : filled + held.nnz], values[filled : filled + held.nnz] = held.indices, held.data
            filled += held.nnz
            counts[begin + 1 : stop + 1] = np.diff(held.indptr)
        return sp.csr_array((values[:filled], indices[:filled], np.cumsum(counts, dtype=index)), shape=(nodes, nodes))

    def beta(self, table_name: str, chunks: range) -> NDArray[np.float64]:
        """Return the span coefficients of the rows in consecutive chunks, (blocks, k, C)."""
        table, rows = self.index.tables[table_name], self.index.beta_rows
        per_block = -(-rows // self.index.chunk_rows)
        blocks, classes = range(table.chunks // per_block), table.arrays["values"].width
        first, stop = chunks.start * self.index.chunk_rows, min(chunks.stop * self.index.chunk_rows, rows)
        beta: NDArray[np.float64] = seldom_read((len(blocks), stop - first, classes)).numpy()
        for block in blocks:
            shifted = range(chunks.start + block * per_block, chunks.stop + block * per_block)
            self.base.read_raw(table_name, "values", shifted, out=beta[block].view(np.uint8))
        return beta

    def all_beta(self, table_name: str) -> NDArray[np.float64]:
        """Return the span coefficients of all rows that have any, (blocks, `beta_rows`, C)."""
        return self.beta(table_name, range(-(-self.index.beta_rows // self.index.chunk_rows)))

    @cached_property
    def _late_features(self) -> LateEntries:
        return LateEntries(self.base, "late_features")

    @cached_property
    def _late_labels(self) -> LateEntries:
        return LateEntries(self.base, "late_labels")

    @property
    def _import_chunks(self) -> int:
        return len(self.index.imported_chunks(range(self.index.row_chunks)))

    def _imported(self, chunks: range) -> int:
        """Rows in consecutive chunks of imported rows."""
        first, stop = (min(chunk * self.index.chunk_rows, self.index.imported) for chunk in (chunks.start, chunks.stop))
        return stop - first

    def _labels(self, chunks: range) -> tuple[NDArray[np.int64], NDArray[np.uint8], NDArray[np.float64] | None]:
        """Return labels and masks (k,) of the rows in consecutive chunks, and real-valued targets (k, C)."""
        rows, imported = self.index.rows(chunks), self.index.imported_chunks(chunks)
        slots, late = self._late_labels.of(rows)
        found = []
        for name, array in self.index.tables["labels"].arrays.items():
            values = np.zeros((rows.stop - rows.start, array.width), dtype=array.dtype)
            if name == "labels":
                values[:] = NO_LABEL
            values[: self._imported(imported)] = self.base.read("labels", name, imported)
            if slots.size:
                values[late] = self._late_labels.read(name, slots)
            found.append(values)
        labels, masks, *targets = found
        return labels[:, 0].astype(np.int64, copy=False), masks[:, 0], targets[0] if targets else None

    def _ids(self) -> NodeIds:
        ids = self._ids_in("")
        return ids.followed_by(self._ids_in("late_")) if self.index.nodes > self.index.imported else ids

    def _ids_in(self, prefix: str) -> NodeIds:
        base, tables = self.base, self.index.tables
        lengths = base.read_all(f"{prefix}nodes", "id_bytes")[:, 0]
        id_slots = base.read_all(f"{prefix}layout", "id_slots")[:, 0]
        ids = NodeIds(base.read_all(f"{prefix}ids", "utf8"), id_slots, lengths)
        # Check each chunk too, since erasing relies on it.
        of_chunks = ids.starts[tables[f"{prefix}layout"].starts]
        too_long = (lengths > id_slots.astype(np.int64) * SLOT_BYTES).any()
        if too_long or (of_chunks != tables[f"{prefix}ids"].starts).any():
            raise damaged(base.path_of(f"{prefix}layout", "id_slots"), "does not locate the ids of the nodes")
        if not ids.are_text():
            raise damaged(base.path_of(f"{prefix}ids", "utf8"), "contains invalid text")
        return ids

    def _sparse(
        self, table_name: str, chunks: range, width: int
    ) -> tuple[NDArray[Any], NDArray[Any], NDArray[np.bool_] | slice]:
        """Return the rows, counted from the first of `chunks`, and columns of the kept slots, and which those are.

        Raises StoreDamaged for a row outside of its chunk, where erasing would miss it, or a column not below `width`.
        """
        base, chunk_rows = self.base, self.index.chunk_rows
        starts = self.index.tables[table_name].starts[chunks.start : chunks.stop + 1]
        rows = base.read(table_name, "rows", chunks)[:, 0]
        columns = base.read(table_name, "columns", chunks)[:, 0]
        places = np.arange(0, len(chunks) * chunk_rows, chunk_rows, dtype=columns.dtype)
        places = np.repeat(places, np.diff(starts))
        blank = rows == NO_ROW
        kept: NDArray[np.bool_] | slice = slice(None)
        if blank.any():
            kept = ~blank
            rows, columns, places = rows[kept], columns[kept], places[kept]
        places += rows
        if rows.size and (
            rows.max() >= chunk_rows
            or places.max() >= self._imported(chunks)
            or columns.min() < 0
            or columns.max() >= width
        ):
            raise damaged(base.path_of(table_name, "columns"), "names rows or columns that its table does not have")
        return places, columns, kept

    def _columns(self, late: LateEntries, slots: NDArray[np.int64], width: int) -> NDArray[Any]:
        """Return the columns of late entries; raises StoreDamaged for one not below `width`."""
        columns = late.read("columns", slots)[:, 0]
        if columns.min() < 0 or columns.max() >= width:
            raise damaged(self.base.path_of(late.name, "columns"), "names columns that its table does not have")
        return columns


def _coo(values: NDArray[Any], rows: NDArray[Any], columns: NDArray[Any], shape: tuple[int, int]) -> sp.coo_array:
    """Return the matrix of stored values in any order, with the index type that scipy prefers for its size."""
    index_type = sp.get_index_dtype(maxval=max(*shape, values.size))
    places = (rows.astype(index_type, copy=False), columns.astype(index_type, copy=False))
    return sp.coo_array((values, places), shape=shape)
