"""The versions of a model: one folder each, written completely under another name and then never changed."""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save

from model_store.base.edit import Edit, FeatureSlots
from model_store.disk.checksummed import checksummed, read_checksummed, wrong
from model_store.disk.durable import (
    TRAIN_AGAIN,
    DurableChanges,
    damaged,
    durable_changes,
    make_folder,
    read_file,
    remove_tree,
    rename,
)
from model_store.errors import NotAStore
from projector.certified.publication import Publication
from projector.errors import ProjectorError

_FOLDER = re.compile(r"(?P<version>0|[1-9]\d{0,17})-(?P<fencing>0|[1-9]\d{0,17})", re.ASCII)
_TEMPORARY = ".tmp-"
_MANIFEST = "manifest.json"
_STATE = "state.safetensors"
_EDIT = "edit.safetensors"
_PARTS = ("weights", "B", "T")
_PUBLICATION = "publication"
_SCALE = "sigma_ref_squared"
_TENSORS = {f"{name}.{part}" for name in ("features", "labels") for part in _PARTS} | {"live", "featured"}


class StoreConflict(ProjectorError):
    """Another writer with a higher fencing number has taken over the store; nothing was changed."""


@dataclass(frozen=True, order=True)
class VersionRef:
    """A version and the fencing number of its writer's lease."""

    version: int
    fencing: int

    @property
    def folder(self) -> str:
        """Its folder name below `versions/`, `<version>-<fencing>`."""
        return f"{self.version}-{self.fencing}"

    @classmethod
    def parse(cls, folder: str) -> "VersionRef":
        """Return the version of a folder name. Raises ValueError for another form of name."""
        found = _FOLDER.fullmatch(folder)
        if found is None:
            raise ValueError(f"{folder!r} is not of the form <version>-<fencing>")
        return cls(int(found["version"]), int(found["fencing"]))


@dataclass(frozen=True, eq=False)
class SpanArrays:
    """The weights on one input and the lazy part of its span coefficients: W, B and T, each (blocks, k, C) float64.

    k is d for the features and C for the labels.
    """

    weights: NDArray[np.float64]
    B: NDArray[np.float64]
    T: NDArray[np.float64]

    @classmethod
    def untouched(cls, weights: NDArray[np.float64]) -> "SpanArrays":
        """Return the arrays of weights before any deletion: B = W, T = 0."""
        return cls(weights, weights, np.zeros_like(weights))


@dataclass(frozen=True, eq=False)
class VersionState:
    """The data that changes from version to version."""

    features: SpanArrays
    #: One block per label hop; (0, C, C) without label reuse.
    labels: SpanArrays
    #: Mask of the nodes that are not deleted, (n,).
    live: NDArray[np.bool_]
    #: Mask of the live nodes whose features were not deleted either, (n,).
    featured: NDArray[np.bool_]
    #: Rank of the features of the nodes in `featured`.
    rank: int
    #: How it is published with noise; None if it is published unchanged.
    publication: Publication | None = None
    #: Scale of its rank decisions, raised once much longer rows have joined; None for that of the import.
    sigma_ref_squared: float | None = None


@dataclass(frozen=True)
class VersionManifest:
    """The manifest of one version."""

    version: int
    fencing: int
    #: SHA-256, hex, of the store's manifest.json.
    manifest_sha256: str
    #: SHA-256, hex, of each other file.
    files: dict[str, str]
    #: SHA-256, hex, of the weights' bytes, features first, then labels (float64, little-endian, row-major); preceded by
    #: the salt if the version is published with noise.
    weights_sha256: str
    rank: int
    #: The version whose weights the span coefficients in `base/` must come from to match B and T: this one after a
    #: repair, an earlier one after a projection, 0 for those of training.
    beta_version: int
    #: Edges between live nodes, each counted once.
    edges: int

    @property
    def ref(self) -> VersionRef:
        """The version it describes."""
        return VersionRef(self.version, self.fencing)


