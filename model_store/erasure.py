"""Erasing nodes, features and edges from `base/`: which slots hold them, and overwriting those in place.

An erasure is written down as an *intent* before the first byte is overwritten. The intent lists every slot to be
blanked and the digest of every chunk touched as it will be afterwards, so that what is left to do after a crash does
not depend on what was done before it. Blanking only ever writes the same bytes at the same places: a writer that goes
on after it lost its lease repeats what its successor has done.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from model_store.base_arrays import BaseArrays, Blanking, digest_of, slots_within
from model_store.base_index import Generation, Index, Table, labelled_files, read_generation
from model_store.base_tables import NO_ROW
from model_store.errors import StoreForeign
from model_store.files import TRAIN_AGAIN, overwrite
from model_store.manifest import FeatureLayout
from model_store.sealed import FORMAT, Document, Fields, read_sealed

_INTENT = "erasing"


def _no_rows() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


def _no_edges() -> NDArray[np.int64]:
    return np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Erasure:
    """What to overwrite, by row."""

    #: Nodes of which everything goes: features, label, masks, id, all span coefficients, edges; (k,).
    nodes: NDArray[np.int64] = field(default_factory=_no_rows)
    #: Nodes of which the features and the features' span coefficients go, (k,).
    feature_rows: NDArray[np.int64] = field(default_factory=_no_rows)
    #: Edges, each in one direction or both, (k, 2).
    edges: NDArray[np.int64] = field(default_factory=_no_edges)

    def to_json(self) -> Document:
        """The erasure as a JSON object."""
        return {
            "nodes": self.nodes.tolist(),
            "feature_rows": self.feature_rows.tolist(),
            "edges": self.edges.reshape(-1).tolist(),
        }

    @classmethod
    def read(cls, document: Fields) -> "Erasure":
        """The erasure in a JSON object; StoreForeign when it is not one."""
        ends = document.integers("edges")
        if len(ends) % 2:
            raise document.wrong("edges", "a list of pairs", ends)
        erasure = cls(
            nodes=np.asarray(document.integers("nodes"), dtype=np.int64),
            feature_rows=np.asarray(document.integers("feature_rows"), dtype=np.int64),
            edges=np.asarray(ends, dtype=np.int64).reshape(-1, 2),
        )
        document.finish()
        return erasure

    def check(self, nodes: int) -> None:
        """Raises IndexError for a row that a graph of `nodes` nodes does not have."""
        for rows in (self.nodes, self.feature_rows, self.edges):
            if rows.size and (rows.min() < 0 or rows.max() >= nodes):
                raise IndexError(f"rows to erase must lie in [0, {nodes}), not in [{rows.min()}, {rows.max()}]")


@dataclass(frozen=True, eq=False)
class Intent:
    """An erasure under way."""

    #: Later than the index whose chunks are being overwritten; the index at the end is at least as late.
    generation: Generation
    erasure: Erasure
    blankings: Mapping[str, Blanking]

    @property
    def file_name(self) -> str:
        """The name of this intent in `base/`."""
        return f"{_INTENT}-{self.generation}.json"

    def to_json(self) -> Document:
        """The intent as a JSON object."""
        return {
            "format": FORMAT,
            "generation": str(self.generation),
            "erasure": self.erasure.to_json(),
            "tables": {name: _blanking_to_json(blanking) for name, blanking in self.blankings.items()},
        }

    @classmethod
    def read(cls, path: Path) -> "Intent":
        """The intent in a file; StoreDamaged or StoreForeign, naming it, when there is none."""
        document = read_sealed(path)
        document.check_format()
        intent = cls(
            generation=read_generation(document, "generation"),
            erasure=Erasure.read(document.section("erasure")),
            blankings={name: _read_blanking(table) for name, table in document.sections("tables").items()},
        )
        document.finish()
        return intent

    @classmethod
    def open_on(cls, folder: Path, index: Index) -> "Intent | None":
        """The intent under which chunks of `index` are being overwritten, if there is one."""
        found = [(at, path) for stem, at, path in labelled_files(folder) if stem == _INTENT and at > index.generation]
        if not found:
            return None
        intent = cls.read(max(found)[1])
        intent._check(index, folder)
        return intent

    def _check(self, index: Index, folder: Path) -> None:
        """Raises StoreForeign unless it is about slots of this index."""
        for name, blanking in self.blankings.items():
            table, slots = index.tables.get(name), blanking.slots
            if (
                table is None
                or not slots.size
                or slots[0] < 0
                or slots[-1] >= table.slots
                or (np.diff(slots) <= 0).any()
                or blanking.digests.keys() != table.arrays.keys()
                or any(list(each) != np.unique(table.chunk_of(slots)).tolist() for each in blanking.digests.values())
            ):
                raise StoreForeign(
                    f"{folder / self.file_name} is no erasure in the table {name} beside it.",
                    f"It was altered, or another program wrote it; {TRAIN_AGAIN}",
                )

    def apply(self, folder: Path, index: Index) -> None:
        """Overwrites the slots in place and syncs each file once; repeating it changes nothing."""
        for name, blanking in self.blankings.items():
            for array in index.tables[name].arrays.values():
                overwrite(folder / array.file, blanking.slots, slot_bytes=array.slot_bytes, fill=array.blank)

    def applied_to(self, index: Index) -> Index:
        """The index with the digests that the erasure leaves behind."""
        for name, blanking in self.blankings.items():
            index = index.with_table(name, _after(index.tables[name], blanking))
        return index


def plan(base: BaseArrays, erasure: Erasure, layout: FeatureLayout, generation: Generation) -> Intent | None:
    """The intent to carry out an erasure, or None when nothing of it is left on disk.

    Reads the chunks that hold what is erased, and the neighbours' chunks of the adjacency.
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
    blankings = {name: _blanking(base, name, found) for name, found in slots.items()}
    needed = {name: blanking for name, blanking in blankings.items() if blanking.slots.size}
    return Intent(generation, erasure, needed) if needed else None


