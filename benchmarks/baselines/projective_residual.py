"""The projective residual update (Izzo et al., "Approximate Data Deletion from Machine Learning Models", AISTATS 2021).

The residuals alone give what ridge regression without k rows would answer on these rows. With the hat matrix K = H (H^T
H + mu I)^-1 H^T, r_i = (y_i - (K y)_i) / (1 - K_ii) and T_ij = K_ij / (1 - K_ii) off the diagonal, the retrained
model's residuals on the k rows solve (I - T) e = r. The update is one step towards these answers y' = y - e, by the
pseudo-inverse of the rows' curvature:

    w' = w - (sum_i h_i h_i^T)^+ sum_i (w h_i - y'_i) h_i.

It projects the exact difference to retraining on the span of the k rows, in time k^2 d. Their logistic version uses the
weighted squares of a Newton step. Here the loss is squared, as in their theorem.

The update removes rows. A deletion also changes its neighbours' rows; they keep their old values here, as published. mu
stays that of the fit, as in the authors' code.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from benchmarks.baselines.linear import (
    LinearModel,
    blocks_of,
    check_linear,
    remaining,
    representation,
    stacked,
    without_nodes,
)
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class ResidualModel(LinearModel):
    """Ridge weights, updated since, with the rows that remain."""

    #: Training nodes, (m,), their rows of H as fitted, (m, p), and one-hot labels, (m, C).
    nodes: Nodes
    rows: Array
    targets: Array
    #: mu.
    ridge: float

    @cached_property
    def hat(self) -> Array:
        """K, (m, m)."""
        gram = self.rows.T @ self.rows + self.ridge * np.eye(self.rows.shape[1])
        return np.asarray(self.rows @ cho_solve(cho_factor(gram), self.rows.T))

    def unlearn(self, nodes: Nodes) -> "ResidualModel":
        """Take one step towards retraining's answers on the rows of `nodes`."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        gone = np.isin(self.nodes, nodes)
        W = towards(stacked(self.weights), self.rows[gone], retrained_answers(self.hat, self.targets, gone))
        left = self.nodes[~gone], self.rows[~gone], self.targets[~gone]
        return ResidualModel(graph, self.spec, live, blocks_of(W, self.spec), *left, self.ridge)


@dataclass(frozen=True)
class ProjectiveResidual:
    """Forgets by the projective residual update."""

    spec: ModelSpec

    def fit(self, graph: Graph) -> ResidualModel:
        """As `Baseline.fit`."""
        check_linear(self.spec)
        nodes, everyone = np.flatnonzero(graph.train_mask), np.ones(graph.nodes, dtype=np.bool_)
        H, ridge = representation(graph, self.spec, nodes), self.spec.regularization * int(graph.train_mask.sum())
        targets = np.eye(graph.num_classes)[graph.labels[nodes]]
        W = cho_solve(cho_factor(H.T @ H + ridge * np.eye(H.shape[1])), H.T @ targets)
        fitted = ResidualModel(graph, self.spec, everyone, blocks_of(W, self.spec), nodes, H, targets, ridge)
        _ = fitted.hat  # computed before a request, as published
        return fitted


def retrained_answers(hat: Array, targets: Array, gone: NDArray[np.bool_]) -> Array:
    """Return what training without the k rows in `gone` (m,) would answer on them, (k, C).

    `hat` (m, m) is that of all rows, `targets` (m, C).
    """
    K = hat[gone]
    among, y = K[:, gone], targets[gone]
    spare = 1.0 - np.diag(among)
    T = among / spare[:, None]
    np.fill_diagonal(T, 0.0)
    return np.asarray(y - np.linalg.solve(np.eye(len(y)) - T, (y - K @ targets) / spare[:, None]))


def towards(W: Array, rows: Array, answers: Array) -> Array:
    """Return W (p, C) after the step that gives the `rows` (k, p) the `answers` (k, C), in their span alone."""
    # (A^T A)^+ A^T = A^+.
    return np.asarray(W - np.linalg.lstsq(rows, rows @ W - answers, rcond=None)[0])