class Versions:
    """The folder `versions/` of a store."""

    def __init__(self, folder: Path, *, manifest_sha256: str) -> None:
        self.folder = folder
        self.manifest_sha256 = manifest_sha256

    def refs(self) -> list[VersionRef]:
        """Return all versions, oldest first. Raises NotAStore naming a file that is not a version."""
        if not self.folder.is_dir():
            raise damaged(self.folder, "is missing")
        return sorted(_ref(path) for path in self.folder.iterdir() if not path.name.startswith("."))

    def files(self, ref: VersionRef) -> list[str]:
        """Return the names of a version's files."""
        return [_MANIFEST, *self.manifest(ref).files]

    def write(
        self, ref: VersionRef, state: VersionState, *, beta_version: int, edges: int, edit: Edit | None = None
    ) -> str:
        """Write a version durably and atomically, replacing an unused one of that name; return its digest."""
        tensors = _tensors(state)
        files = {_STATE: save(tensors)} | ({} if edit is None else {_EDIT: edit.to_bytes()})
        manifest = VersionManifest(
            version=ref.version,
            fencing=ref.fencing,
            manifest_sha256=self.manifest_sha256,
            files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
            weights_sha256=_weights_sha256(tensors, state.publication),
            rank=state.rank,
            beta_version=beta_version,
            edges=edges,
        )
        manifest_bytes = checksummed(manifest, indent=1)
        self.discard(ref)
        unfinished = self._temporary(ref)
        make_folder(unfinished)
        with durable_changes() as changes:
            for name, content in (files | {_MANIFEST: manifest_bytes}).items():
                changes.write(unfinished / name, [content])
            changes.name(unfinished)
        rename(unfinished, self.folder / ref.folder)
        return hashlib.sha256(manifest_bytes).hexdigest()

    def read(self, ref: VersionRef, *, digest: str | None) -> VersionState:
        """Return a version's state. Raises StoreDamaged or NotAStore, naming the file, if it was altered.

        `digest`, if given, is the required SHA-256 of the version's manifest.
        """
        manifest = self.manifest(ref)
        if digest is not None and self.digest(ref) != digest:
            raise damaged(self.folder / ref.folder / _MANIFEST, f"does not have the expected digest {digest}")
        path, data = self._content(manifest, _STATE)
        try:
            tensors = load(data)
        except (SafetensorError, ValueError, KeyError, TypeError) as error:
            raise damaged(path, "is not a file of plain tensors") from error
        publication = _publication(path, tensors.pop(_PUBLICATION)) if _PUBLICATION in tensors else None
        scale = tensors.pop(_SCALE, None)
        if set(tensors) != _TENSORS or (scale is not None and (scale.shape != (1,) or scale.dtype != np.float64)):
            raise NotAStore(
                f"{path} holds {', '.join(sorted(tensors))}.", f"Restore it from a backup, or {TRAIN_AGAIN}"
            )
        if _weights_sha256(tensors, publication) != manifest.weights_sha256:
            raise damaged(path, f"contains other weights than {_MANIFEST} beside it records")
        return VersionState(
            features=SpanArrays(*(tensors[f"features.{part}"] for part in _PARTS)),
            labels=SpanArrays(*(tensors[f"labels.{part}"] for part in _PARTS)),
            live=tensors["live"].astype(np.bool_),
            featured=tensors["featured"].astype(np.bool_),
            rank=manifest.rank,
            publication=publication,
            sigma_ref_squared=None if scale is None else float(scale[0]),
        )

    def has_edit(self, ref: VersionRef) -> bool:
        """Return whether something joins the graph in a version, or is replaced. Raises as `manifest`."""
        return _EDIT in self.manifest(ref).files

    def edit(self, ref: VersionRef) -> Edit:
        """Return the edit of a version that has one. Raises as `read`."""
        path, data = self._content(self.manifest(ref), _EDIT)
        try:
            return Edit.from_bytes(data)
        except ValueError as error:
            raise damaged(path, f"is not an edit: {error}") from error

    def feature_slots(self, ref: VersionRef) -> list[FeatureSlots]:
        """Return the slots of the features in a version's edit, none without one. Raises as `read`."""
        if not self.has_edit(ref):
            return []
        path, data = self._content(self.manifest(ref), _EDIT)
        return list(self.edit(ref).feature_slots(path, data))

    def _content(self, manifest: VersionManifest, name: str) -> tuple[Path, bytes]:
        path = self.folder / manifest.ref.folder / name
        data = read_file(path)
        if hashlib.sha256(data).hexdigest() != manifest.files[name]:
            raise damaged(path, f"does not match the digest in {_MANIFEST} beside it")
        return path, data

    def manifest(self, ref: VersionRef) -> VersionManifest:
        """Return the manifest of a version. Raises StoreDamaged or NotAStore, naming it, if it was altered."""
        path = self.folder / ref.folder / _MANIFEST
        manifest = read_checksummed(path, VersionManifest)
        if manifest.files.keys() not in ({_STATE}, {_STATE, _EDIT}):
            raise wrong(path, "files", f"the digests of {_STATE} and {_EDIT}, or of the first", manifest.files)
        if manifest.ref != ref:
            raise damaged(path, f"is that of version {manifest.ref.folder}")
        if manifest.manifest_sha256 != self.manifest_sha256:
            raise NotAStore(f"{path} belongs to another model.", "Restore the folder of this model's version.")
        return manifest

    def digest(self, ref: VersionRef) -> str:
        """Return the SHA-256, hex, of a version's manifest. Raises as `manifest`."""
        self.manifest(ref)
        return hashlib.sha256(read_file(self.folder / ref.folder / _MANIFEST)).hexdigest()

    def fencing(self) -> int:
        """Return the highest fencing number of any version, complete or not."""
        names = [path.name.removeprefix(_TEMPORARY) for path in self.folder.iterdir()]
        found = [_FOLDER.fullmatch(name) for name in names]
        return max((int(match["fencing"]) for match in found if match), default=0)

    def set_aside(self, changes: DurableChanges, *, keep: VersionRef, below_fencing: int) -> list[VersionRef]:
        """Move away versions with fencing numbers up to `below_fencing`, except `keep`, and return them.

        Each move is atomic and leaves a temporary folder. Raises StoreDamaged, and moves nothing, if `keep` does not
        exist.
        """
        self.manifest(keep)
        removed = [ref for ref in self.refs() if ref != keep and ref.fencing <= below_fencing]
        for ref in removed:
            if self._temporary(ref).exists():
                _remove(self._temporary(ref))
            changes.rename(self.folder / ref.folder, self._temporary(ref))
        return removed

    def remove_unfinished(self, last: DurableChanges, *, below_fencing: int) -> None:
        """Remove temporary folders with fencing numbers up to `below_fencing`."""
        for path in sorted(self.folder.iterdir()):
            if _is_unfinished(path.name, below_fencing):
                last.shred(path / _EDIT)
                last.remove_tree(path)

    def discard(self, ref: VersionRef) -> None:
        """Remove everything that an attempt to write a version left."""
        whole, temporary = self.folder / ref.folder, self._temporary(ref)
        if temporary.exists():
            _remove(temporary)
        if whole.exists():
            # Atomic: only a temporary folder can remain.
            rename(whole, temporary)
            _remove(temporary)

    def _temporary(self, ref: VersionRef) -> Path:
        return self.folder / f"{_TEMPORARY}{ref.folder}"


