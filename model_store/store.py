"""A model on disk: its graph and span coefficients in `base/`, its weights in `versions/`.

    manifest.json                    description of the model
    CURRENT                          the committed version and the digest of its manifest
    base/<table>.<array>-…           fixed size, erased in place; tables of additions grow
    base/index-….json                contents of these files, with a digest per chunk, and any erasure in progress
    versions/<version>-<fencing>/    state.safetensors, manifest.json; edit.safetensors if it adds anything
    tombstones-<fencing>             keyed hashes of what was deleted; absent before the first deletion

One process writes, under a lease with a fencing number. Every change is durable before it becomes visible, and becomes
visible atomically. A crash leaves parts that are either unused or completed by repeating the call. Files are removed
and replaced only if their fencing number is not above the caller's.
"""

import hashlib
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from model_store import tombstones
from model_store.base.base import Base, BaseStore
from model_store.base.edit import Edit, FeatureSlots, PendingEdit
from model_store.base.erasure import Erasure
from model_store.base.index import NO_ROW
from model_store.base.span_chunks import SpanChunk
from model_store.current import CURRENT, Current
from model_store.disk.checksummed import checksummed, read_checksummed
from model_store.disk.durable import (
    TRAIN_AGAIN,
    DurableChanges,
    damaged,
    durable_changes,
    make_folder,
    make_folders,
    read_file,
    remove_tree,
    rename,
    write_file,
)
from model_store.errors import NoModel, NotAStore
from model_store.manifest import Manifest
from model_store.naming import MANIFEST
from model_store.sizes import check_sizes, unfit, unfit_edit
from model_store.tombstones import RecordedTombstone, TombstoneRecord
from model_store.versions import SpanArrays, StoreConflict, VersionRef, Versions, VersionState
from model_store.work import Work
from projector.graph.graph import Graph, validate

_BASE, _VERSIONS = "base", "versions"
_FIRST = VersionRef(0, 0)


