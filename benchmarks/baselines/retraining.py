"""Retraining from scratch on the remaining graph: the exact reference for all other methods."""

from dataclasses import dataclass

from benchmarks.baselines.linear import LinearModel, fitted, remaining, train_linear, without_nodes
from benchmarks.baselines.protocol import Nodes
from projector import ModelSpec
from projector.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Retrained(LinearModel):
    """The minimum of the paper's Eq. 1 on the remaining graph."""

    def unlearn(self, nodes: Nodes) -> "Retrained":
        """w_u of the paper's Section 3.1: train from zero on the graph without `nodes`."""
        live = without_nodes(self.live, nodes)
        found = train_linear(remaining(self.graph, nodes), self.spec)
        return Retrained(found.graph, found.spec, live, found.weights)


@dataclass(frozen=True)
class Retraining:
    """Forgets by retraining: the minimum of the paper's Eq. 1."""

    spec: ModelSpec

    def fit(self, graph: Graph, whole: Graph | None = None) -> Retrained:
        """As `Baseline.fit`, for a shard as for the `whole` graph: the minimum has no epochs to choose from."""
        found = fitted(graph, self.spec)
        return Retrained(found.graph, found.spec, found.live, found.weights)