def _remove(folder: Path) -> None:
    """Remove a version's temporary folder. The edit is overwritten first, since it holds personal data in clear."""
    with durable_changes() as changes:
        changes.shred(folder / _EDIT)
    remove_tree(folder)


def _publication(path: Path, data: NDArray[np.uint8]) -> Publication:
    try:
        return msgspec.json.decode(data.tobytes(), type=Publication)
    except msgspec.DecodeError as error:
        raise NotAStore(f"{path}: {error}.", f"Restore it from a backup, or {TRAIN_AGAIN}") from error


def _tensors(state: VersionState) -> dict[str, NDArray[Any]]:
    spans = {"features": state.features, "labels": state.labels}
    arrays = {f"{name}.{part}": getattr(span, part) for name, span in spans.items() for part in _PARTS}
    if state.sigma_ref_squared is not None:
        arrays[_SCALE] = np.array([state.sigma_ref_squared])
    masks = {"live": state.live, "featured": state.featured}
    if state.publication is not None:
        # Stored with the weights, as confidential as they are: it leaves the disk with them and needs no extra file
        # sync.
        masks[_PUBLICATION] = np.frombuffer(msgspec.json.encode(state.publication), dtype=np.uint8)
    return {name: np.ascontiguousarray(array, dtype="<f8") for name, array in arrays.items()} | {
        name: np.ascontiguousarray(mask, dtype=np.uint8) for name, mask in masks.items()
    }


def _weights_sha256(tensors: Mapping[str, NDArray[Any]], publication: Publication | None) -> str:
    weights = tensors["features.weights"].tobytes() + tensors["labels.weights"].tobytes()
    if publication is not None:
        weights = publication.commitment_salt + weights
    return hashlib.sha256(weights).hexdigest()


def _is_unfinished(name: str, below_fencing: int) -> bool:
    """Return whether `name` is a temporary folder's, with a fencing number of at most `below_fencing`."""
    found = _FOLDER.fullmatch(name.removeprefix(_TEMPORARY))
    return name.startswith(_TEMPORARY) and found is not None and int(found["fencing"]) <= below_fencing


def _ref(path: Path) -> VersionRef:
    try:
        return VersionRef.parse(path.name)
    except ValueError as error:
        raise NotAStore(
            f"{path} is not a version of a model, so erasure would not reach it.", "Move it out of the store."
        ) from error
