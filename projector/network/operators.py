"""The operators R_b between an input of the model and its representation, in one place.

An *input* is a matrix of per-node rows that training combines: the features X (n, d) or, under label reuse, the labels
Y (n, C). Block b of the representation is H_b = S R_b X, where S selects the training rows. All propagation goes
through the two products here: logits are `forward(X W)`, gradients and duals X^T `adjoint`(S^T R), and the span
coefficients `adjoint`(S^T U). Blocks stand side by side, (n, blocks * C).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor

from projector.network.propagation import Propagator


class Operators(Protocol):
    """R_0 … R_{blocks-1} over the live nodes; immutable, with nonnegative entries."""

    @property
    def blocks(self) -> int:
        """Number of blocks."""

    @property
    def block_hops(self) -> tuple[int, ...]:
        """Number of hops of each block, ascending."""

    @property
    def entries(self) -> int:
        """Number of stored values that a sweep over all hops reads."""

    @property
    def row_entries(self) -> Tensor:
        """Upper bound on these per row, (n,) float64."""

    def step(self, hop: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> sp.csr_array:
        """Return the matrix from hop `hop` to the next, in some rows and columns: (len(rows), len(columns))."""

    def forward(self, Z: Tensor) -> Tensor:
        """Return sum_b R_b Z_b, (n, C), for Z (n, blocks * C)."""

    def adjoint(self, R: Tensor) -> Tensor:
        """Return [R_b^T R]_b, (n, blocks * C), for R (n, C)."""

    def images(self, X: Tensor) -> Iterator[Tensor]:
        """Yield R_b X, (n, k), for each block b, for X (n, k)."""


@dataclass(frozen=True, eq=False)
class FeatureHops:
    """R_b = P^h, one block per hop h of `block_hops` (ascending)."""

    propagator: Propagator
    block_hops: tuple[int, ...]

    @property
    def blocks(self) -> int:
        """Number of hops with a block."""
        return len(self.block_hops)

    @property
    def entries(self) -> int:
        """The entries of P, once per hop."""
        return self.block_hops[-1] * self.propagator.entries

    @property
    def row_entries(self) -> Tensor:
        """A node and its neighbours, once per hop."""
        return self.block_hops[-1] * self.propagator.row_entries

    def step(self, hop: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> sp.csr_array:
        """Return P[rows, columns], the same at every hop."""
        return self.propagator.part(rows, columns)

    def forward(self, Z: Tensor) -> Tensor:
        """Return the sum by Horner's rule, P(P Z_2 + Z_1) + Z_0: every hop propagates C columns once."""
        parts = dict(zip(self.block_hops, _parts(Z, self.blocks), strict=True))
        total = parts[self.block_hops[-1]]
        for hop in range(self.block_hops[-1] - 1, -1, -1):
            total = self.propagator.apply(total)
            if hop in parts:
                total = total + parts[hop]
        return total

    def adjoint(self, R: Tensor) -> Tensor:
        """Return R, P^T R, (P^T)^2 R, …, for the hops that have a block."""
        blocks = []
        for hop in range(self.block_hops[-1] + 1):
            if hop:
                R = self.propagator.apply_transpose(R)
            if hop in self.block_hops:
                blocks.append(R)
        return blocks[0] if self.blocks == 1 else torch.cat(blocks, dim=1)

    def images(self, X: Tensor) -> Iterator[Tensor]:
        """Yield P^h X for each hop h with a block."""
        for hop, propagated in enumerate(self.propagator.hops(X, self.block_hops[-1])):
            if hop in self.block_hops:
                yield propagated


