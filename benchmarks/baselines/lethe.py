"""Lethe itself: its projection, alone and followed by the repair, through the library's public names.

Also with adaptive diffusion, beside `RetrainedWithDiffusion`, which learns the edge weights again.
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
    #: Report of the last deletion; None before the first.
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
        """Project on all remaining nodes' features (the paper's Proposition 1), and repair if asked for."""
        model, report = self.model.forget(nodes=nodes, repair=self.repair)
        return Held(self.spec, model, self.repair, report)


@dataclass(frozen=True)
class Lethe:
    """Forgets by projection (the paper's Proposition 1). With `repair` it continues to the weights of retraining.

    Those are the minimum of the paper's Eq. 1 on the remaining graph. The repair reaches a relative bound of 1e-8,
    proven by |grad F| / lambda.
    """

    spec: ModelSpec
    repair: bool

    def fit(self, graph: Graph) -> Held:
        """As `Baseline.fit`."""
        check_linear(replace(self.spec, diffusion=False))
        return Held(self.spec, _fitted(graph, self.spec), self.repair)


@lru_cache(maxsize=2)
def _fitted(graph: Graph, spec: ModelSpec) -> Model:
    """Fit once for consecutive measurements on one graph. Forgetting returns another model and leaves this one
    unchanged.
    """
    if spec.loss is LossKind.SQUARED:
        # Without validation nodes it uses the same temperature as the other methods, so answers can be compared.
        graph = replace(graph, val_mask=np.zeros(graph.nodes, dtype=np.bool_))
    return fit(graph, spec)


@dataclass(frozen=True, eq=False)
class Diffused:
    """A `projector.Model` with diffusion, on the remaining graph."""

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
        """Train from zero, including sh and sz, on the graph without `nodes`."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        return Diffused(self.spec, fit(graph, self.spec), graph, live)


@dataclass(frozen=True)
class RetrainedWithDiffusion:
    """Forgets by retraining, with the adaptive diffusion of the paper's Section 3.4."""

    spec: ModelSpec

    def fit(self, graph: Graph) -> Diffused:
        """As `Baseline.fit`."""
        return Diffused(self.spec, fit(graph, self.spec), graph, np.ones(graph.nodes, dtype=np.bool_))
