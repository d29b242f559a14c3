"""A model on disk: its graph and span coefficients in `base/`, its weights in `versions/`.

    manifest.json                    what the model is
    CURRENT                          the committed version and the digest of its manifest
    base/<table>.<array>-…           fixed size, erased in place
    base/index-….json                what is in these files, with a digest per chunk, and what is being erased
    versions/<version>-<fencing>/    state.safetensors, manifest.json
    tombstones                       keyed hashes of what was deleted; absent before anything was

One process writes, under a lease with a fencing number. Every change is durable before it is visible and visible in
one step; what a crash leaves behind is either unused or finished by repeating the call. Files are removed and
replaced only when they were written under a fencing number that is not above the caller's.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store import tombstones
from model_store.base.base import Base, BaseStore, SpanChunk
from model_store.base.erasure import Erasure
from model_store.base.tables import NO_ROW
from model_store.disk.checksummed import checksummed, read_checksummed
from model_store.disk.durable import (
    TRAIN_AGAIN,
    DurableChanges,
    damaged,
    durable_changes,
    make_folder,
    make_folders,
    read_file,
    remove_file,
    remove_tree,
    rename,
    write_file,
)
from model_store.errors import NoModel, NotAStore
from model_store.manifest import Manifest
from model_store.naming import MANIFEST
from model_store.sizes import check_sizes, unfit
from model_store.tombstones import RecordedTombstone, TombstoneRecord
from model_store.versions import SpanArrays, StoreConflict, VersionRef, Versions, VersionState
from model_store.work import Work
from projector.graph.graph import Graph, validate

_CURRENT, _BASE, _VERSIONS = "CURRENT", "base", "versions"
_FIRST = VersionRef(0, 0)


class Store:
    """One model's folder. Every call reads the disk afresh."""

    def __init__(self, path: Path, manifest: Manifest, manifest_sha256: str) -> None:
        self.path = path
        self.manifest = manifest
        self._base = BaseStore(path / _BASE, manifest, manifest_sha256=manifest_sha256)
        self._versions = Versions(path / _VERSIONS, manifest_sha256=manifest_sha256)

    @classmethod
    def create(
        cls,
        path: Path,
        *,
        manifest: Manifest,
        graph: Graph,
        weights: NDArray[np.float64],
        label_weights: NDArray[np.float64],
        beta: NDArray[np.float64],
        label_beta: NDArray[np.float64],
        public: NDArray[np.bool_],
        chunk_rows: int = 256,
    ) -> "Store":
        """Writes a new model with version 0-0: B = W, T = 0, all nodes live and with their features.

        `weights` are (blocks, d, C) and `label_weights` (label_hops, C, C), `beta` and `label_beta` the span
        coefficients (blocks, n, C) and (label_hops, n, C); `public` (n,) masks the nodes that are never deleted.

        Raises NotAStore when `path` exists and is not an empty folder, GraphError for a graph that does not pass
        `validate`, ValueError when the arrays are not of the manifest's sizes.
        """
        validate(graph)
        first = VersionState(
            features=SpanArrays.untouched(weights),
            labels=SpanArrays.untouched(label_weights),
            live=np.ones(graph.nodes, dtype=np.bool_),
            featured=np.ones(graph.nodes, dtype=np.bool_),
            rank=manifest.rank,
        )
        base = Base(graph, beta, label_beta, public)
        check_sizes(manifest, base, first)
        if not 0 < chunk_rows <= NO_ROW:
            raise ValueError(f"chunk_rows must lie in [1, {NO_ROW}], not {chunk_rows}")
        if path.exists() and not (path.is_dir() and not any(path.iterdir())):
            raise NotAStore(
                f"{path} exists and is not an empty folder.", "Choose another folder, or remove this one first."
            )
        unfinished = path.parent / f".{path.name}.creating"
        make_folders(path.parent)
        if unfinished.exists():
            remove_tree(unfinished)
        make_folder(unfinished)
        manifest_bytes = checksummed(manifest, indent=1)
        manifest_sha256 = hashlib.sha256(manifest_bytes).hexdigest()
        write_file(unfinished / MANIFEST, [manifest_bytes])
        store = cls(unfinished, manifest, manifest_sha256)
        store._base.create(base, chunk_rows=chunk_rows)
        make_folder(unfinished / _VERSIONS)
        store.write_version(_FIRST, first, edges=manifest.edges)
        store.set_current(_FIRST)
        rename(unfinished, path)
        return cls.open(path)

    @classmethod
    def open(cls, path: Path) -> "Store":
        """The model in a folder, its manifests and the sizes of its files checked.

        Raises NotAStore when there is no model, StoreDamaged naming the file when one is missing or altered.
        """
        manifest_path = path / MANIFEST
        if not manifest_path.exists() and not any((path / name).exists() for name in (_CURRENT, _BASE, _VERSIONS)):
            raise NoModel(
                f"{path} contains no model.", "Train one with `./lethe train --out DIR`, or name the folder of one."
            )
        manifest = read_checksummed(manifest_path, Manifest)
        manifest.check(manifest_path)
        store = cls(path, manifest, hashlib.sha256(read_file(manifest_path)).hexdigest())
        store._base.check()
        store.versions()
        store.current()
        return store

    def current(self) -> VersionRef:
        """The version that CURRENT names; StoreDamaged when it names none that is there."""
        path = self.path / _CURRENT
        try:
            folder, digest, end = read_file(path).decode("ascii").split("\n")
            ref = VersionRef.parse(folder)
        except ValueError as error:
            raise damaged(path, "does not name a version: it is truncated or altered") from error
        if end or self._versions.digest(ref) != digest:
            raise damaged(path, f"does not have the digest of version {ref.folder}")
        return ref

    def set_current(self, ref: VersionRef) -> None:
        """Makes CURRENT name a version; StoreConflict when it names a later one already.

        So it stays whatever a writer does that was overtaken in the middle of this very call and goes on: the file that
        it has prepared is taken from it, and whoever prepares one anew sees the later version first.
        """
        content = f"{ref.folder}\n{self.version_digest(ref)}\n".encode()
        path, prepared = self.path / _CURRENT, self.path / f".{_CURRENT}-{ref.folder}"
        while True:
            write_file(prepared, [content])
            if path.exists() and self.current() > ref:
                remove_file(prepared)
                raise _overtaken(ref, self.current())
            try:
                rename(prepared, path)
            except FileNotFoundError:
                if self.current() > ref:
                    raise _overtaken(ref, self.current()) from None
            self._remove_prepared(below_fencing=ref.fencing - 1)
            if read_file(path) == content:
                return

    def versions(self) -> list[VersionRef]:
        """All versions on disk, oldest first; NotAStore names a file that is none."""
        return self._versions.refs()

    def version_digest(self, ref: VersionRef) -> str:
        """SHA-256, hex, of a version's manifest."""
        return self._versions.digest(ref)

    def weights_sha256(self, ref: VersionRef) -> str:
        """SHA-256, hex, of a version's weights as row-major little-endian float64, features first, then labels.

        Of one that is published with noise, the salt of its `Publication` comes before them.
        """
        return self._versions.manifest(ref).weights_sha256

    def read_version(self, ref: VersionRef, *, digest: str | None = None) -> VersionState:
        """A version's state, verified, also against the digest of its manifest when given."""
        state = self._versions.read(ref, digest=digest)
        if wrong := unfit(self.manifest, state):
            raise NotAStore(
                f"{self.folder_of(ref)} holds {wrong}, which does not belong to a version of {self.manifest.name}.",
                f"It was altered, or another program wrote it; {TRAIN_AGAIN}",
            )
        return state

    def beta_version(self, ref: VersionRef) -> int:
        """The version whose rebuilt span coefficients a version's B and T go with; 0 for those of training."""
        return self._versions.manifest(ref).beta_version

    def folder_of(self, ref: VersionRef) -> Path:
        """The folder of a version, for what is kept beside its weights and leaves the disk with them."""
        return self._versions.folder / ref.folder

    def live_edges(self, ref: VersionRef) -> int:
        """How many edges join live nodes of a version, each counted once.

        A version says which nodes are gone, and nothing else of edges: by this it is noticed when `base/` is older.
        """
        return self._versions.manifest(ref).edges

    def fencing(self) -> int:
        """The highest fencing number under which anything here was written."""
        return max(
            self._versions.fencing(), self._base.fencing(), tombstones.fencing(self.path), self.current().fencing
        )

    def stale_coefficients(self, ref: VersionRef) -> bool:
        """Whether `base/` still holds span coefficients from before those that version `ref` was repaired with.

        So it is between the commit of a repaired version and `write_beta`; a crash may fall between the two. Raises
        StoreDamaged when the coefficients can have come about in no such way.
        """
        wanted, found = self.beta_version(ref), self._base.beta_version()
        if found == wanted:
            return False
        if found < wanted == ref.version:
            return True
        raise damaged(
            self.path / _BASE,
            f"holds the span coefficients of version {found}, but version {ref.folder} needs those of {wanted}",
        )

    def write_version(self, ref: VersionRef, state: VersionState, *, edges: int, beta_version: int = 0) -> str:
        """Writes a version durably and returns its digest; an unused version of that name is replaced.

        `edges` is the number of edges between its live nodes, each counted once, for `live_edges`.
        `beta_version` is the version from whose weights the span coefficients that go with `state` were rebuilt:
        `ref`'s own when `write_beta` is to follow, otherwise that of the version before it. Raises StoreConflict when
        CURRENT names that version or a later one, ValueError for a `beta_version` later than `ref`.
        """
        if beta_version > ref.version:
            raise ValueError(f"version {ref.version} cannot use coefficients of version {beta_version}")
        if (self.path / _CURRENT).exists() and self.current() >= ref:
            raise StoreConflict(
                f"Version {ref.folder} is not later than {self.current().folder}, which CURRENT names.",
                "Another unlearner has continued; read the pointer in the database again.",
            )
        return self._versions.write(ref, state, beta_version=beta_version, edges=edges)

    def discard_version(self, ref: VersionRef) -> None:
        """Removes what `write_version` has left of a version, whole or not, unless CURRENT names it."""
        if self.current() != ref:
            self._versions.discard(ref)

    def remove_versions(self, *, keep: VersionRef, below_fencing: int) -> list[VersionRef]:
        """Removes every other version and temporary folder whose fencing number is at most `below_fencing`.

        Returns the versions removed. Raises StoreConflict, with nothing removed, when `keep` is not what CURRENT names.
        """
        with durable_changes() as changes:
            removed = self._set_aside(changes, keep=keep, below_fencing=below_fencing)
        with durable_changes() as last:
            self._versions.remove_unfinished(last, below_fencing=below_fencing)
        return removed

    def tidy(self, *, keep: VersionRef, fencing: int) -> None:
        """Removes what writers that were overtaken have written since: versions but `keep`, unused files of `base/`.

        `fencing` is the number of the caller, who has nothing under way. Raises StoreConflict as `remove_versions`.
        """
        self.remove_versions(keep=keep, below_fencing=fencing)
        self._base.tidy(fencing=fencing)

    def claim_base(self, *, fencing: int) -> None:
        """Takes over the base of a model that is to replace another, whose writers may go on under its name.

        Whatever they write after that under lower fencing numbers changes nothing. Raises StoreConflict as `erase`.
        """
        self._base.claim(fencing=fencing)

    def feature_slots(self) -> tuple[Path, int, NDArray[np.int64]]:
        """The file of the features' values, the bytes of a slot, and the row of each, -1 where it was blanked.

        A slot is a row of dense features, and a stored value of sparse ones, which lie in any order.
        """
        return self._base.feature_slots()

    def files(self) -> frozenset[str]:
        """The files that make up the current version and its graph, by their paths below the folder of the model."""
        current = self.current()
        return frozenset(
            [
                MANIFEST,
                _CURRENT,
                *(f"{_BASE}/{name}" for name in self._base.files()),
                *(f"{_VERSIONS}/{current.folder}/{name}" for name in self._versions.FILES),
                *tombstones.files(self.path),
            ]
        )

    def load_base(self, work: Work | None = None) -> Base:
        """Graph and span coefficients, every chunk verified; what an open erasure names is gone already.

        It is one step of `work`.
        """
        return self._base.load(work or Work())

    def load_graph(self) -> Graph:
        """The graph alone, as `load_base` gives it."""
        return self._base.load_graph()

    def span_chunks(self, featured: NDArray[np.bool_], parts: int = 1) -> list[Iterator[SpanChunk]]:
        """Features and coefficients of all rows in so many `parts`, for as many threads.

        About 4 MiB at a time, read and verified as they are asked for. Rows that are not in `featured` (n,) are zero.
        """
        return self._base.span_chunks(featured, parts)

    def label_span_chunks(self, live: NDArray[np.bool_]) -> Iterator[SpanChunk]:
        """One-hot labels and their coefficients; zero in rows that are not in `live` (n,) or no training nodes."""
        return self._base.label_span_chunks(live)

    def is_erasing(self) -> bool:
        """Whether an erasure was interrupted by a crash; `erase` finishes it before anything else."""
        return self._base.is_open()

    def erase(self, erasure: Erasure, *, fencing: int, keep: VersionRef | None = None) -> None:
        """Overwrites nodes, features or edges in place, durably; what is erased already is left alone.

        With `keep`, all other versions go as well, as `remove_versions` does it, for one wait for the disk less. An
        erasure that was interrupted is finished first. Raises StoreConflict when a writer with a higher fencing number
        has changed the base, IndexError for a row that the graph does not have.
        """
        index = self._base.begin_erasure(erasure, fencing=fencing)
        with durable_changes() as changes:
            self._base.overwrite(index, changes)
            if keep is not None:
                self._set_aside(changes, keep=keep, below_fencing=fencing)
        with durable_changes() as last:
            self._base.end_erasure(index, last, fencing=fencing)
            if keep is not None:
                self._versions.remove_unfinished(last, below_fencing=fencing)

    def write_beta(
        self,
        beta: NDArray[np.float64],
        label_beta: NDArray[np.float64],
        *,
        version: int,
        fencing: int,
        work: Work | None = None,
    ) -> None:
        """Replaces all span coefficients, (blocks, n, C) and (label_hops, n, C), by those of `version`, in one step.

        Those before stay on the disk until the next `erase`. For once that version is the committed one. The rows of
        deleted nodes, and in `beta` those of nodes whose features were deleted, must be zero. Raises StoreConflict as
        `erase` does, ValueError for another shape. It is a step of `work`.
        """
        self._base.write_beta(beta, label_beta, version=version, fencing=fencing, work=work or Work())

    def tombstones(self) -> TombstoneRecord:
        """The keyed hashes of what was deleted, as far as they can be read."""
        return tombstones.read(self.path)

    def add_tombstones(self, added: Sequence[RecordedTombstone], *, fencing: int) -> None:
        """Adds keyed hashes of what was deleted, durably; before it is erased. Adding them again does no harm."""
        tombstones.append(self.path, added, fencing=fencing)

    def replace_tombstones(self, kept: Collection[RecordedTombstone], *, fencing: int) -> None:
        """Makes the record of what was deleted hold these, and nothing of what earlier writers have written."""
        tombstones.replace(self.path, kept, fencing=fencing)

    def _set_aside(self, changes: DurableChanges, *, keep: VersionRef, below_fencing: int) -> list[VersionRef]:
        if self.current() != keep:
            raise StoreConflict(
                f"CURRENT names version {self.current().folder}, not {keep.folder}; older versions are kept.",
                "Set CURRENT to the committed version first.",
            )
        self._remove_prepared(below_fencing=below_fencing)
        tombstones.remove_unfinished(self.path, below_fencing=below_fencing)
        return self._versions.set_aside(changes, keep=keep, below_fencing=below_fencing)

    def _remove_prepared(self, *, below_fencing: int) -> None:
        """Removes files that were to become CURRENT and whose fencing number is at most `below_fencing`."""
        for path in sorted(self.path.glob(f".{_CURRENT}-*")):
            if VersionRef.parse(path.name.removeprefix(f".{_CURRENT}-")).fencing <= below_fencing:
                remove_file(path)


def _overtaken(ref: VersionRef, current: VersionRef) -> StoreConflict:
    return StoreConflict(
        f"CURRENT names version {current.folder}, which is later than {ref.folder}.",
        "Another unlearner has continued; read the pointer in the database again.",
    )