@dataclass(frozen=True, eq=False)
class LabelHops:
    """R_b = P^l - diag P^l for l = 1 … `hops`: no label reaches its own node's row, at any hop.

    Powers of P are applied in full and only the outputs are corrected. Subtracting inside the recursion would compute
    another function.
    """

    propagator: Propagator
    hops: int

    @property
    def blocks(self) -> int:
        """One per hop."""
        return self.hops

    @property
    def block_hops(self) -> tuple[int, ...]:
        """1 … hops."""
        return tuple(range(1, self.hops + 1))

    @property
    def entries(self) -> int:
        """The entries of P, once per hop."""
        return self.hops * self.propagator.entries

    @property
    def row_entries(self) -> Tensor:
        """A node and its neighbours, once per hop."""
        return self.hops * self.propagator.row_entries

    def step(self, hop: int, rows: NDArray[np.int64], columns: NDArray[np.int64]) -> sp.csr_array:
        """Return P[rows, columns], the same at every hop, before subtracting diagonals."""
        return self.propagator.part(rows, columns)

    @property
    def powers(self) -> FeatureHops:
        """P^l for l = 1 … hops, before subtracting their diagonals."""
        return FeatureHops(self.propagator, self.block_hops)

    @cached_property
    def diagonals(self) -> tuple[Tensor, ...]:
        """diag P^l for l = 1 … hops, each (n,)."""
        return tuple(self.propagator.diagonal_of_power(hop) for hop in range(1, self.hops + 1))

    def forward(self, Z: Tensor) -> Tensor:
        """Return P(P Z_2 + Z_1) - sum_l diag(P^l) Z_l."""
        parts = _parts(Z, self.hops)
        total = torch.zeros_like(parts[0])
        for part in reversed(parts):
            total = self.propagator.apply(total + part)
        for diagonal, part in zip(self.diagonals, parts, strict=True):
            total = total - diagonal[:, None] * part
        return total

    def adjoint(self, R: Tensor) -> Tensor:
        """Return (P^T)^l R - diag(P^l) R for l = 1 … hops."""
        blocks, propagated = [], R
        for diagonal in self.diagonals:
            propagated = self.propagator.apply_transpose(propagated)
            blocks.append(propagated - diagonal[:, None] * R)
        return torch.cat(blocks, dim=1)

    def images(self, X: Tensor) -> Iterator[Tensor]:
        """Yield P^l X - diag(P^l) X for l = 1 … hops."""
        propagated = X
        for diagonal in self.diagonals:
            propagated = self.propagator.apply(propagated)
            yield propagated - diagonal[:, None] * X


@dataclass(frozen=True, eq=False)
class SharedSweep:
    """The products of `features` and `labels` over one P, applying each of its powers once for both."""

    features: FeatureHops
    labels: LabelHops

    def forward(self, Z: Tensor, V: Tensor) -> Tensor:
        """Return features.forward(Z) + labels.forward(V), (n, C), propagating terms with equal powers of P as a sum."""
        by_hop = dict(zip(self.features.block_hops, _parts(Z, self.features.blocks), strict=True))
        labels = _parts(V, self.labels.hops)
        for hop, part in enumerate(labels, start=1):
            by_hop[hop] = by_hop[hop] + part if hop in by_hop else part
        total = by_hop[max(by_hop)]
        for hop in range(max(by_hop) - 1, -1, -1):
            total = self.features.propagator.apply(total)
            if hop in by_hop:
                total.add_(by_hop[hop])
        for diagonal, part in zip(self.labels.diagonals, labels, strict=True):
            total.addcmul_(diagonal[:, None], part, value=-1.0)
        return total

    def adjoint(self, R: Tensor) -> tuple[Tensor, Tensor]:
        """Return features.adjoint(R) and labels.adjoint(R)."""
        features, labels, propagated = [], [], R
        for hop in range(max(self.features.block_hops[-1], self.labels.hops) + 1):
            if hop:
                propagated = self.features.propagator.apply_transpose(propagated)
            if hop in self.features.block_hops:
                features.append(propagated)
            if 1 <= hop <= self.labels.hops:
                labels.append(torch.addcmul(propagated, self.labels.diagonals[hop - 1][:, None], R, value=-1.0))
        return torch.cat(features, dim=1), torch.cat(labels, dim=1)


def _parts(Z: Tensor, blocks: int) -> Sequence[Tensor]:
    return (Z,) if blocks == 1 else Z.chunk(blocks, dim=1)
