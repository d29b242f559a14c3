"""The folder `base/` of a store: graph and span coefficients, read with verified digests and erased in place."""

import secrets
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from model_store.base.arrays import LATE, BaseArrays, NewTable, write_table
from model_store.base.decoding import BaseReader
from model_store.base.edit import FeatureSlots, PendingEdit
from model_store.base.erasure import Erasure, carry_out, plan
from model_store.base.growth import grow
from model_store.base.index import Generation, Index, check_file_names, labelled_files
from model_store.base.span_chunks import SpanChunk, feature_chunks, label_chunks
from model_store.base.tables import check_index, encode_beta, encode_graph
from model_store.disk.durable import DurableChanges, damaged, durable_changes, make_folder, rename, replace_file
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
            nodes = base.graph.nodes
            index = Index(first, self._manifest_sha256, nodes, chunk_rows, 0, nodes, 0, tables)
            changes.write(self.folder / index.file_name, [index.to_bytes()])
            changes.name(self.folder)

    def check(self) -> None:
        """Raise StoreDamaged or NotAStore for a file that is missing, has another size, or is not the store's."""
        self._steadily(self._check)

    def load(self, work: Work, pending: PendingEdit | None) -> Base:
        """Return graph and span coefficients with every chunk verified. Slots in an open erasure are already blank.

        If `pending` was not applied to the disk yet, it is applied to the result.
        """
        return self._steadily(partial(self._load, work, pending))

    def load_graph(self, pending: PendingEdit | None) -> Graph:
        """Return the graph of `load`."""
        return self._steadily(lambda: self._graph(self._reader(), pending)[0])

    def span_chunks(self, featured: NDArray[np.bool_], parts: int = 1) -> list[Iterator[SpanChunk]]:
        """Return features and coefficients of all rows in `parts` iterators, for as many threads.

        Each reads and verifies about 4 MiB at a time. Rows outside of `featured` (n,) are zero.
        """
        return feature_chunks(self._whole_reader(), featured, parts)

    def label_span_chunks(self, live: NDArray[np.bool_]) -> Iterator[SpanChunk]:
        """Yield labels and their coefficients likewise, in one part. Rows outside `live` (n,) or training are zero."""
        return label_chunks(self._whole_reader(), live)

    def begin_growth(self, pending: PendingEdit, *, fencing: int) -> Index:
        """Append what an edit adds, visibly and in one step, and begin the erasure of what it replaces.

        Nothing is appended twice. Raises StoreConflict as `begin_erasure` does, StoreDamaged if the edit does not go
        with the rows on disk, ValueError if the span coefficients of its rows were not written.
        """
        index = self._resolve_open_index(fencing)
        if pending.version <= index.grown_version:
            return index
        self._check_rows(index, pending)
        if pending.edit.nodes != index.beta_rows:
            raise ValueError(f"the span coefficients are those of {index.beta_rows} rows, not {pending.edit.nodes}")
        target = _next(index, fencing)
        with durable_changes() as changes:
            base = BaseArrays(self.folder, index)
            index = grow(
                base, pending.edit, self._manifest, version=pending.version, generation=target, changes=changes
            )
            changes.name(self.folder)
        return self._install(index)

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

    @property
    def nodes(self) -> int:
        """Rows of the graph on disk."""
        return self._index().nodes

    @property
    def weighted(self) -> bool:
        """Whether edges have weights."""
        return self._index().weighted

    def grown_version(self) -> int:
        """Return the last model version whose edit was applied; 0 for none."""
        return self._index().grown_version

    def feature_slots(self) -> list[FeatureSlots]:
        """Return the slots of each file of feature values."""
        return self._steadily(lambda: list(self._reader().feature_slots()))

    def files(self) -> frozenset[str]:
        """Return the names of the current index and its arrays."""
        index = self._index()
        return index.files() | {index.file_name}

    def fencing(self) -> int:
        """Return the highest fencing number of any file in `base/`."""
        return max(generation.fencing for _, generation, _ in labelled_files(self.folder))

    def write_beta(
        self,
        beta: NDArray[np.float64],
        label_beta: NDArray[np.float64],
        *,
        joining: int,
        version: int,
        fencing: int,
        work: Work,
    ) -> None:
        """Replace all span coefficients, (blocks, n, C) and (label_hops, n, C), with those of `version`, atomically.

        The old ones stay on disk until the next erasure. Rows of deleted nodes and, in `beta`, of nodes with deleted
        features must be zero. `joining` of the n rows are still to be added by `begin_growth`. Raises StoreConflict as
        `begin_erasure` does, ValueError for another shape.
        """
        index = self._resolve_open_index(fencing)
        spec, nodes, classes = self._manifest.spec, index.nodes + joining, len(self._manifest.classes)
        for name, array, blocks in (
            ("beta", beta, len(spec.block_hops)),
            ("label_beta", label_beta, spec.label_hops),
        ):
            if array.shape != (blocks, nodes, classes):
                raise ValueError(f"{name} must be {(blocks, nodes, classes)}, not {array.shape}")
        target = _next(index, fencing)
        index = replace(index, generation=target, beta_version=version, beta_rows=nodes)
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

    def _load(self, work: Work, pending: PendingEdit | None) -> Base:
        arrays = BaseArrays(self.folder, self._index(), work.count)
        base = BaseReader(arrays, self._manifest)
        work.begin(f"Reading {arrays.bytes >> 20:,} MiB of the model, every digest checked", arrays.reading_work())
        graph, public = self._graph(base, pending)
        self._check_beta_rows(base.index, base.index.nodes, graph.nodes)
        beta, label_beta = (_with_rows(base.all_beta(name), graph.nodes) for name in ("beta", "label_beta"))
        return Base(graph, beta, label_beta, public)

    def _graph(self, base: BaseReader, pending: PendingEdit | None) -> tuple[Graph, NDArray[np.bool_]]:
        graph, public = base.graph()
        if pending is None or pending.version <= base.index.grown_version:
            return graph, public
        self._check_rows(base.index, pending)
        return pending.edit.applied(graph, public)

    def _check_rows(self, index: Index, pending: PendingEdit) -> None:
        """Raise StoreDamaged unless an edit adds to just the rows on disk."""
        edit = pending.edit
        if edit.first_row != index.nodes:
            what = f"holds {index.nodes} rows, but version {pending.version} adds {len(edit.ids)} to {edit.first_row}"
            raise damaged(self.folder, what)

    def _check_beta_rows(self, index: Index, *nodes: int) -> None:
        """Raise StoreDamaged unless the span coefficients are those of a graph with such a number of `nodes`."""
        if index.beta_rows not in nodes:
            raise damaged(self.folder, f"holds span coefficients of {index.beta_rows} rows for a graph of {nodes[-1]}")

    def _whole_reader(self) -> BaseReader:
        """Return a reader of rows that all have coefficients."""
        base = self._reader()
        self._check_beta_rows(base.index, base.index.nodes)
        return base

    def _reader(self) -> BaseReader:
        return BaseReader(BaseArrays(self.folder, self._index()), self._manifest)

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
        for stem, generation, path in labelled_files(self.folder):
            if path.name not in needed and generation.fencing <= fencing:
                if stem.startswith(LATE):
                    # Another file holds a copy, and only that would be overwritten when its nodes are erased.
                    last.shred(path)
                last.remove(path)


def _beta_tables(beta: NDArray[np.float64], label_beta: NDArray[np.float64], chunk_rows: int) -> dict[str, NewTable]:
    return {"beta": encode_beta(beta, chunk_rows), "label_beta": encode_beta(label_beta, chunk_rows)}


def _with_rows(beta: NDArray[np.float64], nodes: int) -> NDArray[np.float64]:
    """Return `beta` (blocks, m, C) with `nodes` rows; those of nodes that join are zero until they are written."""
    return beta if beta.shape[1] >= nodes else np.pad(beta, ((0, 0), (0, nodes - beta.shape[1]), (0, 0)))


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
