"""The folder `base/` of a store: graph and span coefficients, read with verified digests and erased in place."""

import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.arrays import BaseArrays, NewTable, write_table
from model_store.base.erasure import Erasure, carry_out, plan
from model_store.base.index import Generation, Index, check_file_names, labelled_files
from model_store.base.tables import (
    check_index,
    decode_beta,
    decode_graph,
    decode_public,
    decode_training_labels,
    encode_beta,
    encode_graph,
    rows_of_feature_slots,
    stored_features,
)
from model_store.disk.durable import DurableChanges, durable_changes, make_folder, rename, replace_file
from model_store.errors import NotAStore, StoreDamaged
from model_store.manifest import Manifest
from model_store.versions import StoreConflict
from model_store.work import Work
from projector.graph.graph import Graph

_Result = TypeVar("_Result")
#: Attempts at a read while erasures change the base concurrently.
_READ_ATTEMPTS = 5
#: Upper limit of a base's random first number; leaves room for many changes within 18 digits.
_FIRST_BELOW = 10**15
#: Bytes of an input and its coefficients read at a time.
_SPAN_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class Base:
    """The current contents of `base/`."""

    #: Erased nodes have no id (""), label, mask, features or edges.
    graph: Graph
    #: Span coefficients of the features, (blocks, n, C) float64.
    beta: NDArray[np.float64]
    #: Span coefficients of the labels, (label_hops, n, C) float64.
    label_beta: NDArray[np.float64]
    #: Mask of public nodes, (n,), which are never deleted.
    public: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SpanChunk:
    """An input and its span coefficients in consecutive rows; zero for nodes outside of the span."""

    rows: slice
    #: Features (k, d), dense or COO, or one-hot labels (k, C), CSR; float64.
    X: NDArray[Any] | sp.sparray
    #: (blocks, k, C) float64.
    beta: NDArray[np.float64]


