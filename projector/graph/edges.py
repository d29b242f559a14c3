"""Look up the edges of the live graph without building anything."""

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Edges:
    """The edges between live nodes: a view of arrays owned elsewhere and never written to."""

    #: A, (n, n), symmetric, column indices sorted; the stored value of a deleted edge is 0.
    adjacency: sp.csr_array
    #: (n,) bool.
    live: NDArray[np.bool_]

    def contain(self, pairs: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each of `pairs` (k, 2) of rows is an edge between two live nodes, (k,) bool.

        Takes O(log degree) per pair. Raises IndexError for a row that the graph does not have.
        """
        return self.entries(pairs) >= 0

    def entries(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where A_ij of each of `pairs` (k, 2) is stored, (k,) int64; -1 if there is no such edge."""
        if pairs.size and pairs.min() < 0:
            raise IndexError(f"{pairs.min()} is not a row")
        rows, columns = pairs[:, 0], pairs[:, 1]
        indptr, indices, values = self.adjacency.indptr, self.adjacency.indices, self.adjacency.data
        places, present = bisect(indices, indptr[rows].astype(np.int64), indptr[rows + 1].astype(np.int64), columns)
        present[present] = values[places[present]] != 0
        return np.where(present & self.live[rows] & self.live[columns], places, -1)


def bisect(
    indices: NDArray[np.integer], firsts: NDArray[np.int64], ends: NDArray[np.int64], wanted: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return where `wanted[k]` is or belongs in the sorted `indices[firsts[k]:ends[k]]`, and whether it is there."""
    low, high = firsts.copy(), ends.copy()
    while (open_ := np.flatnonzero(low < high)).size:
        middle = (low[open_] + high[open_]) // 2
        below = indices[middle] < wanted[open_]
        low[open_] = np.where(below, middle + 1, low[open_])
        high[open_] = np.where(below, high[open_], middle)
    found = low < ends
    found[found] = indices[low[found]] == wanted[found]
    return low, found
