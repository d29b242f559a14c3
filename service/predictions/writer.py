"""Write the publications that readers answer from, and erase deleted data from them.

Methods that are not coroutines block and belong on the executor. Nothing is synced: data lost in a machine crash is
written again from the store.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from model_store.disk.durable import blank
from model_store.versions import VersionRef
from projector.forgetting.canaries import Canaries
from projector.graph.external_ids import SLOT_BYTES, NodeIds
from projector.graph.ranges import parts_of_rows, ranges
from service.domain.snapshot import Snapshot
from service.predictions.facts import (
    BLOCK,
    Checksums,
    ModelFacts,
    ModelManifest,
    VersionFacts,
    VersionManifest,
    after_change,
    of_bytes,
    of_file,
    read_checksums,
    with_checksum,
    write_checksums,
)
from service.predictions.heads import Head, Heads
from service.predictions.layout import MANIFEST, Layout, hidden, read_manifest, remove_folder
from service.predictions.mapped import BLANK_BYTE, edge_entries, edge_places, edge_rows, id_places
from service.private_files import write_private

#: Below the home, but in none of its backups.
_NOTED = Path("run") / "highest-version"
#: A new publication needs room for this many versions: the committed one, the next, and one to spare.
_VERSIONS = 3
#: Table entries per pass.
_SLICE = 1 << 20


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """Data published once per import, for all of its versions."""

    facts: ModelFacts
    canaries: Canaries | None
    #: External ids of live nodes only.
    node_ids: NodeIds
    #: The nodes declared public, (n,).
    public: NDArray[np.bool_]


class _Published(NamedTuple):
    """A version written by this process."""

    layout: Layout
    path: Path
    #: Sequence number among this process's versions: a lost version is written again.
    copy: int


class Publisher:
    """Writes the publications of one LETHE_HOME, for the holder of the model's lease."""

    def __init__(self, home: Path, share: Path | None = None) -> None:
        """`share` is the folder for publications; None chooses one."""
        self._home = home
        self._share = share
        self._heads = Heads(home)
        #: By the versions' names in the store.
        self._versions: dict[str, _Published] = {}
        #: Number of versions written.
        self._written = 0

    @property
    def noted(self) -> int:
        """The highest version number ever noted for publication here, whatever a database knows; or 0."""
        path = self._home / _NOTED
        return int(path.read_text()) if path.exists() else 0

    def note(self, number: int) -> None:
        """Store the number of a version that is about to be committed. Raises OSError.

        The write is not synced: only a database restored from a backup, much later, knows less. It overwrites the
        previous number in place with the same length, so that a power loss never leaves a file without a number.
        """
        path, text = self._home / _NOTED, f"{max(number, self.noted):020d}"
        if not path.exists():
            write_private(path, text)
            return
        with path.open("r+") as file:
            file.write(text)

    def highest_fencing(self) -> int:
        """Return the highest fencing number of an entry or publication, or 0; a session needs a higher one."""
        newest = self._heads.newest()
        return max(Layout.highest_fencing(self._home), 0 if newest is None else newest.fencing)

    def load(
        self, ref: VersionRef, model: PublishedModel, snapshot: Snapshot, facts: VersionFacts, fencing: int
    ) -> None:
        """Show the committed version; write it first unless this session has done so, as for an import.

        `fencing` is the number of the caller's own lease. Raises OSError, LeaseLost, and ValueError if the parts do not
        fit.
        """
        if not self.has(ref, fencing):
            self._write_with_model(ref, model, snapshot, facts, fencing)
        self.show(ref, fencing)

    def has(self, ref: VersionRef, fencing: int) -> bool:
        """Return whether the session with this fencing number has written the version and it still exists."""
        found = self._versions.get(ref.folder)
        return found is not None and found.layout.fencing == fencing and found.path.exists()

    def show(self, ref: VersionRef, fencing: int) -> bool:
        """Make a committed version the head; False if it does not exist.

        Every later request is answered from it or from a newer one. Raises OSError, and LeaseLost if a later session
        has shown one.
        """
        if not self.has(ref, fencing):
            return False
        published = self._versions[ref.folder]
        self._heads.show(Head(fencing, ref.version, published.copy), published.path)
        return True

    def withhold(self, ref: VersionRef, fencing: int) -> None:
        """Suspend predictions until a version is shown. Raises OSError and LeaseLost."""
        self._heads.withhold(Head(fencing, ref.version, self._written))

    def write(self, ref: VersionRef, snapshot: Snapshot, facts: VersionFacts, of: VersionRef | PublishedModel) -> None:
        """Write a new version in step 5; no answer uses it until it is shown.

        `of` is an earlier version of the same model that still exists, or a model published for the first time.
        Replaces an earlier, uncommitted attempt. Raises OSError, after which nothing of it is left where there is room,
        and ValueError if the parts do not fit.
        """
        if ref.folder in self._versions:
            remove_folder(self._versions[ref.folder].path)
        if isinstance(of, VersionRef):
            self._write(ref, self._versions[of.folder].layout, snapshot, facts)
        else:
            self._write_with_model(ref, of, snapshot, facts, ref.fencing)

    def erase(self, ref: VersionRef, nodes: NDArray[np.int64], edges: NDArray[np.int64]) -> None:
        """Overwrite deleted data in the model of the committed version, in step 9. Idempotent.

        `nodes` (k,) are rows whose ids and edges are erased; `edges` (k, 2) were deleted by themselves. Raises OSError.
        """
        if not nodes.size and not edges.size:
            return
        path = self._versions[ref.folder].layout.model
        said, before = read_manifest(path, ModelManifest), read_checksums(path)
        write_checksums(path, None)
        gone = np.zeros(said.facts.nodes, dtype=np.bool_)
        gone[nodes] = True
        # Byte offsets of the erased entries, by file.
        changed: dict[str, NDArray[np.int64]] = {}
        if nodes.size:
            index = np.memmap(path / "index", dtype=np.int32, mode="r")
            at = np.flatnonzero(index >= 0)
            at = at[gone[index[at]]]
            _blank(path / "index", at, 4, BLANK_BYTE)
            offsets = np.memmap(path / "offsets", dtype=np.int64, mode="r")
            text = ranges(offsets[nodes], offsets[nodes + 1])
            _blank(path / "ids", text, 1, 0)
            changed |= {"index": 4 * at, "ids": text}
        at = _edges_at(path / "edges", gone, edges)
        _blank(path / "edges", at, 8, BLANK_BYTE)
        changed["edges"] = 8 * at
        after: Checksums
        if before is None:
            # An earlier erasure was interrupted at an unknown point.
            after = {name: of_file(path / name) for name in said.sizes}
        else:
            blocks = {name: np.unique(at // BLOCK).tolist() for name, at in changed.items()}
            renewed = {name: after_change(path / name, before[name], blocks[name]) for name in blocks}
            after = {**before, **renewed}
        write_checksums(path, after)

    def remove_older(self, keep: VersionRef) -> None:
        """Before `completed`: overwrite and remove every other version, and the publications of earlier sessions.

        Publications of a later session stay. The head is `keep` or a later version. Raises OSError.
        """
        kept = self._versions[keep.folder]
        for folder in kept.layout.versions.iterdir():
            if folder != kept.path:
                remove_folder(folder)
        kept.layout.remove_others(self._home)
        self._versions = {keep.folder: kept}

    def _write_with_model(
        self, ref: VersionRef, model: PublishedModel, snapshot: Snapshot, facts: VersionFacts, fencing: int
    ) -> None:
        """Write a new publication of the model and this version."""
        arrays, said = _model_files(model, snapshot)
        layout = Layout.make(self._home, self._share, fencing, room=_room(model, snapshot))
        try:
            _write_folder(layout.model, said, arrays, with_checksums=True)
            self._write(ref, layout, snapshot, facts)
        except OSError:
            layout.remove()
            raise

    def _write(self, ref: VersionRef, layout: Layout, snapshot: Snapshot, facts: VersionFacts) -> None:
        """Write a new folder in `versions/`."""
        arrays = {"probabilities": _without_forgotten(snapshot), "live": snapshot.live}
        checksums = {name: of_bytes(_bytes(array)) for name, array in arrays.items()}
        folder = layout.versions / f"{ref.version}-{secrets.token_hex(8)}"
        _write_folder(folder, VersionManifest(facts, checksums), arrays)
        self._written += 1
        self._versions[ref.folder] = _Published(layout, folder, self._written)


def _model_files(model: PublishedModel, snapshot: Snapshot) -> tuple[Mapping[str, NDArray[np.generic]], ModelManifest]:
    """Build the files of a model's folder, and its manifest. Raises ValueError if the parts do not fit."""
    facts = model.facts
    if snapshot.probabilities.shape != (facts.nodes, len(facts.classes)):
        raise ValueError(
            f"{facts.nodes} nodes and {len(facts.classes)} classes do not fit probabilities of shape "
            f"{snapshot.probabilities.shape}"
        )
    if not np.array_equal(model.node_ids.named, snapshot.live):
        raise ValueError("the ids do not match the live nodes")
    index, edges = id_places(model.node_ids), edge_places(_edges_of(snapshot))
    # One more byte, because an empty file cannot be mapped.
    arrays: dict[str, NDArray[np.generic]] = {
        "ids": np.append(model.node_ids.utf8, np.uint8(0)),
        "offsets": model.node_ids.starts * SLOT_BYTES,
        "index": index.places,
        "edges": edges.places,
        "public": model.public & snapshot.live,
    }
    sizes = {name: array.nbytes for name, array in arrays.items()}
    return arrays, ModelManifest(facts, model.canaries, index.hashing, edges.hashing, sizes)


def _write_folder(
    folder: Path,
    said: ModelManifest | VersionManifest,
    arrays: Mapping[str, NDArray[np.generic]],
    *,
    with_checksums: bool = False,
) -> None:
    """Write a folder, which gets its name once it is complete; after an error, remove its parts.

    A checksum file is for files that change later.
    """
    unfinished = hidden(folder)
    unfinished.mkdir(mode=0o700)
    try:
        for name, array in arrays.items():
            _write_file(unfinished / name, _bytes(array))
        if with_checksums:
            write_checksums(unfinished, {name: of_bytes(_bytes(array)) for name, array in arrays.items()})
        _write_file(unfinished / MANIFEST, memoryview(with_checksum(msgspec.json.encode(said, enc_hook=float))))
    except OSError:
        remove_folder(unfinished)
        raise
    unfinished.rename(folder)


def _write_file(path: Path, data: memoryview) -> None:
    """Use write(), so that a full file system is an error here, not a signal in a process that maps the file."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    finally:
        os.close(descriptor)


def _blank(path: Path, places: NDArray[np.int64], width: int, byte: int) -> None:
    """Fill places of `width` bytes with one byte."""
    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        blank(descriptor, places, slot_bytes=width, fill=byte)
    finally:
        os.close(descriptor)


def _edges_at(path: Path, gone: NDArray[np.bool_], edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of edges with an end in `gone`, and of `edges`."""
    table, found = np.memmap(path, dtype=np.int64, mode="r"), []
    wanted = edge_entries(edges)
    for start in range(0, len(table), _SLICE):
        part = np.asarray(table[start : start + _SLICE])
        at = np.flatnonzero(part >= 0)
        lower, upper = edge_rows(part[at])
        found.append(start + at[gone[lower] | gone[upper] | np.isin(part[at], wanted)])
    return np.concatenate(found)


def _edges_of(snapshot: Snapshot) -> NDArray[np.int64]:
    """Return the entries of the edges between live nodes, (m,), each once."""
    adjacency, live = snapshot.edges.adjacency, snapshot.live
    found, filled = np.empty(adjacency.nnz // 2, dtype=np.int64), 0
    for first, end in parts_of_rows(adjacency.indptr):
        part = slice(adjacency.indptr[first], adjacency.indptr[end])
        rows = np.repeat(np.arange(first, end), np.diff(adjacency.indptr[first : end + 1]))
        columns = adjacency.indices[part]
        kept = (adjacency.data[part] != 0) & (rows < columns) & live[rows] & live[columns]
        entries = edge_entries(np.column_stack([rows[kept], columns[kept]]))
        found[filled : filled + entries.size] = entries
        filled += entries.size
    return found[:filled]


def _without_forgotten(snapshot: Snapshot) -> NDArray[np.float64]:
    """Return the probabilities, (n, C), with zeros for nodes that are not live."""
    if snapshot.probabilities[~snapshot.live].any():
        # A forgotten node's prediction must not outlive it, whatever computed the snapshot.
        return np.where(snapshot.live[:, None], snapshot.probabilities, 0.0)
    return snapshot.probabilities


def _room(model: PublishedModel, snapshot: Snapshot) -> int:
    """Return the maximum size in bytes of a publication of the model."""
    ids = 64 * len(model.node_ids) + model.node_ids.utf8.nbytes
    version = snapshot.probabilities.nbytes + snapshot.live.nbytes
    return ids + 8 * int(snapshot.edges.adjacency.nnz) + _VERSIONS * version


def _bytes(array: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
