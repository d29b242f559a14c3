"""Propagation over the live graph, P = diag(left) (A + sI) diag(right).

Letters: A (n, n) the adjacency with the weights of edges, s the weight of self loops, D the row sums of A + sI over
live nodes. `sym` is D^-1/2 (A + sI) D^-1/2, so left = right = D^-1/2; `row` is D^-1 (A + sI), so left = D^-1 and right
= 1. Rows and columns of nodes that are not live are zero, as is the row of a node with no edge when s = 0.

Deleting nodes changes only n-vectors: all versions share one immutable pattern of A + I. Deleting edges clears them in
a copy of their values, one byte per entry without weights; all versions still share the indices. Joining nodes and
edges are inserted into a copy of the pattern. The values of P are computed on first use, so that applying P is one
product.

Several workers divide the rows of a large P: each has the pattern and the values of its own, and all of the n-vectors.

The degrees of a weighted graph are summed again wherever they change, in the order of the columns. So they have the
bits of a new graph, however many updates led to it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.device import torch_device
from projector.errors import GraphError
from projector.graph.edges import Edges, bisect
from projector.graph.features import csr_of
from projector.graph.ranges import index_type, parts_of_rows, ranges
from projector.network.diagonals import diagonal_of_power
from projector.network.row_share import LEAST_ENTRIES, RowShare
from projector.network.spec import PropagationKind
from projector.parallel.workers import Workers

#: Number of stored entries whose values are computed together, which bounds temporary memory.
_ENTRIES = 1 << 22
_Indices = TypeVar("_Indices", NDArray[np.int64], Tensor)


@dataclass(frozen=True, eq=False)
class _Pattern:
    """The positions of some rows of A + I, (m, n), for any s, on the device."""

    #: Start of each row, (m + 1,), and the columns, (nnz,), ascending in every row.
    starts: Tensor
    columns: Tensor
    #: The values of A + I, (nnz,), bool without weights and float64 with them; 0 for deleted edges.
    values: Tensor
    #: Positions of the entries of I, (m,) int64.
    loops: Tensor

    @property
    def weighted(self) -> bool:
        """Whether some edge was given another weight than 1."""
        return self.values.dtype is not torch.bool


class Propagator:
    """P of one set of live nodes; immutable."""

    def __init__(
        self,
        kind: PropagationKind,
        self_loops: float,
        adjacency: sp.csr_array,
        pattern: _Pattern,
        live: NDArray[np.bool_],
        neighbours: NDArray[np.int64],
        scales: tuple[Tensor, Tensor],
        count: Callable[[int], None] | None = None,
        outside: NDArray[np.float64] | None = None,
        share: RowShare | None = None,
    ) -> None:
        """Use `Propagator.build`."""
        self.kind = kind
        self.self_loops = self_loops
        #: Mask of live nodes, (n,) bool. Read only.
        self.live = live
        #: Number of live neighbours of each live node, 0 for the others, (n,) int64. Read only.
        self.neighbours = neighbours
        #: The edges of the graph, by rows.
        self.edges = Edges(adjacency, live)
        self._pattern = pattern
        self._left, self._right = scales
        self._count = count
        #: Weights of the edges to nodes that were left out, by node, (n,); None for a whole graph.
        self._outside = outside
        #: This worker's part of the rows; None if it has all.
        self.share = share

    @classmethod
    def build(
        cls,
        adjacency: sp.csr_array,
        kind: PropagationKind,
        self_loops: float,
        *,
        live: NDArray[np.bool_] | None = None,
        device: torch.device | str = "cpu",
        count: Callable[[int], None] | None = None,
    ) -> "Propagator":
        """Build P over `live` (all nodes by default) of a symmetric adjacency (n, n) of weights without self loops.

        `count` receives the number of columns of each product, also from propagators derived from this one. Raises
        GraphError if `self_loops` is negative or not finite.
        """
        if not (np.isfinite(self_loops) and self_loops >= 0):
            raise GraphError(f"The self loops have weight {self_loops}.", "Give a finite weight of at least 0.")
        target = torch_device(str(device))
        nodes = adjacency.shape[0]
        alive = np.ones(nodes, dtype=np.bool_) if live is None else live.astype(np.bool_)
        if not adjacency.has_sorted_indices:
            adjacency = adjacency.sorted_indices()
        pattern = _with_loops(adjacency, target)
        degrees = adjacency @ alive.astype(np.float64)
        neighbours = _counts(adjacency, alive) if pattern.weighted else np.rint(degrees).astype(np.int64)
        neighbours[~alive] = 0
        left, right = _scales(kind, self_loops, degrees, alive)
        return cls(
            kind,
            self_loops,
            adjacency,
            pattern,
            alive,
            neighbours,
            (torch.from_numpy(left).to(target), torch.from_numpy(right).to(target)),
            count,
        )

    @property
    def nodes(self) -> int:
        """n, including deleted nodes."""
        return int(self.live.shape[0])

    @property
    def entries(self) -> int:
        """Number of stored values of P."""
        return int(self.edges.adjacency.nnz) + self.nodes

    @property
    def row_entries(self) -> Tensor:
        """Upper bound on the nonzero values in each row of P, (n,) float64."""
        return torch.from_numpy(self.neighbours + 1.0).to(self.device)

    @property
    def device(self) -> torch.device:
        """The device on which `apply` expects its argument."""
        return self._left.device

    def apply(self, Y: Tensor) -> Tensor:
        """Return P Y for Y (n, c) float64."""
        return self._product(self._matrix, Y)

    def apply_transpose(self, Y: Tensor) -> Tensor:
        """Return P^T Y for Y (n, c) float64."""
        return self._product(self._transposed, Y)

    def hops(self, Y: Tensor, hops: int) -> Iterator[Tensor]:
        """Yield Y, P Y, …, P^hops Y."""
        yield Y
        for _ in range(hops):
            Y = self.apply(Y)
            yield Y

    def divided(self, workers: Workers) -> "Propagator":
        """Return P with its rows divided among `workers`, if it is large. Each worker has this P.

        From then on all of them multiply together, including those without columns.
        """
        if workers.count == 1 or self.entries < LEAST_ENTRIES:
            return self
        adjacency = self.edges.adjacency
        share = RowShare.of(_starts_with_loops(adjacency, slice(0, self.nodes)), workers)
        return Propagator(
            self.kind, self.self_loops, adjacency, _with_loops(adjacency, self.device, share.rows(self.nodes)),
            self.live, self.neighbours, (self._left, self._right), self._count, self._outside, share,
        )  # fmt: skip

    @property
    def _rows(self) -> slice:
        """The rows of the pattern."""
        return slice(0, self.nodes) if self.share is None else self.share.rows(self.nodes)

    def part(self, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> sp.csr_array:
        """Return P[rows, columns] for ascending rows and columns: (len(rows), len(columns))."""
        left, right = (scale.cpu().numpy() for scale in (self._left, self._right))
        edges = self.edges.adjacency[rows][:, columns]
        own = np.isin(columns, rows)
        loops = sp.csr_array(
            (np.full(int(own.sum()), self.self_loops), (np.searchsorted(rows, columns[own]), np.flatnonzero(own))),
            shape=edges.shape,
        )
        return sp.csr_array(sp.diags_array(left[rows]) @ (edges + loops) @ sp.diags_array(right[columns]))

    def restricted(self, rows: NDArray[np.int64]) -> "Propagator":
        """Return P[rows, rows] for ascending rows. Nodes keep their degrees, also when more edges join."""
        whole = self.edges.adjacency[rows]
        adjacency = sp.csr_array(whole[:, rows]).sorted_indices()
        index, others = torch.from_numpy(rows).to(self.device), self.live.astype(np.float64)
        others[rows] = 0.0
        return Propagator(
            self.kind, self.self_loops, adjacency, _with_loops(adjacency, self.device), self.live[rows],
            self.neighbours[rows], (self._left[index], self._right[index]), self._count, whole @ others,
        )  # fmt: skip

    def diagonal_of_power(self, power: int) -> Tensor:
        """Return diag P^power, (n,) float64, for `power` 1, 2 or 3, without forming P^power."""
        w = (self._left * self._right).cpu().numpy()
        diagonal = diagonal_of_power(self.edges.adjacency, w, self.self_loops, power, weighted=self._pattern.weighted)
        return torch.from_numpy(diagonal).to(self.device)

    def without_nodes(self, rows: NDArray[np.int64]) -> "Propagator":
        """Return P of the graph without the nodes `rows`. Nodes already deleted are ignored.

        Takes O(n) to copy vectors plus the sum of the nodes' degrees, and of their neighbours' in a weighted graph. The
        result equals `build` on the same live nodes.
        """
        deleted = np.unique(rows)
        deleted = deleted[self.live[deleted]]
        live = self.live.copy()
        live[deleted] = False
        touched, times = np.unique(self.neighbours_of(deleted), return_counts=True)
        neighbours = self.neighbours.copy()
        neighbours[touched] -= times
        neighbours[~live] = 0
        changed = np.union1d(touched, deleted)
        return self._changed(self.edges.adjacency, self._pattern, live, neighbours, changed)

    def without_edges(self, edges: NDArray[np.int64]) -> "Propagator":
        """Return P of the graph without `edges` (k, 2), each in one direction or both. Missing edges are ignored.

        Takes O(k log degree) plus a copy of the values. The result equals `build` on what remains.
        """
        entries = np.unique(self.edges.entries(np.concatenate([edges, edges[:, ::-1]])))
        entries = entries[entries >= 0]
        # Each edge is stored twice, so the columns of its entries are its two ends.
        touched, times = np.unique(self.edges.adjacency.indices[entries].astype(np.int64), return_counts=True)
        neighbours = self.neighbours.copy()
        neighbours[touched] -= times
        adjacency, pattern = _struck_out(self.edges.adjacency, self._pattern, entries, self._rows)
        return self._changed(adjacency, pattern, self.live, neighbours, touched)

    def with_edges(
        self, nodes: int, edges: NDArray[np.int64], weights: NDArray[np.float64] | None = None
    ) -> "Propagator":
        """Return P with `nodes` new nodes after the others, and with `edges` (k, 2), each in one direction.

        `weights` (k,) are theirs; None if all are 1. All ends are live, and all edges are new. Takes O(n + nnz) to copy
        the pattern. The result equals `build` on the larger graph.
        """
        before = self.nodes
        new = np.arange(before, before + nodes)
        weights = np.ones(len(edges)) if weights is None else weights
        adjacency = _with_edges(self.edges.adjacency, before + nodes, edges, weights)
        live = np.concatenate([self.live, np.ones(nodes, dtype=np.bool_)])
        neighbours = np.concatenate([self.neighbours, np.zeros(nodes, dtype=np.int64)])
        touched, times = np.unique(edges, return_counts=True)
        neighbours[touched] += times
        rows = None if self.share is None else self.share.rows(before + nodes)
        pattern = _with_loops(adjacency, self.device, rows)
        return self._changed(adjacency, pattern, live, neighbours, np.union1d(touched, new))

    def _changed(
        self,
        adjacency: sp.csr_array,
        pattern: _Pattern,
        live: NDArray[np.bool_],
        neighbours: NDArray[np.int64],
        changed: NDArray[np.int64],
    ) -> "Propagator":
        """Return P of another graph whose degrees differ only in the rows `changed`."""
        index, new = torch.from_numpy(changed).to(self.device), live.size - self.nodes
        outside = None if self._outside is None else np.append(self._outside, np.zeros(new))
        # A part of a weighted graph may have no other weight than 1 itself.
        by_weight = pattern.weighted or outside is not None
        degrees = adjacency[changed] @ live.astype(np.float64) if by_weight else neighbours[changed]
        if outside is not None:
            degrees = degrees + outside[changed]
        scaled = _scales(self.kind, self.self_loops, degrees, live[changed])
        left, right = (torch.from_numpy(each).to(self.device) for each in scaled)
        scales = (
            torch.cat([self._left, left.new_zeros(new)]).index_copy_(0, index, left),
            torch.cat([self._right, right.new_zeros(new)]).index_copy_(0, index, right),
        )
        return Propagator(
            self.kind, self.self_loops, adjacency, pattern, live, neighbours, scales, self._count, outside, self.share
        )

    def _product(self, P: Tensor, Y: Tensor) -> Tensor:
        product = P @ Y if self.share is None else self.share.product(P, Y)
        if self._count is not None:
            self._count(Y.shape[1])
        return product

    def neighbours_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the neighbours of each of `rows`, concatenated, including deleted ones and repetitions."""
        adjacency = self.edges.adjacency
        entries = ranges(adjacency.indptr[rows].astype(np.int64), adjacency.indptr[rows + 1].astype(np.int64))
        return np.asarray(adjacency.indices[entries[adjacency.data[entries] != 0]], dtype=np.int64)

    @cached_property
    def _matrix(self) -> Tensor:
        """The own rows of P, over the indices shared by all versions."""
        return self._scaled(self._left, self._right)

    @cached_property
    def _transposed(self) -> Tensor:
        """The own rows of P^T, using that A + sI is symmetric."""
        if self.kind is PropagationKind.SYM:
            return self._matrix
        return self._scaled(self._right, self._left)

    def _scaled(self, left: Tensor, right: Tensor) -> Tensor:
        """Return the own rows of diag(left) (A + sI) diag(right) in CSR, sharing the pattern's indices."""
        pattern, left = self._pattern, left[self._rows]
        values, sizes = left.new_empty(pattern.columns.shape[0]), pattern.starts.diff()
        # Computed on the host to avoid querying the device.
        starts = _starts_with_loops(self.edges.adjacency, self._rows)
        for first, end in parts_of_rows(starts, _ENTRIES):
            entries = slice(int(starts[first]), int(starts[end]))
            own = values[entries]
            # Weights come last, so that a symmetric P is so bit for bit.
            own.copy_(right[pattern.columns[entries]])
            own *= left[first:end].repeat_interleave(sizes[first:end], output_size=own.shape[0])
            own *= pattern.values[entries]
        if self.self_loops != 1:
            values[pattern.loops] *= self.self_loops
        return csr_of(pattern.starts, pattern.columns, values, (left.shape[0], self.nodes))