class BaseStore:
    """The folder `base/` of one model. Every call reads the disk afresh."""

    def __init__(self, folder: Path, manifest: Manifest, *, manifest_sha256: str) -> None:
        self.folder = folder
        self._manifest = manifest
        self._manifest_sha256 = manifest_sha256

    def create(self, base: Base, *, chunk_rows: int) -> None:
        """Write the folder and sync it, but not its parent."""
        make_folder(self.folder)
        # Deliberately unpredictable, so that nobody can infer which edge was in which slot.
        new = encode_graph(base.graph, base.public, chunk_rows, np.random.default_rng())
        new |= _beta_tables(base.beta, base.label_beta, chunk_rows)
        # Use a different number in every model: an erasure of the replaced model may still run, and must not find its
        # files here.
        first = Generation(fencing=0, number=secrets.randbelow(_FIRST_BELOW))
        with durable_changes() as changes:
            tables = {name: write_table(self.folder, name, table, first, changes) for name, table in new.items()}
            index = Index(first, self._manifest_sha256, base.graph.nodes, chunk_rows, beta_version=0, tables=tables)
            changes.write(self.folder / index.file_name, [index.to_bytes()])
            changes.name(self.folder)

    def check(self) -> None:
        """Raise StoreDamaged or NotAStore for a file that is missing, has another size, or is not the store's."""
        self._steadily(self._check)

    def load(self, work: Work) -> Base:
        """Return graph and span coefficients with every chunk verified. Slots in an open erasure are already blank."""
        return self._steadily(partial(self._load, work))

    def load_graph(self) -> Graph:
        """Return the graph of `load`."""
        return self._steadily(lambda: decode_graph(self._arrays(), self._manifest))

    def span_chunks(self, featured: NDArray[np.bool_], parts: int = 1) -> list[Iterator[SpanChunk]]:
        """Return features and coefficients of all rows in `parts` iterators, for as many threads.

        Each reads and verifies about 4 MiB at a time. Rows outside of `featured` (n,) are zero.
        """
        base = self._arrays()

        def read(steps: Sequence[tuple[range, slice]]) -> Iterator[SpanChunk]:
            for chunks, rows in steps:
                beta = decode_beta(base, "beta", chunks)
                beta[:, ~featured[rows]] = 0
                yield SpanChunk(rows, _only(stored_features(base, self._manifest, chunks), featured[rows]), beta)

        steps = list(_steps(base.index, "features", "beta"))
        return [read(steps[part::parts]) for part in range(parts)]

    def label_span_chunks(self, live: NDArray[np.bool_]) -> Iterator[SpanChunk]:
        """Yield labels and their coefficients likewise, in one part. Rows outside `live` (n,) or training are zero."""
        base = self._arrays()
        for chunks, rows in _steps(base.index, "nodes", "label_beta"):
            labels = decode_training_labels(base, self._manifest, chunks, live[rows])
            beta = decode_beta(base, "label_beta", chunks)
            beta[:, np.diff(labels.indptr) == 0] = 0
            yield SpanChunk(rows, labels, beta)

    def is_open(self) -> bool:
        """Return whether a crash interrupted an erasure. Any write finishes it first."""
        return Index.latest(self.folder).is_open

    def begin_erasure(self, erasure: Erasure, *, fencing: int) -> Index:
        """Record durably what to overwrite of nodes, features or edges; nothing for data already gone.

        Finishes an interrupted erasure first. Raises StoreConflict if a writer with a higher fencing number has changed
        the base, IndexError for a row that the graph does not have.
        """
        index = self._resolve_open_index(fencing)
        opened = plan(BaseArrays(self.folder, index), erasure, self._manifest.feature_layout, _next(index, fencing))
        return index if opened is None else self._install(opened)

    def overwrite(self, index: Index, changes: DurableChanges) -> None:
        """Overwrite in place what a begun erasure names."""
        if index.is_open:
            carry_out(index, self.folder, changes)
            changes.write(self.folder / _closing(index), [index.closed().to_bytes()])

    def end_erasure(self, index: Index, last: DurableChanges, *, fencing: int) -> None:
        """After the overwriting is durable, remove its record and all files that are no longer needed."""
        if index.is_open:
            # Replaces the open index: whichever a crash leaves, earlier indexes are no longer needed.
            last.rename(self.folder / _closing(index), self.folder / index.file_name)
        self._tidy(index, last, fencing)

    def tidy(self, *, fencing: int) -> None:
        """Remove unneeded files with fencing numbers up to `fencing`. Raises StoreConflict as `begin_erasure` does."""
        with durable_changes() as last:
            self._tidy(self._resolve_open_index(fencing), last, fencing)

    def claim(self, *, fencing: int) -> None:
        """Make the caller own the current index, which invalidates later indexes of earlier writers.

        Raises StoreConflict as `begin_erasure` does.
        """
        index = self._resolve_open_index(fencing)
        if index.generation.fencing < fencing:
            index = self._install(replace(index, generation=_next(index, fencing)))
        with durable_changes() as last:
            self._tidy(index, last, fencing)

    def beta_version(self) -> int:
        """Return the model version of the last rebuild of the span coefficients; 0 for those of training."""
        return self._index().beta_version

    def feature_slots(self) -> tuple[Path, int, NDArray[np.int64]]:
        """Return the file of the features' values, the bytes of a slot, and each slot's row, -1 if blanked.

        A slot is a row of dense features, or a stored value of sparse ones.
        """
        return self._steadily(self._feature_slots)

    def files(self) -> frozenset[str]:
        """Return the names of the current index and its arrays."""
        index = self._index()
        return index.files() | {index.file_name}

    def fencing(self) -> int:
        """Return the highest fencing number of any file in `base/`."""
        return max(generation.fencing for _, generation, _ in labelled_files(self.folder))

    def write_beta(
        self, beta: NDArray[np.float64], label_beta: NDArray[np.float64], *, version: int, fencing: int, work: Work
    ) -> None:
        """Replace all span coefficients, (blocks, n, C) and (label_hops, n, C), with those of `version`, atomically.

        The old ones stay on disk until the next erasure. Rows of deleted nodes and, in `beta`, of nodes with deleted
        features must be zero. Raises StoreConflict as `begin_erasure` does, ValueError for another shape.
        """
        index = self._resolve_open_index(fencing)
        spec, nodes, classes = self._manifest.spec, self._manifest.nodes, len(self._manifest.classes)
        for name, array, blocks in (
            ("beta", beta, len(spec.block_hops)),
            ("label_beta", label_beta, spec.label_hops),
        ):
            if array.shape != (blocks, nodes, classes):
                raise ValueError(f"{name} must be {(blocks, nodes, classes)}, not {array.shape}")
        target = _next(index, fencing)
        index = replace(index, generation=target, beta_version=version)
        work.begin("Writing the span coefficients", beta.nbytes + label_beta.nbytes)
        with durable_changes() as changes:
            for name, new in _beta_tables(beta, label_beta, index.chunk_rows).items():
                index = index.with_table(name, write_table(self.folder, name, new, target, changes, work.count))
            changes.write(self.folder / f".{index.file_name}", [index.to_bytes()])
            changes.name(self.folder)
        rename(self.folder / f".{index.file_name}", self.folder / index.file_name)

    def _steadily(self, read: Callable[[], _Result]) -> _Result:
        """Return the result of `read`, retrying if another process erased something meanwhile."""
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

    def _load(self, work: Work) -> Base:
        base = BaseArrays(self.folder, self._index(), work.count)
        work.begin(f"Reading {base.bytes >> 20:,} MiB of the model, every digest checked", base.reading_work())
        everything = range(base.index.row_chunks)
        return Base(
            graph=decode_graph(base, self._manifest),
            beta=decode_beta(base, "beta", everything),
            label_beta=decode_beta(base, "label_beta", everything),
            public=decode_public(base),
        )

    def _feature_slots(self) -> tuple[Path, int, NDArray[np.int64]]:
        base = self._arrays()
        values = base.index.tables["features"].arrays["values"]
        return self.folder / values.file, values.slot_bytes, rows_of_feature_slots(base, self._manifest)

    def _arrays(self) -> BaseArrays:
        return BaseArrays(self.folder, self._index())

    def _index(self) -> Index:
        index = Index.latest(self.folder)
        if index.manifest_sha256 != self._manifest_sha256:
            raise NotAStore(
                f"{self.folder / index.file_name} belongs to another model than the manifest beside it.",
                "Restore the model's own files.",
            )
        check_index(index, self._manifest, self.folder / index.file_name)
        return index

    def _resolve_open_index(self, fencing: int) -> Index:
        """Return the index to change, finishing an interrupted erasure first."""
        index = self._index()
        if index.generation.fencing > fencing:
            raise _overtaken(index.generation, fencing)
        if not index.is_open:
            return index
        with durable_changes() as changes:
            carry_out(index, self.folder, changes)
        # Use a new name if another writer opened it: that writer may continue, and write its own closed index.
        own = index.generation.fencing == fencing
        return self._install(replace(index.closed(), generation=index.generation if own else _next(index, fencing)))

    def _install(self, index: Index) -> Index:
        name = index.file_name
        replace_file(self.folder / name, index.to_bytes(), temporary=f".{name}")
        return index

    def _tidy(self, index: Index, last: DurableChanges, fencing: int) -> None:
        """Remove older indexes, replaced arrays and unfinished files of `base/`."""
        latest = Index.latest_generation(self.folder)
        if latest > index.generation:
            raise _overtaken(latest, fencing)
        needed = {index.file_name, *index.files()}
        for _, generation, path in labelled_files(self.folder):
            if path.name not in needed and generation.fencing <= fencing:
                last.remove(path)


