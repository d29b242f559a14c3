"""Fisher+: one Newton step on the remaining graph, and noise shaped by the Hessian (Golatkar, Achille and Soatto,
2020).

w_u = w - H_r^-1 g_r + H_r^-1/4 b, with Hessian and gradient of the objective (the mean of the paper's Eq. 1) on the
remaining training nodes, and b normal (the paper's appendix "Details on baseline methods"; Eq. 4 and 8 of Golatkar et
al., whose B is the Hessian here). Hessian and gradient are taken on the remaining graph, with neighbours' new rows.

The authors' code, while public, left out the noise and kept the injected class's column of W. It also removed all
nodes within L hops of a deleted node from training. This module follows the text: those nodes did not ask to be
forgotten, and without noise the method is a Newton step, which claims nothing.
"""

from dataclasses import dataclass

import numpy as np

from benchmarks.baselines.linear import (
    LinearModel,
    blocks_of,
    design,
    fitted,
    remaining,
    stacked,
    without_nodes,
)
from benchmarks.baselines.newton.logistic import (
    Curvature,
    OneAgainstRest,
    against_rest,
    check_one_against_rest,
    columns,
    normal,
)
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class FisherModel(LinearModel):
    """Weights after some steps, and the state of the noise."""

    noise: float
    #: The seed and the number of deletions so far: each deletion has its own noise.
    drawn: tuple[int, int]

    def unlearn(self, nodes: Nodes) -> "FisherModel":
        """Take one step for all of `nodes` together, factorising one Hessian for each class."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        training = np.flatnonzero(graph.train_mask)
        rows = design(graph, self.spec, training)
        classes = against_rest(rows, graph.labels[training], graph.num_classes, self.spec.regularization)
        W = stacked(self.weights)
        b = normal(self.noise, self.drawn, W.shape)
        found = columns(_step(one, w, noise) for one, w, noise in zip(classes, W.T, b.T, strict=True))
        weights = blocks_of(found, self.spec)
        return FisherModel(graph, self.spec, live, weights, self.noise, (self.drawn[0], self.drawn[1] + 1))


@dataclass(frozen=True)
class Fisher:
    """Forgets by a Newton step and noise. `noise` is the standard deviation of each entry of b."""

    spec: ModelSpec
    noise: float = 0.0
    seed: int = 0

    def fit(self, graph: Graph) -> FisherModel:
        """As `Baseline.fit`. Raises BaselineError if the loss is not `ovr`."""
        check_one_against_rest(self.spec)
        found = fitted(graph, self.spec)
        return FisherModel(found.graph, found.spec, found.live, found.weights, self.noise, (self.seed, 0))


def _step(one: OneAgainstRest, w: Array, b: Array) -> Array:
    """Return w - H^-1 g + H^-1/4 b for one class, w and b (p,)."""
    summed = one.curvature(w)
    moved = w - summed.solve(one.gradient(w))
    if not b.any():
        return np.asarray(moved)
    # The Hessian of the mean is that of the sum over m rows, divided by m.
    mean = Curvature(summed.Y * (1 / np.sqrt(one.s.size)), one.regularization)
    return np.asarray(moved + mean.inverse_quarter(b))
