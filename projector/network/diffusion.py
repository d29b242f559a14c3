"""Adaptive diffusion: hops whose weights follow the nodes' own features and labels.

Implements the paper's section "Adaptive diffusion graph convolution":

    [H^(l+1), Z^(l+1)] = G_l [H^(l), Z^(l)],    G_l = (1 - g) I + g D^(l),    H^(0) = X,  Z^(0) = Y,
    D^(l)_ij proportional to a_ij exp(-sh^2 |h_i - h_j|^2 - sz^2 |z_i - z_j|^2) over the live neighbours j of i and i,

each row summing to 1, with a_ij the weight of the edge and a_ii = 1. (The paper has a_ij = 1.) Letters: X (n, d)
features, Y (n, C) one-hot labels of training nodes and zero rows for all others, h_i and z_i rows of H^(l) and Z^(l), g
= gamma, sh and sz the learned sigmas. Rows of training nodes omit the z term, because their own label would otherwise
decide what they average over. Labels of validation and test nodes are never used; the official code also puts those of
validation nodes into Z. Rows and columns of nodes that are not live are zero, and a live node without neighbours has
D_ii = 1.

H^(l) is as wide as X, so only its distances along edges are stored. A deletion changes h_i within l hops. Only the
distances of edges that end there are computed again, from the rows around them.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.graph.features import FeatureMatrix
from projector.graph.neighbourhoods import Neighbourhoods
from projector.network.hop_distances import Ball, Pattern, column_chunks, squared_distances

_NONE = np.empty(0, dtype=np.int64)
_NO_EDGES = np.empty((0, 2), dtype=np.int64)


@dataclass(frozen=True)
class Diffusion:
    """The parameters that training learned for adaptive diffusion; deletions leave them unchanged."""

    #: How much distances between features, and between labels, weaken the link between neighbours; at least 0.
    sigma_h: float
    sigma_z: float


@dataclass(frozen=True, eq=False)
class DiffusionHops:
    """R_b = G_{h-1} … G_0, one block per hop h of `block_hops` (ascending); immutable, with shared parts."""

    features: FeatureMatrix
    #: Y, (n, C), from `one_hot`.
    labels: sp.csr_array
    neighbourhoods: Neighbourhoods
    sigmas: Diffusion
    gamma: float
    block_hops: tuple[int, ...]
    #: Masks (n,) of live nodes and of nodes whose features count, and (m,) of existing edges.
    live: NDArray[np.bool_]
    featured: NDArray[np.bool_]
    present: NDArray[np.bool_]
    #: For each hop l, |h_i - h_j|^2 and |z_i - z_j|^2 of every edge, then the 0 of a node to itself: (m + 1,).
    distances: tuple[tuple[Tensor, Tensor], ...]
    #: G_0, …, G_{L-1}, (n, n) torch CSR.
    operators: tuple[Tensor, ...]

    @classmethod
    def build(
        cls,
        features: FeatureMatrix,
        labels: sp.csr_array,
        adjacency: sp.csr_array,
        *,
        sigmas: Diffusion,
        gamma: float,
        block_hops: tuple[int, ...],
        live: NDArray[np.bool_] | None = None,
        featured: NDArray[np.bool_] | None = None,
    ) -> "DiffusionHops":
        """Build the operators over the `live` nodes (n,), on the device of `features` (n, d).

        `labels` (n, C) has a one only in rows of training nodes. Features of nodes outside `featured` (n,) count as
        zero. `adjacency` (n, n) holds the weights, symmetric, without self loops; edges with a stored 0 do not exist.
        """
        nodes = features.nodes
        alive = np.ones(nodes, dtype=np.bool_) if live is None else live.copy()
        neighbourhoods = Neighbourhoods(adjacency, features.device)
        hops = cls(
            features=features,
            labels=_of_nodes(labels, alive),
            neighbourhoods=neighbourhoods,
            sigmas=sigmas,
            gamma=gamma,
            block_hops=block_hops,
            live=alive,
            featured=np.ones(nodes, dtype=np.bool_) if featured is None else featured.copy(),
            present=np.ones(neighbourhoods.num_edges, dtype=np.bool_),
            distances=(),
            operators=(),
        )
        zeros = torch.zeros(neighbourhoods.num_edges + 1, dtype=torch.float64, device=features.device)
        return hops._remeasured(((zeros, zeros),) * block_hops[-1], changed=alive, rewired=alive)

    def with_sigmas(self, sigmas: Diffusion) -> "DiffusionHops":
        """Return the operators for other sigmas. Distances before the first hop do not depend on them and are kept."""
        nobody = np.zeros_like(self.live)
        return replace(self, sigmas=sigmas)._remeasured(self.distances, changed=nobody, rewired=self.live)

    def without(
        self,
        nodes: NDArray[np.int64] = _NONE,
        edges: NDArray[np.int64] = _NO_EDGES,
        feature_rows: NDArray[np.int64] = _NONE,
        label_rows: NDArray[np.int64] = _NONE,
    ) -> "DiffusionHops":
        """Return the operators of the graph without `nodes` (m,), `edges` (k, 2), and other nodes' features and labels.

        Those are `feature_rows` (r,) and `label_rows` (l,). A training node takes its label with it. Missing items are
        ignored. The result equals `build` on what remains.
        """
        live, featured, present = self.live.copy(), self.featured.copy(), self.present.copy()
        live[nodes] = False
        featured[feature_rows] = False
        present[self.neighbourhoods.edges_between(edges)] = False
        labelled = live.copy()
        labelled[label_rows] = False
        # A node that loses its label gains a z term in its row, so its weights change too.
        changed = live & ((self.featured & ~featured) | ~labelled)
        # Nodes whose neighbourhoods shrink, and with them their rows of D.
        rewired = self._pattern.reached(self.live & ~live)
        first, second = (end[self.present & ~present] for end in self.neighbourhoods.ends)
        rewired[first] = rewired[second] = True
        rewired &= live
        labels = _of_nodes(self.labels, labelled)
        state = replace(self, labels=labels, live=live, featured=featured, present=present)
        return state._remeasured(self.distances, changed, rewired)

    def rebuilt(
        self,
        features: FeatureMatrix,
        labels: sp.csr_array,
        adjacency: sp.csr_array,
        live: NDArray[np.bool_],
        featured: NDArray[np.bool_] | None,
    ) -> "DiffusionHops":
        """Return the operators of another graph, given as to `build`, with the same sigmas."""
        return DiffusionHops.build(
            features, labels, adjacency, sigmas=self.sigmas, gamma=self.gamma, block_hops=self.block_hops,
            live=live, featured=featured,
        )  # fmt: skip

    @property
    def blocks(self) -> int:
        """Number of hops with a block."""
        return len(self.block_hops)

    @property
    def entries(self) -> int:
        """Stored entries of all hops' operators."""
        return sum(int(operator.values().shape[0]) for operator in self.operators)

    @property
    def row_entries(self) -> Tensor:
        """Stored entries per row over all hops' operators, deleted edges included."""
        return self.block_hops[-1] * self.operators[0].crow_indices().diff().to(torch.float64)

    def step(self, hop: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> sp.csr_array:
        """Return G_hop[rows, columns]."""
        G = self.operators[hop]
        parts = (G.values(), G.col_indices(), G.crow_indices())
        whole = sp.csr_array(tuple(part.cpu().numpy() for part in parts), shape=G.shape)
        return whole[rows][:, columns]

    @cached_property
    def unlabelled(self) -> Tensor:
        """1 for entries in rows without a label, which have a z term, otherwise 0, (nnz,)."""
        without = torch.from_numpy((np.diff(self.labels.indptr) == 0).astype(np.float64)).to(self.features.device)
        return without[self.neighbourhoods.tensors.rows]

    def forward(self, Z: Tensor) -> Tensor:
        """Return sum_b R_b Z_b, (n, C), for Z (n, blocks * C), by a sweep that drops each block at its hop.

        Horner's rule would apply G_0 last, but R_b applies it first.
        """
        width = Z.shape[1] // self.blocks
        total = torch.zeros_like(Z[:, :width])
        for hop in range(self.block_hops[-1] + 1):
            if hop:
                Z = self.operators[hop - 1] @ Z
            if hop in self.block_hops:
                total, Z = total + Z[:, :width], Z[:, width:]
        return total

    def adjoint(self, R: Tensor) -> Tensor:
        """Return [R_b^T R]_b, (n, blocks * C), for R (n, C), by a backward sweep that each block joins at its hop.

        R_b^T = G_0^T G_1^T … G_{h-1}^T.
        """
        blocks = R.new_empty((R.shape[0], 0))
        for hop in range(self.block_hops[-1], -1, -1):
            if hop in self.block_hops:
                blocks = torch.cat([R, blocks], dim=1)
            if hop:
                blocks = self._transposed[hop - 1] @ blocks
        return blocks

    def images(self, X: Tensor) -> Iterator[Tensor]:
        """Yield R_b X, (n, k), for each block b, for X (n, k)."""
        for hop in range(self.block_hops[-1] + 1):
            if hop:
                X = self.operators[hop - 1] @ X
            if hop in self.block_hops:
                yield X

    @cached_property
    def _transposed(self) -> tuple[Tensor, ...]:
        """G_l^T, in CSR like G_l: a product with it is several times faster than one with G_l transposed."""
        hoods = self.neighbourhoods
        return tuple(hoods.matrix(operator.values()[hoods.tensors.transposes]) for operator in self.operators)

    @cached_property
    def _pattern(self) -> Pattern:
        hoods = self.neighbourhoods
        exists = np.append(self.present, True)[hoods.edges]
        return Pattern(hoods, self.live, exists & self.live[hoods.rows] & self.live[hoods.columns])

    def _remeasured(
        self, distances: tuple[tuple[Tensor, Tensor], ...], changed: NDArray[np.bool_], rewired: NDArray[np.bool_]
    ) -> "DiffusionHops":
        """Return these operators, measuring `distances` again only where h_i or z_i have changed.

        `changed` (n,) are the nodes with another x_i or y_i, `rewired` those with other neighbours (or other weights).
        """
        pattern, hoods = self._pattern, self.neighbourhoods
        first, second = hoods.ends
        exist = self.present & self.live[first] & self.live[second]
        measured: list[tuple[Tensor, Tensor]] = []
        operators: list[Tensor] = []
        for earlier in distances:
            wrong = np.flatnonzero(exist & (changed[first] | changed[second]))
            measured.append(self._updated(*earlier, exist, wrong, operators))
            operators.append(self._operator(*measured[-1]))
            changed = rewired | pattern.reached(changed)
        return replace(self, distances=tuple(measured), operators=tuple(operators))

    def _updated(
        self, h: Tensor, z: Tensor, exist: NDArray[np.bool_], wrong: NDArray[np.int64], operators: list[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Return the distances `h` and `z`, with the edges `wrong` (k,) measured again and lost edges set to 0."""
        device = self.features.device
        gone = torch.from_numpy(np.append(~exist, False)).to(device)
        h, z = h.masked_fill(gone, 0.0), z.masked_fill(gone, 0.0)
        if wrong.size:
            ball = Ball.around(wrong, self._pattern, operators)
            index = torch.from_numpy(wrong).to(device)
            h[index] = squared_distances(column_chunks(self.features, ball.nodes, self.live & self.featured), ball)
            y = torch.from_numpy(self.labels[ball.nodes].toarray()).to(device)
            z[index] = squared_distances(iter([y]), ball)
        return h, z

    def averages(self, h: Tensor, z: Tensor) -> Tensor:
        """Return the entries of D^(l) from the distances of hop l, (nnz,)."""
        edges = self.neighbourhoods.tensors.edges
        squares = self.sigmas.sigma_h**2 * h[edges] + self.sigmas.sigma_z**2 * z[edges] * self.unlabelled
        weights = torch.exp(-squares) * torch.from_numpy(self._pattern.entries).to(h.device)
        if self.neighbourhoods.weights is not None:
            weights *= torch.from_numpy(self.neighbourhoods.weights).to(h.device)
        # A node is at distance 0 from itself, so the row of a live node sums to at least 1.
        sums = self.neighbourhoods.row_sums(weights).clamp(min=1.0)
        return weights / sums[self.neighbourhoods.tensors.rows]

    def _operator(self, h: Tensor, z: Tensor) -> Tensor:
        """Return G_l from the distances of hop l."""
        values = self.averages(h, z).mul_(self.gamma)
        values[self.neighbourhoods.tensors.diagonal] += (1.0 - self.gamma) * torch.from_numpy(self.live).to(values)
        return self.neighbourhoods.matrix(values)


def _of_nodes(labels: sp.csr_array, nodes: NDArray[np.bool_]) -> sp.csr_array:
    """Return `labels` (n, C) without the rows outside the mask `nodes` (n,)."""
    kept = sp.csr_array(sp.diags_array(nodes.astype(np.float64)) @ labels)
    kept.eliminate_zeros()
    return kept
