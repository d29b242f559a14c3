"""Retraining from scratch on what remains: the exact answer that everything else is measured against."""

from dataclasses import dataclass

from benchmarks.baselines.linear import LinearModel, fitted, remaining, train_linear, without_nodes
from benchmarks.baselines.protocol import Nodes
from projector import ModelSpec
from projector.graph.graph import Graph


@dataclass(frozen=True, eq=False)
class Retrained(LinearModel):
    """The minimum of the paper's Eq. 1 on what remains."""

    def unlearn(self, nodes: Nodes) -> "Retrained":
        """w_u of the paper's Section 3.1: trained from zero on the graph without `nodes`."""
        live = without_nodes(self.live, nodes)
        found = train_linear(remaining(self.graph, nodes), self.spec)
        return Retrained(found.graph, found.spec, live, found.weights)


@dataclass(frozen=True)
class Retraining:
    """Forgets by training anew: the minimum of the paper's Eq. 1."""

    spec: ModelSpec

    def fit(self, graph: Graph, whole: Graph | None = None) -> Retrained:
        """As `Baseline.fit`, of a shard as of the `whole` graph: the minimum has no epochs to choose from."""
        found = fitted(graph, self.spec)
        return Retrained(found.graph, found.spec, found.live, found.weights)
