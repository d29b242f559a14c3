"""Erase nodes, features and edges from `base/`: find their slots and overwrite them in place.

The index records an erasure before the first byte is overwritten: every slot to blank, and the future digest of every
affected chunk. So recovery after a crash does not depend on how much was done. Blanking always writes the same bytes to
the same places: a writer that continues after losing its lease only repeats its successor's work.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays, digest_of, slots_within
from model_store.base.index import Generation, Index, Table
from model_store.base.tables import NO_ROW
from model_store.disk.durable import DurableChanges
from model_store.manifest import FeatureLayout


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


def _no_edges() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Erasure:
    """What to overwrite, by row."""

    #: Nodes to erase with features, label, masks, id, all span coefficients and edges; (k,).
    nodes: NDArray[np.int64] = field(default_factory=_no_rows)
    #: Nodes whose features and feature span coefficients are erased, (k,).
    feature_rows: NDArray[np.int64] = field(default_factory=_no_rows)
    #: Edges, each in one direction or both, (k, 2).
    edges: NDArray[np.int64] = field(default_factory=_no_edges)

    def check(self, nodes: int) -> None:
        """Raise IndexError for a row that a graph of `nodes` nodes does not have."""
        for rows in (self.nodes, self.feature_rows, self.edges):
            if rows.size and (rows.min() < 0 or rows.max() >= nodes):
                raise IndexError(f"rows to erase must lie in [0, {nodes}), not in [{rows.min()}, {rows.max()}]")


def plan(base: BaseArrays, erasure: Erasure, layout: FeatureLayout, generation: Generation) -> Index | None:
    """Return the open index for carrying out an erasure, or None if nothing of it is left on disk.

    Reads the chunks that contain erased data, and the neighbours' chunks of the adjacency.
    """
    erasure.check(base.index.nodes)
    nodes = np.unique(erasure.nodes)
    featureless = np.union1d(nodes, erasure.feature_rows)
    slots = {
        "nodes": nodes,
        "ids": _id_slots(base, nodes),
        "features": featureless if layout is FeatureLayout.DENSE else _value_slots(base, featureless),
        "beta": _beta_slots(base, "beta", featureless),
        "label_beta": _beta_slots(base, "label_beta", nodes),
        "adjacency": _edge_slots(base, nodes, erasure.edges),
    }
    tables = {name: _erasing(base, name, found) for name, found in slots.items()}
    index = replace(base.index, generation=generation, tables={**base.index.tables, **tables})
    return index if index.is_open else None


def carry_out(index: Index, folder: Path, changes: DurableChanges) -> None:
    """Overwrite the slots that an open index names. Idempotent."""
    for table in index.tables.values():
        for array in table.arrays.values() if table.erasing.size else ():
            changes.overwrite(folder / array.file, table.erasing, slot_bytes=array.slot_bytes, fill=array.blank)


def _id_slots(base: BaseArrays, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    found = [_no_rows()]
    for chunk, local in _by_chunk(base, nodes):
        sizes = base.read("layout", "id_slots", range(chunk, chunk + 1))[:, 0].astype(np.int64)
        ends = base.index.tables["ids"].starts[chunk] + np.cumsum(sizes)
        found += [np.arange(ends[row] - sizes[row], ends[row]) for row in local]
    return np.concatenate(found)


def _value_slots(base: BaseArrays, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of stored sparse feature values in the given rows."""
    found = [_no_rows()]
    starts = base.index.tables["features"].starts
    for chunk, local in _by_chunk(base, rows):
        stored = base.read("features", "rows", range(chunk, chunk + 1))[:, 0]
        found.append(starts[chunk] + np.flatnonzero(np.isin(stored, local)))
    return np.concatenate(found)


def _beta_slots(base: BaseArrays, table_name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    blocks = base.index.tables[table_name].slots // base.index.nodes
    return (np.arange(blocks, dtype=np.int64)[:, None] * base.index.nodes + rows).reshape(-1)


def _edge_slots(base: BaseArrays, nodes: NDArray[np.int64], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of all edges at `nodes` and of `edges`, in both directions."""
    n = base.index.nodes
    # One extra entry, for row and column -1 of a blanked slot.
    gone = np.zeros(n + 1, dtype=np.bool_)
    gone[nodes] = True
    pairs = np.unique(np.concatenate([edges[:, 0] * n + edges[:, 1], edges[:, 1] * n + edges[:, 0]]))
    neighbours = [_no_rows()]
    for chunk, _ in _by_chunk(base, nodes):
        _, rows, columns = _edges_in(base, chunk)
        neighbours.append(columns[gone[rows]])
    touched = np.unique(np.concatenate([nodes, edges.reshape(-1), *neighbours]))
    found = [_no_rows()]
    for chunk, _ in _by_chunk(base, touched):
        slots, rows, columns = _edges_in(base, chunk)
        chosen = gone[rows] | gone[columns]
        if pairs.size:
            chosen |= (rows >= 0) & np.isin(rows * n + columns, pairs)
        found.append(slots[chosen])
    return np.concatenate(found)


def _edges_in(base: BaseArrays, chunk: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return slots, rows and columns of a chunk of the adjacency. Blanked slots have row and column -1."""
    local = base.read("adjacency", "rows", range(chunk, chunk + 1))[:, 0]
    columns = base.read("adjacency", "columns", range(chunk, chunk + 1))[:, 0].astype(np.int64)
    rows = np.where(local == NO_ROW, np.int64(-1), local + np.int64(chunk * base.index.chunk_rows))
    return base.index.tables["adjacency"].starts[chunk] + np.arange(rows.size), rows, columns


def _by_chunk(base: BaseArrays, rows: NDArray[np.int64]) -> Iterable[tuple[int, NDArray[np.int64]]]:
    """Yield the chunks of sorted rows, with those rows counted from the chunk's first."""
    chunks, firsts = np.unique(rows // base.index.chunk_rows, return_index=True)
    for chunk, local in zip(chunks.tolist(), np.split(rows, firsts[1:]), strict=True) if rows.size else ():
        yield chunk, local - chunk * base.index.chunk_rows


def _erasing(base: BaseArrays, name: str, slots: NDArray[np.int64]) -> Table:
    """Return the table with the slots to blank, in chunks that blanking changes, and their future digests."""
    table = base.index.tables[name]
    slots = np.unique(slots)
    changed: list[NDArray[np.int64]] = [_no_rows()]
    digests = {array: [*map(stored.digest, range(table.chunks))] for array, stored in table.arrays.items()}
    for chunk in np.unique(table.chunk_of(slots)).tolist():
        local = slots_within(slots, table, chunk)
        after = _digests_after(base, table, name, chunk, local)
        if any(after[array] != stored.digest(chunk) for array, stored in table.arrays.items()):
            changed.append(local + table.starts[chunk])
            for array, digest in after.items():
                digests[array][chunk] = digest
    arrays = {array: replace(stored, digests="".join(digests[array])) for array, stored in table.arrays.items()}
    return Table(table.starts, arrays, np.concatenate(changed))


def _digests_after(base: BaseArrays, table: Table, name: str, chunk: int, local: NDArray[np.int64]) -> dict[str, str]:
    """Return the digest of each array's chunk once its slots `local` are blank."""
    after = {}
    for array, stored in table.arrays.items():
        raw = base.read_raw(name, array, range(chunk, chunk + 1))
        raw[local] = stored.blank
        after[array] = digest_of(raw)
    return after
