"""Vectorised ranges of integers, and the rows of a CSR matrix in parts."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray


def ranges(firsts: NDArray[np.int64], ends: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all integers from each of `firsts` (k,) up to the corresponding `ends` (k,), exclusive, concatenated."""
    sizes = ends - firsts
    whole: NDArray[np.int64] = np.arange(sizes.sum()) + np.repeat(firsts - (np.cumsum(sizes) - sizes), sizes)
    return whole


def parts_of_rows(starts: NDArray[np.integer], entries: int = 1 << 20) -> Iterator[tuple[int, int]]:
    """Yield first and end of consecutive rows that hold about `entries` entries together, or one larger row.

    `starts` (n + 1,) is where the entries of each row begin, followed by the end of the last row.
    """
    first, whole = 0, int(starts[-1])
    while first < starts.size - 1:
        # Cap at the existing entries: a sum beyond int32 would not have the type of `starts`.
        last = starts[first] + min(entries, whole - int(starts[first]))
        end = max(first + 1, int(np.searchsorted(starts, last, side="right")) - 1)
        yield first, end
        first = end


def index_type(largest: int) -> type[np.int32] | type[np.int64]:
    """Return the type of indices up to `largest`.

    [MKL takes int32, and torch converts wider ones at every product: 15 to 20 % of its time.]
    """
    return np.int32 if largest <= np.iinfo(np.int32).max else np.int64
