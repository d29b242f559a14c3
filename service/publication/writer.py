"""Writes what readers answer from, and takes out of it what is deleted.

What is not a coroutine blocks, and belongs on the executor. Nothing is synced: what a crash of the machine loses is
written again from the store.
"""

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from model_store.disk.durable import blank
from model_store.versions import VersionRef
from projector.forgetting.canaries import Canaries
from projector.graph.external_ids import SLOT_BYTES, NodeIds
from projector.graph.ranges import parts_of_rows, ranges
from service.domain.snapshot import Snapshot
from service.private_files import write_private
from service.publication.checksums import (
    BLOCK,
    Checksums,
    PublicationDamaged,
    after_change,
    damaged,
    of_bytes,
    of_file,
    read_checksums,
    sealed,
    write_checksums,
)
from service.publication.facts import ModelFacts, ModelManifest, VersionFacts, VersionManifest
from service.publication.heads import Head, Heads
from service.publication.index import BLANK_BYTE, edge_entries, edge_places, edge_rows, id_places
from service.publication.layout import (
    MANIFEST,
    Layout,
    OtherPublicationFormat,
    hidden,
    read_manifest,
    remove_folder,
    written_under,
)

#: Below the home, and in no backup of it.
_NOTED = Path("run") / "highest-version"
#: Room for so many versions is wanted where a publication is made: the committed one, the next, and one to spare.
_VERSIONS = 3
#: Entries of a table that are looked through at a time.
_SLICE = 1 << 20


@dataclass(frozen=True, eq=False)
class PublishedModel:
    """What is published of an import, once for all of its versions."""

    facts: ModelFacts
    canaries: Canaries | None
    #: External ids, of live nodes only.
    node_ids: NodeIds
    #: The nodes declared public, (n,).
    public: NDArray[np.bool_]


