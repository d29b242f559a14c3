"""The closed neighbourhoods of a graph, the pattern A + I, with a number for each undirected edge.

Deleting nodes or edges does not change the pattern. An operator on it holds one value per stored entry, and the values
of deleted entries are zero. So all versions of a model share the pattern.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.edges import Edges
from projector.graph.features import csr_of
from projector.graph.ranges import ranges


@dataclass(frozen=True, eq=False)
class PatternTensors:
    """The arrays of `Neighbourhoods` on a device, and the positions of I's entries, (n,)."""

    starts: Tensor
    columns: Tensor
    rows: Tensor
    transposes: Tensor
    edges: Tensor
    diagonal: Tensor


class Neighbourhoods:
    """A + I as CSR: N[i] is node i and its neighbours; immutable."""

    def __init__(self, adjacency: sp.csr_array, device: torch.device) -> None:
        """`adjacency` (n, n) is symmetric without self loops; edges whose stored value is 0 do not exist."""
        self.device = device
        nodes = adjacency.shape[0]
        pattern = sp.csr_array(adjacency + sp.eye_array(nodes))
        pattern.eliminate_zeros()
        pattern.sort_indices()
        #: Start of each row's entries, (n + 1,), and the column of each entry, (nnz,), ascending in every row.
        self.starts: NDArray[np.int64] = pattern.indptr.astype(np.int64)
        self.columns: NDArray[np.int64] = pattern.indices.astype(np.int64)
        #: The row of each entry, (nnz,).
        self.rows: NDArray[np.int64] = np.repeat(np.arange(nodes), np.diff(self.starts))
        # In column-major order, the k-th entry of a symmetric pattern is the transpose of the k-th in row-major order.
        self.transposes: NDArray[np.int64] = np.argsort(self.columns, kind="stable")
        #: The edges' weights, and 1 for a node itself, by entry, (nnz,); None if all are 1.
        self.weights: NDArray[np.float64] | None = None if (pattern.data == 1).all() else pattern.data
        upper = np.flatnonzero(self.rows < self.columns)
        #: The two ends of each edge, (m,) each.
        self.ends = (self.rows[upper], self.columns[upper])
        #: The edge number of each entry, (nnz,): 0 … m - 1 for both directions, m for the entries of I.
        self.edges: NDArray[np.int64] = np.full(self.columns.size, upper.size, dtype=np.int64)
        self.edges[upper] = np.arange(upper.size)
        self.edges[self.transposes[upper]] = np.arange(upper.size)

    @property
    def nodes(self) -> int:
        """n."""
        return int(self.starts.size - 1)

    @property
    def num_edges(self) -> int:
        """m, the number of undirected edges."""
        return int(self.ends[0].size)

    @cached_property
    def tensors(self) -> "PatternTensors":
        """The same arrays on the device."""
        arrays = (self.starts, self.columns, self.rows, self.transposes, self.edges)
        diagonal = np.flatnonzero(self.edges == self.num_edges)
        return PatternTensors(*(torch.from_numpy(array).to(self.device) for array in (*arrays, diagonal)))

    def matrix(self, values: Tensor) -> Tensor:
        """Return the (n, n) torch CSR matrix with one value per entry, (nnz,) on the device."""
        return csr_of(self.tensors.starts, self.tensors.columns, values, (self.nodes, self.nodes))

    def row_sums(self, values: Tensor) -> Tensor:
        """Return the row sums of `values` (nnz,), (n,)."""
        return (self.matrix(values) @ values.new_ones((self.nodes, 1)))[:, 0]

    def cut(
        self, values: Tensor, present: NDArray[np.bool_], rows: NDArray[np.int64], columns: NDArray[np.int64]
    ) -> Tensor:
        """Return the CSR matrix of `values` (nnz,) at the given rows and columns, both ascending.

        These rows must have no entry of the mask `present` (nnz,) outside these columns.
        """
        firsts, ends = self.starts[rows], self.starts[rows + 1]
        entries = ranges(firsts, ends)
        owners = np.repeat(np.arange(rows.size), ends - firsts)[present[entries]]
        entries = entries[present[entries]]
        starts = np.concatenate([[0], np.cumsum(np.bincount(owners, minlength=rows.size))])
        return csr_of(
            torch.from_numpy(starts).to(self.device),
            torch.from_numpy(np.searchsorted(columns, self.columns[entries])).to(self.device),
            values[torch.from_numpy(entries).to(self.device)],
            (rows.size, columns.size),
        )

    def edges_between(self, pairs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the numbers of the edges among `pairs` (k, 2) of rows, ascending and distinct."""
        whole = sp.csr_array((np.ones(self.columns.size), self.columns, self.starts), shape=(self.nodes, self.nodes))
        entries = Edges(whole, np.ones(self.nodes, dtype=np.bool_)).entries(pairs)
        numbers = np.unique(self.edges[entries[entries >= 0]])
        return numbers[numbers < self.num_edges]

    def reached(self, nodes: NDArray[np.bool_], entries: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return a mask (n,) of `nodes` (n,) and their neighbours along `entries` (nnz,)."""
        along = sp.csr_array((entries.astype(np.int32), self.columns, self.starts), shape=(self.nodes, self.nodes))
        return np.asarray(along @ nodes.astype(np.int32) > 0)
