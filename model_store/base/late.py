"""Additions since the import: tables that grow at their end, with entries that name their row.

| table | a slot is | arrays |
| --- | --- | --- |
| late_nodes | a row | id_bytes (length of the id) |
| late_layout | a row | id_slots (how many slots the id takes in `late_ids`); never blanked |
| late_ids | 16 bytes of an id | utf8 |
| late_labels | a node | rows, labels, masks; targets, real |
| late_features | a node when dense, a stored value when sparse | rows, values; columns |
| late_adjacency | an edge in one direction | rows, columns; values, if edges have weights |

They are missing before the first addition. The first three hold the rows that follow the imported ones, in order.
Entries of the other tables may belong to any row: an imported row that gets new features has none in `features` any
more. Entries that joined together are in random order.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays
from model_store.disk.durable import damaged

#: Chunks of entries have so many times the slots of chunks of rows, because entries are short.
_ENTRIES = 16


def entries_per_chunk(chunk_rows: int, *, whole_rows: bool) -> int:
    """Return the slots per chunk of a table whose entries are `whole_rows` of features, or shorter."""
    return chunk_rows if whole_rows else _ENTRIES * chunk_rows


class LateEntries:
    """The entries of a table, by row; none if the table is missing."""

    def __init__(self, base: BaseArrays, table_name: str) -> None:
        self._base = base
        self.name = table_name
        self._table = base.index.tables.get(table_name)
        rows = np.empty(0, dtype=np.int64)
        if self._table is not None:
            rows = base.read_all(table_name, "rows")[:, 0]
            if rows.size and not -1 <= rows.min() <= rows.max() < base.index.nodes:
                raise damaged(base.path_of(table_name, "rows"), "names rows that the graph does not have")
        #: The row of each slot, -1 for a blanked one.
        self.rows = rows
        self._by_row = np.argsort(rows, kind="stable")

    def of(self, rows: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the slots of consecutive rows, by row, and the row of each slot, counted from the first row."""
        first, end = np.searchsorted(self.rows, [rows.start, rows.stop], sorter=self._by_row)
        slots = self._by_row[first:end]
        return slots, self.rows[slots] - rows.start

    def read(self, array_name: str, slots: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values of an array in these slots, (k, width), verified."""
        table = self._table
        assert table is not None
        if 2 * slots.size >= table.slots:
            return np.asarray(self._base.read_all(self.name, array_name)[slots])
        chunks = table.chunk_of(slots)
        order = np.argsort(chunks, kind="stable")
        read, firsts = np.unique(chunks[order], return_index=True)
        parts = [
            self._base.read(self.name, array_name, range(chunk, chunk + 1))[slots[places] - table.starts[chunk]]
            for chunk, places in zip(read.tolist(), np.split(order, firsts[1:]), strict=True)
        ]
        found = np.concatenate(parts)
        found[order] = found.copy()
        return found
