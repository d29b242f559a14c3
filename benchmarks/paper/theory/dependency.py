"""How many nodes a deletion affects, as the number of layers grows (the paper's Figure 1 and Appendix on dependency).

Row i of P^L X depends on node j exactly if j is within L hops of i, so the deletion of a node affects the nodes within
L hops of it, itself included. The figure is the mean over all nodes of the graph, each deleted alone.
"""

import numpy as np
import scipy.sparse as sp

from benchmarks.paper.units import Cases, Unit
from projector.graph.graph import Graph

_LAYERS = 5
#: Number of nodes whose neighbourhoods are grown together.
_CHUNK = 1_024


def dependency(graph: Graph, unit: Unit) -> Cases:
    """Yield, for 1 to 5 layers, the mean number of nodes that the deletion of one node affects."""
    step = sp.csr_array(graph.adjacency, dtype=np.float32) + sp.eye_array(graph.nodes, dtype=np.float32, format="csr")
    totals = [0] * _LAYERS
    for start in range(0, graph.nodes, _CHUNK):
        deleted = np.arange(start, min(start + _CHUNK, graph.nodes))
        reached = np.zeros((graph.nodes, deleted.size), dtype=np.float32)
        reached[deleted, np.arange(deleted.size)] = 1
        for layer in range(_LAYERS):
            reached = (step @ reached > 0).astype(np.float32)
            totals[layer] += int(np.count_nonzero(reached))
    for layer, total in enumerate(totals, start=1):
        yield f"{layer} layers", {"affected": total / graph.nodes, "nodes": graph.nodes}