class Publisher:
    """The publication of one LETHE_HOME, written by the holder of the model's lease."""

    def __init__(self, home: Path, share: Path | None = None) -> None:
        """`share` is the folder in which a new publication is made; None chooses one."""
        self._home = home
        self._share = share
        self._layout = Layout.find(home)
        self._heads = Heads(home)
        #: Folders of versions that were found or written here, and which copy each is, by the versions' names in the
        #: store.
        self._folders: dict[str, tuple[Path, int]] = {}
        #: How many folders of versions were written.
        self._written = 0

    @property
    def layout(self) -> Layout:
        """Where it is. Raises FileNotFoundError before the first `load`, and when it has been removed."""
        if self._layout is None or not self._layout.path.is_dir():
            raise FileNotFoundError(2, f"There is no publication of {self._home}")
        return self._layout

    @property
    def noted(self) -> int:
        """The highest version that was ever about to be published from here, whatever a database knows of it; or 0."""
        path = self._home / _NOTED
        return int(path.read_text()) if path.exists() else 0

    def note(self, number: int) -> None:
        """Keep the number of a version that is about to be committed. Raises OSError.

        It is not waited for: only a database that is restored from a backup knows less, and that is much later. It is
        written over the one before, as long as that, so that no loss of power leaves a file without a number.
        """
        path, text = self._home / _NOTED, f"{max(number, self.noted):020d}"
        if not path.exists():
            write_private(path, text)
            return
        with path.open("r+") as file:
            file.write(text)

    def highest_fencing(self) -> int:
        """The highest fencing number of an entry, or 0: a session that is to show anything needs a higher one."""
        newest = self._heads.newest()
        return 0 if newest is None else newest.fencing

    def load(
        self, ref: VersionRef, model: PublishedModel, snapshot: Snapshot, facts: VersionFacts, fencing: int
    ) -> None:
        """Show the committed version; what is not published yet, or not whole, is written first.

        `fencing` is the number of the caller's own lease. Raises OSError, and ValueError when the parts do not fit.
        """
        self._layout = Layout.make(self._home, self._share, room=_room(model, snapshot))
        folder = self._published()
        if folder is None or not self._is_whole(folder, ref, model, snapshot, facts):
            self._write(ref, self._write_model(model, snapshot, fencing), snapshot, facts, fencing)
        else:
            self._folders[ref.folder] = folder, self._written
        self.show(ref, fencing)

    def has(self, ref: VersionRef) -> bool:
        """Whether this process knows the version's folder and it still exists."""
        return ref.folder in self._folders and self._folder(ref).exists()

    def show(self, ref: VersionRef, fencing: int) -> bool:
        """Make a committed version the head, if it is not; False when it is not there.

        Every question asked from now on is answered from it, or from a later one. Raises OSError.
        """
        if not self.has(ref):
            return False
        folder, copy = self._folders[ref.folder]
        self._heads.show(Head(fencing, ref.version, copy), folder)
        return True

    def withhold(self, ref: VersionRef, fencing: int) -> None:
        """Suspend predictions until a version is shown. Raises OSError."""
        self._heads.withhold(Head(fencing, ref.version, self._written))

    def write(self, ref: VersionRef, snapshot: Snapshot, facts: VersionFacts, of: VersionRef | PublishedModel) -> None:
        """Step 5: a new version, which nobody answers from until it is shown.

        It is `of` the model that an earlier version, whose folder is still there, is of, or of one that is new here.
        An earlier attempt at it, which was not committed, is replaced. Raises OSError, after which nothing of it is
        left where there is room, and ValueError when the parts do not fit.
        """
        if ref.folder in self._folders:
            remove_folder(self._folder(ref))
        if isinstance(of, VersionRef):
            said = read_manifest(self._folder(of), VersionManifest)
            self._write(ref, said.model, snapshot, facts, ref.fencing)
            return
        self._layout = Layout.make(self._home, self._share, room=_room(of, snapshot))
        token = self._write_model(of, snapshot, ref.fencing)
        try:
            self._write(ref, token, snapshot, facts, ref.fencing)
        except OSError:
            remove_folder(self.layout.models / token)
            raise

    def erase(self, ref: VersionRef, nodes: NDArray[np.int64], edges: NDArray[np.int64], fencing: int) -> None:
        """Step 9: overwrite, in the model of the committed version, what was deleted; again does no harm.

        `nodes` (k,) are rows whose ids and edges are erased, `edges` (k, 2) edges deleted by themselves. `fencing` is
        the caller's number. Raises OSError.
        """
        if not nodes.size and not edges.size:
            return
        layout = self.layout
        path = layout.models / read_manifest(self._folder(ref), VersionManifest).model
        said, before = read_manifest(path, ModelManifest), read_checksums(path)
        write_checksums(path, None, fencing)
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
            # An earlier erasure was cut off at an unknown point.
            after = {name: of_file(path / name) for name in said.sizes}
        else:
            blocks = {name: np.unique(at // BLOCK).tolist() for name, at in changed.items()}
            renewed = {name: after_change(path / name, before[name], blocks[name]) for name in blocks}
            after = {**before, **renewed}
        write_checksums(path, after, fencing)

    def remove_older(self, keep: VersionRef, fencing: int) -> None:
        """Before `completed`: every other version, and every model but its own, are overwritten and removed.

        Those written under a greater number than `fencing`, the caller's own, stay. `keep` is the head, or a later
        version is. Raises OSError.
        """
        layout, committed = self.layout, self._folder(keep)
        kept = {committed.name, read_manifest(committed, VersionManifest).model}
        # In this order, as in `Layout.remove`.
        for folder in (*layout.versions.iterdir(), *layout.models.iterdir()):
            if folder.name not in kept and written_under(folder) <= fencing:
                remove_folder(folder)
        layout.remove_outgrown(self._home)
        self._folders = {keep.folder: self._folders[keep.folder]}

    def _folder(self, ref: VersionRef) -> Path:
        """Where a version is that was found or written here."""
        return self._folders[ref.folder][0]

    def _published(self) -> Path | None:
        """The folder that the head leads to, if it is in this very publication."""
        newest = self._heads.newest()
        try:
            folder = None if newest is None else self._heads.folder(newest)
        except FileNotFoundError:
            return None
        return folder if folder is not None and folder.parent == self.layout.versions else None

    def _is_whole(
        self, folder: Path, ref: VersionRef, model: PublishedModel, snapshot: Snapshot, facts: VersionFacts
    ) -> bool:
        """Whether a folder holds the committed version, and readers may go on with it.

        Probabilities and bounds are compared with what was written, not with what the caller has computed again: that
        may differ in its last digits, and readers answer from what is there.
        """
        try:
            said = read_manifest(folder, VersionManifest)
            about = read_manifest(self.layout.models / said.model, ModelManifest)
            written = read_checksums(self.layout.models / said.model)
            is_damaged = damaged(folder, ("probabilities", "live"), said.checksums) or (
                written is not None and damaged(self.layout.models / said.model, about.sizes, written)
            )
            sizes = {name: (self.layout.models / said.model / name).stat().st_size for name in about.sizes}
        except (FileNotFoundError, OtherPublicationFormat, PublicationDamaged):
            return False
        exact = ("version", "live_nodes", "edges", "rank")
        return (
            said.name == ref.folder
            and (about.facts, about.canaries) == (model.facts, model.canaries)
            and all(getattr(said.facts, name) == getattr(facts, name) for name in exact)
            and not is_damaged
            and said.checksums["live"] == of_bytes(_bytes(snapshot.live))
            and sizes == about.sizes
        )

    def _write_model(self, model: PublishedModel, snapshot: Snapshot, fencing: int) -> str:
        """A new folder in `models/`; returns its name."""
        facts = model.facts
        if snapshot.probabilities.shape != (facts.nodes, len(facts.classes)):
            raise ValueError(
                f"{facts.nodes} nodes and {len(facts.classes)} classes do not fit probabilities of shape "
                f"{snapshot.probabilities.shape}"
            )
        if not np.array_equal(model.node_ids.named, snapshot.live):
            raise ValueError("the ids do not match the live nodes")
        token = f"{fencing}-{secrets.token_hex(8)}"
        index, edges = id_places(model.node_ids), edge_places(_edges_of(snapshot))
        # One more byte: a file without any cannot be mapped.
        arrays: dict[str, NDArray[np.generic]] = {
            "ids": np.append(model.node_ids.utf8, np.uint8(0)),
            "offsets": model.node_ids.starts * SLOT_BYTES,
            "index": index.places,
            "edges": edges.places,
            "public": model.public & snapshot.live,
        }
        sizes = {name: array.nbytes for name, array in arrays.items()}
        said = ModelManifest(facts, model.canaries, index.hashing, edges.hashing, sizes)
        _write_folder(self.layout.models / token, said, arrays, fencing)
        return token

    def _write(self, ref: VersionRef, token: str, snapshot: Snapshot, facts: VersionFacts, fencing: int) -> None:
        """A new folder in `versions/`, of the model `token`."""
        arrays = {"probabilities": _without_forgotten(snapshot), "live": snapshot.live}
        checksums = {name: of_bytes(_bytes(array)) for name, array in arrays.items()}
        folder = self.layout.versions / f"{ref.version}-{fencing}-{secrets.token_hex(8)}"
        _write_folder(folder, VersionManifest(ref.folder, token, facts, checksums), arrays)
        self._written += 1
        self._folders[ref.folder] = folder, self._written


def _write_folder(
    folder: Path,
    said: ModelManifest | VersionManifest,
    arrays: Mapping[str, NDArray[np.generic]],
    fencing: int | None = None,
) -> None:
    """Write a folder, which gets its name once it is complete; after an error, remove its parts.

    With `fencing`, the caller's number, it also gets a checksum file, for files that change later.
    """
    unfinished = hidden(folder)
    unfinished.mkdir(mode=0o700)
    try:
        for name, array in arrays.items():
            _write_file(unfinished / name, _bytes(array))
        if fencing is not None:
            write_checksums(unfinished, {name: of_bytes(_bytes(array)) for name, array in arrays.items()}, fencing)
        _write_file(unfinished / MANIFEST, memoryview(sealed(msgspec.json.encode(said, enc_hook=float))))
    except OSError:
        remove_folder(unfinished)
        raise
    unfinished.rename(folder)


def _write_file(path: Path, data: memoryview) -> None:
    """With write(), so that a full file system is an error here and not a signal to whoever maps it."""
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
    """Where edges with an end in `gone`, and `edges` themselves, stand."""
    table, found = np.memmap(path, dtype=np.int64, mode="r"), []
    wanted = edge_entries(edges)
    for start in range(0, len(table), _SLICE):
        part = np.asarray(table[start : start + _SLICE])
        at = np.flatnonzero(part >= 0)
        lower, upper = edge_rows(part[at])
        found.append(start + at[gone[lower] | gone[upper] | np.isin(part[at], wanted)])
    return np.concatenate(found)


def _edges_of(snapshot: Snapshot) -> NDArray[np.int64]:
    """The entries of those between live nodes, (m,), each once."""
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
    """The probabilities, (n, C), with zeros for nodes that are not live."""
    if snapshot.probabilities[~snapshot.live].any():
        # What a forgotten node was predicted must not outlive it, whoever computed the snapshot.
        return np.where(snapshot.live[:, None], snapshot.probabilities, 0.0)
    return snapshot.probabilities


def _room(model: PublishedModel, snapshot: Snapshot) -> int:
    """Bytes that a publication of the model takes at most."""
    ids = 64 * len(model.node_ids) + model.node_ids.utf8.nbytes
    version = snapshot.probabilities.nbytes + snapshot.live.nbytes
    return ids + 8 * int(snapshot.edges.adjacency.nnz) + _VERSIONS * version


def _bytes(array: NDArray[np.generic]) -> memoryview:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
