"""An input of a stored model with its span coefficients, a few MiB at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from model_store.base.arrays import LATE
from model_store.base.decoding import BaseReader
from model_store.base.index import Index

#: Bytes of an input and its coefficients read at a time.
_SPAN_BYTES = 4 << 20


@dataclass(frozen=True, eq=False)
class SpanChunk:
    """An input and its span coefficients in consecutive rows; zero for nodes outside of the span."""

    rows: slice
    #: Features (k, d), dense or COO, or one-hot labels (k, C), CSR; float64.
    X: NDArray[Any] | sp.sparray
    #: (blocks, k, C) float64.
    beta: NDArray[np.float64]


def feature_chunks(base: BaseReader, featured: NDArray[np.bool_], parts: int) -> list[Iterator[SpanChunk]]:
    """Return features and coefficients of all rows in `parts` iterators. Rows outside of `featured` (n,) are zero."""

    def read(steps: Sequence[tuple[range, slice]]) -> Iterator[SpanChunk]:
        for chunks, rows in steps:
            beta = base.beta("beta", chunks)
            beta[:, ~featured[rows]] = 0
            yield SpanChunk(rows, _only(base.stored_features(chunks), featured[rows]), beta)

    steps = list(_steps(base.index, "features", "beta"))
    return [read(steps[part::parts]) for part in range(parts)]


def label_chunks(base: BaseReader, live: NDArray[np.bool_]) -> Iterator[SpanChunk]:
    """Yield labels and their coefficients. Rows outside `live` (n,) or training are zero."""
    for chunks, rows in _steps(base.index, "labels", "label_beta"):
        labels = base.training_labels(chunks, live[rows])
        beta = base.beta("label_beta", chunks)
        beta[:, np.diff(labels.indptr) == 0] = 0
        yield SpanChunk(rows, labels, beta)


def _steps(index: Index, *tables: str) -> Iterator[tuple[range, slice]]:
    """Yield consecutive chunks of rows, and the rows, in steps of about 4 MiB of these tables."""
    row_bytes = sum(
        array.slot_bytes * table.slots // index.nodes
        for name, table in index.tables.items()
        if name.removeprefix(LATE) in tables
        for array in table.arrays.values()
    )
    step = max(1, _SPAN_BYTES // (index.chunk_rows * max(1, row_bytes)))
    for first in range(0, index.row_chunks, step):
        chunks = range(first, min(first + step, index.row_chunks))
        yield chunks, index.rows(chunks)


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
