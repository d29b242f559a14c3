"""Propagation over the live graph, P = diag(left) (A + sI) diag(right).

Letters: A (n, n) the adjacency, s the weight of self loops, D the degrees of A + sI among live nodes. `sym` is
D^-1/2 (A + sI) D^-1/2, so left = right = D^-1/2; `row` is D^-1 (A + sI), so left = D^-1 and right = 1. Rows and
columns of nodes that are not live are zero, as is the row of a node with no edge when s = 0.

Deleting nodes changes two n-vectors only: the edges stay in one immutable CSR matrix that all versions share.
"""

from collections.abc import Iterator

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from model_store.device import torch_device
from model_store.diagonals import diagonal_of_power
from model_store.errors import GraphError
from model_store.spec import PropagationKind


class Propagator:
    """P of one set of live nodes; immutable."""

    def __init__(
        self,
        kind: PropagationKind,
        self_loops: float,
        adjacency: sp.csr_array,
        structure: Tensor,
        live: NDArray[np.bool_],
        neighbours: NDArray[np.int64],
        scales: tuple[Tensor, Tensor],
    ) -> None:
        """Use `Propagator.build`."""
        self.kind = kind
        self.self_loops = self_loops
        #: Which nodes are live, (n,) bool. Not to be written to.
        self.live = live
        #: Number of live neighbours of each live node, 0 for the others, (n,) int64. Not to be written to.
        self.neighbours = neighbours
        self._adjacency = adjacency
        self._structure = structure
        self._left, self._right = scales

    @classmethod
    def build(
        cls,
        adjacency: sp.csr_array,
        kind: PropagationKind,
        self_loops: float,
        *,
        live: NDArray[np.bool_] | None = None,
        device: torch.device | str = "cpu",
    ) -> "Propagator":
        """P over `live` (all nodes by default) of a symmetric adjacency (n, n) of ones without self loops.

        Raises GraphError when `self_loops` is negative or not finite.
        """
        if not (np.isfinite(self_loops) and self_loops >= 0):
            raise GraphError(f"The self loops have weight {self_loops}.", "Give a finite weight of at least 0.")
        target = torch_device(str(device))
        nodes = adjacency.shape[0]
        alive = np.ones(nodes, dtype=np.bool_) if live is None else live.astype(np.bool_)
        neighbours = np.rint(adjacency @ alive.astype(np.float64)).astype(np.int64)
        neighbours[~alive] = 0
        left, right = _scales(kind, self_loops, neighbours, alive)
        return cls(
            kind,
            self_loops,
            adjacency,
            csr_tensor(adjacency, target),
            alive,
            neighbours,
            (torch.from_numpy(left).to(target), torch.from_numpy(right).to(target)),
        )

    @property
    def nodes(self) -> int:
        """n, deleted nodes included."""
        return int(self.live.shape[0])

    @property
    def device(self) -> torch.device:
        """Where `apply` expects its argument."""
        return self._left.device

    def apply(self, Y: Tensor) -> Tensor:
        """P Y for Y (n, c) float64."""
        return self._sandwich(self._left, self._right, Y)

    def apply_transpose(self, Y: Tensor) -> Tensor:
        """P^T Y for Y (n, c) float64."""
        return self._sandwich(self._right, self._left, Y)

    def hops(self, Y: Tensor, hops: int) -> Iterator[Tensor]:
        """Y, P Y, …, P^hops Y."""
        yield Y
        for _ in range(hops):
            Y = self.apply(Y)
            yield Y

    def diagonal_of_power(self, power: int) -> Tensor:
        """diag P^power, (n,) float64, for `power` 1, 2 or 3; P^power is not formed."""
        w = (self._left * self._right).cpu().numpy()
        diagonal = diagonal_of_power(self._adjacency, w, self.self_loops, power)
        return torch.from_numpy(diagonal).to(self.device)

    def without_nodes(self, rows: NDArray[np.int64]) -> "Propagator":
        """P of the graph without the nodes `rows`; those already gone are passed over.

        Takes O(n) to copy vectors plus the sum of the nodes' degrees; equal to `build` on the same live nodes.
        """
        deleted = np.unique(rows)
        deleted = deleted[self.live[deleted]]
        live = self.live.copy()
        live[deleted] = False
        touched, times = np.unique(self._neighbours_of(deleted), return_counts=True)
        neighbours = self.neighbours.copy()
        neighbours[touched] -= times
        neighbours[~live] = 0
        changed = np.union1d(touched, deleted)
        left, right = _scales(self.kind, self.self_loops, neighbours[changed], live[changed])
        index = torch.from_numpy(changed).to(self.device)
        scales = (
            self._left.index_copy(0, index, torch.from_numpy(left).to(self.device)),
            self._right.index_copy(0, index, torch.from_numpy(right).to(self.device)),
        )
        return Propagator(self.kind, self.self_loops, self._adjacency, self._structure, live, neighbours, scales)

    def _neighbours_of(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """The neighbours of each of `rows` one after the other, dead ones and repetitions included."""
        indptr, indices = self._adjacency.indptr, self._adjacency.indices
        starts = indptr[rows].astype(np.int64)
        lengths = indptr[rows + 1].astype(np.int64) - starts
        offsets = np.repeat(starts - np.concatenate(([0], np.cumsum(lengths)[:-1])), lengths)
        return np.asarray(indices[offsets + np.arange(offsets.size)], dtype=np.int64)

    def _sandwich(self, outer: Tensor, inner: Tensor, Y: Tensor) -> Tensor:
        scaled = inner[:, None] * Y
        propagated = self._structure @ scaled
        return propagated.add_(scaled, alpha=self.self_loops).mul_(outer[:, None])


def csr_tensor(matrix: sp.csr_array, device: torch.device) -> Tensor:
    """`matrix` as a torch CSR tensor of float64 values on `device`."""
    return torch.sparse_csr_tensor(
        torch.from_numpy(matrix.indptr.astype(np.int64)),
        torch.from_numpy(matrix.indices.astype(np.int64)),
        torch.from_numpy(matrix.data.astype(np.float64)),
        size=matrix.shape,
        device=device,
        check_invariants=False,
    )


def _scales(
    kind: PropagationKind, self_loops: float, neighbours: NDArray[np.int64], live: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """left and right for nodes with the given numbers of live neighbours."""
    degrees = neighbours + self_loops
    reached = live & (degrees > 0)
    safe = np.where(reached, degrees, 1.0)
    if kind is PropagationKind.SYM:
        root = np.where(reached, safe**-0.5, 0.0)
        return root, root.copy()
    return np.where(reached, 1.0 / safe, 0.0), live.astype(np.float64)