def _with_loops(adjacency: sp.csr_array, device: torch.device, own: slice | None = None) -> _Pattern:
    """Return the pattern of the rows `own`, by default all, of A + I.

    A (n, n) has ascending columns and a zero diagonal.
    """
    own = own or slice(0, adjacency.shape[0])
    starts, before = adjacency.indptr[own.start : own.stop + 1], int(adjacency.indptr[own.start])
    entries = int(starts[-1]) - before + own.stop - own.start
    index = torch.int32 if index_type(entries) is np.int32 else torch.int64
    value = torch.float64 if _weighted(adjacency) else torch.bool
    columns = torch.full((entries,), -1, dtype=index, device=device)
    values = torch.ones(entries, dtype=value, device=device)
    for first, end in parts_of_rows(starts):
        part = slice(int(starts[first]), int(starts[end]))
        given = adjacency.indices[part], adjacency.data[part], np.diff(starts[first : end + 1])
        ends, weights, sizes = (torch.from_numpy(array).to(device) for array in given)
        rows = torch.arange(own.start + first, own.start + end, device=device)
        rows = rows.repeat_interleave(sizes, output_size=part.stop - part.start)
        places = _places(torch.arange(part.start, part.stop, device=device), rows, ends) - (before + own.start)
        columns[places], values[places] = ends.to(index), weights.to(value)
    loops = (columns < 0).nonzero()[:, 0]
    columns[loops] = torch.arange(own.start, own.stop, dtype=index, device=device)
    return _Pattern(torch.from_numpy(_starts_with_loops(adjacency, own)).to(device, index), columns, values, loops)


