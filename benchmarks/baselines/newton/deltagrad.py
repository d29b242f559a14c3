"""DeltaGrad: gradient descent replayed on the remaining rows (Wu, Dobriban and Davidson, ICML 2020).

Training takes T steps of gradient descent and keeps every iterate w_t and its gradient g_t. After a deletion the same
steps are taken again. The gradient on all rows is computed at the first j_0 steps and at every T_0-th; at the others

    grad F(w) = g_t + B (w - w_t),

where B is the quasi-Newton matrix of the last m exact differences (`Secants`). In either case the gradient of the
deleted rows, which are few, is computed and subtracted. T_0, j_0 and m are those of the paper's experiments.

Rows that a deletion changes in a graph are subtracted with their old values and added with their new ones: the paper
treats deleted and added rows alike. Its learning rates are its datasets' own; here it is 1 over the largest curvature.
T is far from enough to reach the optimum at lambda 1e-4, so DeltaGrad has a retrained reference of its own: the same T
steps from zero on the remaining graph.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from benchmarks.baselines.linear import (
    LinearModel,
    blocks_of,
    check_linear,
    remaining,
    representation,
    within_hops,
    without_nodes,
)
from benchmarks.baselines.newton.certified_removal import spectral_norm
from benchmarks.baselines.newton.influence import reach
from benchmarks.baselines.newton.logistic import check_one_against_rest
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph

#: T, T_0, j_0 and m.
_STEPS, _PERIOD, _FIRST, _MEMORY = 500, 5, 10, 2


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows of H (m, p) with signs (m, C): 1 for a row's class, -1 for any other."""

    H: Array
    signs: Array

    @classmethod
    def of(cls, graph: Graph, spec: ModelSpec, nodes: Nodes) -> "Rows":
        """Return the rows of `nodes` (m,)."""
        signs = 2.0 * np.eye(graph.num_classes)[graph.labels[nodes]] - 1.0
        return cls(representation(graph, spec, nodes), signs)

    def slope(self, W: Array) -> Array:
        """Return the gradient of the summed losses of all classes, without lambda, (p, C)."""
        return np.asarray(self.H.T @ (-self.signs * expit(-self.signs * (self.H @ W))))


@dataclass(frozen=True, eq=False)
class ReplayedModel(LinearModel):
    """The last iterate, with the path to it."""

    settings: "DeltaGrad"
    #: w_t and g_t, (T, p, C) each, of the training that the weights replay, and its learning rate.
    iterates: Array
    slopes: Array
    rate: float

    def unlearn(self, nodes: Nodes) -> "ReplayedModel":
        """Replay training without `nodes`, or train again if the settings say so."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        if self.settings.again:
            return _descended(self.settings, graph, live, self.rate)
        reached = within_hops(self.graph, nodes, reach(self.spec))
        before, after = self.graph.train_mask, graph.train_mask
        old, new = (Rows.of(each, self.spec, np.flatnonzero(reached & each.train_mask)) for each in (self.graph, graph))
        whole = Rows.of(self.graph, self.spec, np.flatnonzero(before))
        m, left, lam = int(before.sum()), int(after.sum()), self.spec.regularization
        W, secants = np.zeros_like(self.iterates[0]), Secants.none(self.iterates[0].size)
        iterates, slopes = np.empty_like(self.iterates), np.empty_like(self.slopes)
        for step, (then, slope_then) in enumerate(zip(self.iterates, self.slopes, strict=True)):
            moved = (W - then).ravel()
            if step < _FIRST or (step - _FIRST) % _PERIOD == 0:
                slope = whole.slope(W) / m + lam * W
                secants = secants.extended(moved, (slope - slope_then).ravel())
            else:
                slope = slope_then + secants.product(moved).reshape(W.shape)
            slope = (m * (slope - lam * W) - old.slope(W) + new.slope(W)) / left + lam * W
            iterates[step], slopes[step] = W, slope
            W = W - self.rate * slope
        weights = blocks_of(W, self.spec)
        return ReplayedModel(graph, self.spec, live, weights, self.settings, iterates, slopes, self.rate)


@dataclass(frozen=True)
class DeltaGrad:
    """Forgets by replaying gradient descent; `again` descends on the remaining graph instead, the reference."""

    spec: ModelSpec
    again: bool = False

    def fit(self, graph: Graph) -> ReplayedModel:
        """As `Baseline.fit`. Raises BaselineError if the loss is not `ovr`."""
        check_linear(self.spec)
        check_one_against_rest(self.spec)
        nodes = np.flatnonzero(graph.train_mask)
        # A class' loss has the curvature 1/4 at most.
        size = spectral_norm(representation(graph, self.spec, nodes))
        rate = 1.0 / (size**2 / (4 * nodes.size) + self.spec.regularization)
        return _descended(self, graph, np.ones(graph.nodes, dtype=np.bool_), rate)


def _descended(settings: DeltaGrad, graph: Graph, live: NDArray[np.bool_], rate: float) -> ReplayedModel:
    """Take T steps from zero on the training nodes of `graph`."""
    spec, nodes = settings.spec, np.flatnonzero(graph.train_mask)
    rows = Rows.of(graph, spec, nodes)
    W = np.zeros((rows.H.shape[1], graph.num_classes))
    iterates, slopes = (np.empty((_STEPS, *W.shape)) for _ in range(2))
    for step in range(_STEPS):
        slope = rows.slope(W) / nodes.size + spec.regularization * W
        iterates[step], slopes[step] = W, slope
        W = W - rate * slope
    return ReplayedModel(graph, spec, live, blocks_of(W, spec), settings, iterates, slopes, rate)


@dataclass(frozen=True, eq=False)
class Secants:
    """The last m differences of weights S and of gradients Y, (q, m) each, and their quasi-Newton matrix B.

    B is the BFGS update of sigma I by every pair, with sigma = y s / s s of the last one. In compact form (Byrd,
    Nocedal and Schnabel 1994), B = sigma I - [sigma S, Y] M^-1 [sigma S, Y]^T.
    """

    S: Array
    Y: Array

    @classmethod
    def none(cls, size: int) -> "Secants":
        """Return no differences of vectors of length `size`."""
        return cls(np.empty((size, 0)), np.empty((size, 0)))

    def extended(self, s: Array, y: Array) -> "Secants":
        """Return the last m pairs with (s, y) (q,), which must curve upwards to be kept."""
        if s @ y <= 0.0:
            return self
        S, Y = (np.column_stack([before, new])[:, -_MEMORY:] for before, new in ((self.S, s), (self.Y, y)))
        return Secants(S, Y)

    def product(self, v: Array) -> Array:
        """Return B v for v (q,); zero without pairs."""
        if not self.S.shape[1]:
            return np.zeros_like(v)
        S, Y = self.S, self.Y
        cross = S.T @ Y
        sigma = float(cross[-1, -1] / (S[:, -1] @ S[:, -1]))
        below = np.tril(cross, -1)
        middle = np.block([[sigma * (S.T @ S), below], [below.T, -np.diag(np.diag(cross))]])
        sides = np.concatenate([sigma * (S.T @ v), Y.T @ v])
        first, second = np.split(np.linalg.solve(middle, sides), 2)
        return np.asarray(sigma * v - sigma * (S @ first) - Y @ second)
