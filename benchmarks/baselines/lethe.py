"""Lethe itself: its projection, alone and followed by the repair, through the library's public names.

With adaptive diffusion as well, and then beside `RetrainedWithDiffusion`, which learns its weights of edges anew.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines.linear import check_linear, logits, probabilities, remaining, without_nodes
from benchmarks.baselines.protocol import Array, Nodes
from projector import Model, ModelSpec, Report, fit
from projector.graph.graph import Graph
from projector.network.spec import LossKind


@dataclass(frozen=True, eq=False)
class Held:
    """A `projector.Model`."""

    spec: ModelSpec
    model: Model
    repair: bool
    #: What the last deletion did; None before the first.
    report: Report | None = None

    @property
    def weights(self) -> Array:
        """As `Trained.weights`."""
        return self.model.weights

    def predict(self) -> Array:
        """As `Trained.predict`."""
        return self.model.predict()

    def predict_on(self, graph: Graph) -> Array | None:
        """As `Trained.predict_on`."""
        if self.spec.diffusion:
            return None
        return probabilities(logits(graph, self.spec, self.weights), self.spec.loss)

    def unlearn(self, nodes: Nodes) -> "Held":
        """The projection of the paper's Proposition 1 on all remaining nodes' features, and the repair if asked for."""
        model, report = self.model.forget(nodes=nodes, repair=self.repair)
        return Held(self.spec, model, self.repair, report)


@dataclass(frozen=True)
class Lethe:
    """Forgets by projection (the paper's Proposition 1); with `repair` on to the weights of retraining.

    To the minimum of its Eq. 1 on what remains, to a relative bound of 1e-8 that is proven by |grad F| / lambda.
    """

    spec: ModelSpec
    repair: bool

    def fit(self, graph: Graph) -> Held:
        """As `Baseline.fit`."""
        check_linear(replace(self.spec, diffusion=False))
        return Held(self.spec, _fitted(graph, self.spec), self.repair)


@lru_cache(maxsize=2)
def _fitted(graph: Graph, spec: ModelSpec) -> Model:
    """The model, once for what is measured on one graph in a row: forgetting makes another and leaves it as it is."""
    if spec.loss is LossKind.SQUARED:
        # Without validation nodes the temperature is that of all others here, so that answers can be compared.
        graph = replace(graph, val_mask=np.zeros(graph.nodes, dtype=np.bool_))
    return fit(graph, spec)


@dataclass(frozen=True, eq=False)
class Diffused:
    """A `projector.Model` with diffusion, on what remains of a graph."""

    spec: ModelSpec
    model: Model
    graph: Graph
    live: NDArray[np.bool_]

    @property
    def weights(self) -> Array:
        """As `Trained.weights`."""
        return self.model.weights

    def predict(self) -> Array:
        """As `Trained.predict`."""
        return np.where(self.live[:, None], self.model.predict(), 0.0)

    def predict_on(self, graph: Graph) -> None:
        """As `Trained.predict_on`."""
        return

    def unlearn(self, nodes: Nodes) -> "Diffused":
        """Trained from zero, sh and sz too, on the graph without `nodes`."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        return Diffused(self.spec, fit(graph, self.spec), graph, live)


@dataclass(frozen=True)
class RetrainedWithDiffusion:
    """Forgets by training anew, with the adaptive diffusion of the paper's Section 3.4."""

    spec: ModelSpec

    def fit(self, graph: Graph) -> Diffused:
        """As `Baseline.fit`."""
        return Diffused(self.spec, fit(graph, self.spec), graph, np.ones(graph.nodes, dtype=np.bool_))
