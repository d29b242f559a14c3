"""Test accuracy as more training nodes are deleted, at random (the paper's Figure 4) or by degree (its Table 4).

The paper draws Figure 4 for ogbn-arxiv and Table 4 for Flickr and Reddit, which are not available here. Both are
measured on the available graphs. Table 4's networks are sampled by ShaDow to fit a GPU; the networks here see the whole
neighbourhood. The authors' notebook draws Figure 4 with adaptive diffusion and without it.
"""

from dataclasses import replace

import numpy as np

from benchmarks.baselines.catalogue import build
from benchmarks.baselines.protocol import Nodes, accuracy
from benchmarks.paper.setting import forgotten, spec_of
from benchmarks.paper.units import Cases, Unit
from projector.graph.graph import Graph
from projector.network.spec import Combine

#: Deleted share of the training nodes.
_SHARES = (0.01, 0.02, 0.05, 0.10, 0.20)
#: The paper's "dense" nodes are those of largest degree.
DENSE, SPARSE = "dense nodes", "sparse nodes"


def robustness(graph: Graph, unit: Unit) -> Cases:
    """Delete 1, 2, 5, 10 and 20 % of the training nodes; each share includes the smaller ones."""
    order = np.random.default_rng(unit.seed).permutation(np.flatnonzero(graph.train_mask))
    yield from _accuracies(graph, unit, {f"{share:g}": _first(order, share) for share in _SHARES})


def degrees(graph: Graph, unit: Unit) -> Cases:
    """Delete 10 % of the training nodes, of largest and of smallest degree; the seed orders equal degrees."""
    order = by_degree(graph, unit.seed)
    yield from _accuracies(graph, unit, {DENSE: _first(order[::-1], 0.10), SPARSE: _first(order, 0.10)})


def by_degree(graph: Graph, seed: int) -> Nodes:
    """Return the training nodes by ascending degree, equal ones in random order."""
    drawn = np.random.default_rng(seed).permutation(np.flatnonzero(graph.train_mask))
    return np.asarray(drawn[np.argsort(np.diff(graph.adjacency.indptr)[drawn], kind="stable")])


def _first(order: Nodes, share: float) -> Nodes:
    return np.sort(order[: max(1, round(share * order.size))])


def _accuracies(graph: Graph, unit: Unit, deletions: dict[str, Nodes]) -> Cases:
    """Yield the test accuracy after each of `deletions` from the whole graph."""
    # The paper's linear GNN here has all hops side by side. Networks ignore this.
    spec = replace(spec_of(unit.dataset, unit.method), combine=Combine.CONCAT)
    fitted = build(unit.method, spec, unit.seed, spec.regularization).fit(graph)
    before = accuracy(fitted.predict(), graph, graph.test_mask)
    for case, nodes in deletions.items():
        left, seconds = forgotten(fitted, nodes)
        after = accuracy(left.predict(), graph, graph.test_mask)
        found = {"nodes": nodes.size, "accuracy_before": before, "accuracy_after": after, "seconds": seconds}
        yield case, {**found}
