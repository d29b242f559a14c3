"""How many nodes a deletion affects, as the number of layers grows (the paper's Figure 1 and Appendix on dependency).

Row i of P^L X depends on node j exactly if j is within L hops of i, so the deletion of a node affects the nodes within
L hops of it, itself included. The figure is the mean over all nodes of the graph, each deleted alone. On larger graphs
it is the mean over `MOST` nodes, which the seed draws.
"""

import numpy as np

from benchmarks.paper.units import Cases, Unit
from projector.graph.graph import Graph

_LAYERS = 5
#: Largest number of nodes that are deleted.
MOST = 20_000
#: Number of nodes whose neighbourhoods are grown together, one bit each.
_BITS, _CHUNK = 64, 1_024


def dependency(graph: Graph, unit: Unit) -> Cases:
    """Yield, for 1 to 5 layers, the mean number of nodes that the deletion of one node affects."""
    deleted = np.arange(graph.nodes)
    if graph.nodes > MOST:
        deleted = np.random.default_rng(unit.seed).choice(deleted, MOST, replace=False)
    indptr, ends = graph.adjacency.indptr, graph.adjacency.indices
    linked = np.flatnonzero(np.diff(indptr))
    totals = [0] * _LAYERS
    for start in range(0, deleted.size, _CHUNK):
        nodes = deleted[start : start + _CHUNK]
        reached = np.zeros((graph.nodes, _CHUNK // _BITS), dtype=np.uint64)
        place = np.arange(nodes.size)
        reached[nodes, place // _BITS] = np.uint64(1) << (place % _BITS).astype(np.uint64)
        for layer in range(_LAYERS):
            if linked.size:
                reached[linked] |= np.bitwise_or.reduceat(reached[ends], indptr[linked], axis=0)
            totals[layer] += int(np.bitwise_count(reached).sum())
    for layer, total in enumerate(totals, start=1):
        yield f"{layer} layers", {"affected": total / deleted.size, "nodes": graph.nodes}
