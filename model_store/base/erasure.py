"""Erase nodes, features and edges from `base/`: find their slots and overwrite them in place.

The index records an erasure before the first byte is overwritten: every slot to blank, and the future digest of every
affected chunk. So recovery after a crash does not depend on how much was done. Blanking always writes the same bytes to
the same places: a writer that continues after losing its lease only repeats its successor's work.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays, digest_of, slots_within
from model_store.base.index import NO_ROW, Generation, Index, Table
from model_store.base.late import LateEntries
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
    imported, joined = nodes[nodes < base.index.imported], nodes[nodes >= base.index.imported] - base.index.imported
    adjacency, late_adjacency = _edge_slots(base, nodes, erasure.edges)
    index = blanking(
        base,
        {
            "nodes": imported,
            "ids": _id_slots(base, "", imported),
            **label_slots(base, nodes),
            **feature_slots(base, featureless, layout),
            "beta": _beta_slots(base, "beta", featureless),
            "label_beta": _beta_slots(base, "label_beta", nodes),
            "adjacency": adjacency,
            "late_nodes": joined,
            "late_ids": _id_slots(base, "late_", joined),
            "late_adjacency": late_adjacency,
        },
    )
    return replace(index, generation=generation) if index.is_open else None


def blanking(base: BaseArrays, slots: Mapping[str, NDArray[np.int64]]) -> Index:
    """Return the index of `base` with the slots to blank in each table, as far as they are not blank."""
    index = base.index
    for name, found in slots.items():
        if found.size:
            index = index.with_table(name, _erasing(base, name, found))
    return index


def label_slots(base: BaseArrays, rows: NDArray[np.int64]) -> dict[str, NDArray[np.int64]]:
    """Return the slots of the labels and masks of sorted `rows`, by table."""
    return {"labels": rows[rows < base.index.imported], "late_labels": _entries(base, "late_labels", rows)}


def feature_slots(base: BaseArrays, rows: NDArray[np.int64], layout: FeatureLayout) -> dict[str, NDArray[np.int64]]:
    """Return the slots of the features of sorted `rows`, by table."""
    imported = rows[rows < base.index.imported]
    return {
        "features": imported if layout is FeatureLayout.DENSE else _value_slots(base, imported),
        "late_features": _entries(base, "late_features", rows),
    }


def carry_out(index: Index, folder: Path, changes: DurableChanges) -> None:
    """Overwrite the slots that an open index names. Idempotent."""
    for table in index.tables.values():
        for array in table.arrays.values() if table.erasing.size else ():
            changes.overwrite(folder / array.file, table.erasing, slot_bytes=array.slot_bytes, fill=array.blank)


def _entries(base: BaseArrays, table_name: str, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of a late table whose entries belong to sorted `rows`."""
    return np.flatnonzero(np.isin(LateEntries(base, table_name).rows, rows)) if rows.size else _no_rows()


def _id_slots(base: BaseArrays, prefix: str, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the slots of the ids of `nodes`, which are rows of the tables with that prefix."""
    found = [_no_rows()]
    for chunk, local in _by_chunk(base, nodes):
        sizes = base.read(f"{prefix}layout", "id_slots", range(chunk, chunk + 1))[:, 0].astype(np.int64)
        ends = base.index.tables[f"{prefix}ids"].starts[chunk] + np.cumsum(sizes)
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
    blocks = base.index.tables[table_name].slots // base.index.beta_rows
    return (np.arange(blocks, dtype=np.int64)[:, None] * base.index.beta_rows + rows).reshape(-1)


def _edge_slots(
    base: BaseArrays, nodes: NDArray[np.int64], edges: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the slots of all edges at `nodes` and of `edges`, in both directions: imported ones, and late ones."""
    n, imported = base.index.nodes, base.index.imported
    # One extra entry, for row and column -1 of a blanked slot.
    gone = np.zeros(n + 1, dtype=np.bool_)
    gone[nodes] = True
    pairs = np.unique(np.concatenate([edges[:, 0] * n + edges[:, 1], edges[:, 1] * n + edges[:, 0]]))

    def chosen(rows: NDArray[np.int64], columns: NDArray[np.int64]) -> NDArray[np.bool_]:
        named = (rows >= 0) & np.isin(rows * n + columns, pairs) if pairs.size else False
        return np.asarray(gone[rows] | gone[columns] | named)

    neighbours = [_no_rows()]
    for chunk, _ in _by_chunk(base, nodes[nodes < imported]):
        _, rows, columns = _edges_in(base, chunk)
        neighbours.append(columns[gone[rows]])
    touched = np.unique(np.concatenate([nodes, edges.reshape(-1), *neighbours]))
    found = [_no_rows()]
    for chunk, _ in _by_chunk(base, touched[touched < imported]):
        slots, rows, columns = _edges_in(base, chunk)
        found.append(slots[chosen(rows, columns)])
    joined = _no_rows()
    if touched.size and (late := LateEntries(base, "late_adjacency")).rows.size:
        columns = base.read_all("late_adjacency", "columns")[:, 0].astype(np.int64)
        joined = np.flatnonzero(chosen(late.rows, columns))
    return np.concatenate(found), joined


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
