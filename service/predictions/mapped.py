"""A reader's view of a publication: its files, mapped read-only, while single entries may vanish."""

import errno
import mmap
import os
import secrets
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from projector.forgetting.canaries import Canaries
from projector.graph.external_ids import SLOT_BYTES, NodeIds, splitmix64
from service.predictions.facts import (
    BLOCK,
    Facts,
    Hashing,
    ModelFacts,
    ModelManifest,
    PublicationDamaged,
    VersionManifest,
    check,
    read_checksums,
)
from service.predictions.heads import Head
from service.predictions.layout import read_manifest

#: Fills blank places. No mixture of it with an entry has the bytes of an unused place, all 0xFF.
BLANK_BYTE = 0xAA
_FREE = -1
#: Places per entry.
_PLACES = 1.5


@dataclass(frozen=True, eq=False)
class IdIndex:
    """Index from external ids to rows and back."""

    #: UTF-8: all ids in sequence, each padded with zero bytes; deleted nodes' ids are zero bytes only.
    ids: bytes | mmap.mmap
    #: (n + 1,) int64: start of each row's id.
    offsets: memoryview
    #: int32: rows, by the hash of the id.
    places: memoryview
    hashing: Hashing

    def find(self, node: str) -> int | None:
        """Return the row of an id, deleted or not; None if it is missing."""
        text = node.encode("utf-8", "surrogatepass")
        places, offsets, nodes = self.places, self.offsets, len(self.offsets) - 1
        place = _id_place(text, self.hashing)
        while (row := places[place]) != _FREE:
            if 0 <= row < nodes and self.ids[offsets[row] : offsets[row + 1]].rstrip(b"\0") == text:
                return row
            place += 1
        return None