class Store:
    """The folder of one model. Every call reads the disk afresh."""

    def __init__(self, path: Path, manifest: Manifest, manifest_sha256: str) -> None:
        self.path = path
        self.manifest = manifest
        self._base = BaseStore(path / _BASE, manifest, manifest_sha256=manifest_sha256)
        self._versions = Versions(path / _VERSIONS, manifest_sha256=manifest_sha256)
        self._current = Current(path, self._versions)

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
        """Write a new model with version 0-0: B = W, T = 0, all nodes live and with their features.

        `weights` are (blocks, d, C) and `label_weights` (label_hops, C, C), `beta` and `label_beta` the span
        coefficients (blocks, n, C) and (label_hops, n, C); `public` (n,) masks the nodes that are never deleted. Raises
        NotAStore if `path` exists and is not an empty folder, GraphError for a graph that does not pass `validate`,
        ValueError if the arrays do not match the manifest.
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
        """Return the model in a folder, after checking its manifests and the sizes of its files.

        Raises NotAStore if there is no model, StoreDamaged naming the file that is missing or altered.
        """
        manifest_path = path / MANIFEST
        if not manifest_path.exists() and not any((path / name).exists() for name in (CURRENT, _BASE, _VERSIONS)):
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
        """Return the version that CURRENT names. Raises StoreDamaged if it names no existing version."""
        return self._current.read()

    def set_current(self, ref: VersionRef) -> None:
        """Make CURRENT name a version. Raises StoreConflict if it already names a later one."""
        self._current.replace(ref)

    def versions(self) -> list[VersionRef]:
        """Return all versions on disk, oldest first. Raises NotAStore naming a file that is not a version."""
        return self._versions.refs()

    def version_digest(self, ref: VersionRef) -> str:
        """Return the SHA-256, hex, of a version's manifest."""
        return self._versions.digest(ref)

    def weights_sha256(self, ref: VersionRef) -> str:
        """Return the SHA-256, hex, of a version's weights as row-major little-endian float64, features, then labels.

        For a version published with noise, the salt of its `Publication` precedes them.
        """
        return self._versions.manifest(ref).weights_sha256

    def read_version(self, ref: VersionRef, *, digest: str | None = None) -> VersionState:
        """Return a version's verified state, also checked against its manifest's digest if given."""
        state, pending = self._versions.read(ref, digest=digest), self._pending(ref)
        nodes = self._base.nodes if pending is None else pending.edit.nodes
        # Versions before the last growth have fewer.
        least = nodes if ref == self.current() else self.manifest.nodes
        if wrong := unfit(self.manifest, state, range(least, nodes + 1)):
            raise self._foreign(ref, wrong)
        return state

    def beta_version(self, ref: VersionRef) -> int:
        """Return the version whose rebuilt span coefficients match a version's B and T; 0 for those of training."""
        return self._versions.manifest(ref).beta_version

    def folder_of(self, ref: VersionRef) -> Path:
        """Return the folder of a version, for files stored beside its weights that leave the disk with them."""
        return self._versions.folder / ref.folder

    def live_edges(self, ref: VersionRef) -> int:
        """Return the number of edges between live nodes of a version, each counted once.

        A version records deleted nodes, and nothing else about edges. This number reveals an outdated `base/`.
        """
        return self._versions.manifest(ref).edges

    def fencing(self) -> int:
        """Return the highest fencing number of anything written here."""
        return max(
            self._versions.fencing(), self._base.fencing(), tombstones.fencing(self.path), self.current().fencing
        )

    def stale_coefficients(self, ref: VersionRef) -> bool:
        """Return whether `base/` still has span coefficients older than those of version `ref`'s repair.

        That is so between the commit of a repaired version and `write_beta`, and a crash may fall in between. Raises
        StoreDamaged if the coefficients cannot have arisen that way.
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

    @property
    def nodes(self) -> int:
        """Rows of the graph on disk, erased ones included; without those of a version that `is_ungrown`."""
        return self._base.nodes

    @property
    def weighted(self) -> bool:
        """Whether edges have weights; otherwise only edges of weight 1 may join."""
        return self._base.weighted

    def edit(self, ref: VersionRef) -> Edit | None:
        """Return the additions and replacements of a version; None if it has none."""
        if not self._versions.has_edit(ref):
            return None
        edit = self._versions.edit(ref)
        if wrong := unfit_edit(self.manifest, edit, weighted=self.weighted):
            raise self._foreign(ref, wrong)
        return edit

    def is_ungrown(self, ref: VersionRef) -> bool:
        """Return whether the edit of version `ref` is still to be applied to `base/`, which `grow` does.

        That is so between the commit of a version with an edit and the end of `grow`, and a crash may fall in between.
        Raises StoreDamaged if the graph is that of a later version.
        """
        if not self._versions.has_edit(ref):
            return False
        found = self._base.grown_version()
        if found > ref.version:
            raise damaged(self.path / _BASE, f"holds the graph of version {found}, which is later than {ref.folder}")
        return found < ref.version

    def write_version(
        self, ref: VersionRef, state: VersionState, *, edges: int, beta_version: int = 0, edit: Edit | None = None
    ) -> str:
        """Write a version durably and return its digest, replacing an unused version of that name.

        `edges` is the number of edges between its live nodes, each counted once, for `live_edges`. `beta_version` is
        the version from whose weights `state`'s span coefficients were rebuilt: `ref`'s own if `write_beta` will
        follow, otherwise that of the version before it. `edit` has the additions and replacements; `state` covers the
        nodes after it. If the edit has features, `write_beta` must follow. `grow` then applies the edit.
        Raises StoreConflict if CURRENT names that version or a later one, ValueError for a `beta_version` later than
        `ref` and an `edit` that does not fit.
        """
        if beta_version > ref.version:
            raise ValueError(f"version {ref.version} cannot use coefficients of version {beta_version}")
        if edit is not None:
            self._check_edit(edit, state, rewrites_beta=beta_version == ref.version)
        if self._current.path.exists() and self.current() >= ref:
            raise StoreConflict(
                f"Version {ref.folder} is not later than {self.current().folder}, which CURRENT names.",
                "Another unlearner has continued; read the pointer in the database again.",
            )
        return self._versions.write(ref, state, beta_version=beta_version, edges=edges, edit=edit)

    def discard_version(self, ref: VersionRef) -> None:
        """Remove what `write_version` left of a version, complete or not, unless CURRENT names it."""
        if self.current() != ref:
            self._versions.discard(ref)

    def remove_versions(self, *, keep: VersionRef, below_fencing: int) -> list[VersionRef]:
        """Remove every other version and temporary folder with a fencing number of at most `below_fencing`.

        Returns the removed versions. Raises StoreConflict, and removes nothing, if CURRENT does not name `keep`.
        """
        with durable_changes() as changes:
            removed = self._set_aside(changes, keep=keep, below_fencing=below_fencing)
        with durable_changes() as last:
            self._versions.remove_unfinished(last, below_fencing=below_fencing)
        return removed

    def tidy(self, *, keep: VersionRef, fencing: int) -> None:
        """Remove later leftovers of overtaken writers: versions other than `keep`, unused files of `base/`.

        `fencing` is the caller's number; the caller must have nothing in progress. Raises StoreConflict as
        `remove_versions`.
        """
        self.remove_versions(keep=keep, below_fencing=fencing)
        self._base.tidy(fencing=fencing)

    def claim_base(self, *, fencing: int) -> None:
        """Take over the base of a model that will replace another, whose writers may continue under its name.

        Their later writes under lower fencing numbers then change nothing. Raises StoreConflict as `erase`.
        """
        self._base.claim(fencing=fencing)

    def feature_slots(self) -> list[FeatureSlots]:
        """Return the slots of each file that holds feature values, those of the current version's edit included."""
        return self._base.feature_slots() + self._versions.feature_slots(self.current())

    def files(self) -> frozenset[str]:
        """Return the files of the current version and its graph, as paths relative to the model's folder."""
        current = self.current()
        return frozenset(
            [
                MANIFEST,
                CURRENT,
                *(f"{_BASE}/{name}" for name in self._base.files()),
                *(f"{_VERSIONS}/{current.folder}/{name}" for name in self._versions.files(current)),
                *tombstones.files(self.path),
            ]
        )

    def load_base(self, work: Work | None = None) -> Base:
        """Return graph and span coefficients with every chunk verified. Slots in an open erasure are already blank.

        An edit of the current version is applied, also if `grow` has not yet applied it on disk. Then rows that join
        have coefficients of zero until `write_beta`. Reports as one step of `work`.
        """
        return self._base.load(work or Work(), self._pending(self.current()))

    def load_graph(self) -> Graph:
        """Return the graph of `load_base`."""
        return self._base.load_graph(self._pending(self.current()))

    def span_chunks(self, featured: NDArray[np.bool_], parts: int = 1) -> list[Iterator[SpanChunk]]:
        """Return features and coefficients of all rows in `parts` iterators, for as many threads.

        Each reads and verifies about 4 MiB at a time. Rows outside of `featured` (n,) are zero.
        """
        return self._base.span_chunks(featured, parts)

    def label_span_chunks(self, live: NDArray[np.bool_]) -> Iterator[SpanChunk]:
        """Yield one-hot labels and their coefficients; zero in rows outside `live` (n,) or training."""
        return self._base.label_span_chunks(live)

    def is_erasing(self) -> bool:
        """Return whether a crash interrupted an erasure. `erase` finishes it first."""
        return self._base.is_open()

    def erase(self, erasure: Erasure, *, fencing: int, keep: VersionRef | None = None) -> None:
        """Overwrite nodes, features or edges in place, durably. Data already erased is left alone.

        `keep` also removes all other versions, as `remove_versions` does, saving one disk wait. Finishes an
        interrupted erasure first. Raises StoreConflict if a writer with a higher fencing number has changed the base,
        IndexError for a row that the graph does not have.

        Call it before `grow`: the edges that leave in a version are gone once its edit is applied, and the same ones
        may have joined again. After that, `edges` is passed over while `keep` is that version.
        """
        if keep is not None and self._versions.has_edit(keep) and not self.is_ungrown(keep):
            erasure = replace(erasure, edges=erasure.edges[:0])
        index = self._base.begin_erasure(erasure, fencing=fencing)
        with durable_changes() as changes:
            self._base.overwrite(index, changes)
            if keep is not None:
                self._set_aside(changes, keep=keep, below_fencing=fencing)
        with durable_changes() as last:
            self._base.end_erasure(index, last, fencing=fencing)
            if keep is not None:
                self._versions.remove_unfinished(last, below_fencing=fencing)

    def grow(self, ref: VersionRef, *, fencing: int, work: Work | None = None) -> None:
        """Apply the edit of version `ref`, durably: append its additions, and overwrite the data that they replace.

        Call it once that version is committed, after `write_beta` and `erase`. Idempotent; does nothing for a version
        without an edit. Raises StoreConflict as `erase` does, ValueError before `write_beta`. Reports as one step of
        `work`.
        """
        edit = self.edit(ref)
        if edit is None:
            return
        if work is not None:
            work.begin("Adding nodes, edges and features")
        index = self._base.begin_growth(PendingEdit(ref.version, edit), fencing=fencing)
        with durable_changes() as changes:
            self._base.overwrite(index, changes)
        with durable_changes() as last:
            self._base.end_erasure(index, last, fencing=fencing)

    def write_beta(
        self,
        beta: NDArray[np.float64],
        label_beta: NDArray[np.float64],
        *,
        version: int,
        fencing: int,
        work: Work | None = None,
    ) -> None:
        """Replace all span coefficients, (blocks, n, C) and (label_hops, n, C), with those of `version`, atomically.

        Call it once that version is committed. The old coefficients stay on disk until the next `erase`. Rows of
        deleted nodes and, in `beta`, of nodes with deleted features must be zero. Raises StoreConflict as `erase` does,
        ValueError for another shape. If that version's edit is still to be applied, n counts the nodes that join.
        Reports as one step of `work`.
        """
        pending = self._pending(self.current())
        self._base.write_beta(
            beta,
            label_beta,
            joining=0 if pending is None else len(pending.edit.ids),
            version=version,
            fencing=fencing,
            work=work or Work(),
        )

    def tombstones(self) -> TombstoneRecord:
        """Return the readable keyed hashes of what was deleted."""
        return tombstones.read(self.path)

    def add_tombstones(self, added: Sequence[RecordedTombstone], *, fencing: int) -> None:
        """Add keyed hashes of deletions, durably, before the data is erased. Adding them again is harmless."""
        tombstones.append(self.path, added, fencing=fencing)

    def replace_tombstones(self, kept: Collection[RecordedTombstone], *, fencing: int) -> None:
        """Replace the record of deletions with these hashes, dropping the records of earlier writers."""
        tombstones.replace(self.path, kept, fencing=fencing)

    def _pending(self, ref: VersionRef) -> PendingEdit | None:
        """Return the edit of a version if it is still to be applied."""
        edit = self.edit(ref) if self.is_ungrown(ref) else None
        return None if edit is None else PendingEdit(ref.version, edit)

    def _foreign(self, ref: VersionRef, what: str) -> NotAStore:
        return NotAStore(
            f"{self.folder_of(ref)} holds {what}, which does not belong to a version of {self.manifest.name}.",
            f"It was altered, or another program wrote it; {TRAIN_AGAIN}",
        )

    def _check_edit(self, edit: Edit, state: VersionState, *, rewrites_beta: bool) -> None:
        if wrong := unfit_edit(self.manifest, edit, weighted=self.weighted):
            raise ValueError(f"the edit has {wrong}")
        if edit.first_row != self.nodes:
            raise ValueError(f"the edit begins at row {edit.first_row} of a graph of {self.nodes}")
        if state.live.size != edit.nodes:
            raise ValueError(f"the state is about {state.live.size} nodes, and the edit leads to {edit.nodes}")
        if edit.feature_rows.size and not rewrites_beta:
            raise ValueError("the span coefficients of rows that get features must be written")

    def _set_aside(self, changes: DurableChanges, *, keep: VersionRef, below_fencing: int) -> list[VersionRef]:
        if self.current() != keep:
            raise StoreConflict(
                f"CURRENT names version {self.current().folder}, not {keep.folder}; older versions are kept.",
                "Set CURRENT to the committed version first.",
            )
        self._current.remove_prepared(below_fencing=below_fencing)
        tombstones.remove_unfinished(self.path, below_fencing=below_fencing)
        return self._versions.set_aside(changes, keep=keep, below_fencing=below_fencing)
