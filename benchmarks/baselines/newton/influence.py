"""Influence and Influence+: a Newton step that subtracts the deleted nodes' part of the loss (Guo et al., 2020).

w_u = w + H_r^-1 g_d, with H_r the Hessian on the remaining nodes and g_d the gradient on the deleted ones (the paper's
appendix "Details on baseline methods"). The model is trained with a linear term of random slope, L(w) + b w. The
Projector paper's appendix on dependency argues that this is not enough on a graph. Deleting a node also changes its
neighbours' rows of H, so their old part of the loss has to be subtracted and their new part added. Three readings:

* `DELETED`: Guo et al. for independent rows. Neighbours keep their old rows.
* `REPLACED`: the appendix' equation: sums over the affected nodes with old rows and, except for the deleted ones, with
  new rows. It defines v as the new gradient at the old weights, so that v + H (w_u - w) = 0, and then prints w_u = w +
  H^-1 v. The sign is wrong; w - H^-1 v is computed here. (The influence function above it lacks its inverse.)
* `REMOVED`: the authors' code while it was public. It subtracts the affected nodes' old part and adds nothing; the
  Hessian is that of the other rows. The affected nodes leave training for good, so this approximates training on fewer
  nodes than remain. The code also left out b, and the injected class's column of W; here all columns are updated.

If training found the optimum exactly and b = 0, `REPLACED` is one Newton step on the remaining graph, since v is then
the whole gradient there. The appendix says that nodes within L hops are affected. That holds for its D^-1 A. The model
uses D^-1/2 A D^-1/2, whose rows contain the degrees of neighbours, so a deletion reaches one hop further.
"""

from dataclasses import dataclass
from enum import Enum, auto

import numpy as np
from scipy.sparse.linalg import LinearOperator

from benchmarks.baselines.linear import (
    LinearModel,
    blocks_of,
    design,
    fitted,
    remaining,
    stacked,
    within_hops,
    without_nodes,
)
from benchmarks.baselines.newton.logistic import (
    OneAgainstRest,
    against_rest,
    check_one_against_rest,
    chosen,
    columns,
    minima,
    normal,
)
from benchmarks.baselines.protocol import Array, Nodes
from projector import ModelSpec
from projector.graph.graph import Graph
from projector.network.spec import PropagationKind


class Affected(Enum):
    """Treatment of training nodes that remain but whose rows change."""

    #: They keep their old rows.
    DELETED = auto()
    #: Their new rows replace the old ones.
    REPLACED = auto()
    #: They leave training as well.
    REMOVED = auto()


@dataclass(frozen=True, eq=False)
class InfluenceModel(LinearModel):
    """Weights trained with a linear term, and updated since."""

    affected: Affected
    #: Rows of H behind the weights, with their nodes: (m, p) and (m,).
    rows: Array | LinearOperator
    nodes: Nodes

    def unlearn(self, nodes: Nodes) -> "InfluenceModel":
        """Take one step for all of `nodes` together."""
        live, graph = without_nodes(self.live, nodes), remaining(self.graph, nodes)
        deleted = np.isin(self.nodes, nodes)
        if self.affected is Affected.REPLACED:
            changed = np.isin(self.nodes, np.flatnonzero(within_hops(self.graph, nodes, reach(self.spec))))
        elif self.affected is Affected.REMOVED:
            # The authors' code takes all nodes within L hops, whatever the normalisation.
            deleted = np.isin(self.nodes, np.flatnonzero(within_hops(self.graph, nodes, self.spec.hops)))
            changed = deleted
        else:
            changed = deleted
        kept = self.nodes[~deleted]
        again = changed[~deleted]
        rows = design(graph, self.spec, kept) if again.any() else chosen(self.rows, ~deleted)
        labels, W = self.graph.labels, stacked(self.weights)
        before = self._problems(chosen(self.rows, changed), labels[self.nodes[changed]])
        after = self._problems(chosen(rows, again), labels[kept[again]])
        remain = self._problems(rows, labels[kept])
        found = (
            w + whole.curvature(w).solve(old.gradient(w) - new.gradient(w))
            for w, old, new, whole in zip(W.T, before, after, remain, strict=True)
        )
        weights = blocks_of(columns(found), self.spec)
        return InfluenceModel(graph, self.spec, live, weights, self.affected, rows, kept)

    def _problems(self, rows: Array | LinearOperator, labels: Nodes) -> list[OneAgainstRest]:
        return against_rest(rows, labels, self.graph.num_classes, self.spec.regularization)


@dataclass(frozen=True)
class Influence:
    """Forgets by an influence function. `noise` is the standard deviation of each entry of b."""

    spec: ModelSpec
    affected: Affected
    noise: float = 0.0
    seed: int = 0

    def fit(self, graph: Graph) -> InfluenceModel:
        """Minimise L(w) + b w for every class. Raises BaselineError if the loss is not `ovr`."""
        check_one_against_rest(self.spec)
        nodes = np.flatnonzero(graph.train_mask)
        rows = design(graph, self.spec, nodes)
        W = stacked(fitted(graph, self.spec).weights)
        classes = against_rest(rows, graph.labels[nodes], graph.num_classes, self.spec.regularization)
        weights = blocks_of(minima(classes, W, normal(self.noise, self.seed, W.shape)), self.spec)
        everyone = np.ones(graph.nodes, dtype=np.bool_)
        return InfluenceModel(graph, self.spec, everyone, weights, self.affected, rows, nodes)


def reach(spec: ModelSpec) -> int:
    """Return the distance in hops up to which a deletion changes rows of H."""
    return spec.hops if spec.propagation is PropagationKind.ROW else spec.hops + 1
