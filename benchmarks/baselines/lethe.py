"""Lethe itself: its projection, alone and followed by the repair, through the library's public names."""

from dataclasses import dataclass

from benchmarks.baselines.linear import check_linear
from benchmarks.baselines.protocol import Array, Nodes
from projector import Model, ModelSpec, Report, fit
from projector.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Held:
    """A `projector.Model`."""

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

    def unlearn(self, nodes: Nodes) -> "Held":
        """The projection of the paper's Proposition 1 on all remaining nodes' features, and the repair if asked for."""
        model, report = self.model.forget(nodes=nodes, repair=self.repair)
        return Held(model, self.repair, report)


@dataclass(frozen=True)
class Lethe:
    """Forgets by projection; with `repair` on to the weights of retraining, to a proven relative bound of 1e-8."""

    spec: ModelSpec
    repair: bool

    def fit(self, graph: Graph) -> Held:
        """As `Baseline.fit`."""
        check_linear(self.spec)
        return Held(fit(graph, self.spec), self.repair)