def _beta_tables(beta: NDArray[np.float64], label_beta: NDArray[np.float64], chunk_rows: int) -> dict[str, NewTable]:
    return {"beta": encode_beta(beta, chunk_rows), "label_beta": encode_beta(label_beta, chunk_rows)}


def _steps(index: Index, *tables: str) -> Iterator[tuple[range, slice]]:
    """Yield consecutive chunks of rows, and the rows, in steps of about 4 MiB of the given tables."""
    row_bytes = sum(
        array.slot_bytes * index.tables[name].slots // index.nodes
        for name in tables
        for array in index.tables[name].arrays.values()
    )
    step = max(1, _SPAN_BYTES // (index.chunk_rows * max(1, row_bytes)))
    for first in range(0, index.row_chunks, step):
        chunks = range(first, min(first + step, index.row_chunks))
        yield chunks, slice(chunks.start * index.chunk_rows, min(chunks.stop * index.chunk_rows, index.nodes))


def _next(index: Index, fencing: int) -> Generation:
    return Generation(fencing, index.generation.number + 1)


def _closing(index: Index) -> str:
    """Return the temporary name of the index that will replace an open one."""
    return f".closing-{index.generation}.json"


def _overtaken(latest: Generation, fencing: int) -> StoreConflict:
    return StoreConflict(
        f"The base was changed under fencing number {latest.fencing}, above this writer's {fencing}.",
        "Another unlearner holds the lease; this one must stop writing.",
    )


def _only(features: NDArray[Any] | sp.coo_array, live: NDArray[np.bool_]) -> NDArray[Any] | sp.coo_array:
    """Return features in float64 with the rows of deleted nodes zero."""
    if isinstance(features, np.ndarray):
        features = features.astype(np.float64)
        features[~live] = 0
        return features
    # Avoid the matrix's own `astype`, which sorts the values first.
    values, (rows, columns) = features.data.astype(np.float64), features.coords
    if not live.all():
        values[~live[rows]] = 0
    return sp.coo_array((values, (rows, columns)), shape=features.shape)
