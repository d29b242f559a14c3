"""The folder `base/` of a store: graph and span coefficients, read with digests and erased in place."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base_arrays import BaseArrays, write_table
from model_store.base_index import Generation, Index, check_file_names, labelled_files
from model_store.base_tables import decode_beta, decode_features, decode_graph, encode_beta, encode_graph
from model_store.erasure import Erasure, Intent, plan
from model_store.errors import StoreDamaged, StoreForeign
from model_store.files import make_folder, remove_file, replace_file, sync_folder, write_file
from model_store.graph import Features, Graph
from model_store.manifest import Manifest
from model_store.sealed import seal
from model_store.versions import StoreConflict

_Result = TypeVar("_Result")
#: How often a read is tried when erasures change the base under it.
_READ_ATTEMPTS = 5
#: Bytes of features and coefficients that `span_chunks` reads at a time.
_SPAN_BYTES = 16 << 20


@dataclass(frozen=True, eq=False)
class Base:
    """What `base/` holds now."""

    #: Erased nodes have no id (""), label, mask, features or edges.
    graph: Graph
    #: Span coefficients, (blocks, n, C) float64.
    beta: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SpanChunk:
    """Features and span coefficients of consecutive rows; zero in the rows of deleted nodes."""

    rows: slice
    #: (k, d), dense or CSR, in the type it is stored in.
    X: Features
    #: (blocks, k, C) float64.
    beta: NDArray[np.float64]


class BaseStore:
    """`base/` of one model. Every call reads the disk afresh."""

    def __init__(self, folder: Path, manifest: Manifest, *, manifest_sha256: str) -> None:
        self.folder = folder
        self._manifest = manifest
        self._manifest_sha256 = manifest_sha256

    def create(self, graph: Graph, beta: NDArray[np.float64], *, chunk_rows: int) -> None:
        """Writes the folder and syncs it, but not its parent."""
        make_folder(self.folder)
        # Unpredictable on purpose: nobody can tell afterwards which edge lay in which slot.
        new = encode_graph(graph, chunk_rows, np.random.default_rng()) | {"beta": encode_beta(beta, chunk_rows)}
        first = Generation(fencing=0, number=0)
        tables = {name: write_table(self.folder, name, table, first) for name, table in new.items()}
        index = Index(first, self._manifest_sha256, graph.nodes, chunk_rows, tables)
        write_file(self.folder / index.file_name, [seal(index.to_json())])
        sync_folder(self.folder)

    def check(self) -> None:
        """Raises StoreDamaged or StoreForeign for a file that is missing, of another size, or not the store's."""
        self._steadily(self._check)

    def load(self) -> Base:
        """Graph and span coefficients, every chunk verified; what an open erasure names is gone already."""
        return self._steadily(self._load)

    def span_chunks(self, live: NDArray[np.bool_]) -> Iterator[SpanChunk]:
        """Features and coefficients of all rows, about 16 MiB at a time, read and verified as they are asked for.

        Rows that are not in `live` (n,) are zero.
        """
        base = self._arrays()
        index = base.index
        row_bytes = sum(
            array.slot_bytes * table.slots // index.nodes
            for table in (index.tables["features"], index.tables["beta"])
            for array in table.arrays.values()
        )
        step = max(1, _SPAN_BYTES // (index.chunk_rows * max(1, row_bytes)))
        for first in range(0, index.row_chunks, step):
            chunks = range(first, min(first + step, index.row_chunks))
            rows = slice(chunks.start * index.chunk_rows, min(chunks.stop * index.chunk_rows, index.nodes))
            beta = decode_beta(base, chunks)
            beta[:, ~live[rows]] = 0
            yield SpanChunk(rows, _only(decode_features(base, self._manifest, chunks), live[rows]), beta)

    def pending_erasure(self) -> Erasure | None:
        """The erasure that a crash interrupted; `erase` finishes it before anything else."""
        intent = Intent.open_on(self.folder, Index.latest(self.folder))
        return intent.erasure if intent else None

    def erase(self, erasure: Erasure, *, fencing: int) -> None:
        """Overwrites nodes, features or edges in place, durably; what is erased already costs nothing.

        An erasure that was interrupted is finished first. Raises StoreConflict when a writer with a higher fencing
        number has changed the base, IndexError for a row that the graph does not have.
        """
        index = self._settle(fencing)
        base = BaseArrays(self.folder, index)
        intent = plan(base, erasure, self._manifest.feature_layout, _next(index, fencing))
        if intent is not None:
            name = intent.file_name
            replace_file(self.folder / name, seal(intent.to_json()), temporary=f".{name}")
            intent.apply(self.folder, index)
            index = self._close(index, intent, fencing)
        self._tidy(index, fencing)

    def write_beta(self, beta: NDArray[np.float64], *, fencing: int) -> None:
        """Replaces all span coefficients, (blocks, n, C); the rows of deleted nodes must be zero.

        Raises StoreConflict as `erase` does, ValueError for another shape.
        """
        index = self._settle(fencing)
        blocks, nodes, classes = len(self._manifest.spec.block_hops), self._manifest.nodes, len(self._manifest.classes)
        if beta.shape != (blocks, nodes, classes):
            raise ValueError(f"beta must be {(blocks, nodes, classes)}, not {beta.shape}")
        target = _next(index, fencing)
        table = write_table(self.folder, "beta", encode_beta(beta, index.chunk_rows), target)
        sync_folder(self.folder)
        index = self._install(replace(index.with_table("beta", table), generation=target))
        self._tidy(index, fencing)

    def _steadily(self, read: Callable[[], _Result]) -> _Result:
        """What `read` returns, starting again when another process erased something meanwhile."""
        for _ in range(_READ_ATTEMPTS - 1):
            before = list(labelled_files(self.folder))
            try:
                return read()
            except StoreDamaged:
                if list(labelled_files(self.folder)) == before:
                    raise
        return read()

    def _check(self) -> None:
        self._arrays().check_sizes()
        check_file_names(self.folder)

    def _load(self) -> Base:
        base = self._arrays()
        return Base(decode_graph(base, self._manifest), decode_beta(base, range(base.index.row_chunks)))

    def _arrays(self) -> BaseArrays:
        index = self._index()
        intent = Intent.open_on(self.folder, index)
        return BaseArrays(self.folder, index, intent.blankings if intent else None)

    def _index(self) -> Index:
        index = Index.latest(self.folder)
        if index.manifest_sha256 != self._manifest_sha256:
            raise StoreForeign(
                f"{self.folder / index.file_name} belongs to another model than the manifest beside it.",
                "Put back the model's own files.",
            )
        return index

    def _settle(self, fencing: int) -> Index:
        """The index to change, after an interrupted erasure has been finished."""
        index = self._index()
        if index.generation.fencing > fencing:
            raise _overtaken(index.generation, fencing)
        intent = Intent.open_on(self.folder, index)
        if intent is None:
            return index
        intent.apply(self.folder, index)
        return self._close(index, intent, fencing)

    def _close(self, index: Index, intent: Intent, fencing: int) -> Index:
        """Makes the index of what an intent has left behind the one that counts."""
        return self._install(replace(intent.applied_to(index), generation=_next(index, fencing)))

    def _install(self, index: Index) -> Index:
        name = index.file_name
        replace_file(self.folder / name, seal(index.to_json()), temporary=f".{name}")
        return index

    def _tidy(self, index: Index, fencing: int) -> None:
        """Removes older indexes, spent intents, replaced arrays and unfinished files of `base/`."""
        latest = Index.latest_generation(self.folder)
        if latest > index.generation:
            raise _overtaken(latest, fencing)
        needed = {index.file_name, *index.files()}
        spare = [
            path
            for _, generation, path in labelled_files(self.folder)
            if path.name not in needed and generation.fencing <= fencing
        ]
        for path in spare:
            remove_file(path)
        if spare:
            sync_folder(self.folder)


def _next(index: Index, fencing: int) -> Generation:
    return Generation(fencing, index.generation.number + 1)


def _overtaken(latest: Generation, fencing: int) -> StoreConflict:
    return StoreConflict(
        f"The base was changed under fencing number {latest.fencing}, above this writer's {fencing}.",
        "Another unlearner holds the lease; this one must stop writing.",
    )


def _only(features: Features, live: NDArray[np.bool_]) -> Features:
    """Features with the rows of deleted nodes zero."""
    if live.all():
        return features
    if isinstance(features, np.ndarray):
        features[~live] = 0
        return features
    return sp.csr_array(sp.diags_array(live.astype(features.dtype)) @ features)