def _weighted(adjacency: sp.csr_array) -> bool:
    """Return whether an edge has another weight than 1; a deleted one has 0."""
    parts = (adjacency.data[first : first + _ENTRIES] for first in range(0, adjacency.nnz, _ENTRIES))
    return any(bool(((part != 0) & (part != 1)).any()) for part in parts)


def _counts(adjacency: sp.csr_array, live: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return the number of neighbours in `live` (n,) of every node, (n,)."""
    there = sp.csr_array((adjacency.data != 0, adjacency.indices, adjacency.indptr), shape=adjacency.shape, copy=False)
    return np.asarray(np.rint(there @ live.astype(np.float64)), dtype=np.int64)


def _starts_with_loops(adjacency: sp.csr_array, own: slice) -> NDArray[np.int64]:
    """Return the start of each of the rows `own` of A + I, (m + 1,), from 0."""
    starts = adjacency.indptr[own.start : own.stop + 1]
    counted: NDArray[np.int64] = starts - starts[0] + np.arange(starts.size)
    return counted


def _places(entries: _Indices, rows: _Indices, columns: _Indices) -> _Indices:
    """Return the positions of A's entries in A + I: each earlier row has one entry more."""
    return entries + rows + (columns > rows)


def _with_edges(
    adjacency: sp.csr_array, nodes: int, edges: NDArray[np.int64], weights: NDArray[np.float64]
) -> sp.csr_array:
    """Return A for `nodes` nodes, with `edges` (k, 2) of `weights` (k,) in both directions.

    A cleared edge is stored again in place.
    """
    last = adjacency.indptr[-1]
    starts = np.append(adjacency.indptr.astype(np.int64), np.full(nodes - adjacency.shape[0], last, dtype=np.int64))
    pairs = np.concatenate([edges, edges[:, ::-1]])
    order = np.lexsort((pairs[:, 1], pairs[:, 0]))
    rows, columns, values = *pairs[order].T, np.tile(weights, 2)[order]
    places, stored = bisect(adjacency.indices, starts[rows], starts[rows + 1], columns)
    data = adjacency.data.copy()
    data[places[stored]] = values[stored]
    places, rows, columns, values = places[~stored], rows[~stored], columns[~stored], values[~stored]
    starts[1:] += np.cumsum(np.bincount(rows, minlength=nodes))
    index = index_type(max(int(starts[-1]), nodes))
    indices = np.insert(adjacency.indices.astype(index, copy=False), places, columns.astype(index))
    parts = (np.insert(data, places, values), indices, starts.astype(index))
    return sp.csr_array(parts, shape=(nodes, nodes), copy=False)


def _struck_out(
    adjacency: sp.csr_array, pattern: _Pattern, entries: NDArray[np.int64], own: slice
) -> tuple[sp.csr_array, _Pattern]:
    """Return both without the edges at `entries` of A, sharing the indices. The pattern has the rows `own`."""
    data = adjacency.data.copy()
    data[entries] = 0
    rows = np.searchsorted(adjacency.indptr, entries, side="right") - 1
    places = _places(entries, rows, adjacency.indices[entries])[(own.start <= rows) & (rows < own.stop)]
    places = torch.from_numpy(places - (int(adjacency.indptr[own.start]) + own.start)).to(pattern.values.device)
    without = sp.csr_array((data, adjacency.indices, adjacency.indptr), shape=adjacency.shape, copy=False)
    return without, replace(pattern, values=pattern.values.index_fill(0, places, 0))


def _scales(
    kind: PropagationKind,
    self_loops: float,
    weights: NDArray[np.int64] | NDArray[np.float64],
    live: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return left and right for nodes whose edges to live nodes have these weights in all."""
    degrees = weights + self_loops
    reached = live & (degrees > 0)
    safe = np.where(reached, degrees, 1.0)
    if kind is PropagationKind.SYM:
        root = np.where(reached, safe**-0.5, 0.0)
        return root, root.copy()
    return np.where(reached, 1.0 / safe, 0.0), live.astype(np.float64)