@dataclass(frozen=True, eq=False)
class EdgeIndex:
    """Index of the pairs of rows that are edges."""

    #: int64: edges, by their hash.
    places: NDArray[np.int64]
    hashing: Hashing

    def contain(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of `pairs` (k, 2) of rows is an edge, in either order, (k,) bool."""
        wanted = edge_entries(pairs)
        place = _edge_places(wanted, self.hashing)
        found = np.zeros(len(wanted), dtype=np.bool_)
        open_ = np.arange(len(wanted))
        while open_.size:
            entries = self.places[place[open_]]
            found[open_] = entries == wanted[open_]
            open_ = open_[(entries != wanted[open_]) & (entries != _FREE)]
            place[open_] += 1
        return found


@dataclass(frozen=True, eq=False)
class Places:
    """A hash table in its stored form."""

    places: NDArray[np.signedinteger]
    hashing: Hashing


def id_places(ids: NodeIds) -> Places:
    """Build the table of ids, without blank ones."""
    rows = np.flatnonzero(ids.named)
    hashing, text = _hashing(rows.size), ids.utf8.reshape(-1).data
    firsts = ids.starts[rows] * SLOT_BYTES
    homes = np.fromiter(
        (_id_place(text[first:end], hashing) for first, end in zip(firsts, firsts + ids.lengths[rows], strict=True)),
        np.int64,
        rows.size,
    )
    return Places(_spread(homes, rows.astype(np.int32), hashing.named), hashing)


def edge_places(entries: NDArray[np.int64]) -> Places:
    """Build the table of edges from their entries (m,), each given once."""
    hashing = _hashing(len(entries))
    return Places(_spread(_edge_places(entries, hashing), entries, hashing.named), hashing)


def edge_entries(pairs: NDArray[np.int64]) -> NDArray[np.int64]:
    """Encode each of `pairs` (k, 2) of rows, in either order, as one number: the lower row, then the higher."""
    lower: NDArray[np.int64] = pairs.min(axis=1)
    upper: NDArray[np.int64] = pairs.max(axis=1)
    return (lower << 32) | upper


def edge_rows(entries: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decode the rows of both ends; negative or invalid rows if there is no edge."""
    return entries >> 32, entries & 0xFFFFFFFF


def _hashing(entries: int) -> Hashing:
    return Hashing(named=int(_PLACES * entries) + 1, key=secrets.randbits(32))


def _id_place(text: bytes | memoryview, hashing: Hashing) -> int:
    """Return the home place of an id: its CRC, scaled. CRC is fast and need not resist attacks here."""
    return zlib.crc32(text, hashing.key) * hashing.named >> 32


def _edge_places(entries: NDArray[np.int64], hashing: Hashing) -> NDArray[np.int64]:
    """Return the home place of each entry, (k,): its splitmix64, scaled."""
    mixed = splitmix64(entries.astype(np.uint64) ^ np.uint64(hashing.key))
    return (((mixed >> np.uint64(32)) * np.uint64(hashing.named)) >> np.uint64(32)).astype(np.int64)


def _spread(homes: NDArray[np.int64], entries: NDArray[np.signedinteger], named: int) -> NDArray[np.signedinteger]:
    """Build the table: each entry at its home or the next free place; the last place is always free."""
    order = np.argsort(homes, kind="stable")
    # In place, because there may be tens of millions.
    at, counted = homes[order], np.arange(len(homes))
    at -= counted
    np.maximum.accumulate(at, out=at)
    at += counted
    del counted
    size = max(named, int(at[-1]) + 1 if len(at) else 0)
    table = np.full(size + 1, _FREE, dtype=entries.dtype)
    blank = np.frombuffer(bytes([BLANK_BYTE]) * entries.itemsize, dtype=entries.dtype)[0]
    table[:size][np.random.default_rng(secrets.randbits(128)).integers(2, size=size, dtype=np.bool_)] = blank
    table[at] = entries[order]
    return table


@dataclass(frozen=True, eq=False)
class MappedModel:
    """The data shared by all versions of one import."""

    #: Its folder.
    path: Path
    facts: ModelFacts
    canaries: Canaries | None
    ids: IdIndex
    edges: EdgeIndex
    #: (n,) bool: the nodes declared public, which are never deleted.
    public: NDArray[np.bool_]


class CheckedRows:
    """Rows of a mapped float64 file. Each block is checked once, before its first row is returned.

    Thread-safe: two threads that check the same block find the same.
    """

    def __init__(self, path: Path, data: mmap.mmap, columns: int, checksums: Sequence[int]) -> None:
        self._path = path
        self._bytes = memoryview(data)
        self._rows = np.frombuffer(data, dtype=np.float64).reshape(-1, columns)
        self._width = 8 * columns
        self._checksums = checksums
        self._checked = bytearray(len(checksums))
        self._is_damaged = False

    def row(self, row: int) -> NDArray[np.float64]:
        """Return one row, (C,). Raises PublicationDamaged."""
        self._require(row * self._width, (row + 1) * self._width)
        found: NDArray[np.float64] = self._rows[row]
        return found

    def rows(self, first: int, end: int) -> NDArray[np.float64]:
        """Return successive rows, (end - first, C), at least one. Raises PublicationDamaged."""
        self._require(first * self._width, end * self._width)
        found: NDArray[np.float64] = self._rows[first:end]
        return found

    def require_undamaged(self) -> None:
        """Raise PublicationDamaged once damage was found; reads nothing."""
        if self._is_damaged:
            raise PublicationDamaged(self._path)

    def _require(self, start: int, end: int) -> None:
        """Check the blocks of these bytes that were not checked before."""
        for block in range(start // BLOCK, (end - 1) // BLOCK + 1):
            if not self._checked[block]:
                self._check(block)

    def _check(self, block: int) -> None:
        found = zlib.crc32(self._bytes[block * BLOCK : (block + 1) * BLOCK])
        self._is_damaged = self._is_damaged or found != self._checksums[block]
        self.require_undamaged()
        self._checked[block] = True


@dataclass(frozen=True, eq=False)
class View:
    """One version. Its files may be overwritten once another version is the head.

    Its model's files are overwritten when the model is replaced; until then, only deleted entries are blanked.
    """

    #: The entry that led to it.
    head: Head
    #: Its folder.
    path: Path
    model: MappedModel
    facts: Facts
    #: (n, C); zero for nodes no longer live.
    probabilities: CheckedRows
    #: (n,) bool, a copy: deletions may still be looked up in a version that is no longer the head.
    live: NDArray[np.bool_]

    def find(self, node: str) -> int | None:
        """Return the row of a live node; None for any other id."""
        row = self.model.ids.find(node)
        return row if row is not None and self.live[row] else None


def open_view(head: Head, path: Path, before: View | None = None) -> View:
    """Open the version in a folder, reusing the mapped files that it shares with the version `before`.

    Reads and checks every file but the probabilities, which are checked when an answer reads them. Raises
    FileNotFoundError if it is missing or gone, OSError, OtherPublicationFormat and PublicationDamaged.
    """
    said = read_manifest(path, VersionManifest)
    model_path = path.parents[1] / "model"
    model = before.model if before is not None and before.model.path == model_path else _open_model(model_path)
    nodes, classes = model.facts.nodes, len(model.facts.classes)
    data, mask = _map(path / "probabilities", 8 * nodes * classes), _map(path / "live", nodes)
    try:
        check(path, {"live": mask}, said.checksums)
    except PublicationDamaged:
        if path.exists():
            raise
        raise FileNotFoundError(errno.ENOENT, f"{path} is being removed") from None
    probabilities = CheckedRows(path / "probabilities", data, classes, said.checksums["probabilities"])
    live = np.frombuffer(mask, dtype=np.bool_).copy()
    if not path.exists():
        # A folder loses its name before it is overwritten, so the copy may be invalid.
        raise FileNotFoundError(errno.ENOENT, f"The version {path} was removed while it was read")
    return View(head, path, model, Facts(model.facts, said.facts), probabilities, live)


def _open_model(path: Path) -> MappedModel:
    said, written = read_manifest(path, ModelManifest), read_checksums(path)
    files = {name: _map(path / name, size) for name, size in said.sizes.items()}
    if written is not None:
        try:
            check(path, files, written)
        except PublicationDamaged:
            if read_checksums(path) == written:
                raise
            # An erasure is in progress.
            raise FileNotFoundError(errno.ENOENT, f"{path} is being changed") from None
    ids = IdIndex(
        ids=files["ids"],
        offsets=memoryview(files["offsets"]).cast("q"),
        places=memoryview(files["index"]).cast("i"),
        hashing=said.ids,
    )
    edges = EdgeIndex(np.frombuffer(files["edges"], dtype=np.int64), said.edges)
    public = np.frombuffer(files["public"], dtype=np.bool_)
    return MappedModel(path, said.facts, said.canaries, ids, edges, public)


def _map(path: Path, size: int) -> mmap.mmap:
    """Map a file of `size` bytes. It is written completely before it gets its name, and never truncated."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise OSError(f"{path} has {found} bytes instead of {size}")
        return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