def _id_slots(base: BaseArrays, nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    found = [_no_rows()]
    for chunk, local in _by_chunk(base, nodes):
        sizes = base.read("layout", "id_slots", range(chunk, chunk + 1))[:, 0].astype(np.int64)
        ends = base.index.tables["ids"].starts[chunk] + np.cumsum(sizes)
        found += [np.arange(ends[row] - sizes[row], ends[row]) for row in local]
    return np.concatenate(found)


def _value_slots(base: BaseArrays, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """Slots of the stored values of sparse features in the given rows."""
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
    """Slots of all edges at `nodes` and of `edges`, in both directions."""
    n = base.index.nodes
    # One more, for the row and column -1 of a blanked slot.
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
    """Slots, rows and columns of a chunk of the adjacency; blanked slots have row and column -1."""
    local = base.read("adjacency", "rows", range(chunk, chunk + 1))[:, 0]
    columns = base.read("adjacency", "columns", range(chunk, chunk + 1))[:, 0].astype(np.int64)
    rows = np.where(local == NO_ROW, np.int64(-1), local + np.int64(chunk * base.index.chunk_rows))
    return base.index.tables["adjacency"].starts[chunk] + np.arange(rows.size), rows, columns


def _by_chunk(base: BaseArrays, rows: NDArray[np.int64]) -> Iterable[tuple[int, NDArray[np.int64]]]:
    """The chunks that hold sorted rows, with those rows counted from the chunk's first."""
    chunks, firsts = np.unique(rows // base.index.chunk_rows, return_index=True)
    for chunk, local in zip(chunks.tolist(), np.split(rows, firsts[1:]), strict=True) if rows.size else ():
        yield chunk, local - chunk * base.index.chunk_rows


def _blanking(base: BaseArrays, name: str, slots: NDArray[np.int64]) -> Blanking:
    """Those of the slots that lie in chunks which blanking them changes, with the digests to come."""
    table = base.index.tables[name]
    slots = np.unique(slots)
    changed: list[NDArray[np.int64]] = [_no_rows()]
    digests: dict[str, dict[int, str]] = {array: {} for array in table.arrays}
    for chunk in np.unique(table.chunk_of(slots)).tolist():
        local = slots_within(slots, table, chunk)
        after = _digests_after(base, table, name, chunk, local)
        if any(after[array] != stored.digests[chunk] for array, stored in table.arrays.items()):
            changed.append(local + table.starts[chunk])
            for array, digest in after.items():
                digests[array][chunk] = digest
    return Blanking(np.concatenate(changed), digests)


def _digests_after(base: BaseArrays, table: Table, name: str, chunk: int, local: NDArray[np.int64]) -> dict[str, str]:
    """Digest of each array's chunk once the slots `local` of it are blank."""
    after = {}
    for array, stored in table.arrays.items():
        raw = base.read_raw(name, array, range(chunk, chunk + 1))
        raw[local] = stored.blank
        after[array] = digest_of(raw)
    return after


def _after(table: Table, blanking: Blanking) -> Table:
    arrays = {}
    for name, array in table.arrays.items():
        new = blanking.digests[name]
        digests = tuple(new.get(chunk, digest) for chunk, digest in enumerate(array.digests))
        arrays[name] = replace(array, digests=digests)
    return Table(table.starts, arrays)


def _blanking_to_json(blanking: Blanking) -> dict[str, Any]:
    return {
        "slots": blanking.slots.tolist(),
        "chunks": list(next(iter(blanking.digests.values()))),
        "digests": {array: {"sha256": list(digests.values())} for array, digests in blanking.digests.items()},
    }


def _read_blanking(document: Fields) -> Blanking:
    slots, chunks = document.integers("slots"), document.integers("chunks")
    digests = {}
    for array, section in document.sections("digests").items():
        found = section.texts("sha256")
        if len(found) != len(chunks):
            raise section.wrong("sha256", f"{len(chunks)} digests", found)
        digests[array] = dict(zip(chunks, found, strict=True))
        section.finish()
    document.finish()
    return Blanking(np.asarray(slots, dtype=np.int64), digests)
