"""The table of edges: pairs of ids as rows of nodes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from projector.errors import GraphError
from projector.graph.arrow import Source, check_names, is_text, plain, pyarrow, readable, require
from projector.graph.graph import some
from projector.graph.tensors import looks_like

if TYPE_CHECKING:
    import pyarrow as pa

#: Edges whose ends are looked up together: each look-up hashes all ids.
_TOGETHER = 1 << 22


class EdgeTable:
    """The table of edges."""

    def __init__(
        self, origin: str, source: Source, *, ends: tuple[str, str], weight: str | None, drop_invalid: bool
    ) -> None:
        self.origin, self._source, self._weight, self._drop_invalid = origin, source, weight, drop_invalid
        names = check_names(origin, source)
        self._wanted = [*ends, *([] if weight is None else [weight])]
        require(origin, names, list(zip(("source", "target", "weight"), self._wanted, strict=False)))
        self.unread = [name for name in names if name not in self._wanted]
        for name in self.unread:
            if weight is None and (what := looks_like(name)) is not None:
                raise GraphError(
                    f"{origin}: the column {name!r} looks like {what} and would not be read.",
                    "Name it with `weight` (--weight) if it holds weights, or leave it out.",
                )
        self.rows = self.unknown = self.loops = 0
        #: (E,), None without weights.
        self.weights: NDArray[Any] | None = None

    def between(self, keys: "pa.ChunkedArray") -> NDArray[np.int32]:
        """Return the rows of the ends of each edge that stays, (2, E), and keep their weights. Raises GraphError."""
        parts, weights, examples = [np.empty((2, 0), dtype=np.int32)], [np.empty(0)], list[str]()
        with readable(self.origin):
            for part in _together(self._source.batches(self._wanted)):
                self.rows += part.num_rows
                ends = [keys_of(self.origin, name, part.column(name)) for name in self._wanted[:2]]
                pairs = np.stack([_rows_of(each, keys) for each in ends])
                unknown = (pairs < 0).any(axis=0)
                loops = ~unknown & (pairs[0] == pairs[1])
                kept = ~(unknown | loops)
                self.unknown += int(unknown.sum())
                self.loops += int(loops.sum())
                examples += [str(ends[end][int(place)]) for end, place in np.argwhere(pairs < 0)[:3]]
                parts.append(pairs if kept.all() else pairs[:, kept])
                if self._weight is not None:
                    weights.append(self._weights(part.column(self._weight))[kept])
        if not self._drop_invalid and (self.unknown or self.loops):
            ends_at = f"{self.unknown:,} edges have an end that is not among the nodes, such as {some(examples)}"
            found = [*([ends_at] if self.unknown else []), *([f"{self.loops:,} are self loops"] if self.loops else [])]
            raise GraphError(
                f"{self.origin}: {', and '.join(found)}.",
                "Correct them, or drop them with `drop_invalid` (--drop-invalid).",
            )
        self.weights = None if self._weight is None else np.concatenate(weights)
        return np.concatenate(parts, axis=1)

    def _weights(self, column: "pa.ChunkedArray") -> NDArray[np.float64]:
        pa, name = pyarrow(), self._weight
        if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            raise GraphError(f"{self.origin}: the weights in the column {name!r} are {column.type}.", "Give numbers.")
        if column.null_count:
            raise GraphError(
                f"{self.origin}: {column.null_count:,} weights are missing in the column {name!r}.",
                "Give each edge a weight.",
            )
        return np.asarray(column.cast(pa.float64()).to_numpy())


def keys_of(origin: str, name: str, column: "pa.ChunkedArray") -> "pa.ChunkedArray":
    """Return ids as int64 or as text. Raises GraphError."""
    pa = pyarrow()
    found = plain(column)
    if pa.types.is_integer(found.type):
        return found.cast(pa.large_string() if pa.types.is_uint64(found.type) else pa.int64())
    if is_text(found.type):
        return found
    if pa.types.is_null(found.type):
        return found.cast(pa.large_string())
    raise GraphError(f"{origin}: the ids in the column {name!r} are {column.type}.", "Give strings or integers.")


def texts_of(keys: "pa.ChunkedArray") -> Iterator[str]:
    """Yield ids as text."""
    for batch in keys.cast(pyarrow().large_string()).chunks:
        for first in range(0, len(batch), 1 << 16):
            yield from batch.slice(first, 1 << 16).to_pylist()


def _rows_of(ends: "pa.ChunkedArray", keys: "pa.ChunkedArray") -> NDArray[np.int32]:
    """Return the place of each of `ends` among `keys`; -1 for those that are missing there."""
    pa = pyarrow()
    if ends.type != keys.type:
        ends, keys = ends.cast(pa.large_string()), keys.cast(pa.large_string())
    found: NDArray[np.int32] = pa.compute.index_in(ends, value_set=keys).fill_null(-1).to_numpy()
    return found


def _together(batches: Iterable["pa.RecordBatch"]) -> Iterator["pa.Table"]:
    """Yield the rows of `batches` in tables of about `_TOGETHER` rows."""
    pa = pyarrow()
    held: list[Any] = []
    for batch in batches:
        for first in range(0, batch.num_rows, _TOGETHER):
            held.append(batch.slice(first, _TOGETHER))
            if sum(each.num_rows for each in held) >= _TOGETHER:
                yield pa.Table.from_batches(held)
                held = []
    if held:
        yield pa.Table.from_batches(held)
