"""A model recomputed from scratch with dense float64 matrices, slow and simple, for every configuration.

It is independent of the code under test: propagation, diffusion, label blocks, projection (by the SVD of the remaining
rows), coefficients and predictions are written out from their definitions.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from projector.network.spec import LossKind, ModelSpec, PropagationKind

Matrix = NDArray[np.float64]


@dataclass
class Side:
    """One input: rows X (n, k), weights (blocks, k, C), effective coefficients (blocks, n, C), rows in the span."""

    X: Matrix
    W: Matrix
    effective: Matrix
    in_span: NDArray[np.bool_]
    cutoff: float
    rank: int = 0

    def take_out(self, rows: NDArray[np.int64]) -> None:
        """Project W on the span of the remaining rows, and move the deleted rows' share to the others."""
        rows = rows[self.in_span[rows]]
        self.in_span[rows] = False
        _, sigma, right = np.linalg.svd(self.X[self.in_span], full_matrices=False)
        kept = sigma > self.cutoff
        basis, self.rank = right[kept].T, int(kept.sum())
        M_pinv = (basis / sigma[kept] ** 2) @ basis.T
        share = M_pinv @ np.einsum("mk,bmc->bkc", self.X[rows], self.effective[:, rows])
        self.effective = self.effective + np.einsum("nk,bkc->bnc", self.X, share)
        self.effective[:, ~self.in_span] = 0.0
        self.W = basis @ (basis.T @ self.W)


@dataclass
class Oracle:
    """The live graph and both sides, changed by `remove`."""

    spec: ModelSpec
    adjacency: Matrix
    labels: NDArray[np.int64]
    training: NDArray[np.bool_]
    features: Side
    label_side: Side | None
    sigmas: tuple[float, float] | None
    #: Temperature of the squared loss' probabilities.
    temperature: float = 0.2
    live: NDArray[np.bool_] = field(init=False)

    def __post_init__(self) -> None:
        self.live = np.ones(len(self.adjacency), dtype=np.bool_)

    def remove(self, nodes: NDArray[np.int64], feature_rows: NDArray[np.int64], edges: NDArray[np.int64]) -> None:
        """Remove nodes with all their data, features alone, and edges."""
        self.live[nodes] = False
        self.adjacency[edges[:, 0], edges[:, 1]] = self.adjacency[edges[:, 1], edges[:, 0]] = 0.0
        self.features.take_out(np.concatenate([nodes, feature_rows]))
        if self.label_side is not None:
            self.label_side.take_out(nodes)

    def P(self) -> Matrix:
        """Return the propagation over the live nodes; rows and columns of the others are zero."""
        A = self.adjacency * np.outer(self.live, self.live) + self.spec.self_loops * np.diag(self.live.astype(float))
        degrees = A.sum(axis=1)
        scale = np.divide(1.0, degrees, out=np.zeros_like(degrees), where=degrees > 0)
        if self.spec.propagation is PropagationKind.ROW:
            return scale[:, None] * A
        return np.sqrt(scale)[:, None] * A * np.sqrt(scale)[None, :]

    def Y(self) -> Matrix:
        """Return one-hot labels of live training nodes."""
        Y = np.zeros((len(self.labels), self.features.W.shape[2]))
        rows = np.flatnonzero(self.training & self.live)
        Y[rows, self.labels[rows]] = 1.0
        return Y

    def hops(self) -> list[Matrix]:
        """Return the operator of each feature hop 0 … L."""
        if self.sigmas is None:
            return [np.linalg.matrix_power(self.P(), hop) for hop in range(self.spec.hops + 1)]
        H, Z = self.features.X * self.features.in_span[:, None], self.Y()
        total, operators = np.eye(len(H)), [np.eye(len(H))]
        for _ in range(self.spec.hops):
            G = self._diffusion(H, Z)
            H, Z, total = G @ H, G @ Z, G @ total
            operators.append(total)
        return operators

    def _diffusion(self, H: Matrix, Z: Matrix) -> Matrix:
        assert self.sigmas is not None
        sigma_h, sigma_z = self.sigmas
        n, D = len(H), np.zeros((len(H), len(H)))
        for i in range(n):
            if not self.live[i]:
                continue
            around = [j for j in range(n) if j == i or (self.adjacency[i, j] and self.live[j])]
            exponents = np.array([
                -(sigma_h**2) * float(((H[i] - H[j]) ** 2).sum())
                - (0.0 if self.training[i] else sigma_z**2 * float(((Z[i] - Z[j]) ** 2).sum()))
                for j in around
            ])  # fmt: skip
            links = np.where(np.array(around) == i, 1.0, self.adjacency[i, around])
            weights = links * np.exp(exponents - exponents.max())
            D[i, around] = weights / weights.sum()
        live = np.diag(self.live.astype(float))
        return (1.0 - self.spec.gamma) * live + self.spec.gamma * D

    def blocks(self) -> list[tuple[Matrix, Side, int]]:
        """Return each block's operator, its side and its number on that side."""
        hops = self.hops()
        found = [(hops[hop], self.features, block) for block, hop in enumerate(self.spec.block_hops)]
        if self.label_side is not None:
            for block in range(self.spec.label_hops):
                power = np.linalg.matrix_power(self.P(), block + 1)
                found.append((power - np.diag(np.diag(power)), self.label_side, block))
        return found

    def H(self) -> Matrix:
        """Return the representation of all nodes, blocks side by side, (n, p)."""
        return np.hstack([R @ (side.X * side.in_span[:, None]) for R, side, _ in self.blocks()])

    def probabilities(self) -> Matrix:
        """Return class probabilities of live nodes, (n, C); zero for the others."""
        logits = sum(R @ ((side.X * side.in_span[:, None]) @ side.W[block]) for R, side, block in self.blocks())
        if self.spec.loss is LossKind.SQUARED:
            logits = logits / self.temperature
        if self.spec.loss is LossKind.OVR:
            values = 1.0 / (1.0 + np.exp(-logits))
        else:
            values = np.exp(logits - logits.max(axis=1, keepdims=True))
        values = values / values.sum(axis=1, keepdims=True)
        values[~self.live] = 0.0
        return np.asarray(values)
