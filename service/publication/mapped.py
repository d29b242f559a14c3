"""A publication as a reader sees it: its files, mapped read-only."""

import errno
import mmap
import os
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from projector.forgetting.canaries import Canaries
from service.publication.checksums import BLOCK, PublicationDamaged, check, read_checksums
from service.publication.facts import Facts, ModelFacts, ModelManifest, VersionManifest
from service.publication.heads import Head
from service.publication.index import EdgeIndex, IdIndex
from service.publication.layout import read_manifest


@dataclass(frozen=True, eq=False)
class MappedModel:
    """What all versions of one import have in common."""

    #: Its folder.
    path: Path
    facts: ModelFacts
    canaries: Canaries | None
    ids: IdIndex
    edges: EdgeIndex
    #: (n,) bool: the nodes declared public, which are never deleted.
    public: NDArray[np.bool_]


class CheckedRows:
    """Rows of a mapped file of float64. Each block is checked once, before its first row is returned.

    Threads may share it: two that check the same block at once find the same.
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
        """One row, (C,). Raises PublicationDamaged."""
        start = row * self._width
        for block in range(start // BLOCK, (start + self._width - 1) // BLOCK + 1):
            if not self._checked[block]:
                self._check(block)
        found: NDArray[np.float64] = self._rows[row]
        return found

    def require_undamaged(self) -> None:
        """Raise PublicationDamaged once damage was found; reads nothing."""
        if self._is_damaged:
            raise PublicationDamaged(self._path)

    def _check(self, block: int) -> None:
        found = zlib.crc32(self._bytes[block * BLOCK : (block + 1) * BLOCK])
        self._is_damaged = self._is_damaged or found != self._checksums[block]
        self.require_undamaged()
        self._checked[block] = True


@dataclass(frozen=True, eq=False)
class View:
    """One version. Its files may be overwritten once another is the head.

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
    #: (n,) bool, a copy: what can be deleted is looked up in a version that is not the head any more, too.
    live: NDArray[np.bool_]

    def find(self, node: str) -> int | None:
        """The row of a live node; None for any other id."""
        row = self.model.ids.find(node)
        return row if row is not None and self.live[row] else None


def open_view(head: Head, path: Path, before: View | None = None) -> View:
    """The version in a folder; what it has in common with the one `before` is not mapped again.

    Reads and checks every file but the probabilities, which are checked when an answer reads from them. Raises
    FileNotFoundError when it is not there (any more), OSError, OtherPublicationFormat and PublicationDamaged.
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
    """A file of `size` bytes. It is written whole before it gets its name, and never cut."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno()).st_size
        if found != size:
            raise OSError(f"{path} has {found} bytes instead of {size}")
        return mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ)
