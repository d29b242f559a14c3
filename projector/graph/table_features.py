"""Features from the columns of a table: numbers, categories by a vocabulary, and lists of numbers."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.arrow import is_text, plain, pyarrow
from projector.graph.columns import Column, ColumnKind
from projector.graph.raw_graph import WHOLE
from projector.graph.tensors import SPARSE_SHARE

if TYPE_CHECKING:
    import pyarrow as pa

Missing = Literal["refuse", "zero"]

#: Integers above this size are not exact in double precision.
_EXACT = 2**53
#: Nodes that must share a category for it to have a column.
_SHARED = 2


@dataclass(frozen=True, eq=False)
class _Block:
    """The columns of X that one column of the table fills."""

    column: Column
    #: (n,) or (n, width) numbers; of categories, the place of each node's own, or -1.
    values: NDArray[Any]

    @property
    def dtype(self) -> np.dtype[Any]:
        values = self.values
        whole = values.dtype.kind in "biu" and not (values.size and (values.min() < -WHOLE or values.max() > WHOLE))
        return np.dtype(np.float32 if whole or values.dtype == np.float32 else np.float64)

    @property
    def filled(self) -> int:
        """Number of values that are not 0."""
        return int(np.count_nonzero(self.values >= 0 if self.column.kind is ColumnKind.CATEGORY else self.values))

    def fill(self, into: NDArray[Any]) -> None:
        """Write the values to the zeros `into`, (n, width)."""
        if self.column.kind is not ColumnKind.CATEGORY:
            into[:] = self.values.reshape(into.shape)
            return
        rows = np.flatnonzero(self.values >= 0)
        into[rows, self.values[rows]] = 1

    def entries(self, dtype: np.dtype[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[Any]]:
        """Return rows, columns within the block, and values that are not 0."""
        if self.column.kind is ColumnKind.CATEGORY:
            rows = np.flatnonzero(self.values >= 0)
            return rows, self.values[rows].astype(np.int64), np.ones(rows.size, dtype=dtype)
        values = self.values.reshape(self.values.shape[0], self.column.width)
        rows, columns = values.nonzero()
        return rows, columns, values[rows, columns].astype(dtype)


@dataclass(eq=False)
class FeatureReader:
    """Reads columns as features, and counts what does not become one."""

    origin: str
    missing: Missing
    #: Values that are missing, by column.
    absent: dict[str, int] = field(default_factory=dict)
    #: Categories that fewer than two nodes have, by column.
    rare: dict[str, int] = field(default_factory=dict)

    def read(self, table: "pa.Table") -> tuple[NDArray[Any] | sp.csr_array, tuple[Column, ...]]:
        """Return X, dense or CSR by its share of zeros, and its columns. Raises GraphError."""
        blocks = [self._block(name, table.column(name)) for name in table.column_names]
        if self.missing == "refuse" and self.absent:
            counts = ", ".join(f"{count:,} in {name!r}" for name, count in list(self.absent.items())[:3])
            raise GraphError(
                f"{self.origin}: values are missing: {counts}{', …' if len(self.absent) > 3 else ''}.",
                "Fill them in, or count them as 0 with missing `zero` (--missing zero).",
            )
        columns, rows = tuple(block.column for block in blocks), table.num_rows
        dtype = np.result_type(np.float32, *{block.dtype for block in blocks})
        width = sum(column.width for column in columns)
        if sum(block.filled for block in blocks) <= SPARSE_SHARE * rows * width:
            return _sparse(blocks, rows, width, dtype), columns
        X, first = np.zeros((rows, width), dtype=dtype), 0
        for block in blocks:
            block.fill(X[:, first : first + block.column.width])
            first += block.column.width
        return X, columns

    def _block(self, name: str, given: "pa.ChunkedArray") -> _Block:
        types, column = pyarrow().types, plain(given)
        kind = column.type
        if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
            return _Block(Column(name, ColumnKind.NUMBER), self._numbers(name, column))
        if is_text(kind):
            return self._categories(name, column)
        if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
            return self._lists(name, column)
        raise GraphError(
            f"{self.origin}: the column {name!r} holds {given.type}, which cannot be a feature.",
            "Turn it into numbers or text, or list the columns to use with `features` (--features).",
        )

    def _numbers(self, name: str, column: "pa.ChunkedArray") -> NDArray[Any]:
        """Return a column of numbers, (n,), with 0 for missing ones."""
        pa = pyarrow()
        kind = column.type
        absent = column.null_count
        if pa.types.is_boolean(kind):
            column = column.cast(pa.uint8())
        elif pa.types.is_decimal(kind):
            column = column.cast(pa.float64())
        elif pa.types.is_float16(kind):
            column = column.cast(pa.float32())
        values: NDArray[Any] = (column.fill_null(0) if absent else column).to_numpy()
        if values.dtype.kind == "f":
            unknown = np.isnan(values)
            if unknown.any():
                absent += int(unknown.sum())
                values = np.where(unknown, values.dtype.type(0), values)
        elif values.size and max(abs(int(values.min())), abs(int(values.max()))) > _EXACT:
            raise GraphError(
                f"{self.origin}: the column {name!r} has integers above 2^53, which double precision cannot represent.",
                "If these are ids, list the columns to use with `features` (--features).",
            )
        self._count(name, absent)
        return values

    def _categories(self, name: str, column: "pa.ChunkedArray") -> _Block:
        """Return a column of text. Its vocabulary, in the order of code points, is what at least two nodes share."""
        pa = pyarrow()
        self._count(name, column.null_count)
        encoded = column.combine_chunks().dictionary_encode()
        if isinstance(encoded, pa.ChunkedArray):
            encoded = encoded.unify_dictionaries().combine_chunks()
        codes = encoded.indices.fill_null(-1).to_numpy().astype(np.int64)
        words: list[str] = encoded.dictionary.to_pylist()
        shared = np.bincount(codes[codes >= 0], minlength=len(words)) >= _SHARED
        kept = sorted((word, place) for place, word in enumerate(words) if shared[place])
        if len(kept) < len(words):
            self.rare[name] = len(words) - len(kept)
        if not kept:
            raise GraphError(
                f"{self.origin}: no two nodes share a value of the column {name!r}, so it has no categories.",
                "If these are ids or texts, list the columns to use with `features` (--features).",
            )
        places = np.full(len(words) + 1, -1, dtype=np.int32)
        places[[place for _, place in kept]] = np.arange(len(kept), dtype=np.int32)
        categories = tuple(word for word, _ in kept)
        return _Block(Column(name, ColumnKind.CATEGORY, len(kept), categories), places[codes])

    def _lists(self, name: str, column: "pa.ChunkedArray") -> _Block:
        """Return a column of lists of equal length, with zeros for missing ones."""
        pa = pyarrow()
        lengths = pa.compute.list_value_length(column)
        found = pa.compute.min_max(lengths).as_py()
        if found["min"] != found["max"] or not found["max"]:
            raise GraphError(
                f"{self.origin}: the lists of the column {name!r} have {found['min']} to {found['max']} values.",
                "Give lists of one length.",
            )
        inner = pa.chunked_array([pa.compute.list_flatten(chunk) for chunk in column.chunks], column.type.value_type)
        if not (pa.types.is_integer(inner.type) or pa.types.is_floating(inner.type)):
            raise GraphError(
                f"{self.origin}: the column {name!r} holds lists of {inner.type}.", "Give lists of numbers."
            )
        values = self._numbers(name, inner).reshape(-1, found["max"])
        if column.null_count:
            self._count(name, column.null_count)
            there = ~column.is_null().to_numpy().astype(np.bool_)
            values, rows = np.zeros((len(column), found["max"]), dtype=values.dtype), values
            values[there] = rows
        return _Block(Column(name, ColumnKind.LIST, int(found["max"])), values)

    def _count(self, name: str, absent: int) -> None:
        if absent:
            self.absent[name] = self.absent.get(name, 0) + absent


def _sparse(blocks: Sequence[_Block], rows: int, width: int, dtype: np.dtype[Any]) -> sp.csr_array:
    parts, first = [], 0
    for block in blocks:
        at, columns, values = block.entries(dtype)
        parts.append((at, columns + first, values))
        first += block.column.width
    at, columns, values = (np.concatenate(part) for part in zip(*parts, strict=True))
    return sp.csr_array(sp.coo_array((values, (at, columns)), shape=(rows, width)))
