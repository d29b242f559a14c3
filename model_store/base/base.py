"""The folder `base/` of a store: graph and span coefficients, read with digests and erased in place."""

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
#: How often a read is tried when erasures change the base under it.
_READ_ATTEMPTS = 5
#: The first number of a base; those of a great many changes follow it within 18 digits.
_FIRST_BELOW = 10**15
#: Bytes of an input and its coefficients that are read at a time.
_SPAN_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class Base:
    """What `base/` holds now."""

    #: Erased nodes have no id (""), label, mask, features or edges.
    graph: Graph
    #: Span coefficients of the features, (blocks, n, C) float64.
    beta: NDArray[np.float64]
    #: Span coefficients of the labels, (label_hops, n, C) float64.
    label_beta: NDArray[np.float64]
    #: Nodes declared public, (n,): never deleted.
    public: NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class SpanChunk:
    """An input and its span coefficients in consecutive rows; zero in the rows of nodes that are not in the span."""

    rows: slice
    #: Features (k, d), dense or COO, or one-hot labels (k, C), CSR; float64.
    X: NDArray[Any] | sp.sparray
    #: (blocks, k, C) float64.
    beta: NDArray[np.float64]


class BaseStore:
    """`base/` of one model. Every call reads the disk afresh."""

    def __init__(self, folder: Path, manifest: Manifest, *, manifest_sha256: str) -> None:
        self.folder = folder
        self._manifest = manifest
        self._manifest_sha256 = manifest_sha256

    def create(self, base: Base, *, chunk_rows: int) -> None:
        """Writes the folder and syncs it, but not its parent."""
        make_folder(self.folder)
        # Unpredictable on purpose: nobody can tell afterwards which edge lay in which slot.
        new = encode_graph(base.graph, base.public, chunk_rows, np.random.default_rng())
        new |= _beta_tables(base.beta, base.label_beta, chunk_rows)
        # Another one in every model: an erasure of the model that this one replaces may go on after that, and must find
        # none of its files here.
        first = Generation(fencing=0, number=secrets.randbelow(_FIRST_BELOW))
        with durable_changes() as changes:
            tables = {name: write_table(self.folder, name, table, first, changes) for name, table in new.items()}
            index = Index(first, self._manifest_sha256, base.graph.nodes, chunk_rows, beta_version=0, tables=tables)
            changes.write(self.folder / index.file_name, [index.to_bytes()])
            changes.name(self.folder)

    def check(self) -> None:
        """Raises StoreDamaged or NotAStore for a file that is missing, of another size, or not the store's."""
        self._steadily(self._check)

    def load(self, work: Work) -> Base:
        """Graph and span coefficients, every chunk verified; what an open erasure names is gone already."""
        return self._steadily(partial(self._load, work))

    def load_graph(self) -> Graph:
        """The graph of `load`."""
        return self._steadily(lambda: decode_graph(self._arrays(), self._manifest))

    def span_chunks(self, featured: NDArray[np.bool_], parts: int = 1) -> list[Iterator[SpanChunk]]:
        """Features and coefficients of all rows in so many `parts`, for as many threads.

        About 4 MiB at a time, read and verified as they are asked for. Rows that are not in `featured` (n,) are zero.
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
        """The same of labels, in one: rows of nodes that are not in `live` (n,), or no training nodes, are zero."""
        base = self._arrays()
        for chunks, rows in _steps(base.index, "nodes", "label_beta"):
            labels = decode_training_labels(base, self._manifest, chunks, live[rows])
            beta = decode_beta(base, "label_beta", chunks)
            beta[:, np.diff(labels.indptr) == 0] = 0
            yield SpanChunk(rows, labels, beta)

    def is_open(self) -> bool:
        """Whether an erasure was interrupted by a crash; `erase` finishes it before anything else."""
        return Index.latest(self.folder).is_open

    def begin_erasure(self, erasure: Erasure, *, fencing: int) -> Index:
        """Writes down, durably, what of nodes, features or edges is to be overwritten; none for what is gone already.

        An erasure that was interrupted is finished first. Raises StoreConflict when a writer with a higher fencing
        number has changed the base, IndexError for a row that the graph does not have.
        """
        index = self._resolve_open_index(fencing)
        opened = plan(BaseArrays(self.folder, index), erasure, self._manifest.feature_layout, _next(index, fencing))
        return index if opened is None else self._install(opened)

    def overwrite(self, index: Index, changes: DurableChanges) -> None:
        """Overwrites in place what an erasure that was begun names."""
        if index.is_open:
            carry_out(index, self.folder, changes)
            changes.write(self.folder / _closing(index), [index.closed().to_bytes()])

    def end_erasure(self, index: Index, last: DurableChanges, *, fencing: int) -> None:
        """Once that is durable, removes what tells of it, and all else that nothing needs."""
        if index.is_open:
            # Over the open one: whichever of the two a crash leaves, those before it are not needed any more.
            last.rename(self.folder / _closing(index), self.folder / index.file_name)
        self._tidy(index, last, fencing)

    def tidy(self, *, fencing: int) -> None:
        """Removes files that nothing needs, written under numbers up to `fencing`; raises StoreConflict as `erase`."""
        with durable_changes() as last:
            self._tidy(self._resolve_open_index(fencing), last, fencing)

    def claim(self, *, fencing: int) -> None:
        """Makes the index one of the caller's, so that none counts that an earlier writer writes from here on.

        Raises StoreConflict as `erase` does.
        """
        index = self._resolve_open_index(fencing)
        if index.generation.fencing < fencing:
            index = self._install(replace(index, generation=_next(index, fencing)))
        with durable_changes() as last:
            self._tidy(index, last, fencing)

    def beta_version(self) -> int:
        """The model version whose weights the span coefficients were last rebuilt from; 0 for those of training."""
        return self._index().beta_version

    def feature_slots(self) -> tuple[Path, int, NDArray[np.int64]]:
        """The file of the features' values, the bytes of a slot, and the row of each, -1 where it was blanked.

        A slot is a row of dense features, and a stored value of sparse ones.
        """
        return self._steadily(self._feature_slots)

    def files(self) -> frozenset[str]:
        """The names of the index that counts and of its arrays."""
        index = self._index()
        return index.files() | {index.file_name}

    def fencing(self) -> int:
        """The highest fencing number under which a file of `base/` was written."""
        return max(generation.fencing for _, generation, _ in labelled_files(self.folder))

    def write_beta(
        self, beta: NDArray[np.float64], label_beta: NDArray[np.float64], *, version: int, fencing: int, work: Work
    ) -> None:
        """Replaces all span coefficients, (blocks, n, C) and (label_hops, n, C), by those of `version`, in one step.

        Those before stay on the disk until the next erasure. The rows of deleted nodes, and in `beta` those of nodes
        whose features were deleted, must be zero. Raises StoreConflict as `erase` does, ValueError for another shape.
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
        """The index to change, after an interrupted erasure has been finished."""
        index = self._index()
        if index.generation.fencing > fencing:
            raise _overtaken(index.generation, fencing)
        if not index.is_open:
            return index
        with durable_changes() as changes:
            carry_out(index, self.folder, changes)
        # Of another writer under another name: that may go on, and write the one that its open index is to get.
        own = index.generation.fencing == fencing
        return self._install(replace(index.closed(), generation=index.generation if own else _next(index, fencing)))

    def _install(self, index: Index) -> Index:
        name = index.file_name
        replace_file(self.folder / name, index.to_bytes(), temporary=f".{name}")
        return index

    def _tidy(self, index: Index, last: DurableChanges, fencing: int) -> None:
        """Removes older indexes, replaced arrays and unfinished files of `base/`."""
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
    """Consecutive chunks of rows, and the rows, by about 4 MiB of the given tables."""
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
    """The name of the index that is to take the place of an open one."""
    return f".closing-{index.generation}.json"


def _overtaken(latest: Generation, fencing: int) -> StoreConflict:
    return StoreConflict(
        f"The base was changed under fencing number {latest.fencing}, above this writer's {fencing}.",
        "Another unlearner holds the lease; this one must stop writing.",
    )


def _only(features: NDArray[Any] | sp.coo_array, live: NDArray[np.bool_]) -> NDArray[Any] | sp.coo_array:
    """Features in float64 with the rows of deleted nodes zero."""
    if isinstance(features, np.ndarray):
        features = features.astype(np.float64)
        features[~live] = 0
        return features
    # Not the matrix' own `astype`, which puts the values in order first.
    values, (rows, columns) = features.data.astype(np.float64), features.coords
    if not live.all():
        values[~live[rows]] = 0
    return sp.coo_array((values, (rows, columns)), shape=features.shape)
